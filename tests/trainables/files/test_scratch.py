"""Temporary folders go with their process: at its end, or, where it was killed, when the next such folder is made."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from trainables.files.locks import NEW_SECONDS, Scratch

HOLDER = """
import sys
from trainables.files.locks import Scratch
scratch = Scratch("sweeper-test-")
(scratch.path / "file").write_text("kept")
print(scratch.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def grow_old(folder: Path) -> None:
    past = time.time() - NEW_SECONDS - 5
    os.utime(folder, (past, past))


def test_it_is_removed_with_the_context_or_the_object(temporary: Path) -> None:
    with Scratch("sweeper-test-") as folder:
        (folder / "file").touch()
        assert folder.parent == temporary
    scratch = Scratch("sweeper-test-")
    del scratch
    assert not list(temporary.iterdir())


def test_what_a_killed_process_left_is_removed_and_a_living_ones_is_not(temporary: Path) -> None:
    processes, folders = [], []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        folders.append(Path(process.stdout.readline().strip()))
        processes.append(process)
    living, dead = processes
    try:
        dead.kill()
        dead.wait()
        with Scratch("sweeper-test-"):
            assert all(folder.is_dir() for folder in folders), "young ones may be about to be locked"
        for folder in folders:
            grow_old(folder)
        with Scratch("sweeper-other-"):
            assert all(folder.is_dir() for folder in folders), "others' kinds are others' business"
        with Scratch("sweeper-test-"):
            assert (folders[0] / "file").read_text() == "kept"
            assert not folders[1].exists()
    finally:
        living.communicate("")
    assert not list(temporary.iterdir())


def test_links_and_files_of_such_a_name_are_left_alone(temporary: Path) -> None:
    kept = temporary / "kept"
    kept.mkdir()
    (temporary / "sweeper-test-link").symlink_to(kept)
    (temporary / "sweeper-test-file").touch()
    grow_old(kept)
    with Scratch("sweeper-test-"):
        assert kept.is_dir() and len(list(temporary.iterdir())) == 4
