"""Workers and heads of a Slurm sweep: where a node listens, what jobs say to each other, and when both give up."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.execution.cluster.cluster import create_token
from sweeper.execution.slurm import worker
from sweeper.execution.slurm.head import fruitless
from sweeper.execution.slurm.jobs import Exchange, Head, requeue
from sweeper.execution.slurm.worker import WorkerJob, address_here, environment, own_job, ray_folder
from sweeper.journal.journal import Journal
from sweeper.journal.segments import last_sequence
from tests.patience import patient
from tests.sweeper.records import made_body


def test_a_worker_no_head_comes_for_gives_its_node_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.05)
    assert WorkerJob(Exchange(tmp_path)).run() == 0


@pytest.mark.parametrize(("ends", "fails"), [("exit 0", False), ("kill -TERM $$", False), ("exit 1", True)])
def test_a_requeue_that_ends_its_own_command_has_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, fails: bool
) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\n{ends}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SweeperError) if fails else nullcontext():
        requeue("1")


def test_a_waiting_worker_ends_with_the_sweep(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sweeper.execution.slurm.worker", str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}) as waiting:
        time.sleep(1)
        assert waiting.poll() is None
        Exchange(tmp_path).end("finished")
        assert waiting.wait(patient(30)) == 0


def test_an_array_s_task_is_called_as_scontrol_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    assert own_job() is None
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert own_job() == "17_3"


def test_an_interface_has_its_address_and_one_that_is_not_there_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_SLURM_INTERFACE", "lo")
    assert address_here() == "127.0.0.1"
    monkeypatch.setenv("SWEEPER_SLURM_INTERFACE", "ib9")
    with pytest.raises(SweeperError, match=r"interface 'ib9': this machine has .*lo"):
        address_here()


def test_a_node_has_the_sweep_s_token_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    monkeypatch.setenv("SWEEPER_SLURM_SCRATCH", str(tmp_path))
    found = environment(tmp_path / "token")
    assert found["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token") and found["RAY_AUTH_MODE"] == "token"
    assert "RAY_AUTH_TOKEN" not in found and "RAY_ADDRESS" not in found
    assert found["TMPDIR"] == str(tmp_path)
    monkeypatch.setenv("SWEEPER_SLURM_SCRATCH", str(tmp_path / "absent"))
    assert environment(tmp_path / "token").get("TMPDIR") != str(tmp_path / "absent")


def test_a_folder_of_ray_s_sockets_is_this_user_s_alone(tmp_path: Path) -> None:
    token = tmp_path / "token"
    create_token(token)
    folder = ray_folder(token).parent
    try:
        assert folder.stat().st_mode & 0o777 == 0o700 and ray_folder(token).parent == folder
        folder.chmod(0o777)  # as somebody may have made it before
        with pytest.raises(SweeperError, match="belongs to another user"):
            ray_folder(token)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([], True),  # nothing was ever trained
        (["attempt"], True),
        (["attempt", "started", "failed", "ended"], True),  # a driver that starts trials and dies writes, too
        (["attempt", "started", "report"], False),
        (["attempt", "started", "replicate"], False),
    ],
)
def test_starts_that_measure_nothing_are_fruitless(tmp_path: Path, written: list[str], expected: bool) -> None:
    journal, starts = Journal(tmp_path, durable=False), list[int]()
    for kind in ("attempt", "started", "report"):  # of an earlier start, which trained
        journal.append(made_body(kind))
    for _ in range(3):
        assert not fruitless(tmp_path, starts), "after too few starts"
        starts.append(last_sequence(tmp_path))
        for kind in written:
            journal.append(made_body(kind))
    assert fruitless(tmp_path, starts) == expected


def test_a_sweep_without_a_journal_has_come_to_nothing(tmp_path: Path) -> None:
    assert fruitless(tmp_path / "journal", [-1, -1, -1]) and not fruitless(tmp_path / "journal", [-1, -1])


def test_a_head_is_known_once_it_was_announced(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    assert exchange.head is None and exchange.over is None and exchange.starts() == []
    for attempt in (1, 2):
        exchange.announce(Head("10.0.0.1:6379", "123", attempt))
        assert Exchange(tmp_path).head == Head("10.0.0.1:6379", "123", attempt)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"address": "a"}', '{"address": 1, "job": 2, "attempt": 3, "more": 4}']
)
def test_a_damaged_announcement_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "head.json").write_text(text)
    assert Exchange(tmp_path).head is None


def test_a_sweep_that_was_over_may_go_on(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.stop.touch()
    exchange.add_start(-1)
    exchange.add_start(3)
    exchange.end("finished")
    assert exchange.over == "finished"
    exchange.begin(anew=False)
    assert exchange.over is None and exchange.stop.exists() and exchange.starts() == [-1, 3]
    exchange.begin(anew=True)
    assert not exchange.stop.exists() and exchange.starts() == []
