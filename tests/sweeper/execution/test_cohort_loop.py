"""The loop over cohorts with processes that train nothing: what they had in hand is never lost, nor punished."""

import collections
from typing import Any

import numpy as np
import pytest

from sweeper.core.ids import SweepPaths
from sweeper.execution import local as executor
from sweeper.execution.driver.driver import Driver
from sweeper.execution.local import Loop
from sweeper.execution.trial_processes import TrialProcess
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, FAILED
from sweeper.scheduling.asha import Halving
from tests.sweeper.fake_executor import FakeSweep, KilledError, KillingSink, Worker, fails_at
from tests.sweeper.records import fields
from trainables.worker.trial_reports import (
    ERROR,
    OUT_OF_MEMORY,
    Failure,
    TrialReport,
    WorkerCommand,
    WorkerInit,
    WorkerReport,
)

LANES = 4
CULPRIT = 7


class Alike(Driver):
    """All trials can train together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.work.kind_of = lambda index: "alike"  # type: ignore[method-assign]


class Lanes(TrialProcess):
    """A process, and the connection to it, that answers each order as `trainables.worker.workers` does."""

    def __init__(self, sweep: FakeSweep, crashes: bool, short_of_memory: bool) -> None:
        self.connection = self  # type: ignore[assignment]
        self._sweep, self._crashes, self._short = sweep, crashes, short_of_memory
        self._seats: dict[int, Worker] = {}
        self._orders = WorkerCommand()

    def send(self, orders: Any) -> bool:
        self._orders = orders
        for index in orders.over:
            self._seats.pop(index)
        return True

    def poll(self) -> bool:
        return False

    def kill(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is open."""

    def exit_code(self) -> int:
        return -9

    def recv(self) -> WorkerReport:
        empty, new = not self._seats, [assignment.configuration for (assignment,) in self._orders.new]
        for index in new:
            if self._short and len(self._seats) == 2:
                self._short = False
                self._seats.clear()
                return WorkerReport(lost=((new[0], Failure(ERROR)),), gave_up=True, most_lanes=2)
            worker = self._seats[index] = self._sweep.worker([index], np.random.default_rng(index))
            worker._begin(worker.left.pop())
        room = LANES - len(self._seats)
        repeated = tuple(([_report(seat)], False) for seat in self._seats.values() if seat.repeat is not None)
        if repeated or not self._seats or (empty and room):
            return WorkerReport(repeated, room)
        if self._crashes and CULPRIT in self._seats and self._seats[CULPRIT].epoch >= 3:
            raise EOFError
        reports = tuple(
            ([_report(seat)], seat.epoch == 27 or fails_at(index) == seat.epoch) for index, seat in self._seats.items()
        )
        return WorkerReport(reports, room, trained=True)


def _report(seat: Worker) -> TrialReport:
    return TrialReport.from_dict(seat._advance())


class Server:
    """Forks such processes; lanes that are killed by `chance` train in step."""

    def __init__(
        self,
        sweep: FakeSweep,
        *,
        crashes: bool = False,
        short_of_memory: bool = False,
        in_step: bool = False,
        chance: np.random.Generator | None = None,
    ) -> None:
        self._sweep, self._crashes, self._short, self.forked = sweep, crashes, short_of_memory, 0
        self._in_step, self._chance = in_step, chance

    def fork(self, opening: WorkerInit) -> Lanes:
        self.forked += 1
        if self._in_step:
            return InStep(self._sweep, self._chance)
        return Lanes(self._sweep, self._crashes, self._short and self.forked == 1)


def _loop(tmp_path, monkeypatch, count: int, **trouble: bool) -> tuple[FakeSweep, Alike, Loop]:
    monkeypatch.setattr(executor, "wait", lambda connections, seconds: connections)
    sweep = FakeSweep(
        SweepPaths(tmp_path / "sweep"), Halving("val_nll", "min", 27, 3, 3), count, 2, kind=Alike, together=True
    )
    driver = sweep.driver()
    assert isinstance(driver, Alike)
    driver.begin()
    return sweep, driver, Loop(driver, WorkerInit({}, "", together=True), 1, Server(sweep, **trouble).fork)  # type: ignore[arg-type]


def _run(loop: Loop) -> None:
    for _ in range(1000):
        if not loop.turn():
            return
    raise AssertionError("the sweep has not ended after 1,000 turns")


def test_what_was_never_taken_up_where_memory_ran_out_is_given_out_again(tmp_path, monkeypatch):
    _, driver, loop = _loop(tmp_path, monkeypatch, 12, short_of_memory=True)
    _run(loop)
    ended = collections.Counter(trial.status for trial in driver.state.trials.values())
    assert ended[COMPLETED] + ended[EARLY_STOPPED] + ended[FAILED] == 12
    broken = [trial.configuration for trial in driver.state.trials.values() if trial.failures]
    assert broken == [1], "what was lost in the same message counts, what was given back does not"


