"""Trials of several processes on this machine: they measure what one measures, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from sweeper.execution.driver.judging import CRASH, classify
from sweeper.execution.fork_server import ForkServer, TrialProcess
from tests.alive import wait_for_ends
from tests.patience import patient
from trainables.worker.ranks import LOOPBACK, RankFault, first_lost, network_of, open_store
from trainables.worker.trial_reports import TrialReport, WorkerCommand, WorkerFailed, WorkerInit, WorkerReport

VALUES = {
    "loss": {"name": "selective_risk", "nu": 0.3, "history": "epoch"},
    "architecture": {"name": "mlp", "width": 16},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "batch_size": 64, "checkpoint": "best_val_nll"},
}
SETTINGS = {
    "dataset": {"name": "digits"},
    "max_epochs": 4,
    "rungs": [1, 4],
    "objective": "val_nll",
    "evaluation": {
        "bins": 15,
        "posthoc": [{"name": "temperature"}, {"name": "temperature", "label": "trained", "fitted_on": "train"}],
        "curvature": {"samples": 32, "lanczos_steps": 2, "trace_probes": 2},
        "bootstrap": 10,
    },
    "report_seconds": 0.0,
}
SEEDS = [7, 8]
TIMES = {"wall_seconds", "seconds"}


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as running:
        yield running


def _forked(server: ForkServer, folder: Path, workers: int) -> TrialProcess:
    opening = WorkerInit({**SETTINGS, "workers": workers, "checkpoints": str(folder)}, str(folder / "log"))
    process = server.fork(opening)
    assert process.send(WorkerCommand(new=([[0, "c00000", VALUES, SEEDS]],)))
    return process


def _reports(process: TrialProcess, most: int = 99) -> list[TrialReport]:
    """Return the next reports; after `most` of them the process waits for a word."""
    found: list[TrialReport] = []
    while len(found) < most:
        if found:
            process.send(WorkerCommand())
        said = process.connection.recv()
        assert isinstance(said, WorkerReport), said
        ((reports, exhausted),) = said.reports
        found += reports
        if exhausted:
            process.send(WorkerCommand(over=(0,)))
            break
    return found


def _rows(reports: Sequence[TrialReport]) -> dict[Any, dict[str, Any]]:
    """Return every measured number by what it is of."""
    rows = [row for report in reports for row in [*report.epochs, *report.evaluations]]
    return {
        (row["replicate"], row["epoch"], row.get("split")): {
            k: v for k, v in row.items() if k not in TIMES and isinstance(v, (int, float))
        }
        for row in rows
    }


def _check_equal(found: Sequence[TrialReport], wanted: Sequence[TrialReport]) -> None:
    one, other = _rows(found), _rows(wanted)
    assert one.keys() == other.keys()
    for key, row in other.items():  # float32, and numbers of bins and bootstraps that magnify its rounding
        assert one[key] == pytest.approx(row, rel=2e-3, abs=1e-4, nan_ok=True), key


def _ranks(process: TrialProcess) -> list[int]:
    return [child.pid for child in psutil.Process(process.pid).children()]


@pytest.fixture(scope="module")
def alone(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> list[TrialReport]:
    """What one process reports of the trial."""
    process = _forked(server, tmp_path_factory.mktemp("alone"), 1)
    found = _reports(process)
    process.connection.close()
    assert server.exit_code(process) == 0
    return found


def test_ranks_report_what_one_process_reports_and_end_with_it(
    server: ForkServer, tmp_path: Path, alone: list[TrialReport]
) -> None:
    process = _forked(server, tmp_path, 2)
    first = _reports(process, most=1)
    ranks = _ranks(process)
    assert len(ranks) == 1
    process.send(WorkerCommand())
    _check_equal([*first, *_reports(process)], alone)
    process.connection.close()  # the driver has no more
    assert server.exit_code(process) == 0
    wait_for_ends(*ranks)


@pytest.mark.integration
def test_a_killed_rank_ends_the_trial_which_continues_from_its_last_epoch_with_fewer_ranks(
    server: ForkServer, tmp_path: Path, alone: list[TrialReport]
) -> None:
    process = _forked(server, tmp_path, 4)
    before = _reports(process, most=2)
    ranks = _ranks(process)
    assert len(ranks) == 3
    os.kill(ranks[1], signal.SIGKILL)
    process.send(WorkerCommand())
    died = process.connection.recv()
    assert isinstance(died, WorkerFailed), died
    failure = classify(died.type_name, died.text)
    assert (failure.kind, failure.counts) == (CRASH, True)
    assert failure.reason == "rank 2 of 4 was lost: its process was ended by SIGKILL"
    server.exit_code(process)
    wait_for_ends(*ranks)
    after = _reports(again := _forked(server, tmp_path, 2))
    assert after[0].epoch == before[-1].epoch, "the report that went with the checkpoint is repeated, no epoch is"
    _check_equal([*before, *after[1:]], alone)
    again.connection.close()
    assert server.exit_code(again) == 0


@pytest.mark.integration
@pytest.mark.parametrize("moment", ["in an epoch", "between two epochs"])
def test_ranks_end_when_rank_0_is_killed(server: ForkServer, tmp_path: Path, moment: str) -> None:
    process = _forked(server, tmp_path, 3)
    _reports(process, most=1)
    ranks = _ranks(process)
    if moment == "in an epoch":
        process.send(WorkerCommand())
    process.kill()
    assert server.exit_code(process) == -signal.SIGKILL
    wait_for_ends(*ranks)


def test_an_error_of_all_ranks_is_told_as_of_one(server: ForkServer, tmp_path: Path) -> None:
    settings = {**SETTINGS, "workers": 2, "checkpoints": str(tmp_path)}
    process = server.fork(WorkerInit(settings, str(tmp_path / "log")))
    wide = {**VALUES, "architecture": {"name": "mlp", "width": -1}}
    process.send(WorkerCommand(new=([[0, "c00000", wide, SEEDS]],)))
    died = process.connection.recv()
    assert isinstance(died, WorkerFailed) and "width" in died.text
    server.exit_code(process)


STUCK = """
import os, signal, sys, time
from multiprocessing import Pipe
import psutil
from trainables.training.ranks.group import Forget
from trainables.worker import ranks
from trainables.worker.ranks import forked_crew
from trainables.worker.trial_settings import TrialSettings

