"""Where import paths are looked up, and that the module search path is left as it was found."""

from __future__ import annotations

import sys

import pytest

from trainables.extensions.targets import import_target, look_first_in, look_in


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two folders: the first on the module search path already, the second not."""
    folders = [tmp_path / name for name in ("there_before", "new")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / f"place_{number}.py").write_text(f"found = {number}\n")
    monkeypatch.syspath_prepend(folders[0])
    yield folders
    look_in([])


def test_only_what_was_added_is_taken_back(two):
    """A program's own folder stays importable after a space that names it was read."""
    before = list(sys.path)
    look_in(two)
    assert [import_target(f"place_{number}:found") for number in (0, 1)] == [0, 1]
    assert sys.path == [*before, str(two[1])]
    look_in([])
    assert sys.path == before


def test_a_folder_looked_in_first_is_taken_back_once(two):
    before = list(sys.path)
    look_first_in(two[0], [two[1]])
    assert import_target("place_1:found") == 1
    look_in([])
    assert sys.path == before
