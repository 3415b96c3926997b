"""Checkpoints: atomic writes, loading the newest undamaged one without running code, paths and timing.

A trial's process writes its files to folders that the driver can see, or to a store. For a store, a file is written to
a scratch folder of the trial's machine, uploaded as one object under its final name, and removed locally. A trial that
continues on another machine downloads its checkpoints from there.
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
from typing import IO, TypeAlias

import torch
from torch import Tensor

from trainables.files.atomic import open_regular, replacing
from trainables.files.locks import Scratch
from trainables.files.stores.object_store import Store, patiently
from trainables.training.prediction import State

_NAME = re.compile(r"e(\d{5,})\.pt")

#: The checkpoint in the middle of an epoch: one per trial, replaced by the next, removed at the end of the epoch.
PARTIAL = "partial.pt"


def checkpoint_file(folder: Path, epoch: int) -> Path:
    """Return the path of the checkpoint after `epoch` epochs."""
    return folder / f"e{epoch:05d}.pt"


def replicate_folder(folder: Path, replicate: int) -> Path:
    """Return the folder of a replicate with a separate process, below the trial's `folder`."""
    return folder / f"r{replicate}"


def checkpoint_epochs(folder: Path) -> list[int]:
    """Return the epochs with a checkpoint in `folder`, newest first."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), reverse=True)


def write_checkpoint(folder: Path, epoch: int | None, state: State) -> Path:
    """Write a checkpoint atomically: under its final name it is always whole.

    Args:
        folder: folder of the trial's checkpoints, made if it is missing.
        epoch: the completed epoch; `None` in the middle of one.
        state: content of the checkpoint.
    """
    path = folder / PARTIAL if epoch is None else checkpoint_file(folder, epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        # Given a path, torch names the archive inside after the file, and it refuses a name that is only a suffix.
        save_state(state, file)
    return path


def save_state(state: State, file: IO[bytes]) -> None:
    """Write a state with `torch.save`. Raises OSError if the disk is full, which torch reports as RuntimeError."""
    try:
        torch.save(dict(state), file)
    except RuntimeError as error:
        # torch's message is "unexpected pos 62336 vs 62264", because closing the archive hides why a part could not be
        # written.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise


#: Called with a damaged checkpoint and the error that shows the damage.
Damaged: TypeAlias = Callable[[Path, Exception], object]


def set_aside(path: Path, error: Exception) -> None:
    """Rename a damaged checkpoint to `.damaged`, so that its trial continues from an older one."""
    path.replace(path.with_suffix(".damaged"))


def load_newest_checkpoint(folder: Path, damaged: Damaged = set_aside) -> State | None:
    """Return the newest undamaged checkpoint, or `None`.

    Tensors are loaded to the CPU, and `load_state_dict` moves them: an optimiser's step count stays on the CPU, where
    reading it does not synchronise with a GPU. Only tensors and plain values are loaded (`weights_only=True`).
    """
    for epoch in checkpoint_epochs(folder):
        state = _loaded(checkpoint_file(folder, epoch), damaged)
        if state is not None:
            return state
    return None


def _loaded(path: Path, damaged: Damaged = set_aside) -> State | None:
    """Return the content of a checkpoint; `None` for a damaged one, after a call of `damaged`."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            _check(file, path)
            file.seek(0)
            return dict(torch.load(file, map_location="cpu", weights_only=True))
    except (MemoryError, torch.OutOfMemoryError):  # the file is not damaged and must stay
        raise
    except Exception as error:
        # Depending on where the damage is, torch raises any of a dozen types.
        damaged(path, error)
        return None


def _check(file: IO[bytes], path: Path) -> None:
    """Raise zipfile.BadZipFile if a part of the file does not match its checksum.

    torch writes checksums but does not verify them, so a flipped bit would become a wrong weight.
    """
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"{path}: {damaged} does not match its checksum")


def load_partial(folder: Path) -> State | None:
    """Return the checkpoint in the middle of an epoch, unless a later epoch has one; else `None`.

    A damaged one is renamed to `.damaged`.
    """
    path = folder / PARTIAL
    state = _loaded(path) if os.path.lexists(path) else None
    newest = next(iter(checkpoint_epochs(folder)), 0)
    return state if state is not None and state["epoch"] >= newest else None


#: Folders of these files in a sweep's store, from which the driver takes them.
CHECKPOINTS, INCOMING = "checkpoints", "incoming"


#: Returns the store at an address; all trials of this process share it, and so its open connections.
store_at = cache(Store)


