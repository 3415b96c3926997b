"""What a trial's checkpoints hold, when they are written, and how: in a thread, from a copy, while training continues.

A checkpoint of 100 MB and more takes seconds to write, and a GPU would wait for it. So between rungs one is written
when `every_seconds` have passed since the last, from a copy in the host's memory; at most one is under way. Where a
trial may end or wait, it is written before the report goes out.

How often is worth it: a process that is lost once in M seconds, and a checkpoint that holds training up for C, are best
served by one every √(2·C·M) seconds (Young 1974, doi:10.1145/361147.361115, eq. 4). A spot machine that is reclaimed
after five hours and a copy of 0.1 s give 60 s.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainables.training.prediction import State
from trainables.worker.checkpoints import (
    PARTIAL,
    TrialFiles,
    load_newest_checkpoint,
    load_partial,
    write_checkpoint,
    write_partial,
)
from trainables.worker.trial_reports import Row, TrialReport
from trainables.worker.trial_settings import Assignment


class CheckpointWriter:
    """Writes the checkpoints of one trial."""

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

    def write_within(self, state: State) -> None:
        """Write a checkpoint in the middle of an epoch, as `write` does."""
        self._begin(state, self._written_within)

    def _begin(self, state: State, write: Callable[[Path, State], None]) -> None:
        self.settle()
        copied, folder = self._copy(state), self._files.checkpoints
        assert folder is not None

        def work() -> None:
            try:
                write(folder, copied)
            except Exception as error:  # whoever trains is told at the next one
                self._error = error

        self._last = self._clock()
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def write(self, epoch: int, state: State) -> None:
        """Write a checkpoint from a copy of `state`, which may change afterwards; wait for the one before first.

        Raises what kept the one before from being written: OSError, or StoreError.
        """
        self._epoch = epoch
        self._begin(state, functools.partial(self._written, epoch))

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

    def _written(self, epoch: int, folder: Path, state: State) -> None:
        self._files.checkpoint_written(write_checkpoint(folder, epoch, state), epoch)
        self._unpruned = True
        if self._partial or (folder / PARTIAL).exists():
            self._files.remove_partial()
            self._partial = False

    def _written_within(self, folder: Path, state: State) -> None:
        self._files.checkpoint_written(write_partial(folder, state))
        self._partial = True


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


@dataclass(frozen=True)
class SavedTrial:
    """A trial as its newest sound checkpoint has it.

    Attributes:
        replicates: number → its state; `None` for one that has diverged.
        wall_seconds: that it has trained for.
        report: plain values of the report that was last sent with a checkpoint; `None` before the first.
        rows: of epochs that no report tells of.
        trained: rows of the replicates that have completed the epoch in the middle of which it was saved.
        errors: of replicates that have diverged.
        packing: how the replicates shared their process. Another rounds otherwise: a trial continues as it began, so
            that it ends as if never interrupted.
    """

    replicates: Mapping[int, State | None] = field(default_factory=dict)
    wall_seconds: float = 0.0
    report: dict[str, Any] | None = None
    rows: list[Row] = field(default_factory=list)
    trained: list[dict[str, Any]] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    packing: str | None = None

    @property
    def repeat(self) -> TrialReport | None:
        """The last report once more, which may have been lost on its way."""
        return None if self.report is None else TrialReport.from_dict(self.report)


def saved_trial(folder: Path | None, assignment: Assignment) -> SavedTrial:
    """Return what the newest sound checkpoint in `folder` has of an assignment; where there is none, of none yet."""
    state = (load_partial(folder) or load_newest_checkpoint(folder)) if folder else None
    if state is None or state["seeds"] != list(assignment.seeds):
        return SavedTrial()
    replicates = dict(zip(assignment.numbers, state["replicates"], strict=True))
    saved = SavedTrial(replicates, state["wall_seconds"], state["report"])
    if "trained" in state:  # in the middle of an epoch, of which no report tells
        rows, trained, errors = [*state["rows"]], [*state["trained"]], dict(state["errors"])
        return replace(saved, rows=rows, trained=trained, errors=errors, packing=state["packing"])
    if (sent := saved.repeat) is not None:
        return replace(saved, errors=dict(sent.replicate_errors), packing=sent.packing)
    return saved
