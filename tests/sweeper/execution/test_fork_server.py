"""Forked trial processes: what they report, how they die, and that none outlives its server."""

import gc
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_limits

from sweeper.execution.fork_server import ForkServer, ForkServerGone, TrialProcess, early_server
from tests.alive import wait_for_ends
from tests.trainables.small_trials import SETTINGS, VALUES, equal, untimed
from trainables.worker.fork_server import serve
from trainables.worker.trial import Trial
from trainables.worker.trial_reports import WorkerCommand, WorkerFailed, WorkerInit, WorkerReport
from trainables.worker.trial_settings import Assignment, prepare_process

ASSIGNMENT = [
    Assignment(0, "c00000", VALUES, [7, 8]),
    Assignment(1, "c00001", {**VALUES, "loss": {"name": "cross_entropy"}}, [9, 10]),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as running:
        yield running


def _opening(folder: Path, **settings: Any) -> WorkerInit:
    return WorkerInit(replace(SETTINGS, **settings), str(folder / "log"))


def _end(server: ForkServer, process: TrialProcess) -> int:
    process.connection.close()
    return server.exit_code(process)


def test_a_forked_process_reports_what_a_trial_alone_measures(server: ForkServer, tmp_path: Path) -> None:
    process = server.fork(_opening(tmp_path))
    assert process.send(WorkerCommand(new=(ASSIGNMENT,)))
    reports = []
    while True:
        said = process.connection.recv()
        assert isinstance(said, WorkerReport), said
        ((measured, exhausted),) = said.reports
        reports += measured
        process.send(WorkerCommand(over=(0, 1) if exhausted else ()))
        if exhausted:
            break
    assert _end(server, process) == 0, "it ends by itself when the driver has gone"
    before = torch.get_num_threads()
    dataset, expected = SETTINGS.load_dataset(), []
    with threadpool_limits(1):
        prepare_process(SETTINGS)
        for assignment in ASSIGNMENT:
            trial = Trial(assignment, SETTINGS, dataset)
            while not trial.finished:
                expected.append(trial.advance())
    torch.set_num_threads(before)
    assert equal([untimed(r.to_dict()) for r in reports], [untimed(r.to_dict()) for r in expected])


def test_an_exception_is_told_before_the_end(server: ForkServer, tmp_path: Path) -> None:
    process = server.fork(_opening(tmp_path, dataset={"name": "nothing_of_that_name"}))
    said = process.connection.recv()
    assert isinstance(said, WorkerFailed) and said.failure.kind == "error"
    assert said.failure.message.startswith("ValueError: ") and "nothing_of_that_name" in said.failure.message
    assert _end(server, process) == 0
    assert "Traceback" in (tmp_path / "log").read_text(), "the log gets the place"


def test_trials_share_the_driver_s_session_but_not_its_group(server: ForkServer, tmp_path: Path) -> None:
    process = server.fork(_opening(tmp_path))
    assert os.getsid(process.pid) == os.getsid(0) and os.getpgid(process.pid) != os.getpgid(0)
    process.connection.close()
    server.exit_code(process)


def test_a_process_that_is_killed_shows_by_the_end_of_its_connection(server: ForkServer, tmp_path: Path) -> None:
    process = server.fork(_opening(tmp_path))
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises((EOFError, ConnectionResetError)):
        process.connection.recv()
    assert server.exit_code(process) == -signal.SIGKILL
    assert not process.send(WorkerCommand(new=(ASSIGNMENT,)))


@pytest.mark.integration
def test_processes_end_with_their_server(tmp_path: Path) -> None:
    with ForkServer() as server:
        process = server.fork(_opening(tmp_path))
        process.send(WorkerCommand(new=(ASSIGNMENT,)))
    wait_for_ends(process.pid)  # the kernel ends a forked process with its server


def test_a_server_that_was_killed_is_said_in_a_sentence(tmp_path: Path) -> None:
    with ForkServer() as server:
        server._process.kill()
        server._process.wait()
        with pytest.raises(ForkServerGone, match="sweeper resume"):
            server.fork(_opening(tmp_path))


def test_a_server_whose_driver_is_gone_before_an_answer_ends_quietly() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    ours, theirs = Pipe()
    ours.send(child)
    ours.close()
    try:
        assert serve(theirs) is None  # type: ignore[func-returns-value]
    finally:
        gc.unfreeze()


@pytest.mark.integration
def test_a_server_is_started_only_where_it_may_be_needed() -> None:
    with early_server("ray", None) as none, early_server("auto", "127.0.0.1:6379") as neither:
        assert none is None and neither is None
    with ForkServer() as given, early_server("auto", None, given) as same_one:
        assert same_one is given
