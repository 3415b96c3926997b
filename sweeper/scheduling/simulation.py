"""A sweep played through a scheduler's own decisions, with values that are drawn or were measured before.

Workers take trials in turn, each trial comes to a rung after as long as its epochs take, and the scheduler decides on
it as the driver would have it decide.

**How fragile each stop was**: the chance that a trial would have finished, or won, by other seeds in another order.

A scheduler compares means of a few seeds in the order in which trials happen to come. What it stopped it might have
kept. How likely that was is counted over sweeps that are played again (`play`) by the same scheduler, with
trials in random orders, and with values that other seeds would have given:

* **Truth.** What a trial's mean over all seeds is at its first rung is uncertain by its seeds' spread σᵢ / √n
  (`spreads`, which pools over trials, so a trial with one seed borrows its spread), and shrunk to the mean of all:
  who was stopped was partly unlucky (Efron & Morris 1975). From rung to rung it follows a line, fitted to the trials
  that reached both (Theil 1950, Sen 1968), and scatters about it by what the seeds' spread leaves unexplained. Where a
  trial was measured, that is combined with its value; where it had been stopped, the line is all that is known.
  Trials are stopped by the value from which the line predicts, so having only survivors does not bias it.
* **Other seeds.** Fresh errors of means of n seeds with these spreads. A seed that is lucky at one rung is lucky at the
  next, by the correlation of the deviations from a trial's mean that were seen.

A trial with a scheduler of another kind, or without spread, has no answer. It is the chance under *this* scheduler and
among *these* configurations; a searcher would have chosen others. docs/guides/measured.md holds the predictions
against what happened on public learning curves.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sweeper.core.statistics.spreads import Floats, Spreads, spreads
from sweeper.scheduling.base import Scheduler, decide, settled_but_for

#: Larger sweeps are simulated at this size and scaled: shares have converged, and the range only widens.
SIMULATED_TRIALS = 2000


@dataclass
class Course:
    """What became of the trials of one sweep.

    Attributes:
        reached: trial → the place of the last rung that it reached; trials that never started are missing.
        seconds: until the last trial came to its last rung.
    """

    reached: dict[int, int]
    seconds: float = 0.0


def play(
    scheduler: Scheduler, order: Sequence[int], values: NDArray[np.float64], pace: NDArray[np.float64], workers: int
) -> Course:
    """Return the course of a sweep.

    Args:
        scheduler: decides.
        order: the trials, by configuration, in the order in which they start.
        values: the objective with which a trial comes to each rung [configurations, rungs].
        pace: seconds of an epoch [configurations].
        workers: trials that run at once.
    """
    state, rungs = scheduler.begin(), scheduler.rungs
    course = Course({})
    running = [(rungs[0] * pace[trial], trial, 0) for trial in order[:workers]]
    heapq.heapify(running)
    left = deque(order[workers:])

    def under_way() -> Iterator[tuple[int, int]]:
        yield from ((trial, 0) for trial in left)
        yield from ((trial, rungs[place - 1] if place else 0) for _, trial, place in running)

    settled = settled_but_for(state, under_way)
    while running:
        now, trial, place = heapq.heappop(running)
        course.reached[trial], course.seconds = place, now
        metric = float(values[trial, place])
        decision = decide(state, trial, rungs[place], metric)
        if decision is not None and decision.metric is not None:
            pool = state.pool(trial)
            pool.add(rungs[place], trial, metric)
            pool.decided(trial, decision)
        if decision is not None and decision.kind == "continue":
            heapq.heappush(running, (now + (rungs[place + 1] - rungs[place]) * pace[trial], trial, place + 1))
            continue
        while len(running) < workers:
            promoted = state.promotion(settled)
            if promoted is not None:
                trial, made = promoted
                state.pool(trial).decided(trial, made)
                place = course.reached[trial]
                heapq.heappush(running, (now + (rungs[place + 1] - rungs[place]) * pace[trial], trial, place + 1))
            elif left:
                following = left.popleft()
                heapq.heappush(running, (now + rungs[0] * pace[following], following, 0))
            else:
                break
    return course


def simulate_strata(
    scheduler: Scheduler, trials: int, workers: int, repetitions: int | None = None, seed: int = 0
) -> tuple[list[str], NDArray[np.float64]]:
    """Return the strata's names, and how many trials of each reach each rung, float64 [repetitions, strata, rungs].

    Without strata there is one, of the empty name.
    """
    size, state = min(trials, SIMULATED_TRIALS), scheduler.begin()
    named = [state.stratum(trial) or "" for trial in range(size)]
    names = [*dict.fromkeys(named)]
    rows = [names.index(name) for name in named]
    scale = trials / size
    if len(scheduler.rungs) == 1:
        counted = np.bincount(rows, minlength=len(names)).astype(np.float64)
        return names, counted[None, :, None] * np.float64(scale)
    repetitions = repetitions or max(40, min(1000, 50_000 // size))
    random = np.random.default_rng(seed)
    counts = np.zeros((repetitions, len(names), len(scheduler.rungs)))
    every = range(size)
    for counted in counts:
        quality, pace = random.normal(size=size), random.uniform(0.5, 2.0, size=size)
        course = play(scheduler, every, quality[:, None].repeat(len(scheduler.rungs), 1), pace, min(workers, size))
        for trial, place in course.reached.items():
            counted[rows[trial], : place + 1] += 1
    return names, counts * scale


#: Sweeps that are played again: a chance of 10 % is then known to 1.7 %.
DRAWS = 300

#: Trials of all these sweeps together: large sweeps are played less often, but at least FEWEST_DRAWS times.
MOST_VISITS = 60_000

FEWEST_DRAWS = 25

#: Trials at once. How many hardly matters: the order of arrival is random in any case.
WORKERS = 4

#: Trials that a line between two rungs is fitted to.
LEAST_PAIRS = 3

#: Trials that a line is fitted to: all pairs of them are looked at.
MOST_FITTED = 500

#: The largest logarithm that is drawn.
LARGEST = 300.0

#: The most by which a line may stretch differences from one rung to the next: three trials may lie on any line.
STEEPEST = 2.0

#: Configuration → seed → value of the objective, at one rung.
Measurements = Mapping[int, Mapping[int, float]]


@dataclass(frozen=True)
class Chances:
    """What other seeds and another order would have made of a trial: the chances that it finishes, and that it wins."""

    finishes: float
    wins: float


def chances(
    pools: Sequence[tuple[Scheduler, Sequence[int]]], rungs: Sequence[Measurements], seed: int = 0
) -> dict[int, Chances]:
    """Return the chances of every trial that was measured at its first rung; none where no spread is known.

    Args:
        pools: the trials that compete with each other, and their scheduler; one for each stratum.
        rungs: what was measured at each of the schedulers' rungs. A trial that is missing had been stopped.
        seed: of the draws.
    """
    drawn = other_seeds(pools[0][0], rungs, seed) if pools and rungs else None
    if drawn is None:
        return {}
    place = {trial: at for at, trial in enumerate(rungs[0])}
    final, rng = np.full(drawn.shape[:2], np.inf), np.random.default_rng(seed)
    for scheduler, trials in pools:
        inside = np.array([place[trial] for trial in trials if trial in place], dtype=np.intp)
        last = len(scheduler.rungs) - 1
        for values, ended in zip(drawn, final, strict=True):
            order, pace = rng.permutation(inside).tolist(), rng.uniform(0.9, 1.1, len(values))
            reached = play(scheduler, order, values, pace, min(WORKERS, len(order))).reached
            for at in (each for each, rung in reached.items() if rung == last):
                ended[at] = -scheduler.score(values[at, last])
    alive = np.isfinite(final)
    best = (final == final.min(axis=1, keepdims=True)) & alive
    return {trial: Chances(float(alive[:, at].mean()), float(best[:, at].mean())) for trial, at in place.items()}


def other_seeds(scheduler: Scheduler, rungs: Sequence[Measurements], seed: int = 0) -> Floats | None:
    """Return draws of what other seeds would have measured, [draws, trials, rungs], for the first rung's trials.

    None where the first rung has no spread, or one trial.
    """
    trials, sign = tuple(rungs[0]), scheduler.score(1.0)
    relative = sign < 0 and all(v > 0 for rung in rungs for each in rung.values() for v in each.values())
    first = spreads([rungs[0][trial] for trial in trials], scheduler.mode, relative)
    if first is None or len(trials) < 2:
        return None
    draws, rng = max(FEWEST_DRAWS, min(DRAWS, MOST_VISITS // len(trials))), np.random.default_rng(seed)
    # A trial whose seeds may spread widely at one rung does so at all: one σ a trial and draw.
    picked = np.stack([rng.choice(first.deviations, draws, p=each / each.sum()) for each in first.weights], axis=1)
    errors, typical = picked / np.sqrt(first.sizes), np.exp(_typical(first))
    means = truth = np.full(errors.shape, first.scores.mean())
    left = max(float(first.scores.var(ddof=1) - np.mean(typical**2 / first.sizes)), 1e-12)
    values, noise = np.empty((*errors.shape, len(rungs))), rng.standard_normal(errors.shape)
    kept = _seed_correlation(rungs)
    for at, rung in enumerate(rungs):
        seen, growth = _scores(rung, trials, scheduler.mode, relative, typical)
        here, error = np.isfinite(seen), errors * growth
        if at:
            slope, offset, left = _line(means.mean(axis=0)[here], seen[here], float(np.median(error)) ** 2, left)
            means, truth = offset + slope * means, offset + slope * truth
            noise = kept * noise + np.sqrt(1 - kept**2) * rng.standard_normal(noise.shape)
        weight = np.where(here, left / (left + error**2), 0.0)
        value = np.where(here, seen, 0.0)
        means = means + weight * (value - means)
        truth = truth + weight * (value - truth) + np.sqrt(left * (1 - weight)) * rng.standard_normal(truth.shape)
        values[:, :, at] = truth + noise * error
    # A spread from the tail of its distribution may lead to a value beyond all numbers.
    return np.exp(np.clip(sign * values, -LARGEST, LARGEST)) if relative else sign * values


def _typical(found: Spreads) -> Floats:
    """Return the logarithm of each trial's expected spread."""
    return np.asarray(found.weights @ np.log(found.deviations) / found.weights.sum(axis=1))