def test_a_trial_that_crashes_takes_the_others_down_once(tmp_path, monkeypatch):
    sweep, driver, loop = _loop(tmp_path, monkeypatch, 40, crashes=True)
    _run(loop)
    assert driver.state.trials[CULPRIT].status == FAILED
    deaths = collections.Counter(fields(r)["configuration"] for r in sweep.records() if r.kind == "failed")
    assert deaths.pop(CULPRIT) == 4, "once with others, then two retries"
    assert set(deaths.values()) == {1} and len(deaths) < LANES, "only those beside it, and only once"


def test_memory_that_ran_out_twice_never_widens_cohorts(tmp_path, monkeypatch):
    _, _, loop = _loop(tmp_path, monkeypatch, 12)
    widths = []
    for lanes in (2, 4):
        loop.start()
        (process,) = loop.busy.values()
        process.assignments = [[index] for index in range(lanes)]
        loop.on_exit(process, Failure(OUT_OF_MEMORY))
        widths.append(loop.dispatcher.most_lanes)
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("kind", ["out_of_memory", "gpu_out_of_memory"])
def test_memory_that_lanes_exceed_together_is_nobodys_fault(tmp_path, monkeypatch, kind):
    _, driver, loop = _loop(tmp_path, monkeypatch, 12)
    _turns_until_full(loop)
    (process,) = loop.busy.values()
    held = [*process.assignments]
    loop.on_exit(process, Failure(kind))
    assert len(held) == LANES and not any(driver.work.is_suspect(index) for (index,) in held)
    assert loop.dispatcher.most_lanes == LANES * driver.settings.seeds.count // 2


class TwoKinds(Driver):
    """Trials of two kinds, which take turns at random."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.work.kind_of = lambda index: "one" if index % 7 % 3 else "other"  # type: ignore[method-assign]


class InStep(Lanes):
    """A process whose lanes train epoch by epoch, and are killed now and then between two checkpoints."""

    def __init__(self, sweep: FakeSweep, chance: np.random.Generator | None) -> None:
        super().__init__(sweep, False, False)
        self._chance = chance

    def recv(self) -> WorkerReport:
        empty = not self._seats
        for index in (assignment.configuration for (assignment,) in self._orders.new):
            worker = self._seats[index] = self._sweep.worker([index], np.random.default_rng(0))
            worker.rng = Never()  # type: ignore[assignment]  # it reports at rungs alone
            worker._begin(worker.left.pop())
        room, seats = LANES - len(self._seats), {index: self._seats[index] for index in sorted(self._seats)}
        repeated = tuple(([_report(seat)], False) for seat in seats.values() if seat.repeat is not None)
        if repeated or not seats or (empty and room):
            return WorkerReport(repeated, room)
        steps = min(_left(index, seat) for index, seat in seats.items())
        due = [index for index, seat in seats.items() if _left(index, seat) == steps]
        reports = []
        for index, seat in seats.items():
            if self._chance is not None and self._chance.random() < 0.02:
                raise KilledError
            if index in due:
                seat.__dict__.pop("ahead", None)
                reports.append(([_report(seat)], seat.epoch == 27 or fails_at(index) == seat.epoch))
            else:
                seat.__dict__["ahead"] = seat.__dict__.get("ahead", 0) + steps
        return WorkerReport(tuple(reports), room, trained=True)


class Never:
    """No chance."""

    def random(self) -> float:
        return 1.0


def _left(index: int, seat: Worker) -> int:
    """Return how many epochs a lane has to its next report."""
    stops = [epoch for epoch in (*seat.schedule.rungs, fails_at(index) or 0) if epoch > seat.epoch]
    return min(stops) - seat.epoch - seat.__dict__.get("ahead", 0)


@pytest.mark.parametrize("seed", range(12))
def test_kills_change_no_decision_of_cohorts_in_one_process(tmp_path, monkeypatch, seed):
    """Neither which kind trains first, nor who of a cohort comes to a rung first."""
    monkeypatch.setattr(executor, "wait", lambda connections, seconds: connections)
    found = []
    for name, kills in (("undisturbed", 0), ("disturbed", 12)):
        sweep = FakeSweep(
            SweepPaths(tmp_path / name), Halving("val_nll", "min", 27, 3, 3), 20, kind=TwoKinds, together=True
        )
        rng = np.random.default_rng(seed)
        for left in reversed(range(kills + 1)):
            driver = sweep.driver(KillingSink(int(rng.integers(0, 12)) if left else None))
            server = Server(sweep, in_step=True, chance=rng if left else None)
            try:
                driver.begin()
                _run(Loop(driver, WorkerInit({}, "", together=True), 1, server.fork))  # type: ignore[arg-type]
                break
            except KilledError:
                continue
        reports = [fields(record) for record in sweep.records() if record.kind == "report"]
        found.append({(each["configuration"], each["epoch"]): each["decision"] for each in reports if each["decision"]})
    assert found[0] == found[1]


def _turns_until_full(loop: Loop) -> None:
    while not any(len(process.assignments) == LANES for process in loop.busy.values()):
        loop.turn()
