"""What a scheduler is: settings, rungs, a state folded from the journal, and the comparison at a rung.

A scheduler compares a trial that reaches a rung with what reached it before. All else is the same for every scheduler
and decided here: a trial whose objective is not a finite number fails, one that reaches the last epoch is complete,
and between rungs nothing is decided. The same state and the same report always give the same decision; `audit` relies
on it.

A new scheduler is one file in this folder, which is found there by its place:

    @SCHEDULERS.add("stop_worst", "…", "source", more=[WITHIN, TOO_SMALL])
    @dataclass(frozen=True)
    class StopWorst(Scheduler):
        grace_epochs: GraceEpochs = 1
        rungs = property(lambda self: (self.grace_epochs, self.max_epochs))
        def begin(self) -> RungState:
            return Worst(self)        # a `RungState` with `compare`

What it can do besides it declares itself: `comparing` (several objectives, constraints), `pauses`, `smallest_pool`.
Plans, reports, `sweeper spaces` and audits, which recompute every decision from the journal, follow.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

from sweeper.core.ids import is_added
from sweeper.journal.best import Objective
from sweeper.journal.records import BREAKS_CONSTRAINT, Decision, Judged, Record, Reported
from sweeper.scheduling.ranking import Constraint, keeping
from trainables.registry import Hyperparameter, Registry
from trainables.worker.trial_reports import NON_FINITE, TrialReport, objective_values

#: Schedulers by the name that a search space gives. A component's build takes (metric, mode, **settings) and returns a
#: `Scheduler`. A setting that counts epochs has a name that ends in `_epochs`: rehearsals scale it with the run.
SCHEDULERS = Registry("scheduler", leading=["metric", "mode"])

#: The scheduler of a search space that names none.
DEFAULT = "asha"

#: A component's tag: settings of other schedulers are left out instead of refused, so that a name turns them off.
IGNORES_SETTINGS = "ignores settings"

#: Metric → its mean over replicates, and the mean's standard error.
Measured: TypeAlias = Mapping[str, tuple[float, float]]

MaxEpochs = Annotated[int, "[1, 100000]: a trial trains at least one epoch"]
GraceEpochs = Annotated[
    int,
    "[1, inf): a trial has no value before its first epoch",
    Hyperparameter(source="Ray Tune's AsyncHyperBandScheduler, grace_period"),
]
#: Paths of a space that divide trials into strata, see `sweeper.scheduling.strata`; any scheduler that compares trials
#: takes it. It is no setting of the `Scheduler` itself, which knows of one pool alone.
WITHIN = Hyperparameter(
    "within", "texts", source="none by default: all trials compete in one pool, as in Li et al. 2020 and in Ray Tune"
)


#: What becomes of `within` where a stratum has too few trials to compare, as in a first try with few samples.
TOO_SMALL = Hyperparameter(
    "if_too_small",
    "text",
    choices=("refuse", "one_pool"),
    source="refuse by default: nothing can be said about a stratum of one trial",
)


def measurements(report: TrialReport, metrics: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return what a report measured of `metrics`, over its sound replicates; one that was not measured is missing."""
    found: dict[str, tuple[float, float]] = {}
    sound = [row for row in report.epochs if row["replicate"] not in report.replicate_errors]
    for metric in metrics:
        values = objective_values(metric, sound, report.evaluations) if sound else []
        if values and all(map(math.isfinite, values)):
            error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
            found[metric] = (math.fsum(values) / len(values), error)
    return found


#: Stratum and rung → whether no trial can come to that rung any more, but for paused ones that are promoted to it.
Settled: TypeAlias = Callable[[str | None, int], bool]


def settled_but_for(state: RungState, under_way: Callable[[], Iterable[tuple[int, int]]]) -> Settled:
    """Return which rungs are settled while these trials run or are yet to begin: (configuration, its epochs so far).

    A trial is awaited at the rungs of its own stratum that it has not come to. It is only asked where it decides.
    """
    return lambda stratum, rung: (
        not any(epochs < rung and state.stratum(configuration) == stratum for configuration, epochs in under_way())
    )


def grace_before_the_end(values: Mapping[str, object]) -> str | None:
    """Return the rule that the first rung comes no later than the last epoch, if settings break it."""
    grace, last = values.get("grace_epochs"), values.get("max_epochs")
    if isinstance(grace, int) and isinstance(last, int) and grace > last:
        return f"grace_epochs = {grace} is above max_epochs = {last}: the first rung cannot come after the last epoch"
    return None


