"""Two drivers on one name, and one that is asked to stop."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from tests.patience import patient
from tests.running import command, in_process, metrics_by_key, reports, started, wait_for_records, write_space
from tests.sweeper.records import fields


@pytest.mark.slow
def test_of_two_drivers_on_one_name_one_drives(tmp_path: Path) -> None:
    """Both are started at the same moment; the one that comes second, and one that would resume, are told."""
    # So many samples that the third comes while the first still drives.
    words = command("run", write_space(tmp_path), "--name", "s", "--no-mlflow", "--cpus", "1", "--set", "samples=400")
    paths = SweepPaths(tmp_path / "results" / "s")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    drivers = [subprocess.Popen(words, cwd=tmp_path, **pipes) for _ in range(2)]
    try:
        while all(driver.poll() is None for driver in drivers):
            time.sleep(0.01)
        refused, driving = sorted(drivers, key=lambda driver: driver.poll() is None)
        _, said = refused.communicate()
        assert refused.returncode == 2 and "the name 's' is taken" in said and "sweeper resume s" in said, said
        wait_for_records(paths, 1, driving)
        third = in_process("resume", "s", "--no-mlflow", cwd=tmp_path)
        assert third.returncode == 2 and "Traceback" not in third.stderr
        assert f"is already being driven by process {driving.pid} on " in third.stderr, third.stderr
        driving.send_signal(signal.SIGINT)
        out, err = driving.communicate(timeout=patient(200))
        assert driving.returncode == 1 and "sweeper resume s" in out, out + err
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait(patient(30))
    metrics_by_key(reports(paths))
    assert [fields(r)["pid"] for r in read_journal(paths.journal) if r.kind == "attempt"] == [driving.pid]


@pytest.mark.integration
def test_stop_is_obeyed(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "results" / "small")
    with started("run", write_space(tmp_path), "--no-mlflow", "--set", "samples=400", cwd=tmp_path) as process:
        wait_for_records(paths, 3, process)
        asked = in_process("stop", "small", cwd=tmp_path)
        assert asked.returncode == 0, asked.stderr
        assert process.wait(patient(90)) == 1
    assert "stopped" in (tmp_path / "driver.out").read_text()
