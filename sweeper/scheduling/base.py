"""The interface of schedulers: settings, rungs, the comparison at a rung, and a state computed from the journal.

A scheduler compares a trial that reaches a rung with the trials that reached it earlier. This module contains the rules
that all schedulers share: a trial whose objective is not finite fails, a trial that reaches the last epoch is complete,
and nothing is decided between rungs. The same state and the same report always give the same decision; `audit` relies
on this.

To add a scheduler, add one file to this folder; it is discovered there:

    @SCHEDULERS.add("stop_worst", "…", "source", more=[WITHIN])
    @dataclass(frozen=True)
    class StopWorst(Scheduler):
        grace_epochs: GraceEpochs = 1
        rungs = property(lambda self: (self.grace_epochs, self.max_epochs))
        def begin(self) -> RungState:
            return Worst(self)        # a `RungState` with `compare`

A scheduler declares its other abilities: `pauses`, `smallest_pool`. Plans, reports, `sweeper spaces` and audits (which
recompute every decision from the journal) use these declarations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

from sweeper.core.ids import is_added
from sweeper.journal.records import Decision, Judged, Record, Reported
from trainables.registry import BrokenRule, Hyperparameter, Registry
from trainables.worker.trial_reports import NON_FINITE, TrialReport

#: Schedulers by their name in a search space. Each builds a `Scheduler` from (metric, mode, **settings).
SCHEDULERS = Registry("scheduler", leading=["metric", "mode"])

#: The scheduler used when a search space names none.
DEFAULT = "asha"

#: Tag of schedulers that drop the settings of other schedulers. So `--set scheduler.name=none` alone turns stopping
#: off.
IGNORES_SETTINGS = "ignores settings"

MaxEpochs = Annotated[int, "[1, 100000]: a trial trains at least one epoch"]
GraceEpochs = Annotated[
    int,
    "[1, inf): a trial has no value before its first epoch",
    Hyperparameter(source="Ray Tune's AsyncHyperBandScheduler, grace_period"),
]
#: Paths of the space that divide trials into strata (see `sweeper.scheduling.strata`). Every scheduler that compares
#: trials accepts this setting. It is not a field of `Scheduler`, which handles one pool; `Stratified` handles strata.
WITHIN = Hyperparameter(
    "within", "texts", source="none by default: all trials compete in one pool, as in Li et al. 2020 and in Ray Tune"
)


#: (Stratum, rung) → whether no further trial can reach the rung, except by promotion of a paused trial.
Settled: TypeAlias = Callable[[str | None, int], bool]


def settled_but_for(state: RungState, under_way: Callable[[], Iterable[tuple[int, int]]]) -> Settled:
    """Return a function that returns whether a rung is settled.

    Args:
        state: the scheduler's state, which contains each trial's stratum.
        under_way: returns the trials that run or have yet to begin, as (configuration, epochs so far). Rungs of the
            trial's stratum above these epochs are not settled.
    """
    # `under_way` is a function because listing the trials is costly and few promotions depend on it.
    return lambda stratum, rung: (
        not any(epochs < rung and state.stratum(configuration) == stratum for configuration, epochs in under_way())
    )


def grace_before_the_end(values: Mapping[str, object]) -> BrokenRule | None:
    """Return an error message if the first rung comes after the last epoch, `None` otherwise."""
    grace, last = values.get("grace_epochs"), values.get("max_epochs")
    if isinstance(grace, int) and isinstance(last, int) and grace > last:
        why = "the first rung cannot come after the last epoch"
        return "grace_epochs", f"grace_epochs = {grace} is above max_epochs = {last}: {why}"
    return None


@dataclass(frozen=True)
class Scheduler(ABC):
    """A scheduler's settings and the objective it compares.

    Attributes:
        metric: name of the objective.
        mode: the better direction, `min` or `max`.
        max_epochs: epochs after which a trial is complete.
        compares: whether trials are compared at rungs.
        pauses: whether a trial can wait at a rung until it is promoted.

    Example:
        >>> from sweeper.scheduling import SCHEDULERS, decide
        >>> scheduler = SCHEDULERS.build("asha", "val_nll", "min", max_epochs=27, grace_epochs=3)
        >>> scheduler.rungs
        (3, 9, 27)
        >>> state = scheduler.begin()
        >>> for configuration, val_nll in enumerate([0.2, 0.3, 0.4]):
        ...     state.add(3, configuration, val_nll)
        >>> decide(state, configuration=3, epoch=3, metric=0.5).kind
        'stop'
    """

    compares: ClassVar[bool] = True
    pauses: ClassVar[bool] = False
    metric: str
    mode: Literal["min", "max"]
    max_epochs: MaxEpochs

    @property
    @abstractmethod
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are evaluated and compared, rising; the last one is `max_epochs`."""

    @abstractmethod
    def begin(self) -> RungState:
        """Return the state before the first record."""

    @property
    def smallest_pool(self) -> int:
        """Smallest number of trials for which a comparison is useful. Plans refuse smaller strata."""
        return 2

    def score(self, value: float) -> float:
        """Return the value, negated if smaller values are better. Applied twice, it returns the value again."""
        return value if self.mode == "max" else -value