class TrialFiles:
    """The files of one trial, or of one replicate with a separate process."""

    def __init__(self, place: Path, *, tables: Path | None, checkpoints: Path | None, store: str | None = None) -> None:
        """Prepare for a trial.

        Args:
            place: folder of its checkpoints, relative to that of all trials.
            tables: folder of the tables; `None` to write none.
            checkpoints: folder of the checkpoints; `None` to keep none.
            store: address of the sweep in a store; the two folders above are then on the driver's machine and are not
                used.
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
        """Download this trial's checkpoints from the store, if there is one."""
        if self._store is None or self.checkpoints is None:
            return
        patiently(self._fetch)
        self._stored |= {*checkpoint_epochs(self.checkpoints)}

    def _fetch(self) -> None:
        assert self._store is not None and self.checkpoints is not None
        names = self._store.entries(self._place, recursive=False)
        self._store.download_all({name: self.checkpoints / Path(name).name for name in names})

    def checkpoint_written(self, path: Path, epoch: int | None = None) -> None:
        """Upload a checkpoint that has its final name; `epoch` is `None` in the middle of one."""
        self._upload(f"{self._place}/{path.name}", path)
        if self._store is not None and epoch is not None:
            self._stored.add(epoch)

    def remove_partial(self) -> None:
        """Remove the checkpoint in the middle of an epoch, after the epoch's own is written."""
        if self.checkpoints is not None:
            self._remove([self.checkpoints / PARTIAL])

    def table_written(self, path: Path) -> None:
        """Upload a file of a table that has its final name."""
        self._upload(f"{INCOMING}/{path.parent.name}/{path.name}", path)

    def _upload(self, name: str, path: Path) -> None:
        """Upload a file to the store, if there is one, and remove the local copy."""
        store = self._store
        if store is not None:
            # Retried as long as the driver's uploads of its journal: giving up earlier would fail a trial that can
            # continue.
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
        """Remove checkpoints locally, then from the store, if there is one."""
        for file in files:
            file.unlink(missing_ok=True)
        if self._store is not None:
            self._store.delete(f"{self._place}/{file.name}" for file in files)


class CheckpointWriter:
    """Writes the checkpoints of one trial in a thread, from a copy, while training continues.

    A checkpoint of 100 MB or more takes seconds to write, and a GPU would wait for it. Between rungs, a checkpoint is
    therefore written every `every_seconds` from a copy in host memory, at most one at a time. Where a trial may end or
    wait, the checkpoint is written before the report is sent.

    The best interval for a process that is lost once in M seconds, with a checkpoint that delays training by C seconds,
    is √(2·C·M) (Young 1974, doi:10.1145/361147.361115, eq. 4). A spot machine that is reclaimed after five hours and a
    copy of 0.1 s give 60 s.

    Attributes:
        epoch: epoch of the newest checkpoint that was started; -1 before the first.
    """

    def __init__(
        self, files: TrialFiles, every_seconds: float, keep: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start; the first checkpoint is due `every_seconds` from now.

        Args:
            files: files of the trial.
            every_seconds: time between two checkpoints; at 0 every report has a checkpoint.
            keep: number of checkpoints kept, so that an older one exists if the newest is damaged.
            clock: time in seconds.
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
        """Whether the next checkpoint is due and none is being written."""
        return not self._under_way and self._clock() - self._last >= self._every

    def begin_epoch(self) -> None:
        """Record that an epoch begins."""
        self._began = self._clock()

    @property
    def due_within(self) -> bool:
        """Whether an epoch has lasted so long that a checkpoint is due in its middle; never if the interval is 0."""
        since = self._clock() - max(self._last, self._began)
        return 0 < self._every <= since and not self._under_way

    def write(self, epoch: int | None, state: State) -> None:
        """Write a checkpoint from a copy of `state`, after the previous one is written.

        Args:
            epoch: the completed epoch; `None` in the middle of one.
            state: content of the checkpoint; it may change afterwards.

        Raises:
            OSError, StoreError: the previous checkpoint could not be written.
        """
        if epoch is not None:
            self.epoch = epoch
        # One at a time: the buffers of the copy are still being read until then.
        self.settle()
        copied, self._last = self._copy(state), self._clock()
        self._writing = self._thread.submit(self._write, epoch, copied)

    def settle(self) -> None:
        """Wait until the current checkpoint is written. Raises the error that prevented it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def prune(self) -> None:
        """Remove older checkpoints; call it once the newest one's report is journaled."""
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
    """Copies states into host memory; from a GPU, always into the same page-locked buffers."""

    def __init__(self) -> None:
        """Begin without buffers."""
        self._buffers: dict[tuple[object, ...], Tensor] = {}

    def __call__(self, state: State) -> State:
        """Return a copy of `state` on the CPU that later training steps do not change."""
        copied = {key: self._copied(value, (key,)) for key, value in state.items()}
        if self._buffers:
            torch.cuda.synchronize()  # the copies are asynchronous, and the next step would change their source
        return copied

    def _copied(self, value: object, place: tuple[object, ...]) -> object:
        if isinstance(value, Tensor):
            return self._buffered(value.detach(), place) if value.is_cuda else value.detach().clone()
        if isinstance(value, Mapping):
            return {key: self._copied(item, (*place, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copied(item, (*place, index)) for index, item in enumerate(value))
        return value

    def _buffered(self, value: Tensor, place: tuple[object, ...]) -> Tensor:
        buffer = self._buffers.get(place)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            # Page-locking takes longer than the copy, so buffers are kept.
            buffer = self._buffers[place] = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        return buffer.copy_(value, non_blocking=True)
