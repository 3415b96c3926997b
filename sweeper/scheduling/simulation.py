"""Simulate a sweep with a scheduler's own decisions, on drawn or measured values.

Workers take trials in order. A trial reaches a rung after the time of its epochs, and the scheduler decides on it as in
the driver.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
