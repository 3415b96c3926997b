"""When a trial's checkpoints are written, and how: in a thread, from a copy, while training continues.

A checkpoint of 100 MB and more takes seconds to write, and a GPU would wait for it. So between rungs one is written
when `every_seconds` have passed since the last, from a copy in the host's memory; at most one is under way. Where a
trial may end or wait, it is written before the report goes out.

How often is worth it: a process that is lost once in M seconds, and a checkpoint that holds training up for C, are best
served by one every √(2·C·M) seconds (Young 1974, doi:10.1145/361147.361115, eq. 4). A spot machine that is reclaimed
after five hours and a copy of 0.1 s give 60 s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trainables.worker.checkpoints import PARTIAL, write_checkpoint, write_partial
from trainables.worker.trial_files import TrialFiles


class CheckpointWriter:
    """Writes the checkpoints of one trial."""

    def __init__(
        self,
        files: TrialFiles,
        every_seconds: float,
        keep: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin; the first is due `every_seconds` from now.

        Args:
            files: of the trial.
            every_seconds: between two checkpoints; at 0 each report has one.
            keep: how many of them stay, so that an older one is there should the newest be damaged.
            clock: seconds.
        """
        self._files, self._every, self._keep, self._clock = files, every_seconds, keep, clock
        self._last, self._epoch = clock(), -1
        self._began, self._partial = self._last, False
        self._copy = HostCopy()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._unpruned = False

    @property
    def epoch(self) -> int:
        """The epoch of the newest checkpoint that was begun; -1 before the first."""
        return self._epoch

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

    def write_within(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint in the middle of an epoch, as `write` does."""
        self._begin(self._write_within, state)

    def _begin(self, work: Callable[[Mapping[str, Any]], None], state: Mapping[str, Any]) -> None:
        self.settle()
        copied = self._copy(state)
        self._last = self._clock()
        self._thread = threading.Thread(target=work, args=(copied,), name="checkpoint", daemon=True)
        self._thread.start()

    def write(self, epoch: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint from a copy of `state`, which may change afterwards; wait for the one before first.

        Raises what kept the one before from being written: OSError, or StoreError.
        """
        self._epoch = epoch
        self._begin(lambda copied: self._write(epoch, copied), state)

    def settle(self) -> None:
        """Wait until what was begun is written. Raises what kept it from that."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def prune(self) -> None:
        """Remove older checkpoints; call it when the newest one's report is journaled."""
        if self._unpruned and not self._under_way:
            self._unpruned = False
            self._files.keep_newest(self._keep)

    @property
    def _under_way(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _write(self, epoch: int, state: Mapping[str, Any]) -> None:
        folder = self._files.checkpoints
        assert folder is not None
        try:
            self._files.checkpoint_written(write_checkpoint(folder, epoch, state), epoch)
            self._unpruned = True
            if self._partial or (folder / PARTIAL).exists():
                self._files.remove_partial()
                self._partial = False
        except Exception as error:  # whoever trains is told at the next one
            self._error = error

    def _write_within(self, state: Mapping[str, Any]) -> None:
        folder = self._files.checkpoints
        assert folder is not None
        try:
            self._files.partial_written(write_partial(folder, state))
            self._partial = True
        except Exception as error:  # whoever trains is told at the next one
            self._error = error


class HostCopy:
    """Copies states into the host's memory; of a card, into the same page-locked buffers each time."""

    def __init__(self) -> None:
        """Begin without buffers."""
        self._buffers: dict[tuple[object, ...], Tensor] = {}

    def __call__(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of `state` that no later step of training changes, its tensors on the CPU."""
        copied: dict[str, Any] = self._copied(state, ())
        if self._buffers:
            torch.cuda.synchronize()
        return copied

    def _copied(self, value: Any, place: tuple[object, ...]) -> Any:
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