@dataclass(frozen=True)
class Scheduler(ABC):
    """A scheduler's settings, with the objective that it compares.

    Attributes:
        metric: the objective's name.
        mode: `min` or `max`, whichever is better.
        max_epochs: after which a trial is complete.
        compares: whether trials are compared at rungs.
        pauses: whether a trial may wait at a rung until it is promoted.
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
    def metrics(self) -> tuple[str, ...]:
        """What it compares besides its metric's mean: none but for several objectives and constraints."""
        return ()

    @property
    def constraints(self) -> Sequence[Constraint]:
        """What trials must keep to; none for a scheduler without constraints."""
        return ()

    @property
    def constrained_metrics(self) -> tuple[str, ...]:
        """What the sweep's constraints use; none where it has none."""
        return tuple(dict.fromkeys(each.goal.metric for each in self.constraints))

    def keeping(self, measured: Mapping[int, Mapping[str, float]]) -> set[int]:
        """Return the trials that keep to the sweep's constraints, of complete ones with what they measured of them."""
        return keeping(self.constraints, measured)

    def comparing(self, goals: tuple[Objective, ...], constraints: tuple[Constraint, ...]) -> Scheduler | None:
        """Return the scheduler that compares several objectives, or keeps to constraints; `None` where it cannot.

        Args:
            goals: the objectives; the first is its own metric.
            constraints: what trials must keep to.
        """
        return None

    @property
    def smallest_pool(self) -> int:
        """The fewest trials among which a comparison can stop any but the worst by chance."""
        return 2

    def score(self, value: float) -> float:
        """Return a value of the objective with larger meaning better; its own inverse."""
        return value if self.mode == "max" else -value


class RungState(ABC):
    """What reached each rung, as one scheduler needs it to compare: a fold of the journal.

    Where trials compete in several pools, each has a state of its own (`pool`), which takes values and decisions in.

    Attributes:
        scheduler: the settings.
        epochs: the rungs.
        arrived: rung → configuration → the value with which it reached the rung, and what else was measured.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        """Start with empty rungs."""
        self.scheduler, self.epochs = scheduler, frozenset(scheduler.rungs)
        self.arrived: dict[int, dict[int, tuple[float, Measured]]] = {rung: {} for rung in scheduler.rungs}

    def add(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> None:
        """Take in the value with which a configuration reached a rung; a second one is ignored, for it was decided."""
        self.arrived[rung].setdefault(configuration, (metric, measured or {}))

    def competitors(self, rung: int) -> int:
        """Return how many configurations have reached a rung."""
        return len(self.arrived[rung])

    @abstractmethod
    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Return whether a configuration that reaches a rung before the last continues or stops. Changes nothing.

        `measured` has the scheduler's `metrics`; one that has none does not look at it.
        """

    def decided(self, configuration: int, decision: Decision) -> None:
        """Take in what was decided, after the value that it was decided on; nothing, where no trial pauses."""
        return

    def leave(self, configuration: int) -> None:
        """Take in that somebody stopped a trial, which is never promoted now; nothing, where no trial pauses."""
        return

    def promotion(self, settled: Settled = lambda stratum, rung: False) -> tuple[int, Decision] | None:
        """Return which paused trial to promote when a worker is free, with the decision; `None` to begin another.

        `settled` says at which rungs `keep_at_least` may fill what the quota leaves. Changes nothing.
        """
        return None

    def never_promoted(self, rung: int, configuration: int) -> Decision:
        """Return the decision on a trial that pauses at a rung when nothing is left that could promote it."""
        raise ValueError(f"configuration {configuration} cannot pause at rung {rung}: this scheduler pauses no trial")

    def keeps_to_constraints(self, rung: int, measured: Measured | None = None) -> bool:
        """Return whether a trial that reaches a rung keeps to the sweep's constraints, if it has any."""
        return True

    def pool(self, configuration: int) -> RungState:
        """Return the state of the trials that a configuration competes with: all of them, but for strata.

        Seeds that were added run to the end and compete with none.
        """
        return AddedSeeds(self.scheduler) if is_added(configuration) else self

    def stratum(self, configuration: int) -> str | None:
        """Return the name of a configuration's stratum; `None` where there is one pool."""
        return None

    def apply(self, record: Record) -> None:
        """Fold one journal record in: what was decided on a trial, with a report or without, or who was stopped.

        A judgement without a report is a promotion, or the end of a pause.
        """
        match record.body:
            case Judged() as body:
                self.pool(body.configuration).decided(body.configuration, body.decision)
            case Reported(decision=Decision(rung=int(rung)) as decision) as body if decision.metric is not None:
                pool, measured = self.pool(body.configuration), measurements(body.report, self.scheduler.metrics)
                pool.add(rung, body.configuration, decision.metric, measured)
                pool.decided(body.configuration, decision)


