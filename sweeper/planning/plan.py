"""Plan a sweep before anything is trained: trials, rungs, epochs and time, and show the plan.

The number of trials that reach a rung is simulated with the scheduler's own decisions on random trials. Trials are
assumed to keep their order from rung to rung. If the order changes, fewer trials continue, so the estimate is rather
too high than too low.
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

from sweeper.core.labels import duration, plural, rehearsal_notice, unit
from sweeper.scheduling.base import Scheduler
from sweeper.scheduling.contenders import DATA, PARTS, trainings
from sweeper.scheduling.lines import NETWORK
from sweeper.scheduling.simulation import cost_of_width, simulate_strata
from sweeper.scheduling.strata import Stratified
from sweeper.space.checks import stratum_sizes
from sweeper.space.configurations import EXAMPLES, configurations, examples, first_examples, repeat_notes
from sweeper.space.spec import Resources, SweepSpec, lines_of
from trainables.files.container import usable_cores
from trainables.registry import Configuration
from trainables.training.lanes.packing import LANES, cohort_key

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Time from the command to the first step: Ray's start takes 3 to 4 s, the workers' import of torch 4 to 5 s.
START_SECONDS = 10.0


#: Largest number of kinds of lanes that a plan lists.
SHOWN_LANES = 8

#: Cost of the driver and the tables per evaluation of a replicate.
REPORT_SECONDS = 0.05

#: A plan warns if the order of judgements makes a sweep longer by this share of its time.
DEAR_WIDTH = 0.1

#: Packing → its description.
PACKINGS = {
    "sequential": "sequential: one process trains a trial's replicates one after another",
    "auto": "auto: lanes or sequential, whichever is measured to be faster",
    "lanes": "lanes: the replicates of one or several trials train as lanes of one batched network",
    "trials": "trials: each replicate has its own process up to the next rung",
}

#: Largest number of strata that a plan lists. The smallest are listed, because these can be too small to compare.
SHOWN_STRATA = 24

#: If the Hessian or the shifts take at least this share of the time, the plan names them as a cost that can be saved.
NAMED_SHARE = 0.1

#: GPU estimates below this number of hours are not shown, because starting takes longer.
SHORTEST_HOURS = 0.05


class PlanView(ABC):
    """Base class of plans: dataclasses that can be shown as a table or as JSON."""

    def warnings(self) -> Iterator[str]:
        """Yield warnings to show above the table; none by default."""
        yield from ()

    @abstractmethod
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield (quantity, value) rows, in order."""

    @abstractmethod
    def grounds(self) -> Iterator[str]:
        """Yield the assumptions, one sentence each."""

    def to_dict(self: DataclassInstance) -> dict[str, object]:
        """Return the plan as plain JSON values."""
        return asdict(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show warnings, the table, and its grounds."""
        yield from self.warnings()
        table = Table(Column(style="bold"), "", show_header=False, box=None, pad_edge=False)
        for quantity, value in self.lines():
            table.add_row(quantity, value)
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
        """Return e.g. `17.6 (13 to 23)`; if both ends are equal, the number alone.

        Example:
            >>> Range(13, 17.6, 23).text(1), Range(48, 48, 48).text()
            ('17.6 (13 to 23)', '48')
        """
        if self.low == self.high:
            return f"{self.mean:,.{digits}f}"
        return f"{self.mean:,.{digits}f} ({self.low:,.0f} to {self.high:,.0f})"


@dataclass(frozen=True)
class Cost:
    """Time of one epoch and one evaluation of one replicate, on one trial's share of this machine.

    Attributes:
        epoch_seconds: time of one epoch; as one of several lanes, its share of the time of all lanes.
        evaluation_seconds: time of one evaluation.
        curvature_seconds: time of the Hessian, which is part of the evaluation.
        shifted_seconds: time of measuring all shifts, which happens once per finished replicate.
        lanes: number of lanes that train together; 0 if the network trains alone.
        alone_seconds: time of one epoch alone.
    """

    epoch_seconds: float
    evaluation_seconds: float
    curvature_seconds: float = 0.0
    shifted_seconds: float = 0.0
    lanes: int = 0
    alone_seconds: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """The estimated GPU-hours of a sweep.

    Attributes:
        operations: floating-point operations of the whole sweep (a multiply-add counts as two).
        gpu_hours: GPU → (low, high) hours. `low` assumes the speed in `hardware.yaml`; `high` is `slowest` times as
            long.
        assumption: a sentence on the assumptions behind the range.
    """

    operations: float
    gpu_hours: dict[str, tuple[float, float]]
    assumption: str

    @property
    def worth_a_card(self) -> bool:
        """Whether the sweep takes more than a few minutes on the slowest GPU."""
        return max(high for _, high in self.gpu_hours.values()) > SHORTEST_HOURS


@dataclass(frozen=True)
class Stratum:
    """One stratum: its number of trials, and rung → number of trials that reach it."""

    trials: float
    reaching: dict[int, Range]


@dataclass(frozen=True)
class Plan(PlanView):
    """The plan of a sweep.

    Attributes:
        trials: number of configurations.
        replicates: seeds per configuration.
        reaching: rung (epochs) → number of trials that reach it.
        epochs: training epochs over all replicates.
        evaluations: evaluations over all replicates.
        workers: number of processes that run at once. Each trains a trial, or one replicate if `packing` is `trials`.
        seconds: duration of the sweep; `None` if costs were not measured.
        costs: architecture → measured cost.
        note: how the time was estimated, or why it was not.
        estimate: GPU-hours on known GPUs, estimated without training; `None` if the data's size is unknown.
        rehearsed: changes that a rehearsal makes; empty for a real sweep.
        packing: how replicates share processes.
        takes: resources of each process, in words.
        objective: the objective, and the largest difference that counts as none.
        searcher: description of how a searcher chooses configurations; empty if they are random or from grids.
        strata: stratum → its trials, and the number expected at each rung; empty for one pool.
        obstacle: why the sweep cannot start here, such as missing data; empty if it can.
        balance: a sentence on the class shares if they are far from equal.
        curvature_share: share of the time spent on the Hessian; 0 if it is not measured or not known.
        lanes: description of the trials that share lanes, by kind of network; empty for other packings.
        shifted_share: share of the time spent on measuring shifts. Making the shifted data, once per node, is not
            included.
        final: (smallest, largest) number of fresh seeds trained in the final stage; `None` without a final stage.
        final_epochs: epochs per fresh seed.
        final_seconds: longest duration of the final stage; `None` if costs were not measured.
        price_per_gpu_hour: price of one GPU-hour; with `None`, no price is shown.
        width: number of virtual workers, whose order decides; `None` for the order of arrival.
        width_cost: how much longer the sweep takes in that order than in order of arrival, as a share of its time.
        at_once: number of trials that run at once.
        wider: if that is much, a width that costs less, and its cost.
        blind: number of suggestions that a searcher makes before it has seen a result.
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
    objective: str = ""
    searcher: str = ""
    strata: dict[str, Stratum] = field(default_factory=dict)
    obstacle: str = ""
    balance: str = ""
    curvature_share: float = 0.0
    lanes: tuple[str, ...] = ()
    shifted_share: float = 0.0
    final: tuple[int, int] | None = None
    final_epochs: int = 0
    final_seconds: float | None = None
    price_per_gpu_hour: float | None = None
    width: int | None = None
    width_cost: float = 0.0
    at_once: int = 1
    wider: tuple[int, float] | None = None
    blind: int = 0

    def warnings(self) -> Iterator[str]:
        """Yield the notice of a rehearsal, and a warning if many workers wait for few virtual ones."""
        if self.rehearsed:
            yield rehearsal_notice(self.rehearsed)
        if self.wider is not None:
            width, cost = self.wider
            yield (
                f"with {self.at_once} trials at a time and scheduler.width = {self.width}, the sweep takes "
                f"{self.width_cost:.0%} longer than in order of arrival, since trials wait for their turn. With "
                f"width: {width} it takes {cost:.0%} longer; write it into the file before the sweep starts"
            )

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield trials, rungs, epochs, evaluations and time."""
        unit = "replicates " if self.packing == "trials" else ""
        yield "trials", f"{self.trials:,} × {self.replicates} replicates, {self.workers} {unit}at a time"
        if self.balance:
            yield "classes", self.balance
        if self.objective:
            yield "objective", self.objective
        if self.searcher:
            yield "searcher", self.searcher
        if self.width is not None:
            yield "order", self._order()
        if self.replicates > 1 or self.lanes:
            yield "packing", PACKINGS[self.packing]
        for kind in self.lanes:
            yield "lanes", kind
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
            time = "" if self.final_seconds is None else f", at most {duration(self.final_seconds)}"
            first, most = (n * self.final_epochs for n in self.final)
            yield "final stage", f"on fresh seeds, {first:,} to {most:,} more epochs{time}"
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
            for gpu, (low, high) in self.estimate.gpu_hours.items():
                rate = self.price_per_gpu_hour
                price = "" if rate is None else f", {low * rate:,.2f} to {high * rate:,.2f} at {rate:g} per hour"
                yield f"GPU-hours, {gpu}", f"{_hours(low)} to {_hours(high)}{price}"

    def _order(self) -> str:
        """Return what the order of judgements costs here, and what a searcher lacks because of it."""
        cost = "no longer than" if self.width_cost < 0.005 else f"{self.width_cost:.0%} longer than"
        text = f"canonical, width {self.width}: any number of processes decides alike; {cost} in order of arrival"
        return f"{text}; the first {self.blind} suggestions see no result" if self.blind else text

    def _shown_strata(self) -> list[tuple[str, Stratum]]:
        """Return the strata in the order of the space; if there are many, only the smallest."""
        strata = list(self.strata.items())
        if len(strata) > SHOWN_STRATA:
            last = max(self.reaching)
            strata.sort(key=lambda item: (item[1].trials, item[1].reaching[last].mean))
        return strata[:SHOWN_STRATA]

    def grounds(self) -> Iterator[str]:
        """Yield how GPU-hours and time were estimated."""
        if self.estimate and self.estimate.worth_a_card:
            yield f"GPU-hours: {self.estimate.assumption}"
        if self.note:
            yield self.note


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def plan(spec: SweepSpec, costs: Mapping[str, Cost] | None = None, workers: int | None = None, note: str = "") -> Plan:
    """Plan a sweep without GPU-hours.

    Args:
        spec: the checked search space.
        costs: architecture → cost, from `sweeper.planning.costs.measure_costs`; without it, time is not estimated.
        workers: processes that run at once, at most `max_concurrent`; by default this machine's cores divided by
            `resources.cpu`.
        note: sentence shown with the plan.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> planned = plan(load_spec("quickstart"), workers=2)
        >>> planned.trials, planned.workers, planned.reaching[max(planned.reaching)].low < planned.trials
        (16, 2, True)
    """
    trials, replicates = len(configurations(spec)), spec.replicates.count
    per_trial = replicates if spec.replicates.packing == "trials" else 1
    local = max(1, int(usable_cores() / spec.resources.cpu))
    workers = min(workers or local, trials * per_trial, spec.max_concurrent or trials * per_trial)
    schedule = spec.schedule
    # A searcher's configurations do not exist yet: the strata are counted over random ones.
    if isinstance(schedule, Stratified) and schedule.configurations is None:
        schedule = replace(schedule, configurations=examples(spec))
    at_once, width = math.ceil(workers / per_trial), spec.scheduler.width
    names, by_stratum = simulate_strata(schedule, trials, at_once, width=width)
    width_cost, wider = 0.0, None
    if width is not None:
        paces = [costs[name].epoch_seconds for name in _networks(spec)] if costs else []
        width_cost = cost_of_width(schedule, trials, at_once, width, paces)
        wider = _wider((width, width_cost), lambda wide: cost_of_width(schedule, trials, at_once, wide, paces), trials)
    reaching = by_stratum.sum(axis=1)
    epochs = reaching @ np.diff([0, *schedule.rungs]) * replicates
    evaluations, finished = reaching.sum(axis=1) * replicates, reaching[:, -1] * replicates
    note = " ".join(filter(None, [*(f"{sentence}." for sentence in repeat_notes(spec)), note]))
    final = None if spec.replicates.at_most is None else final_trainings(spec, spec.replicates.at_most - replicates)
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
        takes=describe_resources(spec.resources, together=spec.replicates.together),
        searcher=describe_searcher(spec),
        objective=describe_objective(spec),
        lanes=lane_lines(spec),
        strata=_strata(spec, schedule, names, by_stratum) if isinstance(schedule, Stratified) else {},
        final=final,
        final_epochs=spec.scheduler.max_epochs,
        width=width,
        width_cost=width_cost,
        at_once=at_once,
        wider=wider,
        blind=min(width, trials) if width is not None and spec.searcher.learns else 0,
    )
    if costs:
        shares = architecture_shares(spec)

        def mean(of: Callable[[Cost], float]) -> float:
            return sum(share * of(costs[name]) for name, share in shares.items())

        epoch, evaluation = mean(lambda cost: cost.epoch_seconds), mean(lambda cost: cost.evaluation_seconds)
        hessian, once = mean(lambda cost: cost.curvature_seconds), mean(lambda cost: cost.shifted_seconds)
        # Shifts are measured on finished networks only, not at every rung.
        shifted = finished * once
        work = epochs * epoch + evaluations * (evaluation + REPORT_SECONDS) + shifted
        time = work * (1 + width_cost) / workers
        # Fresh seeds run to the end without comparisons.
        one = spec.scheduler.max_epochs * epoch + evaluation + REPORT_SECONDS + once
        return replace(
            planned,
            seconds=Range.of(START_SECONDS + time),
            final_seconds=None if final is None else final[1] * one / workers,
            curvature_share=float((evaluations * hessian).mean() / work.mean()),
            shifted_share=float(shifted.mean() / work.mean()),
        )
    return planned


def _wider(known: tuple[int, float], cost_of: Callable[[int], float], trials: int) -> tuple[int, float] | None:
    """Return a width that costs little time, and its cost; `None` if the known one does, or if none costs less."""
    width, cost = known
    while cost >= DEAR_WIDTH and width < trials:
        width = min(trials, 2 * width)
        cost = cost_of(width)
    return (width, cost) if cost < known[1] else None


def final_trainings(spec: SweepSpec, fresh: int) -> tuple[int, int]:
    """Return the number of seeds that the final stage trains at least, and at most.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> noise = "dataset={name: digits, label_noise: {grid: [0, 0.1, 0.3]}}"
        >>> [final_trainings(load_spec("quickstart", more), 5) for more in ([], [noise], ["which=[nu, score]"])]
        [(21, 30), (63, 90), (29, 40)]
        >>> final_trainings(load_spec("quickstart", ["which={gamma: each}"]), 5)
        (33, 45)
    """
    counts, networks = [len(spec.space.names(part)) for part in PARTS], [*spec.space.names(NETWORK), ""]
    # Each setting of the data set is a race of its own, unless a line compares them.
    axes = [domain for path, of in spec.space.lines.items() if path.startswith(f"{DATA}.") and path not in spec.which
            for domain in of.values()]  # fmt: skip
    settings = math.prod(len(domain.extremes()) for domain in axes)
    # A further network gets the winner's values, among which its own best value need not be.
    lines = [line.length + (line.network not in ("", networks[0])) for line in lines_of(spec)]
    return trainings([n for n in counts if n > 1], lines, fresh, settings)


def describe_objective(spec: SweepSpec) -> str:
    """Describe the objective and, in its unit, the largest difference that counts as none."""
    metric, margin = spec.objective.metric, spec.objective.margin
    counts = "every difference counts" if margin is None else f"up to {margin:g}{unit(metric)} counts as no difference"
    return f"{metric}{', cross-fitted' if metric.startswith('val_posthoc_') else ''}; {counts}"


def describe_searcher(spec: SweepSpec) -> str:
    """Describe the searcher; empty if configurations follow from the space alone."""
    if not spec.searcher.learns:
        return ""
    return f"{spec.searcher.name}: {spec.searcher.method.course}; time is estimated for random configurations"


def describe_resources(resources: Resources, *, together: bool = False) -> str:
    """Describe the resources of each process, and what happens if its share of a GPU is too small.

    Example:
        >>> describe_resources(Resources(cpu=2, gpu=1))
        '2 cores and 1 GPU'
    """
    cores = f"{resources.cpu:g} core{'' if resources.cpu == 1 else 's'}"
    if resources.gpu == "auto":
        share = "a quarter of it for as many lanes as fit" if together else "the share measured before the first trial"
        return f"{cores}; on a GPU, {share}"
    if not 0 < resources.gpu < 1:
        gpus = f"{resources.gpu:g} GPU{'' if resources.gpu == 1 else 's'}"
        return f"{cores} and {gpus}" if resources.gpu else f"{cores}, no GPU"
    most = int(1 / resources.gpu + 1e-9)  # quotients such as 1 / 0.1 can round below the whole number
    return f"{cores} and {resources.gpu:g} of a GPU ({most} processes per GPU); doubled after running out of GPU memory"


def _by_rung(schedule: Scheduler, counted: NDArray[np.float64]) -> dict[int, Range]:
    """Return rung → number of trials that reach it, from counts [repetitions, rungs]."""
    return {rung: Range.of(column) for rung, column in zip(schedule.rungs, counted.T, strict=True)}


def _strata(
    spec: SweepSpec, schedule: Scheduler, names: Sequence[str], by_stratum: NDArray[np.float64]
) -> dict[str, Stratum]:
    """Return every stratum with the number of trials at each rung, from counts [repetitions, strata, rungs]."""
    reaching = {name: _by_rung(schedule, by_stratum[:, row]) for row, name in enumerate(names)}
    # Only a part of a large sweep is simulated, so a rare stratum can be missing.
    return {name: Stratum(size, reaching[name]) for name, size in stratum_sizes(spec).items() if name in reaching}


def architecture_shares(spec: SweepSpec) -> dict[str, float]:
    """Return architecture → its share of the examined configurations.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> shares = architecture_shares(load_spec("quickstart"))
        >>> sorted(shares), sum(shares.values())
        (['mlp', 'resnet8'], 1.0)
    """
    names = _networks(spec)
    return {name: names.count(name) / len(names) for name in sorted(set(names))}


def _networks(spec: SweepSpec) -> list[str]:
    """Return the architecture of each examined configuration."""
    return [str(values["architecture"]["name"]) for values in first_examples(spec)]


def lane_lines(spec: SweepSpec) -> tuple[str, ...]:
    """Describe the trials that share lanes, by kind of network, and the number of lanes.

    Empty if `packing` is not `lanes`. The best number of lanes is measured when the sweep begins.
    """
    if spec.replicates.packing != LANES:
        return ()
    training = spec.training.settings
    drawn = configurations(spec)[:EXAMPLES]
    keys = [cohort_key(values, training) for values in drawn]
    names = {key: _name(values) for key, values in zip(keys, drawn, strict=True)}
    lanes = spec.replicates.lanes
    width = "as many lanes as are measured to be fastest" if lanes == "auto" else f"{lanes} lanes a process"
    counted = Counter(keys)
    alone = counted.pop(None, 0)
    lines = [f"{plural(count, 'trial')} of {names[key]}: {width}" for key, count in counted.most_common(SHOWN_LANES)]
    if len(counted) > SHOWN_LANES:
        lines.append(f"{len(counted) - SHOWN_LANES} more kinds, none of them larger")
    return (*lines, *([f"{plural(alone, 'trial')} share no lanes with other trials"] if alone else []))


def _name(values: Configuration) -> str:
    network, recipe = values["architecture"], values["optimizer"]
    options = ", ".join(f"{key} {value}" for key, value in network.items() if key != "name")
    shape = f"{network['name']} ({options})" if options else str(network["name"])
    return f"{shape}, {recipe['name']}, batch size {recipe.get('batch_size', 128)}"
