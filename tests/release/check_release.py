"""`make release-check`: versions agree everywhere, the changelog has its section, distributions and SBOM are whole.

    python -m tests.release.check_release [dist]

Without `dist` only the sources are looked at, which the default tests do, too. On a tagged commit, the tag must be the
version's. Exit status 1 with one line for each fault.
"""

import email
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.release.distribution import ROOT

VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
IMAGE = re.compile(r"calibration-sweeper(?:-mlflow)?(?::|, newTag: )(\d+(?:\.\w+)+)")


def source_faults(root: Path = ROOT) -> Iterator[str]:
    """Yield what does not agree with the version of `pyproject.toml`: citation, changelog, images, tag."""
    cited = yaml.safe_load((root / "CITATION.cff").read_text("utf-8"))
    if cited["version"] != VERSION:
        yield f"CITATION.cff says {cited['version']}, pyproject.toml {VERSION}"
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    found = re.search(r"^## (\S+) \(([^)]*)\)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or found[1] != VERSION or not found[3].strip():
        yield f"CHANGELOG.md does not begin with a section on {VERSION}"
    elif ".dev" not in VERSION and found[2] != str(cited.get("date-released")):
        yield f"CHANGELOG.md dates {VERSION} {found[2]}, CITATION.cff {cited.get('date-released')}"
    for path in sorted((root / "deploy").rglob("*.yaml")):
        others = set(IMAGE.findall(path.read_text("utf-8"))) - {VERSION}
        yield from (f"{path.name} names an image of {other}, not of {VERSION}" for other in sorted(others))
    asked = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    tags = set(subprocess.run(asked, cwd=root, capture_output=True, text=True, timeout=60).stdout.split())
    if tags and f"v{VERSION}" not in tags:
        yield f"this commit is tagged {', '.join(sorted(tags))}, its version is {VERSION}"


def distribution_faults(dist: Path) -> Iterator[str]:
    """Yield what is wrong with wheel, source distribution and bill of materials in `dist`."""
    for kind, pattern in (("wheel", "*.whl"), ("source distribution", "*.tar.gz")):
        found = sorted(dist.glob(pattern))
        if len(found) != 1 or f"-{VERSION}" not in found[0].name:
            yield f"{dist} should hold one {kind} of {VERSION}, and holds {[path.name for path in found]}"
            continue
        metadata = email.message_from_bytes(_metadata(found[0]))
        if metadata["Version"] != VERSION or metadata["License-Expression"] != "MIT":
            yield f"{found[0].name} says version {metadata['Version']}, licence {metadata['License-Expression']}"
    bill = dist / "sbom.cdx.json"
    components = json.loads(bill.read_text("utf-8")).get("components", []) if bill.is_file() else []
    if not {"torch", "ray", "mlflow-skinny"} <= {each["name"].lower() for each in components}:
        yield f"{bill} does not list what an installation brings"
    if any(not each.get("version") for each in components):
        yield f"{bill} has components without a version"


def _metadata(archive: Path) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as held:
            return held.read(next(name for name in held.namelist() if name.endswith(".dist-info/METADATA")))
    with tarfile.open(archive) as held:
        file = held.extractfile(next(name for name in held.getnames() if name.count("/") == 1 and "PKG-INFO" in name))
        assert file is not None
        return file.read()


def main() -> None:
    """Print every fault, or that there is none."""
    dist = [Path(place) for place in sys.argv[1:]]
    faults = [*source_faults(), *(fault for place in dist for fault in distribution_faults(place))]
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        raise SystemExit(1)
    print(f"release {VERSION}: versions, changelog{', distributions and bill of materials' if dist else ''} agree")


if __name__ == "__main__":
    main()
