"""A driver's settings, GPU shares, values of configurations, and kept checkpoints.

The best ended trials of the sweep, or of each stratum, keep their checkpoints; the checkpoints of the others are
removed. The order is that of `sweeper.journal.best`.

Fresh seeds decide which configuration is recommended, and that is known only when the last of them has ended. Until
then their checkpoints stay; afterwards, those of the best configurations by the mean of their fresh seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sweeper.core.ids import ReplicateSeeds, is_added, trial_name
from sweeper.journal.best import Mode, Rank, rank_of
from sweeper.journal.records import AddedSeed, Body, Drawn, Record
from sweeper.journal.state import COMPLETED, ENDED, SweepState, TrialState
from sweeper.scheduling.base import Scheduler
from sweeper.scheduling.contenders import REQUEST, replicates_of
from sweeper.scheduling.strata import stratum_name
from sweeper.space.spec import SweepSpec
from sweeper.storage.mirror import Mirror, SharedFolder
from trainables.registry import Configuration
from trainables.training.acceleration import PLAIN, TrainingSettings
from trainables.training.lanes.packing import TRIALS
from trainables.worker.trial_reports import NON_FINITE, TrialReport

#: Endings that a retry would repeat. After other endings, such as a crash or a timeout, a trial can continue from its
#: checkpoint.
OVER = {"continue", "stop", "complete", "fail", NON_FINITE}


@dataclass(frozen=True)
class Keeping:
    """Which checkpoints are kept.

    Attributes:
        best: Number of best trials per stratum, and of best configurations with fresh seeds.
        stratum: Function from a configuration's index to its stratum; the whole sweep by default.
    """

    best: int = 1
    stratum: Callable[[int], str] = lambda configuration: ""


#: Keep only the best trial's checkpoints.
THE_BEST = Keeping()


@dataclass(eq=False)
class KeptCheckpoints:
    """Keeps the checkpoints of the best ended trials and removes those of the others.

    Attributes:
        keeper: Folder or mirror that removes checkpoints.
        state: State of the sweep, which changes while it runs.
        mode: Whether the objective should be small, `min`, or large, `max`.
        keeping: Which checkpoints are kept.
    """

    keeper: Mirror | SharedFolder
    state: SweepState
    mode: Mode
    keeping: Keeping = THE_BEST

    def __post_init__(self) -> None:
        """Rank the trials that have ended so far."""
        self._kept: dict[str, dict[int, Rank]] = {}
        #: Configuration → its ended fresh seeds that have checkpoints.
        self._fresh: dict[int, list[int]] = {}
        present = self.keeper.trials_with_checkpoints() if self.state.added else set()
        for index, trial in self.state.trials.items():
            if trial.status in ENDED and (trial.added is None or trial_name(index) in present):
                self._enter(index)

    def tidy(self, index: int) -> None:
        """Remove the checkpoints that are superfluous once a trial has ended: its own, or those of surpassed trials."""
        trial = self.state.trials[index]
        if trial.status in ENDED and trial.stop_kind in OVER:
            for surpassed in self._enter(index):
                self.keeper.remove_checkpoints(trial_name(surpassed))

    def remove_leftovers(self, unknown: Collection[int] = ()) -> None:
        """Remove checkpoints left by a driver that died between a trial's end and `tidy`.

        Args:
            unknown: Trials that the journal does not have; their checkpoints remain from lost records.
        """
        kept = {index for indices in (*self._kept.values(), *self._fresh.values()) for index in indices}
        done = {i for i, t in self.state.trials.items() if t.status in ENDED and t.stop_kind in OVER}
        for name in {trial_name(i) for i in (done | {*unknown}) - kept} & self.keeper.trials_with_checkpoints():
            self.keeper.remove_checkpoints(name)

    def keep_best_seeds(self) -> None:
        """Remove the checkpoints of fresh seeds, except of the best configurations. All seeds must have ended."""
        standings: dict[str, dict[int, Rank]] = {}
        for configuration, seeds in replicates_of(self.state).items():
            done = [seed for seed in seeds.values() if _is_measured(seed)]
            if done:
                standings.setdefault(self.keeping.stratum(configuration), {})[configuration] = self._mean(done)
        best = {
            configuration
            for stratum in standings.values()
            for configuration, standing in stratum.items()
            if self._ahead_of(standing, stratum) < self.keeping.best
        }
        for configuration in self._fresh.keys() - best:
            for seed in self._fresh.pop(configuration):
                self.keeper.remove_checkpoints(trial_name(seed))

    def _mean(self, fresh: Sequence[TrialState]) -> Rank:
        """Return the rank of a configuration by the mean objective of its fresh seeds."""
        objective = math.fsum(seed.objective for seed in fresh if seed.objective is not None) / len(fresh)
        # Tables compute the mean in another order. Rounded, means that differ only in their last bits count as equal,
        # and equal configurations all keep their checkpoints.
        value = float(f"{objective if self.mode == 'max' else -objective:.9g}")
        return True, value, 0

    def _enter(self, index: int) -> list[int]:
        """Rank an ended trial in its stratum; return the trials whose checkpoints are no longer needed."""
        trial = self.state.trials[index]
        if trial.added is not None:
            return self._enter_seed(trial, trial.added)
        rank = rank_of(trial, self.mode)
        if rank is None:  # without a finite objective
            return [index]
        kept = self._kept.setdefault(self.keeping.stratum(index), {})
        kept[index] = rank
        surpassed = [other for other, standing in kept.items() if self._ahead_of(standing, kept) >= self.keeping.best]
        for other in surpassed:
            del kept[other]
        return surpassed

    def _enter_seed(self, trial: TrialState, added: AddedSeed) -> list[int]:
        held = self._fresh.setdefault(added.trial, [])
        # A user can request many seeds of many configurations, so each of these holds one checkpoint. The final stage
        # has few contenders.
        if not _is_measured(trial) or (added.question == REQUEST and held):
            return [trial.configuration]
        held.append(trial.configuration)
        return []

    @staticmethod
    def _ahead_of(rank: Rank, kept: Mapping[int, Rank]) -> int:
        """Return how many kept trials are ahead of a trial."""
        # Being ahead is transitive, so removed trials need not be compared.
        return sum(other > rank for other in kept.values())


def _is_measured(seed: TrialState) -> bool:
    """Return whether a fresh seed has ended with a value."""
    return seed.status == COMPLETED and seed.objective is not None and math.isfinite(seed.objective)


class Sink(Protocol):
    """Receiver of records after they are journaled, such as tables."""

    def append(self, record: Record) -> None:
        """Receive one record."""

    def flush_if_due(self) -> None:
        """Write the received records, if it is due."""


class Fold(Protocol):
    """State folded from the journal: of trials, of rungs, of a searcher, or the time worked."""

    def apply(self, record: Record) -> None:
        """Fold one record; records come in order."""


#: Configurations per journal record. A usual sweep needs one record; a large one has records of 150 kB.
TOGETHER = 500


@dataclass(frozen=True)
class Shares:
    """GPU shares of configurations.

    Attributes:
        measured: Function from a configuration's index to its GPU share; `None` if trials use no GPU or whole GPUs.
        usual: GPU share of each trial if nothing was measured.
    """

    measured: Callable[[int], float] | None = None
    usual: float = 0.0

    def of(self, configuration: int, raised: float | None) -> float | None:
        """Return a configuration's share, or `raised` after memory ran out; `None` if trials use no or whole GPUs."""
        return None if self.measured is None else raised or self.measured(configuration)

    def noted(self, report: TrialReport, share: float | None) -> TrialReport:
        """Return a report with the GPU share of its process."""
        taken = share or self.usual
        return replace(report, gpu=taken) if taken else report


