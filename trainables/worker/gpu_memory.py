"""How much of a GPU a configuration takes at its peak: measured on a few steps of training and one evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

import torch

from trainables.curvature.surface import no_graphs_kept
from trainables.datasets.base import DataSet
from trainables.worker.trial import Trial
from trainables.worker.trial_reports import TrialReport
from trainables.worker.trial_settings import Assignment, TrialSettings, prepare_process

STEPS = 3
"""Steps that are trained: the optimiser's state is there after the first, and the second meets it with gradients."""


AssignmentFields = tuple[int, str, Mapping[str, object], Sequence[int]]
"""Configuration, trial, values and seeds, as `Assignment` has them."""


class MeasuredMemory(TypedDict):
    """Bytes that a configuration takes of a GPU, bytes that the GPU has, and the GPU's name."""

    used_bytes: int
    total_bytes: int
    card: str


class CardProbe:
    """Measures assignments one after the other, in a process that has a GPU to itself."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        """Load the data set. `settings` are `TrialSettings` as plain values."""
        self._settings = TrialSettings.from_mapping({**settings, "gpu": 1.0})
        prepare_process(self._settings)
        self._dataset = self._settings.load_dataset()

    def measure(self, assignment: AssignmentFields) -> MeasuredMemory:
        """Return what an assignment takes; all of the GPU where that does not suffice.

        What is used is all that is not free: the process's own CUDA context counts, and so would somebody else's
        processes, beside which less is to be had.
        """
        torch.cuda.empty_cache()
        try:
            rehearse(Assignment(*assignment), self._settings, self._dataset)
            free, total = torch.cuda.mem_get_info()
        except torch.OutOfMemoryError:
            free, total = 0, torch.cuda.mem_get_info()[1]
        return {"used_bytes": total - free, "total_bytes": total, "card": torch.cuda.get_device_name()}


def rehearse(assignment: Assignment, settings: TrialSettings, dataset: DataSet) -> TrialReport:
    """Train a few steps, evaluate all of the validation and test data as a sweep does, keep nothing; return the report.

    On a GPU torch's allocator holds on to the most that was needed at once. Curvature would keep graphs in whatever
    memory there is, here a whole GPU; what counts is what it cannot do without.
    """
    batch_size = assignment.values["optimizer"]["batch_size"]
    train = dataset.train
    few = train.first(STEPS * batch_size)
    short = replace(
        settings,
        max_epochs=1,
        rungs=(1,),
        tables=None,
        checkpoints=None,
        store=None,
        timeout_seconds=None,
        report_seconds=math.inf,
    )
    with no_graphs_kept():
        return Trial(assignment, short, replace(dataset, train=few)).advance()
