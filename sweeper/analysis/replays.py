"""Replays of a fully trained sweep through schedulers: what is kept, and what that costs.

Every candidate plays the same orders of the same trials, at the trials' own speed, by the decisions that a driver would
make (`sweeper.scheduling.simulation`). The winner of an order is, of all its trials, the one that is worth most in the
end, on data that no scheduler saw; a stratum's winner likewise. The trial that a sweep would name is, of those that
survive, the one with the best objective; its regret is how much worse it is than the winner.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.core.json_types import Plain
from sweeper.results import Results
from sweeper.results.leaderboard import objective, varying_columns
from sweeper.results.queries import measured_sql
from sweeper.scheduling import DEFAULT, SCHEDULERS, Scheduler
from sweeper.scheduling.simulation import play
from sweeper.scheduling.strata import stratified, stratum_name
from sweeper.space.loading import check_scheduler
from sweeper.text.cells import float_of, int_of, text_of
from sweeper.text.labels import plural
from trainables.metrics.base import larger_is_better
from trainables.registry.names import hint, measured_as

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """What is replayed.

    Attributes:
        scheduler: its name and settings, defaults filled in, without `max_epochs`.
        within: the paths that divide trials into strata; none for one pool.
        metric: the objective.
        mode: `min` or `max`.
    """

    scheduler: Mapping[str, object]
    within: tuple[str, ...] = ()
    metric: str = "val_nll"
    mode: Literal["min", "max"] = "min"

    def build(self, curves: Curves) -> Scheduler:
        """Return the scheduler for a sweep."""
        settings = {key: value for key, value in self.scheduler.items() if key not in ("name", "max_epochs")}
        name = str(self.scheduler["name"])
        built: Scheduler = SCHEDULERS.build(name, self.metric, self.mode, max_epochs=curves.max_epochs, **settings)
        return stratified(built, self.within, curves.configurations) if self.within else built


@dataclass(frozen=True)
class Estimate:
    """A mean over orders, with its 95 % interval: how far random orders of these trials go, not seeds or data."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: Floats) -> Estimate:
        """Return the mean of values, one an order, with the normal interval of a mean."""
        mean = float(values.mean())
        half = 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return Estimate(mean, mean - half, mean + half)

    @staticmethod
    def share(values: Floats) -> Estimate:
        """Return the share of orders in which something happened, with Wilson's interval (1927)."""
        n, p, z = len(values), float(values.mean()), 1.96
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return Estimate(p, max(0.0, centre - half), min(1.0, centre + half))


@dataclass(frozen=True)
class Kept:
    """What a candidate kept, over all orders.

    Attributes:
        candidate: what was replayed.
        epochs: trained, of one replicate each.
        share: the same, of training every trial in full.
        winner: the chance that the eventual winner survives.
        strata: the share of strata with a survivor.
        winners: the mean over strata of the chance that a stratum's winner survives.
        regret: of the trial that the sweep would name.
        by_stratum: stratum → the chance that its winner survives.
    """

    candidate: Candidate
    epochs: Estimate
    share: float
    winner: Estimate
    strata: Estimate
    winners: Estimate
    regret: Estimate
    by_stratum: dict[str, Estimate] = field(default_factory=dict)


def replay(
    curves: Curves,
    candidates: Sequence[Candidate],
    *,
    by: Sequence[str],
    orders: int = 200,
    samples: int | None = None,
    workers: int = 2,
    seed: int = 0,
    judge: str | None = None,
) -> list[Kept]:
    """Return what each candidate keeps.

    Args:
        curves: of a sweep that was trained in full.
        candidates: what to replay; all of them play the same orders.
        by: the paths that make the strata in which survivors are counted, whatever those of a candidate.
        orders: how many random orders.
        samples: trials of each order, drawn without replacement; all of them by default.
        workers: trials that run at once.
        seed: of the orders.
        judge: the metric that says what a trial is worth; the first of `curves.JUDGES` that was measured by default.

    Raises:
        SweeperError: there are fewer trials than asked for, or something was not measured.
    """
    available = len(curves.trials)
    size = samples or available
    if size > available:
        raise SweeperError(
            f"{plural(size, 'trial')} per order exceed the {available} that ran to the end",
            "ask for fewer, or train a larger sweep in full",
        )
    judged = curves.judge(judge)
    worth = curves.last(judged) * (-1 if larger_is_better(judged) else 1)
    if not np.isfinite(worth).any():
        raise SweeperError(f"no trial has a finite {judged}", "name another metric with --judge")
    worth = np.where(np.isfinite(worth), worth, np.inf)
    strata = np.array([stratum_name(values, by) for values in curves.configurations])
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(available)[:size] for _ in range(orders)]
    return [_kept(curves, each, drawn, worth, strata, min(workers, size)) for each in candidates]


