"""A worker without a head: it waits, gives its node back in time, and ends with the sweep."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeper.execution.slurm import worker
from sweeper.execution.slurm.jobs import Exchange
from sweeper.execution.slurm.worker import WorkerJob, own_job
from tests.patience import patient


def test_a_worker_no_head_comes_for_gives_its_node_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.05)
    assert WorkerJob(Exchange(tmp_path)).run() == 0


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