def _scores(
    rung: Measurements, trials: Sequence[int], mode: str, relative: bool, before: Floats
) -> tuple[Floats, float]:
    """Return the scores at a rung, NaN where a trial never came, and the growth of spreads since the first rung."""
    seen, present = np.full(len(trials), np.nan), [at for at, trial in enumerate(trials) if rung.get(trial)]
    for at in present:
        mean = float(np.mean([*rung[trials[at]].values()]))
        seen[at] = (1 if mode == "max" else -1) * (np.log(mean) if relative else mean)
    found = spreads([rung[trials[at]] for at in present], mode, relative)
    return seen, 1.0 if found is None else float(np.exp(np.median(_typical(found) - np.log(before[present]))))


def _line(x: Floats, y: Floats, noise: float, left: float) -> tuple[float, float, float]:
    """Return slope, offset and the variance about the line from one rung to the next, without that of the seeds.

    Fewer than LEAST_PAIRS trials give no slope: it is 1 then, and the scatter that of the rung before.
    """
    if len(x) < LEAST_PAIRS or np.ptp(x[:MOST_FITTED]) <= 0:
        return 1.0, float(np.median(y - x)) if len(x) else 0.0, left
    over, up = np.subtract.outer(x[:MOST_FITTED], x[:MOST_FITTED]), np.subtract.outer(y[:MOST_FITTED], y[:MOST_FITTED])
    slope = min(max(float(np.median(up[over > 0] / over[over > 0])), 0.0), STEEPEST)
    offset = float(np.median(y - slope * x))
    scatter = float(np.sum((y - offset - slope * x) ** 2)) / (len(x) - 2)
    return slope, offset, max(scatter - noise, 0.05 * scatter, 1e-12)


def _seed_correlation(rungs: Sequence[Measurements]) -> float:
    """Return how far a seed's deviations from its trial's mean agree from rung to rung: a correlation, at least 0."""
    pairs = [
        (one[trial][seed] / mean[0] - 1, other[trial][seed] / mean[1] - 1)
        for one, other in pairwise(rungs)
        for trial in one.keys() & other.keys()
        if all(mean := (np.mean([*one[trial].values()]), np.mean([*other[trial].values()])))
        for seed in one[trial].keys() & other[trial].keys()
    ]
    if len(pairs) < 2 * LEAST_PAIRS:
        return 0.0
    x, y = np.array(pairs).T
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return min(0.99, max(0.0, float((x * y).sum()) / size)) if size > 0 else 0.0
