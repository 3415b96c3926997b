"""Checkpoints: whole or absent, loaded without running code, the newest sound one wins; where they lie, and when.

A trial's process leaves its files in folders that the driver sees too, or, by way of scratch, in a store: there a file
is written on the trial's own machine and then put as one object under its final name; the local copy is removed. A
trial that continues elsewhere fetches its checkpoints from there.
"""

from __future__ import annotations

import os
import re
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from trainables.files.atomic import replacing
from trainables.files.locks import Scratch
from trainables.files.regular import open_regular
from trainables.files.stores.object_store import Store, patiently
from trainables.training.prediction import State

_NAME = re.compile(r"e(\d{5,})\.pt")

#: The checkpoint in the middle of an epoch: one for a trial, replaced by the next, removed at the epoch's own.
PARTIAL = "partial.pt"


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


def write_checkpoint(folder: Path, epoch: int | None, state: State) -> Path:
    """Write a checkpoint under a temporary name and rename it, so that its final name never holds half of one.

    Args:
        folder: of the trial's checkpoints, made where it is missing.
        epoch: that is completed; `None` in the middle of one.
        state: what it holds.
    """
    path = folder / PARTIAL if epoch is None else checkpoint_file(folder, epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        # By its path torch would call the archive inside after the file, and refuses a name that is all suffix.
        save_state(state, file)
    return path


def save_state(state: State, file: IO[bytes]) -> None:
    """Write a state as torch does. Raises OSError where the file takes no more, which torch words otherwise."""
    try:
        torch.save(dict(state), file)
    except RuntimeError as error:
        # "unexpected pos 62336 vs 62264": closing the archive hides why a part of it could not be written.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise


def load_newest_checkpoint(folder: Path) -> State | None:
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


def _loaded(path: Path) -> State | None:
    """Return what a file holds; `None` where it was damaged and is quarantined now."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            _check(file, path)
            file.seek(0)
            return dict(torch.load(file, map_location="cpu", weights_only=True))
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:
        # torch reports a damaged file as any of a dozen types, depending on where the damage is.
        path.replace(path.with_suffix(".damaged"))
        return None


def _check(file: IO[bytes], path: Path) -> None:
    """Raise zipfile.BadZipFile when a part of the file does not match its checksum.

    torch writes checksums and does not look at them when it loads: a flipped bit would become a wrong weight.
    """
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"{path}: {damaged} does not match its checksum")


def load_partial(folder: Path) -> State | None:
    """Return the checkpoint in the middle of an epoch, unless a later epoch has one; `None` where there is none.

    A damaged one is quarantined, as others are.
    """
    path = folder / PARTIAL
    state = _loaded(path) if os.path.lexists(path) else None
    newest = next(iter(checkpoint_epochs(folder)), 0)
    return state if state is not None and state["epoch"] >= newest else None


#: Where the files are in a sweep's store; the driver looks there for them.
CHECKPOINTS, INCOMING = "checkpoints", "incoming"


#: Returns the store at an address, the same one for all trials of this process.
store_at = cache(Store)


class TrialFiles:
    """The files of one trial, or of one replicate that is trained in a separate process."""

    def __init__(self, place: Path, *, tables: Path | None, checkpoints: Path | None, store: str | None = None) -> None:
        """Prepare for a trial.

        Args:
            place: of its checkpoints, relative to those of all trials.
            tables: the folder that holds the tables, or `None` to write none.
            checkpoints: the folder of checkpoints, or `None` to keep none.
            store: the address of the sweep in a store; then the two folders above are the driver's own, and are
                neither read nor written.
        """
        self._place = f"{CHECKPOINTS}/{place.as_posix()}"
        self._store = store_at(store) if store is not None else None
        if self._store is not None:
            self._scratch = Scratch("sweeper-trial-")
            tables, checkpoints = self._scratch.path / INCOMING, self._scratch.path / CHECKPOINTS
        self.tables = tables
        self.checkpoints = checkpoints / place if checkpoints is not None else None
        self._stored: set[int] = set()

    def fetch_checkpoints(self) -> None:
        """Bring what the store has of this trial's checkpoints here; without a store they are here."""
        if self._store is None or self.checkpoints is None:
            return
        patiently(self._fetch)
        self._stored |= {*checkpoint_epochs(self.checkpoints)}

    def _fetch(self) -> None:
        assert self._store is not None and self.checkpoints is not None
        names = self._store.entries(self._place, recursive=False)
        self._store.download_all({name: self.checkpoints / Path(name).name for name in names})

    def checkpoint_written(self, path: Path, epoch: int | None = None) -> None:
        """Upload a checkpoint that has its final name; `None` for the one in the middle of an epoch."""
        self._upload(f"{self._place}/{path.name}", path)
        if self._store is not None and epoch is not None:
            self._stored.add(epoch)

    def remove_partial(self) -> None:
        """Remove the checkpoint in the middle of an epoch: the epoch has its own."""
        if self.checkpoints is not None:
            self._remove([self.checkpoints / PARTIAL])

    def table_written(self, path: Path) -> None:
        """Upload a table's part that has its final name."""
        self._upload(f"{INCOMING}/{path.parent.name}/{path.name}", path)

    def _upload(self, name: str, path: Path) -> None:
        """Put a file in the store, if there is one, as patiently as the driver puts its journal; then remove it."""
        store = self._store
        if store is not None:
            patiently(lambda: store.put(name, path))
            path.unlink()

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest `count` of this trial's checkpoints."""
        if self.checkpoints is None:
            return
        older = sorted({*checkpoint_epochs(self.checkpoints), *self._stored}, reverse=True)[count:]
        self._remove([checkpoint_file(self.checkpoints, epoch) for epoch in older])
        self._stored -= {*older}

    def _remove(self, files: Sequence[Path]) -> None:
        """Remove checkpoints here, and then from the store, if there is one."""
        for file in files:
            file.unlink(missing_ok=True)
        if self._store is not None:
            self._store.delete(f"{self._place}/{file.name}" for file in files)


class CheckpointWriter:
    """Writes the checkpoints of one trial in a thread, from a copy, while training continues.

    A checkpoint of 100 MB and more takes seconds to write, and a GPU would wait for it. So between rungs one is written
    when `every_seconds` have passed since the last, from a copy in the host's memory; at most one is under way. Where a
    trial may end or wait, it is written before the report goes out.

    How often is worth it: a process that is lost once in M seconds, and a checkpoint that holds training up for C, are
    best served by one every √(2·C·M) seconds (Young 1974, doi:10.1145/361147.361115, eq. 4). A spot machine that is
    reclaimed after five hours and a copy of 0.1 s give 60 s.

    Attributes:
        epoch: of the newest checkpoint that was begun; -1 before the first.
    """

    def __init__(
        self, files: TrialFiles, every_seconds: float, keep: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin; the first is due `every_seconds` from now.

        Args:
            files: of the trial.
            every_seconds: between two checkpoints; at 0 each report has one.
            keep: how many of them stay, so that an older one is there should the newest be damaged.
            clock: seconds.
        """
        self._files, self._every, self._keep, self._clock = files, every_seconds, keep, clock
        self.epoch = -1
        self._last = self._began = clock()
        self._unpruned = self._partial = False
        self._copy = HostCopy()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    @property
    def due(self) -> bool:
        """Whether it is time for the next one, and none is under way."""
        return not self._under_way and self._clock() - self._last >= self._every

    def begin_epoch(self) -> None:
        """Take note that an epoch begins."""
        self._began = self._clock()

    @property
    def due_within(self) -> bool:
        """Whether an epoch has lasted so long that the next checkpoint is due midway; never at cadence 0."""
        since = self._clock() - max(self._last, self._began)
        return 0 < self._every <= since and not self._under_way

    def write(self, epoch: int | None, state: State) -> None:
        """Write a checkpoint from a copy of `state`, which may change afterwards; wait for the one before first.

        Raises what kept the one before from being written: OSError, or StoreError.

        Args:
            epoch: that is completed; `None` in the middle of one.
            state: what it holds.
        """
        if epoch is not None:
            self.epoch = epoch
        self.settle()
        copied, self._last = self._copy(state), self._clock()
        self._writing = self._thread.submit(self._write, epoch, copied)

    def settle(self) -> None:
        """Wait until what was begun is written. Raises what kept it from that."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def prune(self) -> None:
        """Remove older checkpoints; call it when the newest one's report is journaled."""
        if self._unpruned and not self._under_way:
            self._unpruned = False
            self._files.keep_newest(self._keep)

    @property
    def _under_way(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def _write(self, epoch: int | None, state: State) -> None:
        folder = self._files.checkpoints
        assert folder is not None
        self._files.checkpoint_written(write_checkpoint(folder, epoch, state), epoch)
        if epoch is None:
            self._partial = True
            return
        self._unpruned = True
        if self._partial or (folder / PARTIAL).exists():
            self._files.remove_partial()
            self._partial = False


class HostCopy:
    """Copies states into the host's memory; of a card, into the same page-locked buffers each time."""

    def __init__(self) -> None:
        """Begin without buffers."""
        self._buffers: dict[tuple[object, ...], Tensor] = {}

    def __call__(self, state: State) -> State:
        """Return a copy of `state` that no later step of training changes, its tensors on the CPU."""
        copied = {key: self._copied(each, (key,)) for key, each in state.items()}
        if self._buffers:
            torch.cuda.synchronize()
        return copied

    def _copied(self, value: object, place: tuple[object, ...]) -> object:
        if isinstance(value, Tensor):
            return self._buffered(value.detach(), place) if value.is_cuda else value.detach().clone()
        if isinstance(value, Mapping):
            return {key: self._copied(each, (*place, key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copied(each, (*place, index)) for index, each in enumerate(value))
        return value

    def _buffered(self, value: Tensor, place: tuple[object, ...]) -> Tensor:
        buffer = self._buffers.get(place)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = self._buffers[place] = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        return buffer.copy_(value, non_blocking=True)