class AddedSeeds(RungState):
    """The one rung of seeds that were added to a sweep, its last epoch, where they are complete."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Start at the last epoch."""
        super().__init__(scheduler)
        self.epochs = frozenset({scheduler.max_epochs})

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Raise ValueError: these seeds are not compared."""
        raise ValueError(f"added seed {configuration} is not compared at epoch {rung}: it runs to the end")


def decide(
    state: RungState, configuration: int, epoch: int, metric: float | None, measured: Measured | None = None
) -> Decision | None:
    """Return the decision on a trial that reports after `epoch` epochs, or `None` between rungs. Changes nothing.

    Args:
        state: what reached each rung before.
        configuration: the trial's configuration.
        epoch: completed epochs.
        metric: the objective's value, mean over replicates.
        measured: of the scheduler's `metrics`, where it has any.
    """
    decision = _in_pool(state.pool(configuration), configuration, epoch, metric, measured)
    stratum = state.stratum(configuration) if decision is not None else None
    return decision if decision is None or stratum is None else replace(decision, stratum=stratum)


def _in_pool(
    state: RungState, configuration: int, epoch: int, metric: float | None, measured: Measured | None
) -> Decision | None:
    scheduler, rungs, last = state.scheduler, state.epochs, state.scheduler.max_epochs
    if metric is None or not math.isfinite(metric):
        if epoch not in rungs and metric is None:
            return None
        return Decision("fail", NON_FINITE, epoch if epoch in rungs else None)
    if epoch >= last:
        rule = "last_epoch" if state.keeps_to_constraints(last, measured) else BREAKS_CONSTRAINT
        named = scheduler.constrained_metrics
        told = {name: measured[name][0] for name in named if measured and name in measured} if named else None
        return Decision("complete", rule, last, metric, count=state.competitors(last) + 1, constrained=told)
    return state.compare(epoch, configuration, metric, measured) if epoch in rungs else None


def decide_on(state: RungState, report: TrialReport) -> Decision | None:
    """Return the decision on a trial's report: `decide` on its objective, which is a mean over sound replicates.

    Where replicates diverged, or failed otherwise in separate processes, the mean is over the others and the decision
    counts them: such a configuration competes, but never unmarked.
    """
    measured = measurements(report, state.scheduler.metrics)
    decision = decide(state, report.configuration, report.epoch, report.objective, measured)
    if decision is None or decision.kind == "fail" or not report.replicate_errors:
        return decision
    return replace(decision, left_out=len(report.replicate_errors))


def audit(scheduler: Scheduler, records: Iterable[Record]) -> tuple[int, list[str]]:
    """Recompute every decision, and every absence of one, from the records before it.

    Returns how many decisions were checked, and one sentence for each that differs. Of a failure only the rule is
    taken on trust: it is the trial's own, and may say more than that its objective is not a number.
    """
    state, checked, differences = scheduler.begin(), 0, []
    for record in records:
        if isinstance(record.body, Reported | Judged):
            body, journaled = record.body, record.body.decision
            again = decide_on(state, body.report) if isinstance(body, Reported) else _judged_again(state, body)
            checked += journaled is not None
            if _comparable(again) != _comparable(journaled):
                differences.append(f"record {record.sequence}: journaled {_text(journaled)}, recomputed {_text(again)}")
                if journaled is not None and journaled.rung not in state.epochs:
                    continue
        state.apply(record)
    return checked, differences


def _judged_again(state: RungState, body: Judged) -> Decision | None:
    """Return the decision on a paused trial as it follows from the records before; `None` for another's promotion."""
    if body.decision.kind == "stop":
        return state.never_promoted(body.epoch, body.configuration)
    # Whether others were to begin is not in the journal; a promotion for lack of them names the setting.
    made = (body.decision.stratum, body.decision.rung)
    for found in (state.promotion(), state.promotion(lambda stratum, rung: (stratum, rung) == made)):
        if found is not None and found == (body.configuration, body.decision):
            return found[1]
    return None


def _comparable(decision: Decision | None) -> Decision | None:
    if decision is None or decision.kind != "fail":
        return decision
    return replace(decision, rule=NON_FINITE)


def _text(decision: Decision | None) -> str:
    return str(decision.to_json() if decision is not None else None)