ranks.NOTICED_SECONDS = 0.3
settings = {"dataset": {"name": "digits"}, "max_epochs": 1, "rungs": [1], "objective": "val_nll", "evaluation": {}}
crew = forked_crew(TrialSettings.from_mapping({**settings, "workers": 2}), Pipe()[0])
with crew.together(Forget()):
    (rank,) = psutil.Process().children()
    os.kill(rank.pid, signal.SIGKILL)
    time.sleep(600)  # as an exchange between cards would
"""


@pytest.mark.integration
@pytest.mark.slow
def test_rank_0_ends_itself_where_an_exchange_does_not_notice_that_a_rank_is_missing() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=patient(100))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "rank 1 of 2 was lost: its process was ended by SIGKILL; the exchange with it did not end" in done.stderr


MISSED = RankFault("RuntimeError: Connection closed by peer", exchanging=True)
OWN = RankFault("ValueError: no such file", exchanging=False)


@pytest.mark.parametrize(
    ("heard", "cause"),
    [
        ({3: MISSED, 1: None, 2: MISSED}, 1),
        ({2: MISSED, 3: OWN, 1: MISSED}, 3),
        ({1: OWN}, 1),
        ({2: MISSED, 1: MISSED}, 2),
    ],
)
def test_the_rank_that_missed_no_other_is_the_cause(heard: dict[int, RankFault | None], cause: int) -> None:
    assert first_lost(heard) == cause


def test_the_network_of_an_address_is_named_as_the_system_does() -> None:
    name = network_of(LOOPBACK)
    assert name is not None and LOOPBACK in {each.address for each in psutil.net_if_addrs()[name]}
    assert network_of("192.0.2.1") is None, "reserved for documents: nobody's"


def test_the_store_is_reached_by_its_own_network_alone() -> None:
    """Torch would listen on every network of the machine, and asks nobody for a key."""
    store = open_store(LOOPBACK, 2)
    listening = {each.laddr for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    assert [address.ip for address in listening if address.port == store.port] == [LOOPBACK]
