"""File systems in which little room is left: by their size, or by a quota."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

Resize = Callable[[str], None]
"""Gives a file system another size, e.g. `50M`."""


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Resize]:
    """A file system of a size at `folder`, which all jobs see."""
    _mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    try:
        yield lambda more: _ran("mount", "-o", f"remount,size={more}", str(folder))
    finally:
        _ran("umount", "--lazy", str(folder))


@contextmanager
def small_quota(folder: Path, size: str) -> Iterator[Resize]:
    """A file system of 128 MiB at `folder`, of which a quota allows a size.

    Btrfs has quotas of its own; those of ext4 and XFS are options of the kernel, which few machines for tests have.
    """
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("not installed: mkfs.btrfs (Debian: btrfs-progs)")
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(128 * 2**20)
    _ran("mkfs.btrfs", "--quiet", str(image))
    _mounted(folder, "-o", "loop", str(image))

    def resize(more: str) -> None:
        _ran("btrfs", "qgroup", "limit", more, str(folder))

    try:
        _ran("btrfs", "quota", "enable", str(folder))
        resize(size)
        yield resize
    finally:
        _ran("umount", "--lazy", str(folder))
        image.unlink()


def fill(file: Path) -> None:
    """Write a file until there is no more room."""
    with file.open("wb", buffering=0) as written, suppress(OSError):
        while True:
            written.write(bytes(4096))


def _mounted(folder: Path, *words: str) -> None:
    folder.mkdir()
    if subprocess.run(["mount", *words, str(folder)], capture_output=True).returncode:
        pytest.skip("nothing of the kind may be mounted here")


def _ran(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
