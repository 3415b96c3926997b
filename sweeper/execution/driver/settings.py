"""The settings of a sweep's driver, from its search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.core.ids import ReplicateSeeds
from sweeper.execution.driver.kept_checkpoints import THE_BEST, Keeping
from sweeper.scheduling.base import Scheduler
from sweeper.scheduling.strata import stratum_name
from sweeper.space.spec import SweepSpec
from trainables.training.acceleration import PLAIN, TrainingSettings


@dataclass(frozen=True)
class DriverSettings:
    """A driver's settings, the same for every driver of a sweep.

    Attributes:
        schedule: the scheduler's settings.
        seeds: of every configuration's replicates.
        retries: how often a trial may fail in a way that counts before it has failed permanently.
        max_concurrent: assignments outstanding at once; `None` for no limit.
        keeping: whose checkpoints stay; by default the best trial's.
        training: how training steps are computed, which decides what can be a lane of a cohort.
        space: the resolved search space, for the journal.
    """

    schedule: Scheduler
    seeds: ReplicateSeeds
    retries: int = 2
    max_concurrent: int | None = None
    keeping: Keeping = THE_BEST
    training: TrainingSettings = PLAIN
    space: Mapping[str, object] | None = None

    @staticmethod
    def of(spec: SweepSpec, configurations: Sequence[Mapping[str, Any]]) -> DriverSettings:
        """Return the settings of a search space with these configurations, by index."""
        keep = spec.keep
        return DriverSettings(
            spec.schedule,
            spec.replicate_seeds,
            retries=spec.retries,
            max_concurrent=spec.max_concurrent,
            keeping=Keeping(keep.best, lambda index: stratum_name(configurations[index], keep.per)),
            training=spec.training.settings,
            space=spec.resolved(),
        )
