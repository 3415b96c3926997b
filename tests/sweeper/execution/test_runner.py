"""A driver that dies between the last report and the end: nothing is left to run, and the end is still to be told."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import run_sweep
from sweeper.journal.journal import read_journal, record_names
from sweeper.storage.lookup import find_sweep
from tests.running import in_process, sweeper, write_space
from tests.sweeper.inline_sweep import Inline
from tests.sweeper.records import fields


@pytest.mark.integration
def test_resume_tells_the_end(tmp_path: Path) -> None:
    Inline(tmp_path).run("small")
    paths = find_sweep("small", tmp_path / "results")
    before = [record.kind for record in read_journal(paths.journal)]
    assert before[-1] == "ended"
    (paths.journal / record_names(paths.journal)[-1]).unlink()
    done = sweeper("resume", "small", "--no-mlflow", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = [*read_journal(paths.journal)]
    assert [record.kind for record in records] == [*before[:-1], "attempt", "ended"]
    assert fields(records[-1])["outcome"] == "finished"
    assert "starting Ray" not in done.stderr
    assert in_process("resume", "small", "--no-mlflow", cwd=tmp_path).returncode == 0
    assert len(record_names(paths.journal)) == len(records), "once is enough"


def test_a_second_interruption_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sweeper.execution.assembly.DriverContext.run", interrupted)
    monkeypatch.setattr("sweeper.execution.runner.early_server", lambda *_: nullcontext())
    options = RunOptions(tmp_path / "out", executor="ray")
    with pytest.raises(KeyboardInterrupt):
        run_sweep(write_space(tmp_path), [], "mine", options)
    said = capfd.readouterr().err
    assert f"continue with `sweeper resume mine --output {tmp_path / 'out'}`" in said


def test_advice_names_the_output_where_it_has_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert SweepPaths(tmp_path / "results" / "small").in_commands == "small"
    assert SweepPaths(Path("results/small")).in_commands == "small"
    assert SweepPaths(tmp_path / "my results" / "small").in_commands == f"small --output '{tmp_path}/my results'"
