"""The numbers that a sweep publishes, against counting the trials one by one."""

from __future__ import annotations

import random

import pytest

from sweeper.journal.best import Spending
from sweeper.journal.records import Decision
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, FAILED, RUNNING, WAITING, SweepState
from sweeper.reporting.snapshot import METRICS, PUBLISH_SECONDS, MetricsSink
from sweeper.scheduling.asha import Halving
from tests.sweeper.records import made_record

HALVING = Halving("val_nll", "min", 9, 1, 3)


class Published:
    """What was published last, by name and labels, and how often."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.times = 0

    def __call__(self, name: str, labels: dict[str, str], value: float) -> None:
        assert set(labels) == set(METRICS[name][1]), name
        self.values[name, tuple(sorted((k, v) for k, v in labels.items() if k != "sweep"))] = value
        self.times += name == "sweeper_running"

    def of(self, name: str, **labels: str) -> float:
        return self.values[name, tuple(sorted(labels.items()))]


def random_state(rng: random.Random) -> SweepState:
    state = SweepState(rng.randint(1, 60))
    for trial in state.trials.values():
        trial.status = rng.choice([WAITING, RUNNING, COMPLETED, EARLY_STOPPED, FAILED])
        if trial.status != WAITING:
            trial.epochs = 9 if trial.status == COMPLETED else rng.choice([1, 2, 3])
            stopped = trial.status == EARLY_STOPPED and trial.epochs in (1, 3)
            trial.decision = Decision("stop", "cutoff", trial.epochs) if stopped else None
            trial.wall_seconds, trial.objective = rng.uniform(0, 5000), rng.uniform(0, 3)
    return state


@pytest.mark.parametrize("seed", range(20))
def test_numbers_are_those_of_the_trials(seed: int) -> None:
    rng = random.Random(seed)
    state, published = random_state(rng), Published()
    spending = Spending()
    for number, trial in state.trials.items():
        spending.apply(made_record(0, "report", 0.0, {"configuration": number, "wall_seconds": trial.wall_seconds}))
    sink = MetricsSink("s", state, HALVING, published, spending=spending, samples_per_epoch=700, gpu=0.25)
    sink.publish(running=True)
    trials = list(state.trials.values())
    for status in (WAITING, RUNNING, COMPLETED, EARLY_STOPPED, FAILED):
        assert published.of("sweeper_trials", status=status) == sum(t.status == status for t in trials)
    for rung in HALVING.rungs:
        stopped = [t for t in trials if t.stop_rung == rung]
        passed = [t for t in trials if t.epochs >= rung and t not in stopped]
        assert published.of("sweeper_rung_trials", rung=str(rung), outcome="stopped") == len(stopped)
        assert published.of("sweeper_rung_trials", rung=str(rung), outcome="passed") == len(passed)
    hours = sum(t.wall_seconds for t in trials) / 3600
    assert (
        published.of("sweeper_samples") == 700 * published.of("sweeper_epochs") == 700 * sum(t.epochs for t in trials)
    )
    assert published.of("sweeper_gpu_hours") == pytest.approx(hours / 4)
    sound = [t for t in trials if t.objective is not None and t.status != FAILED]
    judged = [t.objective for t in sound if t.status == COMPLETED] or [t.objective for t in sound]
    assert bool(judged) == (("sweeper_best_objective", (("metric", "val_nll"),)) in published.values)
    if judged:
        assert published.of("sweeper_best_objective", metric="val_nll") == min(judged)


def test_they_are_renewed_now_and_then_and_end_with_not_running() -> None:
    now, published = [0.0], Published()
    sink = MetricsSink(
        "s",
        SweepState(3),
        HALVING,
        published,
        spending=Spending(),
        samples_per_epoch=1,
        gpu=0,
        clock=lambda: now[0],
        wall_clock=lambda: 1000.0,
    )
    for second in range(int(3 * PUBLISH_SECONDS)):
        now[0] = float(second)
        sink.flush_if_due()
    assert published.times == 3
    assert published.of("sweeper_last_report_time_seconds") == 1000.0, "a sweep that began just now is not stalled"
    sink.append(made_record(1, "started", 1500.0, {}))
    sink.append(made_record(2, "report", 2000.0, {}))
    sink.publish(running=False)
    assert published.of("sweeper_last_report_time_seconds") == 2000.0
    assert published.of("sweeper_running") == 0
