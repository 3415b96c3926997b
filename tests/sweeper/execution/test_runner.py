"""A driver that dies between the last report and the end: nothing is left to run, and the end is still to be told."""

from __future__ import annotations

from pathlib import Path

from sweeper.journal.journal import read_journal, record_names
from sweeper.storage.lookup import find_sweep
from tests.running import in_process, sweeper
from tests.sweeper.inline_sweep import Inline
from tests.sweeper.records import fields


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
