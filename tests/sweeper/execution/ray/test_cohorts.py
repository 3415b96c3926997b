"""Cohorts on Ray: the numbers and decisions of the local executor, and as many processes as lanes need."""

from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.execution.driver.context import Shares
from sweeper.execution.ray.executor import Workers
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Failed
from sweeper.results import load
from sweeper.scheduling.asha import Halving
from tests.faults.misbehaving import misbehave
from tests.polling import KEYS
from tests.running import in_process, sweeper, write_space
from tests.sweeper.execution.test_cohort_loop import Alike
from tests.sweeper.execution.test_cohorts import SPACE
from tests.sweeper.fake_executor import FakeSweep
from trainables.worker.trial_reports import WorkerReport

UNEQUAL = {"sweep", "seconds", "wall_seconds", "decided_at", "attempt"}
"""Columns that tell of the sweep's name, times and drivers."""


def _tables(folder: Path, executor: str, cpus: int, *settings: str) -> dict[str, list[dict[str, str]]]:
    asked = ["--set", "samples=24", "--set", "replicates.count=2", *settings, "--name", executor, "--no-mlflow"]
    asked += ["--executor", executor, "--cpus", str(cpus)]
    command = in_process if executor == "local" else sweeper
    done = command("run", write_space(folder, SPACE), *asked, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return _read(folder / "results" / executor)


def _read(folder: Path) -> dict[str, list[dict[str, str]]]:
    results, found = load(folder), {}
    packings = results.rows("SELECT DISTINCT packing FROM trials")
    assert [row["packing"] for row in packings] == ["lanes"]
    for table in ("epochs", "evaluations", "decisions", "predictions"):
        rows = results.rows(f"SELECT * FROM {table} ORDER BY {KEYS[table]}")
        found[table] = [{name: repr(value) for name, value in row.items() if name not in UNEQUAL} for row in rows]
    return found


@pytest.mark.integration
def test_one_process_decides_as_on_the_local_executor(tmp_path: Path) -> None:
    here, there = (_tables(tmp_path, executor, 1) for executor in ("local", "ray"))
    assert here == there


@pytest.mark.slow
def test_two_processes_measure_the_same(tmp_path: Path) -> None:
    """Without a scheduler all of it; with one, what is cut off depends on who reports first, as it does locally."""
    here, there = (_tables(tmp_path, executor, 2, "--set", "scheduler.name=none") for executor in ("local", "ray"))
    for decided in (here.pop("decisions"), there.pop("decisions")):  # each says how many others had come before
        assert {row["kind"] for row in decided} == {"'complete'"}
    assert here == there


@pytest.mark.slow
def test_memory_that_lanes_exceed_halves_them_and_loses_nothing(tmp_path: Path) -> None:
    text = SPACE.replace("lanes: 4", "lanes: 16").replace("name: asha", "name: none")
    paths = misbehave("crowd", write_space(tmp_path, text.replace("retries: 0", "")), tmp_path, cpus=1, executor="ray")
    bodies = [record.body for record in read_journal(paths.journal)]
    failed = [body for body in bodies if isinstance(body, Failed)]
    assert failed and {(body.failure.kind, body.failure.counts) for body in failed} == {("out_of_memory", False)}
    assert {body.failure.values["lanes"] for body in failed} == {8, 4}
    asked = ["--set", "scheduler.name=none", "--name", "wide", "--no-mlflow", "--cpus", "1"]
    done = sweeper("run", write_space(tmp_path, SPACE), *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    halved, wide = _read(paths.root), _read(tmp_path / "results" / "wide")
    assert all(halved[table] == wide[table] for table in ("epochs", "evaluations", "predictions"))


def _workers(tmp_path: Path, *, slots: int = 2, lanes: int = 8, autoscales: bool = False, count: int = 64) -> Workers:
    paths, halving = SweepPaths(tmp_path / "sweep"), Halving("val_nll", "min", 27, 3, 3)
    sweep = FakeSweep(paths, halving, count, slots=slots, kind=Alike, together=True)
    driver = sweep.driver(shares=Shares(lambda index: 0.25, 0.25))
    driver.begin()
    return Workers(driver, None, autoscales, lanes)


def _opened(workers: Workers) -> int:
    while workers.open(str(len(workers.slots))) is not None:
        assert len(workers.slots) < 1000
    return len(workers.slots)


def test_processes_are_asked_for_by_the_lanes_that_they_fill(tmp_path: Path) -> None:
    assert _opened(_workers(tmp_path / "fixed")) == 2, "as many as fit"
    assert _opened(_workers(tmp_path / "few", slots=8, count=3)) == 3, "each with one trial at least"
    assert _opened(_workers(tmp_path / "growing", slots=1, autoscales=True)) == 8
    measured = _workers(tmp_path / "measured", slots=1, autoscales=True, lanes=0)
    assert _opened(measured) == 1, "how many lanes pay is not known yet"
    slot = measured.slots["0"]
    (first,) = measured.answer(slot, WorkerReport()).new
    assert len(first) == 1 and slot.assignments == [[0]] and slot.share == 0.25
    assert len(measured.answer(slot, WorkerReport(room=15)).new) == 15
    assert _opened(measured) == 4
    measured.dispatcher.most_lanes = 16  # eight trials of two replicates, since memory ran out
    assert _opened(measured) == 8


def test_a_process_beyond_the_work_there_is_ends(tmp_path: Path) -> None:
    workers = _workers(tmp_path, slots=2, count=1)
    first, second = (workers.open(name) for name in ("0", "1"))
    assert first is not None and second is None
    workers.answer(first, WorkerReport())
    assert first.assignments == [[0]] and not workers.wanted()
