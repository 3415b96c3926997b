"""Processes of trials that the standard library's fork server forks for the driver, without Ray."""

import multiprocessing.spawn
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from threadpoolctl import threadpool_limits

from sweeper.execution.trial_processes import ForkServerGone, fork
from tests.alive import running, wait_for_ends
from tests.trainables.small_trials import SETTINGS, VALUES, timeless
from trainables.worker.trial import Trial
from trainables.worker.trial_reports import WorkerCommand, WorkerFailed, WorkerInit, WorkerReport
from trainables.worker.trial_settings import Assignment, prepare_process

ASSIGNMENT = [
    Assignment(0, "c00000", VALUES, [7, 8]),
    Assignment(1, "c00001", {**VALUES, "loss": {"name": "cross_entropy"}}, [9, 10]),
]


def _opening(folder: Path, **settings: Any) -> WorkerInit:
    return WorkerInit(replace(SETTINGS, **settings), str(folder / "log"))


def test_a_forked_process_reports_what_a_trial_alone_measures(tmp_path: Path) -> None:
    process = fork(_opening(tmp_path))
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
    process.connection.close()
    assert process.exit_code() == 0, "it ends by itself when the driver has gone"
    before = torch.get_num_threads()
    dataset, expected = SETTINGS.load_dataset(), []
    with threadpool_limits(1):
        prepare_process(SETTINGS)
        for assignment in ASSIGNMENT:
            trial = Trial(assignment, SETTINGS, dataset)
            while not trial.finished:
                expected.append(trial.advance())
    torch.set_num_threads(before)
    assert timeless([r.to_dict() for r in reports]) == timeless([r.to_dict() for r in expected])


def test_an_exception_is_told_before_the_end(tmp_path: Path) -> None:
    process = fork(_opening(tmp_path, dataset={"name": "nothing_of_that_name"}))
    said = process.connection.recv()
    assert isinstance(said, WorkerFailed) and said.failure.kind == "error"
    assert said.failure.message.startswith("ValueError: ") and "nothing_of_that_name" in said.failure.message
    assert process.exit_code() == 0
    assert "Traceback" in (tmp_path / "log").read_text(), "the log gets the place"


OWN_DATA = """
import os, threading, time

def data():
    threading.Thread(target=time.sleep, args=(3600,)).start()
    raise ValueError(os.environ["SET_LATER"])
"""


def test_a_process_has_the_driver_s_session_and_environment_now_but_not_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owndata.py").write_text(OWN_DATA)
    monkeypatch.setenv("SET_LATER", "after the server's start")
    monkeypatch.syspath_prepend(tmp_path)
    own = "owndata:data"
    process = fork(_opening(tmp_path, dataset={"name": own}, own_names=(own,)))
    assert os.getsid(process.pid) == os.getsid(0)
    said = process.connection.recv()
    assert os.getpgid(process.pid) != os.getpgid(0)
    assert "after the server's start" in said.failure.message
    assert process.exit_code() == 0, "it does not wait for the thread that it left"


def test_a_killed_process_shows_by_the_end_of_its_connection(tmp_path: Path) -> None:
    process = fork(_opening(tmp_path))
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises((EOFError, ConnectionResetError)):
        process.connection.recv()
    assert process.exit_code() == -signal.SIGKILL
    assert not process.send(WorkerCommand(new=(ASSIGNMENT,)))


UNGUARDED = """
import os, signal, sys
from sweeper.execution.trial_processes import fork, start_early
from tests.sweeper.execution.test_trial_processes import ASSIGNMENT, WorkerCommand, _opening
from pathlib import Path

start_early("local", None)
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.killpg(0, signal.SIGINT)  # while the server imports torch
process = fork(_opening(Path(sys.argv[1])))
process.send(WorkerCommand(new=(ASSIGNMENT,)))
process.connection.poll(None)
process.send(WorkerCommand())  # it goes on
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.integration
def test_a_script_without_a_guard_can_fork_after_ctrl_c_and_its_processes_end_with_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    arguments = [sys.executable, str(script), str(tmp_path)]
    with (
        (tmp_path / "said").open("w") as said,
        subprocess.Popen(
            arguments, stdout=-1, stdin=-1, stderr=said, text=True, env=environment, process_group=0
        ) as driver,
    ):
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        server = psutil.Process(pid).ppid()
        assert running([pid, server]) == [pid, server]
        driver.kill()
        wait_for_ends(pid, server)
    assert not (tmp_path / "said").read_text()


@pytest.mark.integration
def test_a_killed_server_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fork(_opening(tmp_path))
    psutil.Process(psutil.Process(first.pid).ppid()).kill()
    assert first.send(WorkerCommand(new=(ASSIGNMENT,))) and isinstance(first.connection.recv(), WorkerReport)
    second = fork(_opening(tmp_path))
    assert second.send(WorkerCommand(new=(ASSIGNMENT,))) and isinstance(second.connection.recv(), WorkerReport)
    psutil.Process(psutil.Process(second.pid).ppid()).kill()
    with monkeypatch.context() as patched, pytest.raises(ForkServerGone, match="sweeper resume"):
        patched.setattr(multiprocessing.spawn, "_python_exe", b"/bin/false")
        fork(_opening(tmp_path))
    for process in (first, second):
        process.kill()
    assert [first.exit_code(), second.exit_code()] == [255, 255], "only a server knows"
