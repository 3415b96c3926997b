"""A forked command is what a started one is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import BEFORE, Forked, Request, can_fork
from tests.running import typed

SAYS = """
import os, random, sys, threading
import numpy as np
if __name__ == "__main__":
    at_start = [len(os.listdir("/proc/self/task")), threading.active_count()]
    descriptors = [each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")]
    found = [os.getpid(), os.getcwd(), sys.argv[1:], os.environ.get("PLANTED"), __name__, at_start, descriptors]
    print(repr([*found, os.getpgrp(), os.getsid(0), random.random(), np.random.random()]))
    print("complained", file=sys.stderr)
    sys.exit(7)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "says.py").write_text(SAYS)
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(600)")
    return "says"


def _forked(program: str, folder: Path, *arguments: str, **variables: str) -> tuple[Forked, Path, Path]:
    out, err = folder / "out", folder / "err"
    with out.open("w") as said, err.open("w") as complained:
        request = Request(program, arguments, str(folder), {**os.environ, **variables})
        return Forked(request, said, complained), out, err


def test_a_forked_process_is_as_a_started_one(program: str, tmp_path: Path) -> None:
    process, out, err = _forked(program, tmp_path, "γ", "two words", PLANTED="here")
    assert (process.wait(60), process.poll()) == (7, 7) and err.read_text() == "complained\n"
    pid, folder, *forked = eval(out.read_text())
    command = [sys.executable, "-m", program, "γ", "two words"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PLANTED": "here"}, capture_output=True, text=True)
    _, _, *started = eval(done.stdout)
    assert (pid, folder, forked[:-2]) == (process.pid, str(tmp_path), started[:-2])


def test_two_forked_processes_draw_different_numbers(program: str, tmp_path: Path) -> None:
    drawn = []
    for _ in range(2):
        process, out, _ = _forked(program, tmp_path)
        process.wait(60)
        drawn.append(eval(out.read_text())[-2:])
    assert not {*drawn[0]} & {*drawn[1]}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_forked_process(program: str, tmp_path: Path, number: int) -> None:
    process, _, err = _forked("waits", tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(number)
    assert process.wait(60) == -number, err.read_text()
    process.send_signal(number)  # an ended process is left alone


def test_what_an_interpreter_reads_at_its_start_is_not_forked() -> None:
    assert can_fork(BEFORE) and can_fork({**BEFORE, "SWEEPER_OUTPUT": "elsewhere"})
    assert not can_fork({**BEFORE, "PYTHONHASHSEED": "1"}) and not can_fork({**BEFORE, "LD_PRELOAD": "shim.so"})


def test_what_a_command_leaves_in_the_process_of_the_tests_is_forked() -> None:
    typed("--version")
    assert can_fork({**BEFORE, "PYTHONIOENCODING": os.environ["PYTHONIOENCODING"]})
