"""A sweep on a large cluster with an injected clock: days in seconds, through the real decisions of the scheduler.

The clock is the heap's key. A node starts some minutes after trials wait for it; a trial reports as
`trainables.worker.trial.Trial.advance` does: at the end of the epoch in which `report_seconds` have passed, and at
every rung.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sweeper.journal.records import Decision
from sweeper.scheduling.base import Scheduler, decide


@dataclass
class Traffic:
    """What reached the driver.

    Attributes:
        seconds: from the first trial's waiting to the last one's end.
        reports: by minute of the sweep.
        starts: processes' starts that were journaled (the first report took longer than a second).
        epochs, evaluations: of trials; replicates multiply them.
        checkpoints: that trials write: at rungs, and between them when one is due.
        reached: rung → trials.
        busy_seconds: of all slots together.
    """

    seconds: float = 0.0
    reports: Counter[int] = field(default_factory=Counter)
    starts: int = 0
    epochs: int = 0
    evaluations: int = 0
    checkpoints: int = 0
    reached: Counter[int] = field(default_factory=Counter)
    busy_seconds: float = 0.0

    @property
    def total_reports(self) -> int:
        """All reports."""
        return sum(self.reports.values())


@dataclass(frozen=True)
class SimulatedCluster:
    """What is simulated: `slots` trials at once on nodes that take a while to come."""

    slots: int
    node_start_seconds: float = 240.0
    epoch_seconds: float = 60.0
    spread: float = 0.3
    report_seconds: float = 10.0
    checkpoint_seconds: float = 60.0


class Listener(Protocol):
    """Is told what reaches the driver, as it happens."""

    def started(self, now: float, trial: int) -> None:
        """A trial's process began."""

    def reported(self, now: float, trial: int, epochs: range, value: float, decision: Decision | None) -> None:
        """A trial reported these epochs, the last of them with this value; at a rung there is a decision."""


def simulate(
    schedule: Scheduler, trials: int, cluster: SimulatedCluster, seed: int = 0, listener: Listener | None = None
) -> Traffic:
    """Run a sweep of `trials` on a cluster and return what reached the driver.

    A trial's epoch takes a lognormal time around the median; its loss falls towards a floor of its own.
    """
    rng = np.random.default_rng(seed)
    floors = rng.lognormal(-1, 0.5, trials)
    epoch_seconds = cluster.epoch_seconds * rng.lognormal(0, cluster.spread, trials)
    noise = rng.normal(0, 0.02, (trials, len(schedule.rungs)))
    rungs, waiting, traffic = schedule.begin(), iter(range(trials)), Traffic()
    # (time of the next report, trial, epochs done by then)
    events: list[tuple[float, int, int]] = []
    column = {epoch: place for place, epoch in enumerate(schedule.rungs)}
    reported, saved = [0] * trials, [0.0] * trials
    following = {epoch: min(r for r in schedule.rungs if r > epoch) for epoch in range(schedule.max_epochs)}

    def train(now: float, trial: int, done: int) -> None:
        """Go on until the trial's next report: a rung, or the epoch in which `report_seconds` have passed."""
        each = float(epoch_seconds[trial])
        epochs = min(math.ceil(cluster.report_seconds / each), following[done] - done)
        traffic.epochs += epochs
        traffic.busy_seconds += epochs * each
        heapq.heappush(events, (now + epochs * each, trial, done + epochs))

    def begin(now: float) -> None:
        trial = next(waiting, None)
        if trial is not None:
            traffic.starts += 1
            saved[trial] = now
            if listener is not None:
                listener.started(now, trial)
            train(now, trial, 0)

    for slot in range(min(cluster.slots, trials)):
        # Nodes come over the minutes after the first, as clouds hand them out.
        begin(cluster.node_start_seconds * (1 + slot / cluster.slots))
    while events:
        now, trial, done = heapq.heappop(events)
        traffic.seconds = now
        traffic.reports[int(now // 60)] += 1
        if done in column or now - saved[trial] >= cluster.checkpoint_seconds:
            saved[trial] = now
            traffic.checkpoints += 1
        value, decision = float(floors[trial] + 1 / (1 + done)), None
        if done in column:
            traffic.evaluations += 1
            traffic.reached[done] += 1
            value += float(noise[trial, column[done]])
            decision = decide(rungs, trial, done, value)
            rungs.add(done, trial, value)
        if listener is not None:
            listener.reported(now, trial, range(reported[trial] + 1, done + 1), value, decision)
        reported[trial] = done
        if done not in column or (decision is not None and decision.kind == "continue"):
            train(now, trial, done)
        else:
            begin(now)
    return traffic
