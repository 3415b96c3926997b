"""A budget ends a sweep gently and can be raised; a limit says how many trials run at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.errors import InvalidSearchSpace
from sweeper.core.ids import SweepPaths
from sweeper.execution.driver.steering import BudgetWatch, Steering, WorkingTime
from sweeper.journal.best import Spending
from sweeper.journal.state import ENDED
from sweeper.scheduling.asha import Halving
from sweeper.space.loading import load_spec
from sweeper.space.spec import Budget
from sweeper.storage.sweeps import amended, create_sweep, keep, open_sweep
from tests.running import write_space
from tests.sweeper.fake_executor import FakeSweep
from tests.sweeper.records import fields, made_record
from trainables.worker.trial_reports import Reason

HALVING = Halving("val_nll", "min", 27, 3, 3)


def record(kind, time, **body):
    return made_record(0, kind, time, body)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_only_the_time_that_drivers_work_counts(attempts):
    worked, now, expected = WorkingTime(), 1e9, 0
    for busy, pause in attempts:
        worked.apply(record("attempt", now))
        for second in range(1, busy + 1):
            worked.apply(record("started", now + second))
        now, expected = now + busy + pause, expected + busy
    assert worked.seconds(now - attempts[-1][1]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("budget", "spent"), [(Budget(gpu_hours=1), {"gpu_hours": 0.5}), (Budget(wall_hours=1), {"wall_hours": 2.0})]
)
def test_what_has_been_spent(budget, spent):
    spending, worked = Spending(), WorkingTime()
    worked.apply(record("attempt", 0.0))
    for configuration in range(2):
        spending.apply(record("report", 0.0, configuration=configuration, wall_seconds=1800.0))
    watch = BudgetWatch(budget, spending, worked, {"cpu": 2, "gpu": 0.5}, clock=lambda: 7200.0)
    ((name, value),) = spent.items()
    assert watch.spent()[name] == pytest.approx(value)
    assert (watch.reached() is not None) == (value >= getattr(budget, name))


def test_a_budget_that_is_reached_is_asked_for_until_the_end():
    spending, now = Spending(), [100.0]
    watch = BudgetWatch(Budget(gpu_hours=1), spending, WorkingTime(), {"cpu": 1, "gpu": 1}, clock=lambda: now[0])
    steering = Steering([watch], Path("none"), lambda: now[0])
    steering.follow()
    assert steering.closing is None
    spending.apply(record("report", 100.0, wall_seconds=3600.0))
    steering.follow()
    assert steering.closing is None, "it looks once a second"
    for _ in range(3):
        now[0] += 1.0
        steering.follow()
        values = {"name": "gpu_hours", "spent": 1.0, "limit": 1.0, "twice": 2.0}
        assert steering.winding_down == Reason("budget", values)


class _SpentAt:
    """Asks the driver to wind down after so many reports, and notes what starts after that."""

    def __init__(self, reports):
        self.left, self.driver, self.late = reports, None, []

    def append(self, record):
        if record.kind == "started" and self.driver.steering.winding_down:
            self.late.append(fields(record)["configuration"])
        self.left -= record.kind == "report"

    def flush_if_due(self):
        pass

    def tick(self, steering):
        steering.winding_down = Reason("budget", {"spent": 2}) if self.left <= 0 else None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), reports=st.integers(1, 20), slots=st.integers(1, 4))
def test_a_spent_budget_lets_trials_come_to_a_rung_and_a_larger_one_goes_on(tmp_path_factory, seed, reports, slots):
    sweep = FakeSweep(SweepPaths(tmp_path_factory.mktemp("budget") / "sweep"), HALVING, 12, slots=slots)
    rng, sink = np.random.default_rng(seed), _SpentAt(reports)
    driver = sink.driver = sweep.driver(sink, controllers=[sink])
    driver.begin()
    sweep._drive(driver, rng, trouble=0.0)
    outcome = driver.finish()
    stopped_at = {index: trial for index, trial in driver.state.trials.items() if trial.status == "interrupted"}
    assert outcome == "stopped" or not driver.state.unfinished()
    assert all(trial.epochs in HALVING.rungs for trial in stopped_at.values())
    assert all(trial.last_evaluation_epoch == trial.epochs for trial in stopped_at.values())
    assert len(stopped_at) <= slots
    if driver.state.unfinished():
        assert fields([*sweep.records()][-1])["reason"]["kind"] == "budget"
        sweep.run(rng)
    state = sweep.driver().state
    assert all(trial.status in ENDED for trial in state.trials.values())
    rows = [(fields(r)["configuration"], row["replicate"], row["epoch"])
            for r in sweep.records() if r.kind == "report" for row in fields(r)["epochs"]]  # fmt: skip
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_trials_at_once_than_the_limit(tmp_path, limit):
    sweep = FakeSweep(SweepPaths(tmp_path / "sweep"), HALVING, 10, slots=4)
    driver = sweep.driver(changes={"max_concurrent": limit})
    driver.begin()
    given_out = [driver.work.next() for _ in range(8)]
    assert len([each for each in given_out if each is not None]) == limit
    for assignment in given_out[:limit]:
        driver.on_started(assignment)
    assert driver.work.outstanding == 0, "what its own limit holds back needs no room of the cluster"
    sweep2 = dataclasses.replace(sweep, paths=SweepPaths(tmp_path / "second"))
    assert sweep2.run(np.random.default_rng(0), changes={"max_concurrent": limit}).state.count()["waiting"] == 0


def test_a_resume_may_change_what_is_spent_and_nothing_that_is_measured(tmp_path):
    spec = load_spec(write_space(tmp_path), ["budget.gpu_hours=1"])
    sweep = create_sweep(spec, "small", None, tmp_path / "results", {})
    changed = keep(amended(sweep, ["budget.gpu_hours=2", "max_concurrent=3", "resources.cpu=2"]))
    assert (changed.spec.budget.gpu_hours, changed.spec.max_concurrent) == (2.0, 3)
    assert open_sweep("small", tmp_path / "results").spec == changed.spec
    assert changed.configurations[:] == sweep.configurations[:]
    with pytest.raises(InvalidSearchSpace) as raised:
        amended(sweep, ["samples=3", "space.loss.name=focal", "budget.gpu_hours=-1"])
    assert "samples" in str(raised.value) and "space.loss.name" in str(raised.value)
    with pytest.raises(InvalidSearchSpace, match="gpu_hours"):
        amended(sweep, ["budget.gpu_hours=-1"])
    more = amended(sweep, ["samples=12"])
    assert len(more.configurations) == 12 and more.configurations[:10] == sweep.configurations[:]
