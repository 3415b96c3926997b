"""The replicates of an assignment: how one is built, and how they share a process."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import nn

from trainables.datasets.base import DataSet
from trainables.training.lanes import COHORT, cohort_key
from trainables.training.lanes.networks import is_perceptron
from trainables.training.lanes.packing import SEQUENTIAL, chosen_packing
from trainables.training.loop import Replicate
from trainables.training.ranks import Crew, LeadingReplicate
from trainables.worker.trial_settings import Assignment, TrialSettings


def replicate_of(
    assignment: Assignment, settings: TrialSettings, seed: int, dataset: DataSet, crew: Crew | None = None
) -> Replicate:
    """Return a replicate of an assignment's configuration, at its epoch 0, which `crew` trains together if given."""
    build = Replicate if crew is None else functools.partial(LeadingReplicate, crew=crew)
    return build(
        assignment.values,
        seed=seed,
        dataset=dataset,
        max_epochs=settings.max_epochs,
        device=settings.device,
        training=settings.training,
        bins=settings.evaluation.bins,
    )


def packing_of(
    assignment: Assignment,
    settings: TrialSettings,
    dataset: DataSet,
    network: nn.Module,
    build: Callable[[int, DataSet], Replicate],
    in_cohort: bool | None,
) -> str:
    """Return how the replicates share this process: what the settings ask for, where it can be.

    Where there is no cohort to join, as on Ray, one of their own is for networks whose bits do not depend on the
    number of lanes: the numbers are those of a large cohort. Others train so only where lanes are asked for.

    Args:
        assignment: whose replicates.
        settings: of all trials.
        dataset: of the assignment.
        network: of a replicate.
        build: returns another replicate, with a seed and on data of its own, for measuring.
        in_cohort: whether they would join the caller's cohort; `None` where there is none.
    """
    asked = settings.packing
    own = settings.lanes > 0 or is_perceptron(network)
    wanted = in_cohort or (asked == COHORT and in_cohort is None and own)
    if wanted and cohort_key(assignment.values, settings.training) is not None:
        return COHORT
    return chosen_packing(
        SEQUENTIAL if asked == COHORT else asked,
        build,
        assignment.values,
        assignment.seeds,
        dataset,
        settings.device,
        settings.training,
        settings.choices,
    )
