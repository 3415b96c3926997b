"""What a running sweep writes beside its records: the report, chatter in its log, and how long each phase took."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Record
from sweeper.reporting.live import EVERY_SECONDS, PAUSE, FreshReport, Timings, process_began
from tests.alive import wait_for_ends
from tests.patience import patient
from tests.sweeper.records import made_body, made_record

QUICK = "import pathlib, sys; pathlib.Path(sys.argv[1], 'report.html').write_text('</html>')"


def test_a_report_follows_news_and_the_next_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.reporting.live.WRITE", QUICK)
    paths, now = SweepPaths(tmp_path), [0.0]
    with FreshReport(paths, clock=lambda: now[0]) as fresh:
        now[0] = EVERY_SECONDS
        fresh.flush_if_due()
        assert fresh._process is None  # nothing was reported
        fresh.append(made_record(1, "report", 0.0))
        fresh.flush_if_due()
        assert fresh._process is not None and fresh._process.wait(patient(60)) == 0
        assert "</html>" in paths.report.read_text("utf-8")
        paths.report.unlink()
        fresh.append(made_record(1, "report", 0.0))
        now[0] += 30  # it took 30 seconds
        for pause in (0, PAUSE * 30 - 1):
            now[0] += pause
            fresh.flush_if_due()
            assert fresh._process is None
        now[0] += 1
        fresh.flush_if_due()
        process = fresh._process
        assert process is not None
    assert process.poll() is not None


DRIVER = """
import sys, time
from pathlib import Path
from sweeper.core.ids import SweepPaths
from sweeper.reporting import live as fresh_report
from tests.sweeper.records import made_record
fresh_report.EVERY_SECONDS, fresh_report.WRITE = 0.0, "import time; time.sleep(1000)"
with fresh_report.FreshReport(SweepPaths(Path(sys.argv[1]))) as fresh:
    fresh.append(made_record(1, "report", 0.0))
    fresh.flush_if_due()
    print(fresh._process.pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.integration
def test_a_killed_driver_leaves_no_process_that_writes_an_old_page_later(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        driver.kill()
    wait_for_ends(pid)


CHATTERING = """
import logging, os, subprocess, sys
from pathlib import Path
from sweeper.reporting.live import redirect_output

logging.basicConfig()
print("before on stdout")
opened = len(os.listdir("/proc/self/fd"))
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
assert len(os.listdir("/proc/self/fd")) == opened
"""
CHATTER = ("a print", "a print on stderr", "descriptor one", "descriptor two", "a log record", "a child")


@pytest.mark.parametrize(("how", "code", "after"), [("end", 0, 1), ("raise", 3, 0)])
def test_chatter_goes_to_the_log(tmp_path: Path, how: str, code: int, after: int) -> None:
    log = tmp_path / "sweeper.log"
    log.write_text("an earlier run\n")
    command = [sys.executable, "-c", CHATTERING, str(log), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stdout.splitlines() == ["before on stdout", "after on stdout"][: 1 + after]
    assert done.stderr.splitlines() == ["the console", "after on stderr"][: 1 + after]
    lines = log.read_text().splitlines()
    assert lines[0] == "an earlier run" and "the console" not in lines
    for text in (*CHATTER, "a child on stderr"):
        assert any(line.endswith(text) for line in lines), text


JOURNALED = ["ready for trials", "first report", "last report", "end recorded"]


@pytest.fixture
def records(random_sweep: Any) -> list[Record]:
    sweep = random_sweep(1, count=3)
    journal = sweep.journal()
    for kind, body in sweep.events(None, 10_000):
        journal.append(made_body(kind, body))
    return list(read_journal(sweep.paths.journal))


def test_phases_come_in_order_and_add_up(records: list[Record]) -> None:
    timings = Timings(records[0].time - 2)
    timings.read(records)
    timings.note("summary printed")
    names = [name for name, _, _ in timings.phases]
    assert names == [*JOURNALED, "summary printed"]
    ends = [end for _, end, _ in timings.phases]
    assert ends == sorted(ends)
    assert sum(took for _, _, took in timings.phases) == pytest.approx(ends[-1])
    assert timings.table().row_count == len(names)


def test_records_of_earlier_runs_do_not_count(records: list[Record]) -> None:
    timings = Timings(records[-1].time + 1)
    timings.read(records)
    assert timings.phases == []


def test_the_process_began_before_now() -> None:
    assert 0 < time.time() - process_began() < 86_400
