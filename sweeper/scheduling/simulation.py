"""Simulate a sweep with a scheduler's own decisions, on drawn or measured values.

Workers take trials in order. A trial reaches a rung after the time of its epochs, and the scheduler decides on it as in
the driver.

**Fragility of a stop**: the chance that a trial would have finished, or won, with other seeds in another order.

A scheduler compares means of a few seeds, in the order in which trials happen to arrive. With other seeds or in another
order, it could have kept a trial that it stopped. To estimate this chance, the sweep is simulated again
(`simulate_sweep`) with the same scheduler, a random order of trials, and values that other seeds could have given:

* **Truth.** A trial's mean over all seeds at the first rung has the standard error σᵢ / √n, with the seeds' spread σᵢ
  from `spreads`. That function pools over trials, so a trial with one seed has a spread too. The mean is shrunk towards
  the mean of all trials, because a stopped trial was partly unlucky (Efron & Morris 1975). From rung to rung it follows
  a line, fitted to the trials that reached both (Theil 1950, Sen 1968). To this is added the scatter that the seeds'
  spread does not explain. The line is combined with a trial's value if it was measured, and used alone if the trial had
  been stopped. Trials are stopped by the value from which the line predicts, so fitting the line to survivors does not
  bias it.
* **Other seeds.** New errors are drawn for means of n seeds with these spreads. Errors at successive rungs are
  correlated, as the observed deviations from a trial's mean are.

There is no result if the scheduler is of another kind, or if no spread is known. The chance is valid for *this*
scheduler and *these* configurations; a searcher would have chosen others. docs/guides/measured.md compares the
predictions with public learning curves.
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

#: Larger sweeps are simulated at this size and scaled up. At this size the shares have converged. The reported range is
#: wider than it would be for the larger sweep, so it errs on the safe side.
SIMULATED_TRIALS = 2000


@dataclass
class SimulatedSweep:
    """The outcome of one simulated sweep.

    Attributes:
        reached: trial → index of the last rung that it reached. Trials that never started are missing.
        seconds: time until the last trial reached its last rung.
    """

    reached: dict[int, int]
    seconds: float = 0.0


def simulate_sweep(
    scheduler: Scheduler, order: Sequence[int], values: NDArray[np.float64], pace: NDArray[np.float64], workers: int
) -> SimulatedSweep:
    """Simulate one sweep.

    Args:
        scheduler: makes the decisions.
        order: configurations of the trials in the order in which they start.
        values: objective of each trial at each rung [configurations, rungs].
        pace: seconds per epoch [configurations].
        workers: number of trials that run at once.

    Example:
        >>> from sweeper.scheduling.asha import Halving
        >>> values = np.array([[0.3, 0.2], [0.2, 0.1], [0.4, 0.3]])  # 3 trials, rungs 3 and 9
        >>> simulate_sweep(Halving("val_nll", "min", 9, 3), [0, 1, 2], values, pace=np.ones(3), workers=1).reached
        {0: 1, 1: 1, 2: 0}
    """
    state, rungs = scheduler.begin(), scheduler.rungs
    course = SimulatedSweep({})
    running = [(rungs[0] * pace[trial], trial, 0) for trial in order[:workers]]
    heapq.heapify(running)
    waiting = deque(order[workers:])

    def under_way() -> Iterator[tuple[int, int]]:
        yield from ((trial, 0) for trial in waiting)
        yield from ((trial, rungs[place - 1] if place else 0) for _, trial, place in running)

    settled = settled_but_for(state, under_way)
    while running:
        now, trial, place = heapq.heappop(running)
        course.reached[trial], course.seconds = place, now
        metric = float(values[trial, place])
        decision = decide(state, trial, rungs[place], metric)
        # The decision is made before the value is added, so that a trial is not compared with itself.
        if decision is not None and decision.metric is not None:
            pool = state.pool(trial)
            pool.add(rungs[place], trial, metric)
            pool.decided(trial, decision)
        if decision is not None and decision.kind == "continue":
            heapq.heappush(running, (now + (rungs[place + 1] - rungs[place]) * pace[trial], trial, place + 1))
            continue
        # Several workers can be free: one may have been idle until this decision made a paused trial promotable.
        while len(running) < workers:
            promoted = state.promotion(settled)
            if promoted is not None:
                trial, made = promoted
                state.pool(trial).decided(trial, made)
                place = course.reached[trial]
                heapq.heappush(running, (now + (rungs[place + 1] - rungs[place]) * pace[trial], trial, place + 1))
            elif waiting:
                following = waiting.popleft()
                heapq.heappush(running, (now + rungs[0] * pace[following], following, 0))
            else:
                break
    return course


def simulate_strata(
    scheduler: Scheduler, trials: int, workers: int, repetitions: int | None = None, seed: int = 0
) -> tuple[list[str], NDArray[np.float64]]:
    """Simulate how many trials of each stratum reach each rung.

    Returns:
        Names of the strata (one empty name without strata), and counts, float64 [repetitions, strata, rungs].

    Example:
        >>> from sweeper.scheduling.asha import Halving
        >>> names, counts = simulate_strata(Halving("val_nll", "min", 9, 3), trials=12, workers=2, repetitions=5)
        >>> names, counts.shape, counts[:, 0, 0].tolist()
        ([''], (5, 1, 2), [12.0, 12.0, 12.0, 12.0, 12.0])
    """
    size, state = min(trials, SIMULATED_TRIALS), scheduler.begin()
    named = [state.stratum(trial) or "" for trial in range(size)]
    names = [*dict.fromkeys(named)]
    rows = [names.index(name) for name in named]
    scale = trials / size
    # Nothing is stopped before the only rung, so every repetition would give the same counts.
    if len(scheduler.rungs) == 1:
        counted = np.bincount(rows, minlength=len(names)).astype(np.float64)
        return names, counted[None, :, None] * np.float64(scale)
    # About 20,000 simulated trials take half a second. Small sweeps vary most, so they get the most repetitions.
    repetitions = repetitions or max(40, min(400, 20_000 // size))
    random = np.random.default_rng(seed)
    counts = np.zeros((repetitions, len(names), len(scheduler.rungs)))
    for counted in counts:
        # Only ranks matter to a scheduler, so a plan can draw any values. Speeds differ, as for small and large
        # networks.
        quality, pace = random.normal(size=size), random.uniform(0.5, 2.0, size=size)
        values = quality[:, None].repeat(len(scheduler.rungs), 1)
        course = simulate_sweep(scheduler, range(size), values, pace, min(workers, size))
        for trial, place in course.reached.items():
            counted[rows[trial], : place + 1] += 1
    return names, counts * scale


#: Number of simulated sweeps per estimate. A chance of 10 % then has a standard error of 1.7 %.
DRAWS = 300

#: Largest number of simulated trials over all draws. Large sweeps are simulated less often, but at least FEWEST_DRAWS
#: times.
MOST_VISITS = 60_000

FEWEST_DRAWS = 25

#: Number of trials that run at once. It hardly matters, because the order of arrival is random.
WORKERS = 4

#: Smallest number of trials to which a line between two rungs is fitted.
LEAST_PAIRS = 3

#: Largest number of trials to which a line is fitted. Theil-Sen uses all pairs, so time and memory grow quadratically.
MOST_FITTED = 500

#: Largest logarithm that is drawn. exp(300) ≈ 1e130 is far below the overflow of a float64.
LARGEST = 300.0

#: Largest slope of a line between two rungs. Without a limit, a line through three noisy trials could have any slope.
STEEPEST = 2.0

#: Configuration → seed → value of the objective, at one rung.
Measurements = Mapping[int, Mapping[int, float]]


@dataclass(frozen=True)
class Chances:
    """The chances that a trial finishes, and that it wins, with other seeds and in another order."""

    finishes: float
    wins: float


def chances(
    pools: Sequence[tuple[Scheduler, Sequence[int]]], rungs: Sequence[Measurements], seed: int = 0
) -> dict[int, Chances]:
    """Return the chances of every trial measured at the first rung; empty if no spread is known.

    Args:
        pools: (scheduler, competing trials), one for each stratum.
        rungs: measurements at each of the schedulers' rungs. A trial that is missing at a rung had been stopped.
        seed: seed of the draws.

    Example:
        >>> from sweeper.scheduling.asha import Halving
        >>> first = {0: {0: 0.20, 1: 0.22}, 1: {0: 0.40, 1: 0.41}, 2: {0: 0.90, 1: 0.95}}
        >>> second = {0: {0: 0.10, 1: 0.11}}  # trials 1 and 2 were stopped
        >>> pools = [(Halving("val_nll", "min", max_epochs=9, grace_epochs=3), [0, 1, 2])]
        >>> estimated = chances(pools, [first, second])
        >>> estimated[0].finishes > estimated[2].finishes
        True
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
            reached = simulate_sweep(scheduler, order, values, pace, min(WORKERS, len(order))).reached
            for at in (trial for trial, rung in reached.items() if rung == last):
                ended[at] = -scheduler.score(values[at, last])
    # Values are infinite for stopped trials. If a draw stopped all trials, it has no winner.
    alive = np.isfinite(final)
    best = (final == final.min(axis=1, keepdims=True)) & alive
    return {trial: Chances(float(alive[:, at].mean()), float(best[:, at].mean())) for trial, at in place.items()}


