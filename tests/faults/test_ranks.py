"""Sweeps whose trials several processes train: killed, stopped and resumed, they decide as one process would."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.journal.segments import last_sequence
from tests.alive import running
from tests.faults.processes import below, fork_servers, kill_ids, trial_processes, wait_until
from tests.faults.reference import SMALL, decisions_of, undisturbed
from tests.patience import patient
from tests.running import in_process, metrics_by_key, started, wait_for_records, write_space
from tests.sweeper.records import fields

SETTINGS = ("--set", "checkpoint.every_seconds=0", "--no-mlflow")


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_space(
        tmp_path_factory.mktemp("space"), SMALL.replace("replicates: 2", "replicates: 1") % {"samples": 4}
    )


def _ranks_here(driver: int) -> list[int]:
    """Return the processes that trial processes have forked."""
    servers, forked = fork_servers(driver), running(trial_processes(driver))
    leaders = [pid for pid in forked if _parent(pid) in servers]
    return [pid for pid in forked if _parent(pid) in leaders]


def _ranks_on_ray(process: subprocess.Popen[str]) -> list[int]:
    return below(process.pid, "RankActor")


def _parent(pid: int) -> int | None:
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return None


def _check_as_one(paths: SweepPaths, space: Path) -> list[Mapping[str, Any]]:
    """Assert that a sweep measured and decided as one process a trial would; return its failures."""
    expected, records = undisturbed(space), list(read_journal(paths.journal))
    reports = [record for record in records if record.kind == "report"]
    measured = metrics_by_key(reports)
    for key, row in measured.items():
        if key[3] == "epoch":  # what is counted in bins jumps where float32 rounds otherwise
            losses = {name: row[name] for name in ("train_loss", "val_nll")}
            wanted = {name: expected.metrics[key][name] for name in losses}
            assert losses == pytest.approx(wanted, rel=1e-3), key
    decided, alone = decisions_of(reports), expected.decisions
    assert {i: [(d["kind"], d["rung"]) for d in made] for i, made in decided.items()} == {
        i: [(d["kind"], d["rung"]) for d in made] for i, made in alone.items()
    }
    return [fields(record) for record in records if record.kind == "failed"]


@pytest.mark.slow
def test_a_sweep_of_two_workers_a_trial_survives_a_killed_one_and_decides_as_with_one(
    space: Path, tmp_path: Path
) -> None:
    paths = SweepPaths(tmp_path / "results" / "s")
    workers = ("--set", "resources.workers=2", "--cpus", "3")  # room for one trial of two
    found: list[int] = []

    def strike() -> None:
        wait_until(lambda: last_sequence(paths.journal) >= 2 and bool(_ranks_here(os.getpid())))
        found.extend(_ranks_here(os.getpid()))
        kill_ids(*found)

    with ThreadPoolExecutor(1) as pool:
        struck = pool.submit(strike)
        done = in_process("run", space, "--name", "s", *workers, *SETTINGS, cwd=tmp_path)
        struck.result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(found) == 1, "one trial at a time has one rank beside rank 0"
    failures = _check_as_one(paths, space)
    assert [body["reason"] for body in failures] == ["rank 1 of 2 was lost: its process was ended by SIGKILL"]
    assert (failures[0]["kind"], failures[0]["final"]) == ("crash", False)


@pytest.mark.slow
def test_a_stopped_sweep_continues_with_another_number_of_workers(space: Path, tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "results" / "s")
    command = ["run", space, "--name", "s", "--set", "resources.workers=4", "--cpus", "4", *SETTINGS]
    with started(*command, cwd=tmp_path) as process:
        wait_for_records(paths, 4, process)
        ranks = _ranks_here(process.pid)
        process.terminate()
        process.wait(patient(60))
        wait_until(lambda: not running(ranks))
    refused = in_process("resume", "s", "--no-mlflow", "--set", "resources.workers=65", cwd=tmp_path)
    assert refused.returncode == 2 and "workers = 65 cannot share batches of batch_size = 64" in refused.stderr
    done = in_process("resume", "s", "--no-mlflow", "--cpus", "2", "--set", "resources.workers=2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not _check_as_one(paths, space)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank", "rank 0"])
def test_on_ray_a_killed_rank_costs_a_try_and_ranks_end_with_rank_0(space: Path, tmp_path: Path, victim: str) -> None:
    paths = SweepPaths(tmp_path / "results" / "s")
    command = ["run", space, "--name", "s", "--executor", "ray", "--cpus", "2", "--set", "resources.workers=2"]
    with started(*command, *SETTINGS, cwd=tmp_path) as process:
        wait_for_records(paths, 3, process)
        ranks = _ranks_on_ray(process)
        assert len(ranks) == 1
        kill_ids(*(ranks if victim == "rank" else below(process.pid, "Trainable")))
        began = time.monotonic()
        wait_until(lambda: not running(ranks))
        print(f"the other rank ended {time.monotonic() - began:.3f} s after {victim}")
        assert process.wait(patient(200)) == 0, (tmp_path / "driver.err").read_text()
    (failure,) = _check_as_one(paths, space)
    assert (failure["kind"], failure["final"]) == ("crash", False)
    assert victim == "rank 0" or failure["reason"].startswith("rank 1 of 2 was lost"), failure


@pytest.mark.slow
def test_on_ray_a_stopped_sweep_leaves_no_rank(space: Path, tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "results" / "s")
    command = ["run", space, "--name", "s", "--executor", "ray", "--cpus", "2", "--set", "resources.workers=2"]
    with started(*command, *SETTINGS, cwd=tmp_path) as process:
        wait_for_records(paths, 3, process)
        everyone = [*_ranks_on_ray(process), *below(process.pid, "Trainable")]
        assert len(everyone) == 2
        process.terminate()
        began = time.monotonic()
        wait_until(lambda: not running(everyone[1:]))
        ended = time.monotonic()
        wait_until(lambda: not running(everyone))
        print(f"rank 0 ended {ended - began:.3f} s after the stop, rank 1 {time.monotonic() - ended:.3f} s later")
        process.wait(patient(60))
    done = in_process("resume", "s", "--no-mlflow", "--cpus", "1", "--set", "resources.workers=1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not _check_as_one(paths, space)
