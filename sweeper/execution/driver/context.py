"""What a driver knows and holds: its settings, GPU shares, values, checkpoints kept.

Of the trials that have ended the best ones keep their checkpoints, of the sweep or of each stratum; the others' are
removed. A constraint beside the best, `val_accuracy within 0.005 of the best`, can take the first place from a trial
when a more accurate one comes. So a trial gives up its checkpoint only when others, as many as are kept, stay ahead of
it whatever comes: complete where it is, no worse in the objective, and no worse in anything that the constraints look
at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from sweeper.core.ids import ReplicateSeeds, config_hash, is_added, trial_name
from sweeper.journal.best import Rank, rank_of
from sweeper.journal.records import Body, Drawn, Record
from sweeper.journal.state import COMPLETED, ENDED, SweepState, TrialState
from sweeper.scheduling.base import Scheduler
from sweeper.scheduling.strata import stratum_name
from sweeper.space.spec import SweepSpec
from sweeper.storage.mirror import Mirror, SharedFolder
from trainables.training.acceleration import PLAIN, TrainingSettings
from trainables.training.lanes.packing import TRIALS
from trainables.worker.trial_reports import NON_FINITE, TrialReport

#: Endings that a retry would repeat: a trial that crashed or took too long can continue from its checkpoint.
OVER = {"continue", "stop", "complete", "fail", NON_FINITE}


@dataclass(frozen=True)
class Keeping:
    """Whose checkpoints are kept.

    Attributes:
        best: how many of each stratum.
        stratum: names a configuration's stratum; the sweep is one stratum by default.
    """

    best: int = 1
    stratum: Callable[[int], str] = lambda configuration: ""


#: The best trial's alone.
THE_BEST = Keeping()

Costs: TypeAlias = tuple[float, ...]


@dataclass(eq=False)
class KeptCheckpoints:
    """Knows the trials that have ended and keep their checkpoints, and removes those of the others.

    Attributes:
        keeper: removes checkpoints.
        state: of the sweep, which continues changing.
        schedule: says what is better.
        keeping: how many of which trials.
    """

    keeper: Mirror | SharedFolder
    state: SweepState
    schedule: Scheduler
    keeping: Keeping = THE_BEST

    def __post_init__(self) -> None:
        """Find the trials that keep theirs, of those that have ended by now."""
        self._kept: dict[str, dict[int, tuple[Rank, Costs]]] = {}
        for index, trial in self.state.trials.items():
            if trial.status in ENDED and trial.added is None:
                self._enter(index)

    def tidy(self, index: int) -> None:
        """Remove the checkpoints that a trial makes superfluous if it has ended: its own, or those it now surpasses."""
        trial = self.state.trials[index]
        if trial.status in ENDED and trial.stop_kind in OVER:
            for each in self._enter(index):
                self.keeper.remove_checkpoints(trial_name(each))

    def remove_leftovers(self, unknown: Collection[int] = ()) -> None:
        """Remove what a driver that died between a trial's end and its tidying up left behind.

        Args:
            unknown: trials that the journal does not know, whose checkpoints were made by what was lost of it.
        """
        kept = {index for stratum in self._kept.values() for index in stratum}
        done = {i for i, t in self.state.trials.items() if t.status in ENDED and t.stop_kind in OVER}
        for name in {trial_name(i) for i in (done | {*unknown}) - kept} & self.keeper.trials_with_checkpoints():
            self.keeper.remove_checkpoints(name)

    def _enter(self, index: int) -> list[int]:
        """Let an ended trial compete in its stratum; return the trials that need their checkpoints no more.

        An added seed never keeps its own.
        """
        trial = self.state.trials[index]
        rank = rank_of(trial, self.schedule.mode)
        if rank is None:
            return [index]
        kept = self._kept.setdefault(self.keeping.stratum(index), {})
        kept[index] = rank, self._costs(trial)
        surpassed = [each for each, its in kept.items() if self._ahead_of(its, kept) >= self.keeping.best]
        for each in surpassed:
            del kept[each]
        return surpassed

    @staticmethod
    def _ahead_of(its: tuple[Rank, Costs], kept: dict[int, tuple[Rank, Costs]]) -> int:
        """Return how many trials stay ahead of one whatever comes. Being ahead is transitive: none that was removed
        needs to be asked.
        """
        rank, costs = its
        return sum(
            other > rank and (other[0] > rank[0] or all(one <= two for one, two in zip(theirs, costs, strict=True)))
            for other, theirs in kept.values()
        )

    def _costs(self, trial: TrialState) -> Costs:
        """Return what the constraints use, smaller is better, infinite where not measured; they judge complete
        trials alone.
        """
        constraints, measured = self.schedule.constraints if trial.status == COMPLETED else (), trial.constrained or {}
        values = [(each.goal, measured.get(each.goal.metric, math.nan)) for each in constraints]
        return tuple(goal.cost(value) if math.isfinite(value) else math.inf for goal, value in values)


class Sink(Protocol):
    """Where records go after the journal."""

    def append(self, record: Record) -> None:
        """Take one record in."""

    def flush_if_due(self) -> None:
        """Make what was taken in visible, when it is due."""


class Fold(Protocol):
    """What a journal adds up to for somebody: the state, the rungs, a searcher's knowledge, the time worked."""

    def apply(self, record: Record) -> None:
        """Take one record in; records come in order."""


#: So many configurations share a record: one record a sweep of the usual size, and 150 kB of a large one.
TOGETHER = 500


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


#: Trials take nothing of a GPU, or whole cards.
NO_SHARES = Shares()


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
        apart: each replicate is trained in a separate process.
        together: trials are lanes of cohorts.
    """

    schedule: Scheduler
    seeds: ReplicateSeeds
    retries: int = 2
    max_concurrent: int | None = None
    keeping: Keeping = THE_BEST
    training: TrainingSettings = PLAIN
    space: Mapping[str, object] | None = None
    apart: bool = False
    together: bool = False

    @staticmethod
    def of(spec: SweepSpec, configurations: Sequence[Mapping[str, object]]) -> DriverSettings:
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
            apart=spec.replicates.packing == TRIALS,
            together=spec.replicates.in_cohorts,
        )


@dataclass(eq=False)
class TrialValues:
    """Knows configurations by index, and which of them and of their digests the journal lacks.

    Attributes:
        configurations: as the space or a searcher gives them.
        state: of the sweep, which `record` continues changing.
        record: journals.
    """

    configurations: Sequence[Mapping[str, object]]
    state: SweepState
    record: Callable[[Body], object]

    def of(self, index: int) -> dict[str, Any]:
        """Return a configuration's values as the journal has them; they are drawn and journaled before, if need be."""
        known = self.state.configurations
        if index not in known and not is_added(index):
            last = min(index - index % TOGETHER + TOGETHER, len(self.configurations))
            following = next((each for each in range(index, last) if each in known), last)
            first = index
            while first % TOGETHER and first - 1 not in known:
                first -= 1
            self.record(Drawn(first, [self.configurations[each] for each in range(first, following)]))
        return dict(self.state.values_of(index) or {})

    def look(self, index: int) -> Mapping[str, object]:
        """Return a configuration's values; nothing is journaled for it."""
        known = self.state.values_of(index)
        return self.configurations[index] if known is None else known

    def digest(self, index: int) -> str | None:
        """Return the digest of a configuration's values for its first report; `None` where the journal has it."""
        return None if self.state.trials[index].config_hash is not None else config_hash(self.of(index))
