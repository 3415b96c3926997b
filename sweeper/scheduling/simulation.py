"""A sweep played through a scheduler's own decisions, with values that are drawn or were measured before.

What a plan expects and what `sweeper what-if` replays are the same loop: workers take trials in turn, each trial comes
to a rung after as long as its epochs take, and the scheduler decides on it as the driver would have it decide.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sweeper.scheduling.base import Measured, RungState, Scheduler, decide, settled_but_for

#: Larger sweeps are simulated at this size and scaled: shares have converged, and the range only widens.
SIMULATED_TRIALS = 2000


@dataclass
class Course:
    """What became of the trials of one sweep.

    Attributes:
        reached: trial → the place of the last rung that it reached; trials that never started are missing.
        state: of the scheduler at the end.
        visits: (trial, place of the rung) in the order in which trials came to rungs.
        seconds: until the last trial came to its last rung.
    """

    reached: dict[int, int]
    state: RungState
    visits: list[tuple[int, int]] = field(default_factory=list)
    seconds: float = 0.0

    def epochs(self, rungs: Sequence[int]) -> int:
        """Return the epochs that were trained."""
        return sum(rungs[place] for place in self.reached.values())


def play(
    scheduler: Scheduler,
    order: Sequence[int],
    values: NDArray[np.float64],
    pace: NDArray[np.float64],
    workers: int,
    measured: Callable[[int, int], Measured] | None = None,
) -> Course:
    """Return the course of a sweep.

    Args:
        scheduler: decides.
        order: the trials, by configuration, in the order in which they start.
        values: the objective with which a trial comes to each rung [configurations, rungs].
        pace: seconds of an epoch [configurations].
        workers: trials that run at once.
        measured: returns what else a scheduler's `metrics` came to, of a trial at the place of a rung.
    """
    state, rungs = scheduler.begin(), scheduler.rungs
    course = Course({}, state)
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
        course.visits.append((trial, place))
        metric, more = float(values[trial, place]), measured(trial, place) if measured is not None else None
        decision = decide(state, trial, rungs[place], metric, more)
        if decision is not None and decision.metric is not None:
            state.add(rungs[place], trial, metric, more)
            state.decided(trial, decision)
        if decision is not None and decision.kind == "continue":
            heapq.heappush(running, (now + (rungs[place + 1] - rungs[place]) * pace[trial], trial, place + 1))
            continue
        while len(running) < workers:
            promoted = state.promotion(settled)
            if promoted is not None:
                trial, made = promoted
                state.decided(trial, made)
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
