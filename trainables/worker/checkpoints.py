"""Checkpoints on disk: whole or absent, checked and loaded without running code, the newest sound one wins."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from trainables.files.atomic import replacing

_NAME = re.compile(r"e(\d{5,})\.pt")


def checkpoint_file(folder: Path, epoch: int) -> Path:
    """Return the path of the checkpoint after `epoch` epochs."""
    return folder / f"e{epoch:05d}.pt"


def replicate_folder(folder: Path, replicate: int) -> Path:
    """Return the folder, below the trial's, of a replicate that is trained in a separate process."""
    return folder / f"r{replicate}"


def checkpoint_epochs(folder: Path) -> list[int]:
    """Return the epochs that have a checkpoint in `folder`, newest first."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), reverse=True)


def write_checkpoint(folder: Path, epoch: int, state: Mapping[str, Any]) -> Path:
    """Write a checkpoint under a temporary name and rename it, so that its final name never holds half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = checkpoint_file(folder, epoch)
    with replacing(path) as temporary, temporary.open("wb") as file:
        # By its path torch would call the archive inside after the file, and refuses a name that is all suffix.
        save_state(state, file)
    return path


def save_state(state: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write a state as torch does. Raises OSError where the file takes no more, which torch words otherwise."""
    told = _Told(file)
    try:
        torch.save(dict(state), told)  # type: ignore[arg-type]  # it needs no more of a file than this has
    except RuntimeError as error:
        # "unexpected pos 62336 vs 62264": closing the archive hides why a part of it could not be written.
        if told.refused is None:
            raise
        raise told.refused from error


class _Told:
    """A file that remembers why it took no more."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.refused: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.refused = error
            raise

    def flush(self) -> None:
        self._file.flush()


def load_newest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that is sound, or `None`. A damaged one is quarantined as `.damaged`.

    Tensors are loaded on the CPU, and whoever restores them places them: an optimiser keeps its count of steps there,
    where reading it does not wait for a card.
    Nothing but tensors and plain values is ever loaded (`weights_only=True`). Running out of memory is no damage:
    it is raised, and the checkpoint stays.
    """
    for epoch in checkpoint_epochs(folder):
        state = _loaded(checkpoint_file(folder, epoch))
        if state is not None:
            return state
    return None


def _loaded(path: Path) -> dict[str, Any] | None:
    """Return what a file holds; `None` where it was damaged and is quarantined now."""
    try:
        _check(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:
        # torch reports a damaged file as any of a dozen types, depending on where the damage is.
        path.replace(path.with_suffix(".damaged"))
        return None


def _check(path: Path) -> None:
    """Raise zipfile.BadZipFile when a part of the file does not match its checksum.

    torch writes checksums and does not look at them when it loads: a flipped bit would become a wrong weight.
    """
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"{path}: {damaged} does not match its checksum")


PARTIAL = "partial.pt"
"""The checkpoint in the middle of an epoch: one for a trial, replaced by the next, removed at the epoch's own."""


def write_partial(folder: Path, state: Mapping[str, Any]) -> Path:
    """Write the checkpoint in the middle of an epoch, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PARTIAL
    with replacing(path) as temporary, temporary.open("wb") as file:
        torch.save(dict(state), file)
    return path


def load_partial(folder: Path) -> dict[str, Any] | None:
    """Return the checkpoint in the middle of an epoch, unless a later epoch has one; `None` where there is none.

    A damaged one is quarantined, as others are.
    """
    path = folder / PARTIAL
    state = _loaded(path) if path.is_file() else None
    newest = next(iter(checkpoint_epochs(folder)), 0)
    return state if state is not None and state["epoch"] >= newest else None


def remove_checkpoints_before(folder: Path, epoch: int) -> None:
    """Remove the checkpoints of epochs below `epoch`."""
    for older in checkpoint_epochs(folder):
        if older < epoch:
            checkpoint_file(folder, older).unlink(missing_ok=True)