def _kept(
    curves: Curves, candidate: Candidate, drawn: Sequence[NDArray[np.int64]], worth: Floats, strata: NDArray[np.str_],
    workers: int,
) -> Kept:  # fmt: skip
    scheduler = candidate.build(curves)
    values = curves.at(candidate.metric, scheduler.rungs)
    last, final = len(scheduler.rungs) - 1, values[:, -1] if candidate.mode == "min" else -values[:, -1]
    found, survived = list[Sequence[Any]](), dict[str, list[float]]()
    for order in drawn:
        course = play(scheduler, order.tolist(), values, curves.pace, workers)
        alive = np.array([course.reached.get(trial) == last for trial in order.tolist()])
        named = order[alive][np.argmin(final[order[alive]])] if alive.any() else order[np.argmax(worth[order])]
        present, kept = [], []
        for name in dict.fromkeys(strata[order].tolist()):
            inside = strata[order] == name
            present.append(float(alive[inside].any()))
            kept.append(float(alive[inside][np.argmin(worth[order][inside])]))
            survived.setdefault(str(name), []).append(kept[-1])
        won, regret = alive[np.argmin(worth[order])], worth[named] - worth[order].min()
        found.append((course.epochs(scheduler.rungs), won, np.mean(present), np.mean(kept), regret))
    epochs, winner, strata_kept, winners, regrets = np.array(found, dtype=np.float64).T
    return Kept(
        candidate,
        Estimate.of(epochs),
        float(epochs.sum()) / (sum(map(len, drawn)) * curves.max_epochs),
        Estimate.share(winner),
        Estimate.of(strata_kept),
        Estimate.of(winners),
        Estimate.of(regrets),
        {name: Estimate.share(np.array(each)) for name, each in sorted(survived.items())},
    )


#: What a trial is worth in the end: the first of these that was measured, on data that no scheduler saw.
JUDGES = ("test_posthoc_temperature_nll", "test_refinement_nll", "test_nll")

TRIALS_SQL = (
    "SELECT trials.*, seconds FROM (SELECT DISTINCT ON (trial) * FROM trials WHERE status = 'completed' "
    "ORDER BY trial, replicate) AS trials JOIN (SELECT trial, avg(wall_seconds) AS seconds FROM trials GROUP BY trial) "
    "USING (trial) ORDER BY trial"
)

STOPPED_SQL = (
    "SELECT count(DISTINCT trial) FILTER (status = 'early_stopped') AS stopped, count(DISTINCT trial) FILTER "
    "(status NOT IN ('completed', 'early_stopped')) AS others FROM trials"
)


@dataclass(frozen=True)
class Curves:
    """The trials of a sweep that ran to their end.

    Attributes:
        results: the sweep's tables.
        trials: their names.
        configurations: their values, a mapping for each part of the space.
        pace: seconds of an epoch [trials].
        max_epochs: their last epoch.
        left_out: how many trials failed or never ended.
    """

    results: Results
    trials: list[str]
    configurations: list[dict[str, dict[str, object]]]
    pace: NDArray[np.float64]
    max_epochs: int
    left_out: int

    def at(self, metric: str, epochs: tuple[int, ...]) -> NDArray[np.float64]:
        """Return a metric, mean over replicates, after each of `epochs` [trials, epochs].

        Raises:
            SweeperError: it was not measured then.
        """
        measured = measured_sql(self.results, metric)
        rows = self.results.rows(f"SELECT trial, epoch, avg(value) AS value FROM ({measured}) GROUP BY trial, epoch")
        found = {(text_of(row, "trial"), int_of(row, "epoch")): float_of(row, "value") for row in rows}
        known = sorted({epoch for _, epoch in found})
        if not known:
            raise SweeperError(f"its trials have no learning curve of {metric}", "replay a sweep that trained its own")
        if missing := [epoch for epoch in epochs if epoch not in known]:
            raise SweeperError(
                f"{metric} was not measured after epoch {missing[0]}, only after {', '.join(map(str, known))}",
                "replay a scheduler with these rungs, or train a sweep in full with scheduler: "
                f"{{name: none, evaluate_epochs: {[*epochs[:-1]]}}}",
            )
        return np.array([[found.get((trial, epoch), np.nan) for epoch in epochs] for trial in self.trials], np.float64)

    def last(self, metric: str) -> NDArray[np.float64]:
        """Return a metric, mean over replicates, after the last epoch [trials]. Raises SweeperError as `at` does."""
        return self.at(metric, (self.max_epochs,))[:, 0]

    def judge(self, asked: str | None = None) -> str:
        """Return what trials are worth: as asked for, or the first of `JUDGES` that was measured."""
        columns = self.results.columns("evaluations")
        return asked or next(each for each in JUDGES if measured_as(each)[1] in columns)


