"""CONTRIBUTING.md names what is there: the ten changes' files, folders, targets; folders say what they may import."""

from __future__ import annotations

import ast
import re

import pytest

from tests.release.distribution import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CHANGES = re.findall(r"^\| (an? [^|]+) \| ([^|]+) \| ([^|]+) \|$", TEXT, re.MULTILINE)
FOLDERS = re.findall(r"^\| `([a-z_/]+/)` \|", TEXT, re.MULTILINE)
PACKAGES = sorted(
    path for package in ("trainables", "sweeper", "search_spaces") for path in (ROOT / package).rglob("__init__.py")
)


def test_there_are_ten_changes_of_two_files_at_the_most() -> None:
    assert len(CHANGES) == 10
    for change, files, _ in CHANGES:
        assert len([part for part in files.split(", ") if part]) <= 2, change


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_the_files_of_a_change_are_there(change: tuple[str, str, str]) -> None:
    for path in re.findall(r"`([^`]+)`", change[1]):
        place = ROOT / path
        if "<" in path:
            assert len(list(place.parent.glob(f"*{place.suffix}"))) > 1, path
        else:
            assert place.is_file() or (ROOT / "sweeper" / "sinks" / path).is_file(), path


def test_folders_and_targets_are_there() -> None:
    assert len(FOLDERS) >= 8 and all((ROOT / folder).is_dir() for folder in FOLDERS)
    named = {word for line in re.findall(r"\bmake ([a-z -]+)", TEXT) for word in line.split()}
    targets = set(re.findall(r"^([a-z][a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"test", "check", "fuzz"} <= named & targets


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.relative_to(ROOT).as_posix())
def test_a_package_says_what_it_may_import(path) -> None:  # type: ignore[no-untyped-def]
    said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    assert re.search(r"\b[Ii]mports?\b", said), f"{path} does not say what its modules may import"
