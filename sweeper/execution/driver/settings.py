"""The settings of a sweep's driver, from its space, and what it knows of configurations: GPU shares and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sweeper.core.ids import ReplicateSeeds, config_hash
from sweeper.execution.driver.kept_checkpoints import THE_BEST, Keeping
from sweeper.journal.records import Body, Drawn
from sweeper.journal.state import SweepState
from sweeper.scheduling.base import Scheduler
from sweeper.scheduling.strata import stratum_name
from sweeper.space.spec import SweepSpec
from trainables.training.acceleration import PLAIN, TrainingSettings
from trainables.worker.trial_reports import TrialReport

TOGETHER = 500
"""So many configurations share a record: one record a sweep of the usual size, and 150 kB of a large one."""


@dataclass(frozen=True)
class Shares:
    """What a configuration needs of a GPU.

    Attributes:
        measured: the share that a configuration needs; `None` where trials take none, or whole cards.
        usual: the share that each trial has where nothing was measured.
    """

    measured: Callable[[int], float] | None = None
    usual: float = 0.0

    def of(self, configuration: int, raised: float | None) -> float | None:
        """Return a configuration's share: what was measured, or `raised` where memory ran out; `None` as above."""
        return None if self.measured is None else raised or self.measured(configuration)

    def noted(self, report: TrialReport, share: float | None) -> TrialReport:
        """Return a report with what its process took of a GPU, where trials take any."""
        taken = share or self.usual
        return replace(report, gpu=taken) if taken else report


NO_SHARES = Shares()
"""Trials take nothing of a GPU, or whole cards."""


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


class TrialValues:
    """Knows configurations by index, and which of them and of their digests the journal lacks."""

    def __init__(
        self, configurations: Sequence[Mapping[str, Any]], state: SweepState, record: Callable[[Body], object]
    ) -> None:
        """Take what the space or a searcher gives, the sweep's state, which `record` continues changing."""
        self._configurations, self._state, self._record = configurations, state, record

    def of(self, index: int) -> dict[str, Any]:
        """Return a configuration's values as the journal has them; they are drawn and journaled before, if need be."""
        known = self._state.configurations
        if index not in known:
            last = min(index - index % TOGETHER + TOGETHER, len(self._configurations))
            following = next((each for each in range(index, last) if each in known), last)
            first = index
            while first % TOGETHER and first - 1 not in known:
                first -= 1
            self._record(Drawn(first, [self._configurations[each] for each in range(first, following)]))
        return dict(known[index])

    def digest(self, index: int) -> str | None:
        """Return the digest of a configuration's values for its first report; `None` where the journal has it."""
        return None if self._state.trials[index].config_hash is not None else config_hash(self.of(index))
