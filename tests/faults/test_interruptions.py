"""A driver killed while MLflow follows it, one interrupted, one asked to stop: what is left can be taken up again."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.results import load
from tests.patience import patient
from tests.polling import Poller
from tests.running import (
    command,
    in_process,
    kill,
    metrics_by_key,
    reports,
    started,
    sweeper,
    wait_for_records,
    write_space,
)
from tests.seeds import drawn_seed
from tests.sweeper.records import fields

QUICK = ("--set", "samples=6", "--set", "evaluation.curvature=false")


def ended_once(paths: SweepPaths, configurations: int) -> None:
    """Assert that every configuration ended exactly once and no row was journaled twice."""
    ended = [fields(r)["configuration"] for r in reports(paths) if fields(r)["status"] != "running"]
    assert sorted(ended) == list(range(configurations))
    metrics_by_key(reports(paths))


@pytest.mark.slow
def test_killed_driver_resumes_under_a_reader(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "results" / "small")
    seed = drawn_seed()
    print(f"kill moment drawn with seed {seed}")
    draw = random.Random(seed)
    with Poller(paths.tables) as poller:
        with started("run", write_space(tmp_path), cwd=tmp_path) as process:
            wait_for_records(paths, draw.randint(4, 14), process)
            time.sleep(draw.random() * 0.3)
            kill(process)
        finished_before = {fields(r)["configuration"] for r in reports(paths) if fields(r)["status"] != "running"}
        resumed = sweeper("resume", "small", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert not poller.faults, poller.faults[:5]
    assert poller.reads > 50
    ended_once(paths, 10)
    second_attempt = [r for r in read_journal(paths.journal) if fields(r).get("attempt") == 2]
    assert not finished_before & {fields(r)["configuration"] for r in second_attempt if "configuration" in fields(r)}
    audit = in_process("status", "small", "--audit", cwd=tmp_path)
    assert audit.returncode == 0, audit.stdout
    rows = load(paths.root).rows("SELECT count(*) AS n FROM trials WHERE status NOT IN ('completed', 'early_stopped')")
    assert rows[0]["n"] == 0


@pytest.mark.slow
def test_interrupt_leaves_a_resumable_sweep(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "results" / "small")
    with started("run", write_space(tmp_path), "--no-mlflow", *QUICK, cwd=tmp_path) as process:
        wait_for_records(paths, 4, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(patient(90)) == 1
    printed = (tmp_path / "driver.out").read_text()
    assert "  sweeper resume small\n" in printed
    assert "Traceback" not in printed + (tmp_path / "driver.err").read_text()
    assert load(paths.root).rows("SELECT count(*) AS n FROM epochs")[0]["n"] > 0
    resumed = in_process("resume", "small", "--no-mlflow", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    ended_once(paths, 6)


@pytest.mark.slow
def test_of_two_drivers_on_one_name_one_drives(tmp_path: Path) -> None:
    """Both are started at the same moment; the one that comes second, and one that would resume, are told."""
    # So many samples that the third comes while the first still drives.
    words = command("run", write_space(tmp_path), "--name", "s", "--no-mlflow", "--cpus", "1", "--set", "samples=400")
    paths = SweepPaths(tmp_path / "results" / "s")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    drivers = [subprocess.Popen(words, cwd=tmp_path, **pipes) for _ in range(2)]
    try:
        while all(driver.poll() is None for driver in drivers):
            time.sleep(0.01)
        refused, driving = sorted(drivers, key=lambda driver: driver.poll() is None)
        _, said = refused.communicate()
        assert refused.returncode == 2 and "the name 's' is taken" in said and "sweeper resume s" in said, said
        wait_for_records(paths, 1, driving)
        third = in_process("resume", "s", "--no-mlflow", cwd=tmp_path)
        assert third.returncode == 2 and "Traceback" not in third.stderr
        assert f"is already being driven by process {driving.pid} on " in third.stderr, third.stderr
        driving.send_signal(signal.SIGINT)
        out, err = driving.communicate(timeout=patient(200))
        assert driving.returncode == 1 and "sweeper resume s" in out, out + err
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait(patient(30))
    metrics_by_key(reports(paths))
    assert [fields(r)["pid"] for r in read_journal(paths.journal) if r.kind == "attempt"] == [driving.pid]


@pytest.mark.integration
def test_stop_is_obeyed(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "results" / "small")
    with started("run", write_space(tmp_path), "--no-mlflow", "--set", "samples=400", cwd=tmp_path) as process:
        wait_for_records(paths, 3, process)
        asked = in_process("stop", "small", cwd=tmp_path)
        assert asked.returncode == 0, asked.stderr
        assert process.wait(patient(90)) == 1
    assert "stopped" in (tmp_path / "driver.out").read_text()
