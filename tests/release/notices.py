"""`make notices`: what an installation brings along, and under which licence, as Markdown on stdout."""

import json
import re
import subprocess
import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HEADING = """# Third-party notices

The calibration sweeper is distributed without any of the packages below: pip installs them beside it, each under its
own licence, whose text lies in the package's `dist-info` folder. Made by `make notices` from what the package needs
without its extras, at the versions of `constraints.txt`; a CUDA build of torch adds NVIDIA's packages under NVIDIA's
terms. `report.html` contains Vega, Vega-Lite and Vega-Embed (BSD-3-Clause, University of Washington Interactive Data
Lab and contributors) with D3 (ISC, Mike Bostock), as vl-convert-python bundles them.

Search spaces are written after the papers that they name; the numbers in `search_spaces/papers/published/` are those
papers', cited cell by cell. The handwritten digits come with scikit-learn (UCI Machine Learning Repository, CC BY 4.0:
E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, 1998).

| package | version | licence | author |
|---|---|---|---|
"""
COLUMNS = ("Name", "Version", "License", "Author")
OURS = "calibration-sweeper"
OF_CARDS = ("nvidia", "cuda", "triton")
READ = {"huey": "MIT", "skops": "MIT", "vl-convert-python": "BSD-3-Clause"}
"""Licences that a package's metadata do not state, read in its `dist-info/licenses/LICENSE`."""


def needed(package: str = OURS) -> set[str]:
    """Return the names of all that a package needs, directly or not, but for what a CUDA build of torch adds."""
    waiting, found = [Requirement(package)], set[tuple[str, frozenset[str]]]()
    while waiting:
        wanted = waiting.pop()
        key = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if key in found:
            continue
        found.add(key)
        if key[0].startswith(OF_CARDS):
            continue
        for line in metadata.requires(wanted.name) or []:
            further = Requirement(line)
            extras = wanted.extras or {""}
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(further)
    return {name for name, _ in found if not name.startswith(OF_CARDS)} - {canonicalize_name(package)}


def table() -> str:
    """Return the notices."""
    command = [sys.executable, "-m", "piplicenses", "--from=mixed", "--format=json", "--with-authors", "--with-system"]
    done = subprocess.run(
        [*command, "--packages", *sorted(needed())], capture_output=True, text=True, check=True, timeout=600
    )
    rows = sorted(json.loads(done.stdout), key=lambda row: row["Name"].lower())
    for row in rows:
        if row["License"] == "UNKNOWN":
            row["License"] = READ.get(row["Name"], row["License"])
    return HEADING + "\n".join(f"| {' | '.join(_cell(row[key]) for key in COLUMNS)} |" for row in rows)


def _cell(text: str) -> str:
    """Return a cell's text: one line without addresses, and of a licence given in full its title."""
    words = " ".join(re.sub(r"<[^>]*>", "", text).split()).replace("|", "\\|").replace("UNKNOWN", "not stated")
    return words if len(words) <= 80 else f"{words[:77].rstrip()}…"


if __name__ == "__main__":
    print(table())
