"""The search space files that ship with the project, one a question."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def packaged_files() -> dict[str, Path]:
    """Return the shipped search space files by name: `{"quickstart": …/quickstart.yaml}`."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def locate(path: str | Path) -> Path:
    """Return the file meant by `path`: itself if it exists, else the shipped file of that name, else `path`."""
    given = Path(path)
    shipped = packaged_files()
    if given.name == str(path) and not given.exists():
        return shipped.get(given.name.removesuffix(".yaml"), given)
    return given
