"""Replicates in processes of their own on a real Ray: killed and resumed, they measure what they measure together."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.journal.segments import last_sequence
from sweeper.results import load
from tests.faults.processes import kill_ids, trial_processes
from tests.faults.reference import SMALL, check_survived, undisturbed
from tests.running import in_process, kill, started, sweeper, write_space
from tests.sweeper.records import record_names

APART = ("--set", "replicates.packing=trials", "--no-mlflow")


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_space(tmp_path_factory.mktemp("space"), SMALL % {"samples": 6})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_between_two_replicates_of_a_configuration_they_end_as_together(space: Path, tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "results" / "s")
    with started("run", space, "--name", "s", "--cpus", "1", *APART, cwd=tmp_path) as process:
        _wait_for_half_a_configuration(paths, process, after=4)
        kill(process)
    time.sleep(2)  # its workers may write for so long
    done = in_process("resume", "s", "--no-mlflow", "--cpus", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check_survived(paths, undisturbed(space), one_at_a_time=True)
    rows = load(paths.root).rows("SELECT * FROM trials")
    assert {row["packing"] for row in rows} == {"trials"}
    assert {row["status"] for row in rows} <= {"completed", "early_stopped"}
    audited = in_process("status", "s", "--audit", cwd=tmp_path)
    assert audited.returncode == 0, audited.stdout + audited.stderr
    (best,) = paths.checkpoints.iterdir()
    assert {path.parent.name for path in best.glob("r*/e00009.pt")} == {"r0", "r1"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_two_at_a_time_killed_with_their_processes_again_and_again(space: Path, tmp_path: Path, seed: int) -> None:
    paths, rng = SweepPaths(tmp_path / "results" / "s"), random.Random(seed)
    command = ["run", space, "--name", "s", "--cpus", "2", *APART]
    for _ in range(4):
        with started(*command, cwd=tmp_path) as process:
            for _ in range(2):
                if not _wait_for_records(paths, process, rng.randint(3, 15)):
                    break
                kill_ids(*trial_processes(process.pid)[:1])
            else:
                _wait_for_records(paths, process, rng.randint(1, 8))
            if process.poll() is None:
                kill(process)
        time.sleep(2)
        command = ["resume", "s", "--no-mlflow", "--cpus", "2"]
    done = sweeper(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check_survived(paths, undisturbed(space), one_at_a_time=False)


def _wait_for_half_a_configuration(paths, process, after):
    """Wait until the newest record is the report of a replicate whose siblings have not come so far."""
    deadline = time.monotonic() + 240
    while True:
        names = record_names(paths.journal)
        count = sum("-replicate-" in name for name in names)
        if count > after and count % 2 == 1:
            return
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)


def _wait_for_records(paths, process, further):
    """Wait for so many further records; `False` when the process ends before."""
    wanted, deadline = last_sequence(paths.journal) + further, time.monotonic() + 240
    while last_sequence(paths.journal) < wanted:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return True
