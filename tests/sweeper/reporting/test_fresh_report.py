"""The report of a sweep that runs is written by a process of its own, not too often, and only where there is news."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.reporting.live import EVERY_SECONDS, PAUSE, WRITE, FreshReport
from tests.alive import wait_for_ends
from tests.patience import patient
from tests.sweeper.records import made_record

QUICK = "import pathlib, sys; pathlib.Path(sys.argv[1], 'report.html').write_text('</html>')"


def test_a_report_is_written_where_there_is_news_and_the_next_one_waits_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.integration
def test_what_its_process_writes_is_the_report(quickstart_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(quickstart_folder, tmp_path / "quickstart", symlinks=True)
    (tmp_path / "quickstart" / "report.html").unlink(missing_ok=True)
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path / "quickstart")], check=True, timeout=patient(60))
    assert (tmp_path / "quickstart" / "report.html").is_file()