#: Shares for trials that use no GPU, or whole GPUs.
NO_SHARES = Shares()


@dataclass(frozen=True)
class DriverSettings:
    """A driver's settings, the same for every driver of a sweep.

    Attributes:
        schedule: Scheduler.
        seeds: Seeds of every configuration's replicates.
        retries: Failures that count before a trial has failed for good.
        max_concurrent: Most assignments in flight; `None` for no limit.
        keeping: Which checkpoints are kept; by default the best trial's.
        training: Settings of training steps, which decide which trials can share a cohort.
        apart: Whether each replicate trains in a separate process.
        together: Whether trials train as lanes of cohorts.
    """

    schedule: Scheduler
    seeds: ReplicateSeeds
    retries: int = 2
    max_concurrent: int | None = None
    keeping: Keeping = THE_BEST
    training: TrainingSettings = PLAIN
    apart: bool = False
    together: bool = False

    @staticmethod
    def of(spec: SweepSpec, configurations: Sequence[Configuration]) -> DriverSettings:
        """Return the settings of a search space with these configurations, by index."""
        keep = spec.keep
        return DriverSettings(
            spec.schedule,
            spec.replicate_seeds,
            retries=spec.retries,
            max_concurrent=spec.max_concurrent,
            keeping=Keeping(keep.best, lambda index: stratum_name(configurations[index], keep.per)),
            training=spec.training.settings,
            apart=spec.replicates.packing == TRIALS,
            together=spec.replicates.together,
        )


@dataclass(eq=False)
class TrialValues:
    """Values of configurations, journaled before their first use.

    Attributes:
        configurations: Configurations as the space or a searcher gives them.
        state: State of the sweep, which `record` changes.
        record: Function that journals a record.
    """

    configurations: Sequence[Configuration]
    state: SweepState
    record: Callable[[Body], object]

    def of(self, index: int) -> Configuration:
        """Return a configuration's journaled values; draw and journal them first if necessary."""
        known = self.state.configurations
        if index not in known and not is_added(index):
            # Journal all unjournaled configurations around it, within its block of configurations, in one record.
            last = min(index - index % TOGETHER + TOGETHER, len(self.configurations))
            following = next((later for later in range(index, last) if later in known), last)
            first = index
            while first % TOGETHER and first - 1 not in known:
                first -= 1
            self.record(Drawn(first, [self.configurations[i] for i in range(first, following)]))
        return self.look(index)

    def look(self, index: int) -> Configuration:
        """Return a configuration's values without journaling them."""
        known = self.state.values_of(index)
        return self.configurations[index] if known is None else known

    def digest(self, index: int) -> str | None:
        """Return the digest of a configuration's values for its first report; `None` if the journal has it already."""
        return None if self.state.trials[index].config_hash is not None else self.of(index).digest
