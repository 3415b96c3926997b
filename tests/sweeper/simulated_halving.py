"""Asynchronous halving with an injected clock: hours of a sweep in milliseconds, through the real decisions."""

from __future__ import annotations

import heapq

import numpy as np

from sweeper.scheduling.base import Scheduler, decide


def simulate(schedule: Scheduler, trials: int, *, workers: int, seed: int) -> dict[int, int]:
    """Run `trials` on `workers` whose epochs take random times; return how many trials reached each rung.

    A trial's loss falls towards a floor of its own, so that early and late values agree in part, as real ones do.
    The clock is the heap's key: the next report is the one whose simulated time is smallest.
    """
    rng = np.random.default_rng(seed)
    floors, speeds = rng.lognormal(-1, 0.5, trials), rng.lognormal(0, 0.3, trials)
    noise = rng.normal(0, 0.02, (trials, len(schedule.rungs)))
    rungs, waiting = schedule.begin(), iter(range(trials))
    reports: list[tuple[float, int, int]] = []

    def begin(now: float) -> None:
        trial = next(waiting, None)
        if trial is not None:
            heapq.heappush(reports, (now + schedule.rungs[0] * speeds[trial], trial, 0))

    for _ in range(workers):
        begin(0.0)
    while reports:
        now, trial, place = heapq.heappop(reports)
        epoch = schedule.rungs[place]
        value = float(floors[trial] + 1 / (1 + epoch) + noise[trial, place])
        decision = decide(rungs, trial, epoch, value)
        rungs.add(epoch, trial, value)
        if decision is not None and decision.kind == "continue":
            later = now + (schedule.rungs[place + 1] - epoch) * speeds[trial]
            heapq.heappush(reports, (later, trial, place + 1))
        else:
            begin(now)
    return {epoch: len(rung) for epoch, rung in rungs.by_epoch.items()}
