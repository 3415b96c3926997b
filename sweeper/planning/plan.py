"""What a sweep will do, before anything is trained: trials, rungs, epochs, time, and how that is shown.

How many trials reach a rung is simulated with the scheduler's own decisions on random trials. Trials are assumed to
keep their order from rung to rung; where they change places, fewer go on, so the estimate errs to the expensive side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

from sweeper.core.domains import Configuration
from sweeper.core.labels import duration, plural, rehearsal_notice
from sweeper.scheduling.base import Scheduler
from sweeper.scheduling.contenders import PARTS, trainings
from sweeper.scheduling.simulation import simulate_strata
from sweeper.scheduling.strata import Stratified
from sweeper.space.configurations import (
    EXAMPLES,
    configurations,
    examples,
    first_examples,
    named_components,
    repeat_notes,
    stratum_sizes,
)
from sweeper.space.parts import Resources
from sweeper.space.spec import SweepSpec
from trainables.files.container import usable_cores
from trainables.training.lanes.packing import COHORT, cohort_key

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: From the command to the first step: Ray's start (3 to 4 s) and the workers' import of torch (4 to 5 s).
START_SECONDS = 10.0


#: Kinds of cohorts that a plan shows a line each of.
SHOWN_COHORTS = 8

#: What the driver and the tables cost for each evaluation of a replicate.
REPORT_SECONDS = 0.05

#: How replicates share processes, in words.
PACKINGS = {
    "sequential": "sequential: one process trains a trial's replicates one after another",
    "fused": "fused: one process trains a trial's replicates as lanes of one batched network",
    "auto": "auto: in cohorts, fused or sequential, whichever is measured to be faster",
    "cohort": "cohort: the replicates of several trials train as lanes of one batched network",
    "trials": "trials: each replicate has its own process up to the next rung",
}

#: Strata that a plan shows a line each of; of more, the smallest.
SHOWN_STRATA = 24

#: Share of the work from which measuring the Hessian, or data beyond the data set's own, is named.
NAMED_SHARE = 0.1

#: Below this on every card, hours are not shown: starting takes longer.
SHORTEST_HOURS = 0.05


class PlanView(ABC):
    """A plan of any kind: a dataclass shown as a table or as JSON."""

    def warnings(self) -> Iterator[str]:
        """Yield warnings to show above the table; none by default."""
        yield from ()

    @abstractmethod
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield (quantity, value) rows, in order."""

    @abstractmethod
    def grounds(self) -> Iterator[str]:
        """Yield the assumptions, a sentence each."""

    def to_dict(self: DataclassInstance) -> dict[str, object]:
        """Return the plan as plain JSON values."""
        return asdict(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show warnings, the table, and its grounds."""
        yield from self.warnings()
        table = Table(Column(style="bold"), "", show_header=False, box=None, pad_edge=False)
        for subject, said in self.lines():
            table.add_row(subject, said)
        yield table
        yield from self.grounds()


@dataclass(frozen=True)
class Range:
    """A mean with the 5th and 95th percentile."""

    low: float
    mean: float
    high: float

    @staticmethod
    def of(values: NDArray[np.float64]) -> Range:
        """Return the range of simulated values."""
        low, high = np.percentile(values, [5, 95])
        return Range(float(low), float(np.mean(values)), float(high))

    def text(self, digits: int = 0) -> str:
        """Return e.g. `17.6 (13 to 23)`, or the number alone where it is certain."""
        if self.low == self.high:
            return f"{self.mean:,.{digits}f}"
        return f"{self.mean:,.{digits}f} ({self.low:,.0f} to {self.high:,.0f})"


@dataclass(frozen=True)
class Cost:
    """Seconds that one epoch and one evaluation of one replicate take on one trial's share of this machine.

    Attributes:
        epoch_seconds: of one epoch.
        evaluation_seconds: of one evaluation.
        curvature_seconds: of the Hessian, which is part of the evaluation.
        shifted_seconds: of all shifts, which a finished replicate is measured on besides.
        lanes: of the cohort that an epoch's time is a lane's share of; 0 where it trains alone.
        alone_seconds: of one epoch without that cohort.
    """

    epoch_seconds: float
    evaluation_seconds: float
    curvature_seconds: float = 0.0
    shifted_seconds: float = 0.0
    lanes: int = 0
    alone_seconds: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """What a sweep takes on named cards.

    Attributes:
        operations: floating-point operations of the whole sweep (a multiply-add counts two).
        gpu_hours: card → hours of one GPU, from the anchor's speed to `slowest` times that.
        forward: architecture → operations of one sample's forward pass.
        assumption: what the range rests on, in a sentence.
    """

    operations: float
    gpu_hours: dict[str, tuple[float, float]]
    forward: dict[str, float]
    assumption: str

    @property
    def worth_a_card(self) -> bool:
        """Whether this is more than some seconds of the slowest card."""
        return max(high for _, high in self.gpu_hours.values()) > SHORTEST_HOURS


@dataclass(frozen=True)
class Stratum:
    """One stratum: how many trials it has, and how many of them reach each rung."""

    trials: float
    reaching: dict[int, Range]


@dataclass(frozen=True)
class Plan(PlanView):
    """What a sweep will do.

    Attributes:
        trials: configurations.
        replicates: seeds of each.
        reaching: rung (epochs) → how many trials reach it.
        epochs: training epochs over all replicates.
        evaluations: evaluations over all replicates.
        workers: processes that run at once, each with a trial or, where replicates are trained apart, with one of them.
        seconds: how long it takes; `None` when costs were not measured.
        costs: architecture → measured cost.
        note: why there is no time, or how it was estimated.
        estimate: GPU-hours on known GPUs, estimated without training; `None` if the data's size is unknown.
        rehearsed: what a rehearsal changes, a sentence each; empty for the real thing.
        packing: how replicates share processes.
        takes: what each process takes of a machine, in words.
        searcher: who chooses configurations, in words; empty where they are drawn at random or taken from grids.
        strata: stratum → its trials, and how many of them are expected to reach each rung; empty for one pool.
        obstacle: why the sweep could not start here, such as missing data; empty where nothing is in the way.
        balance: a sentence on the shares of the classes where they are far from equal.
        curvature_share: of the work, what measuring the Hessian takes; 0 where it is not measured or not known.
        cohorts: how trials fall into cohorts, a few words each; empty where none are asked for.
        shifted_share: the same of corrupted and other data; making them, once a node, is not counted.
        final: trainings on fresh seeds in the final stage, at first and at most; `None` without one.
        final_epochs: of each of them.
        final_seconds: how long these take at most; `None` when costs were not measured.
        price_per_gpu_hour: by which GPU-hours are multiplied; `None` shows none.
    """

    trials: int
    replicates: int
    reaching: dict[int, Range]
    epochs: Range
    evaluations: Range
    workers: int
    seconds: Range | None
    costs: dict[str, Cost]
    note: str
    estimate: Estimate | None = None
    rehearsed: tuple[str, ...] = ()
    packing: str = "sequential"
    takes: str = ""
    searcher: str = ""
    strata: dict[str, Stratum] = field(default_factory=dict)
    obstacle: str = ""
    balance: str = ""
    curvature_share: float = 0.0
    cohorts: tuple[str, ...] = ()
    shifted_share: float = 0.0
    final: tuple[int, int] | None = None
    final_epochs: int = 0
    final_seconds: float | None = None
    price_per_gpu_hour: float | None = None

    def warnings(self) -> Iterator[str]:
        """Yield that it is a rehearsal, if it is."""
        if self.rehearsed:
            yield rehearsal_notice(self.rehearsed)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield trials, rungs, epochs, evaluations and time."""
        unit = "replicates " if self.packing == "trials" else ""
        yield "trials", f"{self.trials:,} × {self.replicates} replicates, {self.workers} {unit}at a time"
        if self.balance:
            yield "classes", self.balance
        if self.searcher:
            yield "searcher", self.searcher
        if self.replicates > 1 or self.cohorts:
            yield "packing", PACKINGS[self.packing]
        for kind in self.cohorts:
            yield "cohort", kind
        yield "each process uses", self.takes
        last = max(self.reaching)
        for rung, count in self.reaching.items():
            kind = "end" if rung == last else "rung"
            yield f"{kind}, epoch {rung}", f"reached by {count.text(1 if count.low != count.high else 0)} trials"
        for name, stratum in self._shown_strata():
            left = stratum.reaching[last]
            yield f"within {name}", f"{stratum.trials:,.0f} trials, {left.text(1)} reach epoch {last}"
        if len(self.strata) > SHOWN_STRATA:
            yield "within strata", f"{len(self.strata) - SHOWN_STRATA} more strata, none of them smaller"
        yield "total epochs", self.epochs.text()
        if self.final is not None:
            time = "" if self.final_seconds is None else f", {duration(self.final_seconds)}"
            first, most = (n * self.final_epochs for n in self.final)
            yield "final stage", f"on fresh seeds, {first:,} to {most:,} epochs more at most{time}"
        yield "evaluations", self.evaluations.text()
        if self.seconds is not None:
            times = [duration(s) for s in (self.seconds.mean, self.seconds.low, self.seconds.high)]
            same = self.seconds.low == self.seconds.high
            yield "estimated time", times[0] if same else f"{times[0]} ({times[1]} to {times[2]})"
        if self.curvature_share >= NAMED_SHARE:
            leave_out = "--set evaluation.curvature=false omits it"
            share = f"{self.curvature_share:.0%} of the estimated time"
            yield "curvature", f"{share} is for the Hessian at every evaluation; {leave_out}"
        if self.shifted_share >= NAMED_SHARE:
            fewer = "name fewer kinds or severities, or fewer samples of each"
            share = f"{self.shifted_share:.0%} of the estimated time"
            yield "evaluation splits", f"{share} is for corrupted and other data; {fewer}"
        if self.estimate and self.estimate.worth_a_card:
            for card, (low, high) in self.estimate.gpu_hours.items():
                each = self.price_per_gpu_hour
                price = "" if each is None else f", {low * each:,.2f} to {high * each:,.2f} at {each:g} an hour"
                yield f"GPU-hours, {card}", f"{_hours(low)} to {_hours(high)}{price}"

    def _shown_strata(self) -> list[tuple[str, Stratum]]:
        """Return strata in the order of the space, or where there are many the smallest of them."""
        found = list(self.strata.items())
        if len(found) > SHOWN_STRATA:
            found = sorted(found, key=lambda each: (each[1].trials, each[1].reaching[max(self.reaching)].mean))
        return found[:SHOWN_STRATA]

    def grounds(self) -> Iterator[str]:
        """Yield where GPU-hours and time come from."""
        if self.estimate and self.estimate.worth_a_card:
            yield f"GPU-hours: {self.estimate.assumption}"
        if self.note:
            yield self.note


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def plan(spec: SweepSpec, costs: Mapping[str, Cost] | None = None, workers: int | None = None, note: str = "") -> Plan:
    """Plan a sweep; GPU-hours are not estimated.

    Args:
        spec: the checked search space.
        costs: architecture → cost, as `sweeper.planning.costs.measure_costs` gives; without it there is no time.
        workers: processes that run at once; by default this machine's cores over `resources.cpu`.
        note: shown with the plan.
    """
    trials, replicates = len(configurations(spec)), spec.replicates.count
    apart = replicates if spec.replicates.packing == "trials" else 1
    here = max(1, int(usable_cores() / spec.resources.cpu))
    workers = min(workers or here, trials * apart)
    schedule = spec.schedule
    if isinstance(schedule, Stratified) and schedule.configurations is None:  # a searcher will choose them
        schedule = replace(schedule, configurations=examples(spec))
    names, by_stratum = simulate_strata(schedule, trials, math.ceil(workers / apart))
    reaching = by_stratum.sum(axis=1)
    epochs = reaching @ np.diff([0, *schedule.rungs]) * replicates
    evaluations, finished = reaching.sum(axis=1) * replicates, reaching[:, -1] * replicates
    note = " ".join(filter(None, [*(f"{each}." for each in repeat_notes(spec)), note]))
    counts = [len(named_components(spec.space.nodes[part])) for part in PARTS if part in spec.space.nodes]
    most = spec.replicates.at_most
    final = None if most is None else trainings([n for n in counts if n > 1], len(spec.which), most - replicates)
    planned = Plan(
        trials,
        replicates,
        _by_rung(schedule, reaching),
        Range.of(epochs),
        Range.of(evaluations),
        workers,
        None,
        dict(costs or {}),
        note,
        rehearsed=tuple(spec.rehearsed),
        packing=spec.replicates.packing,
        takes=takes(spec.resources, together=spec.replicates.in_cohorts),
        searcher=searched(spec),
        cohorts=cohort_lines(spec),
        strata=_strata(spec, schedule, names, by_stratum) if isinstance(schedule, Stratified) else {},
        final=final,
        final_epochs=spec.scheduler.max_epochs,
    )
    if costs:
        shares = architecture_shares(spec)

        def mean(of: Callable[[Cost], float]) -> float:
            return sum(share * of(costs[name]) for name, share in shares.items())

        epoch, evaluation = mean(lambda cost: cost.epoch_seconds), mean(lambda cost: cost.evaluation_seconds)
        hessian, once = mean(lambda cost: cost.curvature_seconds), mean(lambda cost: cost.shifted_seconds)
        shifted = finished * once
        work = epochs * epoch + evaluations * (evaluation + REPORT_SECONDS) + shifted
        one = spec.scheduler.max_epochs * epoch + evaluation - hessian + REPORT_SECONDS + once
        return replace(
            planned,
            seconds=Range.of(START_SECONDS + work / workers),
            final_seconds=None if final is None else final[1] * one / workers,
            curvature_share=float((evaluations * hessian).mean() / work.mean()),
            shifted_share=float(shifted.mean() / work.mean()),
        )
    return planned


def searched(spec: SweepSpec) -> str:
    """Return the searcher in words; empty if configurations follow from the space alone."""
    if not spec.searcher.learns:
        return ""
    return f"{spec.searcher.name}: {spec.searcher.method.course}; time is estimated for random configurations"


def takes(resources: Resources, *, together: bool = False) -> str:
    """Return in words what each process takes of a machine, and what happens when that is too little of a GPU."""
    cores = f"{resources.cpu:g} core{'' if resources.cpu == 1 else 's'}"
    if resources.gpu == "auto":
        share = "a quarter of it for as many lanes as fit" if together else "the share measured before the first trial"
        return f"{cores}; on a GPU, {share}"
    if not 0 < resources.gpu < 1:
        cards = f"{resources.gpu:g} GPU{'' if resources.gpu == 1 else 's'}"
        return f"{cores} and {cards}" if resources.gpu else f"{cores}, no GPU"
    most = int(1 / resources.gpu + 1e-9)
    return f"{cores} and {resources.gpu:g} of a GPU ({most} processes per GPU); doubled after running out of GPU memory"


def _by_rung(schedule: Scheduler, counted: NDArray[np.float64]) -> dict[int, Range]:
    """Return rung → how many trials reach it, from counts [repetitions, rungs]."""
    return {rung: Range.of(column) for rung, column in zip(schedule.rungs, counted.T, strict=True)}


def _strata(
    spec: SweepSpec, schedule: Scheduler, names: Sequence[str], by_stratum: NDArray[np.float64]
) -> dict[str, Stratum]:
    """Return every stratum with how many of its trials reach each rung, from counts [repetitions, strata, rungs]."""
    found = {name: _by_rung(schedule, by_stratum[:, row]) for row, name in enumerate(names)}
    return {name: Stratum(size, found[name]) for name, size in stratum_sizes(spec).items() if name in found}


def architecture_shares(spec: SweepSpec) -> dict[str, float]:
    """Return the share of configurations of each architecture, of those that are examined."""
    names = [str(values["architecture"]["name"]) for values in first_examples(spec)]
    return {name: names.count(name) / len(names) for name in sorted(set(names))}


def cohort_lines(spec: SweepSpec) -> tuple[str, ...]:
    """Return a line for each kind of cohort: which trials can train together, and in how many lanes.

    Empty where `packing` is not `cohort`. How many lanes pay, if any, is measured when the sweep begins.
    """
    if spec.replicates.packing != COHORT:
        return ()
    training = spec.training.settings
    found = configurations(spec)[:EXAMPLES]
    keys = [cohort_key(values, training) for values in found]
    names = {key: _name(values) for key, values in zip(keys, found, strict=True)}
    lanes = spec.replicates.lanes
    width = "as many lanes as are measured to be fastest" if lanes == "auto" else f"{lanes} lanes a process"
    counted = Counter(keys)
    alone = counted.pop(None, 0)
    lines = [f"{plural(count, 'trial')} of {names[key]}: {width}" for key, count in counted.most_common(SHOWN_COHORTS)]
    if len(counted) > SHOWN_COHORTS:
        lines.append(f"{len(counted) - SHOWN_COHORTS} more kinds, none of them larger")
    return (*lines, *([f"{plural(alone, 'trial')} cannot be lanes and train alone"] if alone else []))


def _name(values: Configuration) -> str:
    network, recipe = values["architecture"], values["optimizer"]
    options = ", ".join(f"{key} {value}" for key, value in network.items() if key != "name")
    shape = f"{network['name']} ({options})" if options else str(network["name"])
    return f"{shape}, {recipe['name']}, batch size {recipe.get('batch_size', 128)}"
