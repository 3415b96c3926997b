"""A sweep's tables list their files: a lost file is an error, and never one while a driver works or was killed."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import RECALIBRATIONS, TABLES
from sweeper.journal.journal import read_journal
from sweeper.reporting.status import lost_files
from sweeper.results import Results
from sweeper.results.predictions import PredictionFiles
from sweeper.results.queries import READ_TABLES, lost_for_good
from sweeper.tables import large_tables
from sweeper.tables.file_list import EMPTY_PART, REBUILT, LostFilesError, absent_files
from sweeper.tables.generations import write_part
from tests.sweeper.records import made_body


@pytest.fixture
def ended(random_sweep: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A finished sweep with scalar parts, single and merged files of trials, and a recalibration."""
    monkeypatch.setattr(large_tables, "SINGLE_PARTS", 3)
    monkeypatch.setattr(large_tables, "MERGED_PARTS", 4)
    sweep = random_sweep(2, count=4)
    sink, journal = sweep.sink(), sweep.journal()
    for number, (kind, body) in enumerate(sweep.events(sink.incoming)):
        sink.append(journal.append(made_body(kind, body)))
        if number % 5 == 0:
            sink.flush()
    sink.close()
    write_part(sweep.paths, "temperature.parquet", [])
    return sweep


def files_of(sweep: Any) -> list[Path]:
    return [path for table in READ_TABLES for path in sorted((sweep.paths.tables / table).glob("*.parquet"))]


def resumed(sweep: Any) -> Any:
    sink = sweep.sink()
    sink.rebuild(read_journal(sweep.paths.journal))
    sink.close()
    return sink


def test_every_file_that_is_removed_is_named_by_what_reads_its_table(ended: Any) -> None:
    results, files = Results(ended.paths.root), files_of(ended)
    rows = {table: results.table(table).num_rows for table in READ_TABLES}
    assert len(files) > 25 and all(rows[table] for table in TABLES if table != "blocks")
    for path in files:
        table, content = path.parent.name, path.read_bytes()
        path.unlink()
        with pytest.raises(LostFilesError) as caught:
            results.table(table)
        assert caught.value.absent == {table: [path.name]}
        assert path.stem in caught.value.message and "resume" in caught.value.remedy
        with pytest.raises(LostFilesError), results.snapshot() as snapshot:
            snapshot.table(table)
        if table in REBUILT:  # they decide about every number, whichever table is asked
            with pytest.raises(LostFilesError):
                results.table("reliability")
        else:
            assert results.table("trials").num_rows == rows["trials"]
        assert len(lost_files(ended.paths)) == 1
        path.write_bytes(content)
    assert {table: results.table(table).num_rows for table in READ_TABLES} == rows
    assert lost_files(ended.paths) == []


def test_a_resume_restores_what_the_journal_has(ended: Any) -> None:
    results = Results(ended.paths.root)
    rows = {table: results.table(table).to_pylist() for table in REBUILT}
    for table in REBUILT:
        shutil.rmtree((ended.paths.tables / table).resolve())
    with pytest.raises(LostFilesError):
        results.table("reliability")
    assert resumed(ended).notes == []
    assert str({table: results.table(table).to_pylist() for table in REBUILT}) == str(rows)


@pytest.mark.parametrize("table", ["predictions", "reliability", "spectra"])
def test_a_resume_notes_what_only_trials_could_write(ended: Any, table: str) -> None:
    results = Results(ended.paths.root)
    # Single files; every third configuration has no spectra.
    lost = sorted((ended.paths.tables / table).glob("c0000[12]*e0000?.parquet"))[:1]
    content = [path.read_bytes() for path in lost]
    before = results.table(table).num_rows
    for path in lost:
        path.unlink()
    (note,) = resumed(ended).notes
    assert lost[0].stem in note
    assert 0 < results.table(table).num_rows < before
    assert lost_for_good(ended.paths.root) == {table: [path.name for path in lost]}
    assert len(lost_files(ended.paths)) == 1 and any(lost[0].stem in mark for mark in results.marks)
    resumed(ended)
    assert lost_for_good(ended.paths.root), "the next resume knows it, too"
    for path, data in zip(lost, content, strict=True):
        (ended.paths.tables / table / path.name).write_bytes(data)
    assert resumed(ended).notes == [] == lost_files(ended.paths) and lost_for_good(ended.paths.root) == {}
    assert results.table(table).num_rows == before


def test_a_merged_file_that_is_lost_stays_known(ended: Any) -> None:
    (merged, *_) = (ended.paths.tables / "predictions").glob("*-more.parquet")
    merged.unlink()
    sink = resumed(ended)
    (lost,) = lost_for_good(ended.paths.root).values()
    assert len(lost) == int(merged.stem.split("-")[-2]) + 1 and sink.missing()


def test_a_lost_recalibration_is_named_once_and_dropped_by_a_resume(ended: Any) -> None:
    (ended.paths.recalibrations / "temperature.parquet").unlink()
    write_part(ended.paths, "vector.parquet", [])
    with pytest.raises(LostFilesError) as caught:
        Results(ended.paths.root).table(RECALIBRATIONS)
    assert caught.value.absent == {RECALIBRATIONS: ["temperature.parquet"]}
    (note,) = resumed(ended).notes
    assert "temperature" in note and "vector" not in note
    assert Results(ended.paths.root).table(RECALIBRATIONS).num_rows == 0


def test_a_lost_prediction_of_another_trial_is_no_error(ended: Any) -> None:
    (ended.paths.tables / "predictions" / "c00001-r0-e00001.parquet").resolve().unlink(missing_ok=True)
    absent = absent_files(ended.paths.tables.resolve(), ["predictions"])["predictions"]
    trial = absent[0].partition("-")[0]
    for trials in (None, [trial]):
        with pytest.raises(LostFilesError):
            PredictionFiles(ended.paths, trials)
    assert PredictionFiles(ended.paths, ["c00000"] if trial != "c00000" else ["c00002"])


def test_at_no_step_of_a_driver_does_a_file_look_lost(random_sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reader sees the folder after every rename: while a driver flushes, is killed and rebuilds."""
    monkeypatch.setattr(large_tables, "SINGLE_PARTS", 2)
    monkeypatch.setattr(large_tables, "MERGED_PARTS", 3)
    sweep, looks = random_sweep(4, count=4), [0]
    replace = Path.replace

    def seen(path: Path, target: Path) -> Path:
        moved = replace(path, target)
        looks[0] += 1
        assert absent_files(sweep.paths.tables.resolve(), READ_TABLES) == {}, target
        return moved

    monkeypatch.setattr(Path, "replace", seen)
    while len(sweep.ended) < sweep.count:
        sink, journal = sweep.sink(), sweep.journal()
        sink.rebuild(read_journal(sweep.paths.journal))
        for number, (kind, body) in enumerate(sweep.events(sink.incoming, steps=9)):
            sink.append(journal.append(made_body(kind, body)))
            if number % 3 == 2:
                sink.flush()
    sink.close()
    assert looks[0] > 100 and (sweep.paths.tables / "trials" / EMPTY_PART).exists() is False


@pytest.mark.parametrize("written", ["[]", '{"published": {"epochs": ["../../x"]}, "lost": {}}', '{"published": 1}'])
def test_a_strangers_list_is_refused(ended: Any, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.tables.file_list.FileList.metadata", lambda self: {b"files": written.encode()})
    ended.sink().flush()
    with pytest.raises(SweeperError, match=r"trials\.parquet cannot be read"):
        Results(ended.paths.root).table("epochs")
