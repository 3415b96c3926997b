"""Replays of a fully trained sweep through schedulers: what is kept, and what that costs.

Every candidate plays the same orders of the same trials, at the trials' own speed, by the decisions that a driver would
make (`sweeper.scheduling.simulation`). The winner of an order is, of all its trials, the one that is worth most in the
end, on data that no scheduler saw; a stratum's winner likewise. The trial that a sweep would name is, of those that
survive, the one with the best objective; its regret is how much worse it is than the winner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sweeper.analysis.replay.curves import Curves
from sweeper.core.errors import SweeperError
from sweeper.scheduling import SCHEDULERS, Scheduler
from sweeper.scheduling.simulation import play
from sweeper.scheduling.strata import stratified, stratum_name
from sweeper.text.labels import plural
from trainables.metrics.base import larger_is_better

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
    found = {key: np.zeros(len(drawn)) for key in ("epochs", "winner", "strata", "winners", "regret")}
    survived: dict[str, list[float]] = {}
    for number, order in enumerate(drawn):
        course = play(scheduler, order.tolist(), values, curves.pace, workers)
        alive = np.array([course.reached.get(trial) == last for trial in order.tolist()])
        found["epochs"][number] = course.epochs(scheduler.rungs)
        found["winner"][number] = alive[np.argmin(worth[order])]
        named = order[alive][np.argmin(final[order[alive]])] if alive.any() else order[np.argmax(worth[order])]
        found["regret"][number] = worth[named] - worth[order].min()
        present, kept = [], []
        for name in dict.fromkeys(strata[order].tolist()):
            inside = strata[order] == name
            present.append(float(alive[inside].any()))
            kept.append(float(alive[inside][np.argmin(worth[order][inside])]))
            survived.setdefault(str(name), []).append(kept[-1])
        found["strata"][number], found["winners"][number] = np.mean(present), np.mean(kept)
    trained = sum(len(order) for order in drawn) * curves.max_epochs
    return Kept(
        candidate,
        Estimate.of(found["epochs"]),
        float(found["epochs"].sum()) / trained,
        Estimate.share(found["winner"]),
        Estimate.of(found["strata"]),
        Estimate.of(found["winners"]),
        Estimate.of(found["regret"]),
        {name: Estimate.share(np.array(each)) for name, each in sorted(survived.items())},
    )
