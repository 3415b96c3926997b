"""Only regular files are opened: nothing waits at a pipe, follows a link or reads a folder."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from trainables.files.atomic import IrregularFileError, kept_choice, open_regular, read_bytes, read_text
from trainables.files.locks import file_lock


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    path.symlink_to(path.with_name("precious"))


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


ODD = [pipe, folder, link, loop, device, listener]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, os.O_WRONLY | os.O_TRUNC]
)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, odd: Callable[[Path], None], flags: int) -> None:
    (tmp_path / "precious").write_text("as it was")
    odd(tmp_path / "f")
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(IrregularFileError, match="not a regular file"):
        open_regular(tmp_path / "f", flags)
    assert len(os.listdir("/proc/self/fd")) == opened
    assert (tmp_path / "precious").read_text() == "as it was"


@pytest.mark.parametrize("odd", ODD)
def test_locks_and_kept_answers_refuse_it_too(tmp_path: Path, odd: Callable[[Path], None]) -> None:
    (tmp_path / "precious").write_text("as it was")
    odd(tmp_path / "lock")
    with pytest.raises(IrregularFileError), file_lock(tmp_path / "lock"):
        pass
    assert kept_choice(tmp_path, '"key"', lambda: "measured") == "measured"
    (kept,) = tmp_path.glob("*.json")
    kept.unlink()
    odd(kept)
    assert kept_choice(tmp_path, '"key"', lambda: "again") == "again"
    assert (tmp_path / "precious").read_text() == "as it was"


def test_files_are_read_written_and_limited(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(FileNotFoundError):
        read_bytes(path)
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb") as file:
        file.write("γ\n".encode())
    assert read_text(path) == "γ\n" and read_bytes(path, 3) == "γ\n".encode()
    with pytest.raises(OSError, match="larger than 2 bytes"):
        read_bytes(path, 2)
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(b"\xff")
    assert read_text(path, "replace") == "\N{REPLACEMENT CHARACTER}"
