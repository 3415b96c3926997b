"""Simulate a sweep with a scheduler's own decisions, on drawn or measured values.

Real workers train what virtual workers hold, the earliest virtual end first, and reports are judged in their turn, as
in the driver (`sweeper.scheduling.order`). In order of arrival, virtual workers are the real ones, and so is their
time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sweeper.scheduling.base import Scheduler, decide
from sweeper.scheduling.order import VirtualOrder

#: Larger sweeps are simulated at this size and scaled up. At this size the shares have converged. The reported range is
#: wider than it would be for the larger sweep, so it errs on the safe side.
SIMULATED_TRIALS = 2000


@dataclass
class SimulatedSweep:
    """A simulated sweep and, in the end, its outcome.

    Attributes:
        scheduler: makes the decisions.
        values: objective of each trial at each rung [configurations, rungs].
        pace: seconds per epoch [configurations].
        order: order of judgements, with the trials that wait.
        reached: trial → index of the last rung that it reached. Trials that never started are missing.
        seconds: time until the last trial reached its last rung.
    """

    scheduler: Scheduler
    values: NDArray[np.float64]
    pace: NDArray[np.float64]
    order: VirtualOrder
    reached: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    _issued: list[tuple[float, int]] = field(default_factory=list)

    def run(self, workers: int) -> None:
        """Train all trials, with this number of real workers."""
        running, early = list[tuple[float, int]](), set[int]()
        self._take()
        while running or self._issued:
            while self._issued and len(running) < workers:
                _, trial = heapq.heappop(self._issued)
                heapq.heappush(running, (self.seconds + self._epochs(trial) * float(self.pace[trial]), trial))
            self.seconds, trial = heapq.heappop(running)
            early.add(trial)
            while (first := self.order.first) in early and first is not None:
                early.remove(first)
                self._judge(first)
                self._take()

    def _rung(self, trial: int) -> int:
        """Return the index of the rung to which a trial's assignment leads."""
        epochs = self.order.running[trial].epochs
        return self.scheduler.rungs.index(epochs) + 1 if epochs else 0

    def _epochs(self, trial: int) -> int:
        return self.scheduler.rungs[self._rung(trial)] - self.order.running[trial].epochs

    def _judge(self, trial: int) -> None:
        """Decide on the trial whose turn it is; one that continues is issued again."""
        state, place = self.order.rungs, self._rung(trial)
        self.reached[trial], rung, metric = place, self.scheduler.rungs[place], float(self.values[trial, place])
        decision = decide(state, trial, rung, metric)
        assert decision is not None
        # The decision is made before the value is added, so that a trial is not compared with itself.
        if decision.metric is not None:
            state.pool(trial).add(rung, trial, metric)
            state.pool(trial).decided(trial, decision)
        self.order.end(trial, decision)

    def _take(self) -> None:
        """Let free virtual workers take promotions and waiting trials; issue what they hold."""
        while self.order.is_free and (promoted := self.order.promotion()) is not None:
            trial, decision = promoted
            self.order.rungs.pool(trial).decided(trial, decision)
            self.order.begin(trial, decision.rung or 0)
        self.order.begin_waiting()
        for trial in self.order.take_issued():
            heapq.heappush(self._issued, (self.order.running[trial].end, trial))


def simulate_sweep(
    scheduler: Scheduler,
    order: Sequence[int],
    values: NDArray[np.float64],
    pace: NDArray[np.float64],
    workers: int,
    width: int | None = None,
) -> SimulatedSweep:
    """Simulate one sweep.

    Args:
        scheduler: makes the decisions.
        order: configurations of the trials in the order in which they start.
        values: objective of each trial at each rung [configurations, rungs].
        pace: seconds per epoch [configurations].
        workers: number of trials that run at once.
        width: number of virtual workers in canonical order; `None` for the order of arrival.

    Example:
        >>> from sweeper.scheduling.asha import Halving
        >>> values = np.array([[0.3, 0.2], [0.2, 0.1], [0.4, 0.3]])  # 3 trials, rungs 3 and 9
        >>> simulate_sweep(Halving("val_nll", "min", 9, 3), [0, 1, 2], values, pace=np.ones(3), workers=1).reached
        {0: 1, 1: 1, 2: 0}
    """
    state = scheduler.begin()
    virtual = VirtualOrder(state, workers, pace.__getitem__) if width is None else VirtualOrder(state, width)
    virtual.waiting.extend(order)
    simulated = SimulatedSweep(scheduler, values, pace, virtual)
    simulated.run(workers)
    return simulated


def simulate_strata(
    scheduler: Scheduler,
    trials: int,
    workers: int,
    repetitions: int | None = None,
    seed: int = 0,
    width: int | None = None,
) -> tuple[list[str], NDArray[np.float64]]:
    """Simulate how many trials of each stratum reach each rung, see `simulate_sweep`.

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
        course = simulate_sweep(
            scheduler, range(size), *drawn_sweep(scheduler, size, random), min(workers, size), width
        )
        for trial, place in course.reached.items():
            counted[rows[trial], : place + 1] += 1
    return names, counts * scale


def drawn_sweep(
    scheduler: Scheduler, trials: int, random: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw the values [trials, rungs] and the pace [trials] of a sweep."""
    # Only ranks matter to a scheduler, so a plan can draw any values. Speeds differ, as for small and large networks.
    quality, pace = random.normal(size=trials), random.uniform(0.5, 2.0, size=trials)
    return quality[:, None].repeat(len(scheduler.rungs), 1), pace


def cost_of_width(scheduler: Scheduler, trials: int, workers: int, width: int, paces: Sequence[float] = ()) -> float:
    """Return how much longer a sweep takes in canonical order than in order of arrival, as a share of its time.

    Args:
        scheduler: makes the decisions.
        trials: number of trials.
        workers: number of trials that run at once.
        width: number of virtual workers.
        paces: seconds per epoch of examples of the trials; without them, speeds are drawn.

    Example:
        >>> from sweeper.scheduling.asha import Halving
        >>> halving = Halving("val_nll", "min", 9, 3)
        >>> costs = [cost_of_width(halving, trials=40, workers=8, width=width) for width in (8, 40)]
        >>> costs[0] > costs[1]
        True
    """
    size, random = min(trials, SIMULATED_TRIALS), np.random.default_rng(0)
    # Fewer draws of large sweeps, so that `plan` need not be waited for.
    seconds = np.zeros((max(5, min(20, 10_000 // size)), 2))
    for taken in seconds:
        values, pace = drawn_sweep(scheduler, size, random)
        pace = random.choice(paces, size) if len(paces) else pace
        taken[:] = [
            simulate_sweep(scheduler, range(size), values, pace, min(workers, size), order).seconds
            for order in (width, None)
        ]
    canonical, arrival = seconds.mean(axis=0)
    return max(0.0, float(canonical / arrival - 1))