def read_curves(results: Results) -> Curves:
    """Return the curves of a sweep that was trained in full.

    Raises:
        SweeperError: a scheduler stopped trials, or none has ended.
    """
    counts = results.rows(STOPPED_SQL)[0]
    stopped = int_of(counts, "stopped")
    if stopped:
        raise SweeperError(
            f"{results.name} stopped {plural(stopped, 'trial')} early: their final values are unknown",
            "replay a sweep that was trained in full, with scheduler: {name: none, evaluate_epochs: […]}",
        )
    rows = results.rows(TRIALS_SQL)
    if not rows:
        raise SweeperError(f"no trial of {results.name} has ended", "replay it when it has finished")
    pace = np.array([float_of(row, "seconds") / int_of(row, "epochs") for row in rows])
    return Curves(
        results,
        [text_of(row, "trial") for row in rows],
        [_configuration(row) for row in rows],
        np.maximum(pace, 1e-9),
        max(int_of(row, "epochs") for row in rows),
        int_of(counts, "others"),
    )


def _configuration(row: Any) -> dict[str, dict[str, object]]:
    """Return a trial's values as its search space nests them, from the columns `config_<part>_<key>`."""
    values: dict[str, dict[str, object]] = {}
    for column, value in row.items():
        if column.startswith("config_") and column != "config_hash" and value is not None:
            part, _, key = column.removeprefix("config_").partition("_")
            values.setdefault(part, {})[key] = value
    return values


#: What a candidate is.
SAID = ("scheduler", "within", "objective")

MEASURED = ("epochs", "winner kept", "strata kept", "their winners", "regret")


def what_if(
    results: Results,
    schedulers: Sequence[str] = (),
    within: Sequence[str] = (),
    objectives: Sequence[str] = (),
    *,
    orders: int = 200,
    trials: int | None = None,
    workers: int = 2,
    by: str | None = None,
    judge: str | None = None,
    seed: int = 0,
) -> tuple[list[Kept], RenderableType]:
    """Replay a fully trained sweep; return what each candidate kept, and how that is shown.

    Args:
        results: its tables.
        schedulers, within, objectives: what to replay: see `candidates`.
        by: the paths that make the strata counted here, with commas; by default architecture and loss, where they vary.
        orders, trials, workers, judge, seed: see `replay`.

    Raises:
        SweeperError: the sweep cannot be replayed so; the sentence says why.
    """
    with results.snapshot() as found:
        what = candidates(found, schedulers, within, objectives)
        curves, strata = read_curves(found), tuple(by.split(",")) if by else varying_names(found)
        kept = replay(curves, what, by=strata, orders=orders, samples=trials, workers=workers, seed=seed, judge=judge)
        size, valued = trials or len(curves.trials), curves.judge(judge)
    failed = f"; {curves.left_out} trials that failed or never ended are left out" if curves.left_out else ""
    notes = [
        f"{orders} random orders of {size} trials, the same for each line; in parentheses 95 % intervals over orders, "
        f"not over seeds or data{failed}.",
        f"Winner: the trial with the best {valued} at its end; kept: it reaches the last epoch. "
        f"Strata: {', '.join(strata)}.",
        f"Regret: the difference in {valued} between the survivor with the best objective and the winner.",
    ]
    return kept, _view(kept, notes)


def _view(kept: Sequence[Kept], notes: Sequence[str]) -> RenderableType:
    """Return a line for each candidate; what all candidates agree in is said once, below the table."""
    said = [tuple(described(each.candidate)) for each in kept]
    common = [len(set(column)) == 1 and len(kept) > 1 for column in zip(*said, strict=True)]
    table = Table(box=None, pad_edge=False)
    for name in itertools.compress(SAID, [not same for same in common]):
        table.add_column(name, overflow="fold")
    for heading in MEASURED:
        table.add_column(heading, no_wrap=True, justify="right")
    for each, words in zip(kept, said, strict=True):
        table.add_row(
            *itertools.compress(words, [not same for same in common]),
            f"{each.epochs.mean:,.0f} ({each.share:.0%})",
            *(percent(estimate) for estimate in (each.winner, each.strata, each.winners)),
            f"{each.regret.mean:.4f} ± {each.regret.high - each.regret.mean:.4f}",
        )
    shared = [f"{name}: {text}" for name, text, same in zip(SAID, said[0], common, strict=True) if same]
    agreed = ["; ".join(shared) + "."] if shared else []
    return Group(table, *(Text(note, style="dim") for note in [*agreed, *notes]))


def percent(estimate: Estimate) -> str:
    """Return e.g. `47 % (40–54)`."""
    low, high = max(0.0, estimate.low), min(1.0, estimate.high)
    return f"{estimate.mean * 100:.0f} % ({low * 100:.0f}–{high * 100:.0f})"