def other_seeds(scheduler: Scheduler, rungs: Sequence[Measurements], seed: int = 0) -> Floats | None:
    """Draw the values that other seeds would have measured for the trials of the first rung.

    Returns:
        Values [draws, trials, rungs]; `None` if the first rung has no spread, or only one trial.
    """
    trials, sign = tuple(rungs[0]), scheduler.score(1.0)
    # The spread of positive losses is proportional to their size, so their logarithms are modelled.
    relative = sign < 0 and all(v > 0 for rung in rungs for seeds in rung.values() for v in seeds.values())
    first = spreads([rungs[0][trial] for trial in trials], scheduler.mode, relative)
    if first is None or len(trials) < 2:
        return None
    draws, rng = max(FEWEST_DRAWS, min(DRAWS, MOST_VISITS // len(trials))), np.random.default_rng(seed)
    # One σ per trial and draw: a trial whose seeds spread widely at one rung does so at all rungs.
    picked = np.stack([rng.choice(first.deviations, draws, p=w / w.sum()) for w in first.weights], axis=1)
    errors, typical = picked / np.sqrt(first.sizes), np.exp(_typical(first))
    means = truth = np.full(errors.shape, first.scores.mean())
    # The variance between trials is the total variance less that of the seeds. The floor avoids division by 0 in the
    # weights.
    left = max(float(first.scores.var(ddof=1) - np.mean(typical**2 / first.sizes)), 1e-12)
    values, noise = np.empty((*errors.shape, len(rungs))), rng.standard_normal(errors.shape)
    kept = _seed_correlation(rungs)
    for at, rung in enumerate(rungs):
        seen, growth = _scores(rung, trials, scheduler.mode, relative, typical)
        present, error = np.isfinite(seen), errors * growth
        if at:
            variance = float(np.median(error)) ** 2
            slope, offset, left = _line(means.mean(axis=0)[present], seen[present], variance, left)
            means, truth = offset + slope * means, offset + slope * truth
            # An AR(1) step: unit variance at every rung, and correlation `kept` with the previous rung.
            noise = kept * noise + np.sqrt(1 - kept**2) * rng.standard_normal(noise.shape)
        # The posterior of a normal mean. Weight 0 leaves an unmeasured trial on the line; its NaN must not enter the
        # sum.
        weight = np.where(present, left / (left + error**2), 0.0)
        value = np.where(present, seen, 0.0)
        means = means + weight * (value - means)
        truth = truth + weight * (value - truth) + np.sqrt(left * (1 - weight)) * rng.standard_normal(truth.shape)
        values[:, :, at] = truth + noise * error
    # A spread from the tail of its distribution could overflow the exponential.
    return np.exp(np.clip(sign * values, -LARGEST, LARGEST)) if relative else sign * values


def _typical(trials: Spreads) -> Floats:
    """Return the logarithm of each trial's expected spread [trials]."""
    return np.asarray(trials.weights @ np.log(trials.deviations) / trials.weights.sum(axis=1))


def _scores(
    rung: Measurements, trials: Sequence[int], mode: str, relative: bool, before: Floats
) -> tuple[Floats, float]:
    """Return the scores at a rung, NaN for absent trials, and the growth of spreads since the first rung."""
    seen, present = np.full(len(trials), np.nan), [at for at, trial in enumerate(trials) if rung.get(trial)]
    for at in present:
        mean = float(np.mean([*rung[trials[at]].values()]))
        seen[at] = (1 if mode == "max" else -1) * (np.log(mean) if relative else mean)
    now = spreads([rung[trials[at]] for at in present], mode, relative)
    # The median over the survivors is used, because few are left at late rungs, and one extreme spread must not scale
    # all errors.
    return seen, 1.0 if now is None else float(np.exp(np.median(_typical(now) - np.log(before[present]))))


def _line(x: Floats, y: Floats, noise: float, left: float) -> tuple[float, float, float]:
    """Fit a line from one rung to the next by Theil-Sen.

    With fewer than LEAST_PAIRS trials, the slope is 1 and the variance is that of the previous rung.

    Returns:
        Slope, offset, and the variance about the line minus the seeds' variance.
    """
    if len(x) < LEAST_PAIRS or np.ptp(x[:MOST_FITTED]) <= 0:
        return 1.0, float(np.median(y - x)) if len(x) else 0.0, left
    over, up = np.subtract.outer(x[:MOST_FITTED], x[:MOST_FITTED]), np.subtract.outer(y[:MOST_FITTED], y[:MOST_FITTED])
    # Not below 0: better trials at one rung are not expected to be worse at the next.
    slope = min(max(float(np.median(up[over > 0] / over[over > 0])), 0.0), STEEPEST)
    offset = float(np.median(y - slope * x))
    scatter = float(np.sum((y - offset - slope * x) ** 2)) / (len(x) - 2)
    # The difference of two estimates can be negative; 5 % of the scatter keeps the truth from being certain.
    return slope, offset, max(scatter - noise, 0.05 * scatter, 1e-12)


def _seed_correlation(rungs: Sequence[Measurements]) -> float:
    """Return the correlation between rungs of a seed's deviation from its trial's mean, in [0, .99]."""
    # Deviations are relative, so that trials with different values can be pooled. Their mean is 0 by construction.
    pairs = [
        (one[trial][seed] / mean[0] - 1, other[trial][seed] / mean[1] - 1)
        for one, other in pairwise(rungs)
        for trial in one.keys() & other.keys()
        if all(mean := (np.mean([*one[trial].values()]), np.mean([*other[trial].values()])))
        for seed in one[trial].keys() & other[trial].keys()
    ]
    # A correlation of few pairs is mostly chance, so seeds are then assumed to be independent, which is cautious.
    if len(pairs) < 2 * LEAST_PAIRS:
        return 0.0
    x, y = np.array(pairs).T
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return min(0.99, max(0.0, float((x * y).sum()) / size)) if size > 0 else 0.0