class RungState(ABC):
    """The values at every rung, computed from the journal. The scheduler compares a new trial with them.

    If trials compete in several pools, each pool has its own state (see `pool`), which records values and decisions.

    Attributes:
        scheduler: the settings.
        epochs: the rungs.
        arrived: rung → configuration → objective on arrival.

    Example:
        >>> from sweeper.scheduling.asha import Halving
        >>> state = Halving("val_accuracy", "max", max_epochs=9, grace_epochs=3).begin()
        >>> state.add(3, 0, 0.8)
        >>> state.competitors(3), state.compare(3, 1, 0.7).kind
        (1, 'stop')
    """

    def __init__(self, scheduler: Scheduler) -> None:
        """Start with empty rungs."""
        self.scheduler, self.epochs = scheduler, frozenset(scheduler.rungs)
        self.arrived: dict[int, dict[int, float]] = {rung: {} for rung in scheduler.rungs}

    def add(self, rung: int, configuration: int, metric: float) -> None:
        """Record a configuration's objective at a rung; a second value for the same rung is ignored."""
        # A resumed trial reports a rung again, but the decision on its first value is already in the journal.
        self.arrived[rung].setdefault(configuration, metric)

    def competitors(self, rung: int) -> int:
        """Return the number of configurations that have reached a rung."""
        return len(self.arrived[rung])

    @abstractmethod
    def compare(self, rung: int, configuration: int, metric: float) -> Decision:
        """Return whether a configuration that reaches a rung before the last continues, stops or pauses.

        Does not change the state.
        """

    def decided(self, configuration: int, decision: Decision) -> None:
        """Record a decision, after the value on which it was based. Used only by schedulers that pause trials."""
        return

    def promotion(self, settled: Settled = lambda stratum, rung: False) -> tuple[int, Decision] | None:
        """Return the paused trial to promote when a worker is free, and the decision; `None` to begin a new trial.

        Does not change the state. At rungs for which `settled` is true, `keep_at_least` can promote beyond the quota.
        """
        return None

    def never_promoted(self, rung: int, configuration: int) -> Decision:
        """Return the decision on a paused trial that can no longer be promoted."""
        raise ValueError(f"configuration {configuration} cannot pause at rung {rung}: this scheduler pauses no trial")

    def pool(self, configuration: int) -> RungState:
        """Return the state of the trials that a configuration competes with: all of them, unless there are strata."""
        # Added seeds always run to the last epoch. Comparing them would select lucky seeds.
        return AddedSeeds(self.scheduler) if is_added(configuration) else self

    def stratum(self, configuration: int) -> str | None:
        """Return the name of a configuration's stratum; `None` if there is one pool."""
        return None

    def apply(self, record: Record) -> None:
        """Add one journal record to the state: a decision on a trial, with or without a report."""
        match record.body:
            # A decision without a report promotes a trial or ends its pause.
            case Judged() as body:
                self.pool(body.configuration).decided(body.configuration, body.decision)
            case Reported(decision=Decision(rung=int(rung)) as decision) as body if decision.metric is not None:
                # A failed trial has no value at the rung, so it never becomes a competitor.
                pool = self.pool(body.configuration)
                pool.add(rung, body.configuration, decision.metric)
                pool.decided(body.configuration, decision)


class AddedSeeds(RungState):
    """The rung state of seeds added to a sweep: their only rung is the last epoch, where they are complete."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Create a state whose only rung is the last epoch."""
        super().__init__(scheduler)
        self.epochs = frozenset({scheduler.max_epochs})

    def compare(self, rung: int, configuration: int, metric: float) -> Decision:
        """Raise ValueError: added seeds are not compared."""
        raise ValueError(f"added seed {configuration} is not compared at epoch {rung}: it runs to the end")


