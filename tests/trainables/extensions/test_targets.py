"""Where import paths are looked up, and that the module search path is left as it was found."""

from __future__ import annotations

import importlib
import io
import sys
import tempfile
import zipfile

import pytest

from trainables.extensions.code import take_up
from trainables.extensions.targets import import_target, look_first_in, look_in
from trainables.registry import ExtensionError


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
    look_first_in(two[0], ["place_1"], [two[1]])
    assert import_target("place_1:found") == 1
    look_in([])
    assert sys.path == before


def _begun(folder):
    (folder / "journal").mkdir(parents=True)
    (folder / "sweep.yaml").write_text("samples: 1\n")
    return folder


def test_a_results_folder_is_never_looked_in(tmp_path):
    """Whoever resumes a folder from somebody else may stand inside it."""
    received = _begun(tmp_path / "received")
    (received / "deeper").mkdir()
    for folder in (received, received / "deeper"):
        (folder / "payload.py").write_text("found = 1\n")
        look_in([folder])
        with pytest.raises(ExtensionError, match="no module 'payload'"):
            import_target("payload:found")
    look_in([])


def test_a_module_inside_a_results_folder_is_refused_unseen(tmp_path):
    received = _begun(tmp_path / "results" / "received")
    (received / "payload.py").write_text("import pathlib\npathlib.Path(__file__).with_name('caught').touch()\n")
    look_in([tmp_path])
    with pytest.raises(ExtensionError, match="lies in a results folder, from which nothing is imported"):
        import_target("results.received.payload:load")
    assert not (received / "caught").exists()
    look_in([])


def test_a_file_called_as_an_installed_package_takes_nothings_place(tmp_path):
    """Of an archive, components and their helpers come first, and no `torch.py` beside them."""
    for name in ("mine", "helper", "yaml", "colorsys"):
        (tmp_path / f"{name}.py").write_text(
            "import helper\nfound = 'planted'\n" if name == "mine" else "planted = 1\n"
        )
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for path in tmp_path.glob("*.py"):
            archive.write(path, path.name)
    for name in ("yaml", "colorsys"):
        sys.modules.pop(name, None)
    take_up(held.getvalue(), ["mine:found"])
    assert import_target("mine:found") == "planted"
    assert not hasattr(importlib.import_module("yaml"), "planted")
    assert not hasattr(importlib.import_module("colorsys"), "planted")
    look_in([])
    assert not any(str(path).startswith(tempfile.gettempdir() + "/sweeper-ext") for path in sys.path)
