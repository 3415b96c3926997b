"""`make gallery`: write live reports for the site into build/gallery/pages, and run the sweeps that are missing.

    python -m docs.writing.gallery [--no-run]

Pages share one copy of Vega's script, which every report.html contains; chromium, if installed, takes pictures. Without
`--no-run` it takes about forty minutes on two cores. Exit status 1 if a page is missing or all together are too large.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sweeper.reporting.figures.drawing import javascript

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "gallery"
RESULTS, PAGES = FOLDER / "results", FOLDER / "pages" / "gallery"
LIMIT = 20 * 2**20
"""Most bytes of all pages together, so that a phone can load the site."""


@dataclass(frozen=True)
class Entry:
    """A page of the gallery.

    Attributes:
        name: name of its file.
        command: command that makes it: `run SPACE` or `paper NAME`.
        title: heading on the site.
        about: content of the page, in a phrase.
    """

    name: str
    command: str
    title: str
    about: str

    @property
    def made(self) -> Path:
        """The page that the command writes."""
        verb, what, *_ = self.command.split()
        return RESULTS / (f"paper-{what}.html" if verb == "paper" else f"{Path(what).name}/report.html")


ENTRIES = (
    Entry("quickstart", "run quickstart", "Quickstart", "three losses on two networks, with fresh seeds for the best"),
    Entry(
        "fashion_mnist",
        "run tutorials/gamma_per_network",
        "Fashion-MNIST: which γ",
        "five γ on two networks, all else equal",
    ),
    Entry(
        "label_noise",
        "run tutorials/coverage_under_label_noise",
        "Label noise",
        "the share of wrong labels is an axis like any other",
    ),
    Entry(
        "shift",
        "run tutorials/corrupted_test_set",
        "Corrupted test set",
        "calibration over severity, with the temperature of clean data",
    ),
    Entry(
        "curvature",
        "run tutorials/curvature_and_calibration",
        "Curvature",
        "λ_max and trace beside calibration, for γ and sharpness-aware steps",
    ),
    Entry(
        "claim",
        "run claim_flipped_labels",
        "A paper's claim, judged",
        "a verdict by a rule that was fixed before looking",
    ),
    Entry(
        "paper",
        "paper mukhoti --no-run",
        "A paper",
        "every table and figure of one paper; cells stay empty until a sweep has followed the recipe behind them",
    ),
)


def make(entry: Entry, *, run: bool) -> Path | None:
    """Make a page unless it exists; return its copy in the gallery, `None` if it could not be made."""
    if run and not entry.made.is_file():
        again = ["--continue"] if entry.command.startswith("run ") else []
        words = [sys.executable, "-m", "sweeper", *entry.command.split(), *again]
        subprocess.run([*words, "--output", str(RESULTS), "--no-mlflow"], cwd=ROOT, check=False)
    if not entry.made.is_file():
        return None
    page = entry.made.read_text("utf-8").replace(f"<script>{javascript()}</script>", '<script src="vega.js"></script>')
    target = PAGES / f"{entry.name}.html"
    # Links to files of the results folder would be dead on the site.
    target.write_text(without_dead_links(page), "utf-8")
    return target


def without_dead_links(page: str) -> str:
    """Return a page with plain text in place of links to its results folder, which is not published."""
    return re.sub(r'<a\b[^>]*\bhref="(?!#|https?:|data:|mailto:)[^"]*"[^>]*>(.*?)</a>', r"\1", page, flags=re.DOTALL)


def picture(page: Path) -> None:
    """Take a picture of a page's top with chromium, if it is installed and takes less than a minute."""
    browser = shutil.which("chromium")
    if browser is None:
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, suppress(subprocess.TimeoutExpired):
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={profile}"]
        wait = ["--window-size=1000,640", "--timeout=6000", f"--screenshot={page.with_suffix('.png')}"]
        subprocess.run([browser, *options, *wait, page.as_uri()], check=False, capture_output=True, timeout=60)


def listing() -> str:
    """Return the site's gallery page: its reports, or how to make them."""
    parts = [
        "# Gallery",
        "Live reports, each the one file that a sweep writes: pictures, tables, and the SQL of every figure. Hover, "
        "zoom and unfold them as you would your own.",
    ]
    made = [entry for entry in ENTRIES if (PAGES / f"{entry.name}.html").is_file()]
    for entry in made:
        shown = f'<img src="../gallery/{entry.name}.png" alt="" style="border: 1px solid #8884; max-width: 100%">'
        image = f"{shown}<br>" if (PAGES / f"{entry.name}.png").is_file() else ""
        link = f'<a href="../gallery/{entry.name}.html">{image}Open the report</a>'
        parts += [f"## {entry.title}", f"{entry.about.capitalize()}: `sweeper {entry.command}`.", f"<p>{link}</p>"]
    if not made:
        parts.append("This site was built without it. `make gallery` runs its sweeps, and `make docs` adds the pages.")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Make every page."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    (PAGES / "vega.js").write_text(javascript(), "utf-8")
    missing = []
    for entry in ENTRIES:
        page = make(entry, run="--no-run" not in sys.argv)
        if page is None:
            missing.append(entry.name)
        else:
            picture(page)
    size = sum(path.stat().st_size for path in PAGES.iterdir())
    print(f"{len(ENTRIES) - len(missing)} pages, {size / 2**20:.1f} MiB: {PAGES}")
    if missing or size > LIMIT:
        raise SystemExit(f"missing: {', '.join(missing) or 'none'}; at most {LIMIT >> 20} MiB")


if __name__ == "__main__":
    main()