def decide(state: RungState, configuration: int, epoch: int, metric: float | None) -> Decision | None:
    """Return the decision on a trial that reports after `epoch` epochs, or `None` between rungs.

    Does not change the state.

    Args:
        state: the values already at each rung.
        configuration: index of the trial's configuration.
        epoch: number of completed epochs.
        metric: value of the objective, a mean over replicates.

    Example:
        >>> from sweeper.scheduling.median_stopping import MedianStopping
        >>> state = MedianStopping("val_nll", "min", max_epochs=10, grace_epochs=5, min_competitors=2).begin()
        >>> for configuration, val_nll in enumerate([0.2, 0.4]):
        ...     state.add(5, configuration, val_nll)
        >>> decide(state, configuration=2, epoch=4, metric=0.9) is None  # between rungs
        True
        >>> decision = decide(state, configuration=2, epoch=5, metric=0.9)
        >>> decision.kind, decision.rule, round(decision.cutoff, 6)
        ('stop', 'median', 0.3)
        >>> decide(state, configuration=2, epoch=5, metric=float("nan")).kind
        'fail'
    """
    pool, last = state.pool(configuration), state.scheduler.max_epochs
    rung = epoch if epoch in pool.epochs else None
    if metric is None and rung is None:  # the objective may be measured only at rungs
        return None
    if metric is None or not math.isfinite(metric):
        decision = Decision("fail", NON_FINITE, rung)
    elif epoch >= last:
        decision = Decision("complete", "last_epoch", last, metric, count=pool.competitors(last) + 1)
    elif rung is not None:
        decision = pool.compare(rung, configuration, metric)
    else:
        return None
    return replace(decision, stratum=state.stratum(configuration))


def decide_on(state: RungState, report: TrialReport) -> Decision | None:
    """Return the decision on a trial's report: `decide` on its objective.

    The objective is a mean over the replicates that trained. Replicates that diverged, or failed in a separate process,
    are excluded. The decision counts them (`left_out`), so the configuration still competes but is marked.
    """
    decision = decide(state, report.configuration, report.epoch, report.objective)
    if decision is None or decision.kind == "fail" or not report.replicate_errors:
        return decision
    return replace(decision, left_out=len(report.replicate_errors))


class Difference(NamedTuple):
    """A record that does not follow from the records before it; `fault` says in words what differs."""

    record: int
    fault: str

    def __str__(self) -> str:
        return f"record {self.record}: {self.fault}"


def audit(scheduler: Scheduler, records: Iterable[Record]) -> tuple[int, list[Difference]]:
    """Recompute every decision from the records before it. A report without a decision is checked too.

    Returns:
        The number of decisions checked, and those that differ.
    """
    state, checked, differences = scheduler.begin(), 0, list[Difference]()
    for record in records:
        if isinstance(record.body, Reported | Judged):
            body, journaled = record.body, record.body.decision
            again = decide_on(state, body.report) if isinstance(body, Reported) else _judged_again(state, body)
            checked += journaled is not None
            if _comparable(again) != _comparable(journaled):
                fault = f"journaled {_text(journaled)}, recomputed {_text(again)}"
                differences.append(Difference(record.sequence, fault))
                # The state has no place for a forged rung. Any other differing decision is applied, as the driver did.
                if journaled is not None and journaled.rung not in state.epochs:
                    continue
        state.apply(record)
    return checked, differences


def narrow_decisions(scheduler: Scheduler, records: Iterable[Record], share: float) -> int:
    """Count the decisions at rungs that turn, or give another place, if the objective changes by this share of it."""
    state, narrow = scheduler.begin(), 0
    for record in records:
        body = record.body
        if isinstance(body, Reported) and body.decision is not None and body.report.objective is not None:
            changed = (body.report.objective * (1 + side) for side in (-share, share))
            made = [decide_on(state, replace(body.report, objective=value)) for value in changed]
            narrow += len({(decision.kind, decision.place) for decision in made if decision is not None}) > 1
        state.apply(record)
    return narrow


def _judged_again(state: RungState, body: Judged) -> Decision | None:
    """Recompute the decision on a paused trial; `None` if another trial should have been promoted."""
    if body.decision.kind == "stop":
        return state.never_promoted(body.epoch, body.configuration)
    # The journal does not record which trials had yet to begin, so `settled` is unknown and both values are tried. A
    # promotion by `keep_at_least` names that setting, so it can equal only the second.
    made = (body.decision.stratum, body.decision.rung)
    for promotion in (state.promotion(), state.promotion(lambda stratum, rung: (stratum, rung) == made)):
        if promotion is not None and promotion == (body.configuration, body.decision):
            return promotion[1]
    return None


def _comparable(decision: Decision | None) -> Decision | None:
    if decision is None or decision.kind != "fail":
        return decision
    # Only the kind of a failure is compared: its rule comes from the trial's process and can be more specific.
    return replace(decision, rule=NON_FINITE)


def _text(decision: Decision | None) -> str:
    return str(decision.to_json() if decision is not None else None)