def as_json(kept: Kept) -> dict[str, object]:
    """Return what a candidate kept as plain JSON values."""
    candidate = kept.candidate
    return {
        "scheduler": dict(candidate.scheduler),
        "within": list(candidate.within),
        "objective": {"metric": candidate.metric, "mode": candidate.mode},
        "epochs": vars(kept.epochs),
        "share_of_full_training": kept.share,
        "winner_kept": vars(kept.winner),
        "strata_kept": vars(kept.strata),
        "strata_winners_kept": vars(kept.winners),
        "regret": vars(kept.regret),
        "winner_kept_by_stratum": {name: vars(each) for name, each in kept.by_stratum.items()},
    }


#: What `--within` calls no strata.
ONE_POOL = "none"


def candidates(
    results: Results, schedulers: Sequence[str] = (), within: Sequence[str] = (), objectives: Sequence[str] = ()
) -> list[Candidate]:
    """Return every combination of schedulers, strata and objectives.

    Args:
        results: the sweep to replay.
        schedulers: YAML, `median_stopping` or `{name: asha, reduction_factor: 2}`; ASHA by default.
        within: paths that divide trials, `architecture,loss`, or `none` for one pool; one pool by default.
        objectives: metrics, `val_refinement_nll` or `val_s99:max`; the sweep's own by default.

    Raises:
        InvalidSearchSpace: with every fault of the schedulers and paths.
    """
    own = objective(results)
    goals = [_objective(text) for text in objectives] or [(own.metric, own.mode)]
    faults, longest = list[Fault](), results.specification["scheduler"]["max_epochs"]
    settings = [_scheduler(text, longest, faults) for text in schedulers or (DEFAULT,)]
    strata = [() if text == ONE_POOL else tuple(filter(None, text.split(","))) for text in within or (ONE_POOL,)]
    columns = [name for name in results.columns("trials") if name.startswith("config_")]
    for path in dict.fromkeys(path for paths in strata for path in paths):
        part, _, key = path.partition(".")
        if f"config_{part}_{key or 'name'}" not in columns:
            remedy = hint(path, map(_path, columns))
            faults.append(Fault("--within", f"{path!r} is not a path of the space", remedy))
    if faults:
        raise InvalidSearchSpace(faults, "what-if")
    return [
        Candidate(scheduler, paths, metric, mode)
        for (metric, mode), scheduler, paths in itertools.product(goals, settings, strata)
    ]


def varying_names(results: Results) -> tuple[str, ...]:
    """Return the parts of the space, of architecture and loss, whose names differ: the strata to count survivors in.

    Raises SweeperError where none does.
    """
    varying = varying_columns(results)
    found = tuple(part for part in ("architecture", "loss") if f"config_{part}_name" in varying)
    if not found:
        raise SweeperError("the sweep has one network and one loss", "name the strata to count survivors in with --by")
    return found


def _path(column: str) -> str:
    """Return the path of a column: `loss` of `config_loss_name`, `loss.score` of `config_loss_score`."""
    part, _, key = column.removeprefix("config_").partition("_")
    return part if key == "name" else f"{part}.{key}"


def _objective(text: str) -> tuple[str, Literal["min", "max"]]:
    metric, _, mode = text.partition(":")
    if mode not in ("", "min", "max"):
        raise SweeperError(f"the objective {text!r} ends with {mode!r}", "write metric, metric:min or metric:max")
    larger = larger_is_better(metric)
    return metric, "max" if mode == "max" or (larger and not mode) else "min"


def _scheduler(text: str, max_epochs: int, faults: list[Fault]) -> Mapping[str, object]:
    """Return a scheduler's settings, defaults filled in; its faults are added to `faults`."""
    try:
        read: Plain = yaml.safe_load(text)
    except yaml.YAMLError as error:
        faults.append(Fault("--scheduler", f"{text!r} is not YAML: {str(error).splitlines()[0]}", "e.g. {name: asha}"))
        return {"name": DEFAULT}
    given = read if isinstance(read, dict) else {"name": read}
    return check_scheduler({**given, "max_epochs": max_epochs}, SCHEDULERS, faults)


def described(candidate: Candidate) -> Iterator[str]:
    """Yield a candidate in a few words: scheduler, settings that differ from its defaults, strata, objective."""
    name = str(candidate.scheduler["name"])
    known = {each.name: each.default for each in SCHEDULERS[name].hyperparameters}
    settings = [
        f"{key} {value}"
        for key, value in candidate.scheduler.items()
        if key not in ("name", "max_epochs") and value != known.get(key)
    ]
    yield f"{name} ({', '.join(settings)})" if settings else name
    yield ", ".join(candidate.within) if candidate.within else "one pool"
    yield candidate.metric
