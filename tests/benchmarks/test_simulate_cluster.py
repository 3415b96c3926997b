"""The simulation of a large cluster keeps its books: nothing is lost, nothing runs twice, no slot is used twice."""

from __future__ import annotations

import random

import pytest

from sweeper.scheduling.asha import Halving
from sweeper.scheduling.run_to_end import RunToEnd
from tests.sweeper.simulated_cluster import SimulatedCluster, simulate


@pytest.mark.parametrize("seed", range(8))
def test_books_balance(seed: int) -> None:
    rng = random.Random(seed)
    schedule = Halving("val_nll", "min", rng.choice([9, 27, 30]), rng.choice([1, 3]), 3)
    slots, trials = rng.randint(1, 60), rng.randint(1, 400)
    cluster = SimulatedCluster(slots, rng.uniform(0, 300), rng.choice([0.5, 5, 60]), report_seconds=10)
    traffic = simulate(schedule, trials, cluster, seed)
    assert traffic.starts == trials
    assert traffic.reached[schedule.rungs[0]] == trials
    passed = [traffic.reached[rung] for rung in schedule.rungs]
    assert passed == sorted(passed, reverse=True)
    assert traffic.evaluations == sum(passed) <= traffic.total_reports <= traffic.epochs
    lengths = [b - a for a, b in zip((0, *schedule.rungs), schedule.rungs, strict=False)]
    assert traffic.epochs == sum(count * length for count, length in zip(passed, lengths, strict=True))
    assert traffic.busy_seconds <= slots * traffic.seconds
    assert traffic.evaluations <= traffic.checkpoints <= traffic.total_reports


def test_long_epochs_report_each_and_short_ones_every_ten_seconds() -> None:
    schedule = RunToEnd("val_nll", "min", 30)
    long, short = (simulate(schedule, 40, SimulatedCluster(4, 0, e, 0.0), 0) for e in (60.0, 1.0))
    assert long.total_reports == 40 * 30
    assert short.total_reports == 40 * 3
    # Each minute-long epoch has a checkpoint; of half a minute's training only the end has one.
    assert long.checkpoints == 40 * 30 and short.checkpoints == 40
