"""While a sweep runs, chatter goes to its log, and the terminal shows the console alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import logging, os, subprocess, sys
from pathlib import Path
from sweeper.reporting.live import redirect_output

logging.basicConfig()
print("before on stdout")
with redirect_output(Path(sys.argv[1])) as console:
    console.print("the console")
    print("a print")
    print("a print on stderr", file=sys.stderr)
    os.write(1, b"descriptor one\\n")
    os.write(2, b"descriptor two\\n")
    logging.getLogger("somebody").warning("a log record")
    subprocess.run(["sh", "-c", "echo a child; echo a child on stderr >&2"], check=True)
    if sys.argv[2] == "raise":
        raise SystemExit(3)
print("after on stdout")
print("after on stderr", file=sys.stderr)
"""
CHATTER = (
    "a print",
    "a print on stderr",
    "descriptor one",
    "descriptor two",
    "a log record",
    "a child",
    "a child on stderr",
)


def _run(log, how):
    return subprocess.run([sys.executable, "-c", PROGRAM, str(log), how], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("how", ["end", "raise"])
def test_chatter_goes_to_the_log(tmp_path, how):
    log = tmp_path / "sweeper.log"
    log.write_text("an earlier run\n")
    done = _run(log, how)
    lines = log.read_text().splitlines()
    assert lines[0] == "an earlier run"
    for text in CHATTER:
        assert any(line.endswith(text) for line in lines), text
        assert text not in done.stdout + done.stderr
    assert "the console" not in log.read_text()
    assert done.stderr.splitlines()[0] == "the console"


def test_afterwards_stdout_and_stderr_are_as_before(tmp_path):
    done = _run(tmp_path / "sweeper.log", "end")
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["before on stdout", "after on stdout"]
    assert done.stderr.splitlines() == ["the console", "after on stderr"]


def test_the_console_is_plain_where_stderr_is_no_terminal(tmp_path):
    done = _run(tmp_path / "sweeper.log", "end")
    assert "\x1b" not in done.stderr


def test_no_descriptor_is_left_open(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from sweeper.reporting.live import redirect_output\n"
        "count = lambda: len(os.listdir('/proc/self/fd'))\n"
        "before = count()\n"
        "for _ in range(3):\n"
        "    with redirect_output(Path(sys.argv[1])): pass\n"
        "assert count() == before, (before, count())\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "log")], check=True, timeout=60)
