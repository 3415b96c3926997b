"""The Parquet projection: equal to the naive one, readable at every moment, whole after every crash."""

import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import TABLES, replicate_seed, trial_name
from sweeper.journal.journal import read_journal
from sweeper.journal.state import fold
from sweeper.results.queries import current_generation
from sweeper.tables import large_tables, writer
from tests.sweeper.records import fields, made_body
from trainables.files.atomic import temporary_name


def rows_of(sweep: Any, table: str) -> list[dict[str, Any]]:
    return ds.dataset(sweep.paths.tables / table, format="parquet").to_table().to_pylist()


def same(left: Any, right: Any) -> bool:
    both_nan = isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right)
    return both_nan or left == right


def key_of(row: dict[str, Any], table: str) -> tuple[Any, ...]:
    if table == "decisions":
        return row["trial"], row["epoch"], row["kind"]
    return row["trial"], row["replicate"], row["epoch"], row.get("split")


def assert_equals_journal(sweep: Any, expected: Any) -> None:
    """Compare every table with the naive projection of the whole journal."""
    records = list(read_journal(sweep.paths.journal))
    for table, wanted in expected(records).items():
        found = rows_of(sweep, table)
        assert len(found) == len(wanted), table
        for row in found:
            reference = wanted[key_of(row, table)]
            assert row.pop("rehearsal") is False
            assert all(same(value, reference.get(column)) for column, value in row.items()), (row, reference)
    evaluated = {(r["trial"], r["replicate"], r["epoch"]) for r in expected(records)["evaluations"].values()}
    for table, size in (("predictions", 14), ("reliability", 4)):
        found = [(r["trial"], r["replicate"], r["epoch"]) for r in rows_of(sweep, table)]
        assert len(found) == size * len(evaluated), table
        assert set(found) == evaluated, table
    spectra = [(r["trial"], r["replicate"], r["epoch"]) for r in rows_of(sweep, "spectra")]
    measured = {key for key in evaluated if sweep.spectra and int(key[0][1:]) % 3}
    assert len(spectra) == 3 * len(measured) and set(spectra) == measured
    assert_trials(sweep, fold(records, sweep.count))


def assert_trials(sweep: Any, state: Any) -> None:
    rows = {(r["trial"], r["replicate"]): r for r in rows_of(sweep, "trials")}
    assert len(rows) == sweep.count * sweep.replicates
    for index, trial in state.trials.items():
        for replicate in range(sweep.replicates):
            row = rows[trial_name(index), replicate]
            assert row["sweep"] == sweep.paths.name
            assert row["status"] == trial.status
            assert row["epochs"] == trial.epochs
            assert row["stop_kind"] == trial.stop_kind
            assert row["last_evaluation_epoch"] == trial.last_evaluation_epoch
            assert row["seed"] == replicate_seed(sweep.seed, index, replicate)
            assert row["config_hash"] == sweep.configurations[index].digest
            assert row["config_loss_gamma"] == sweep.configurations[index]["loss"].get("gamma")
            assert row["wall_seconds"] == trial.wall_seconds / sweep.replicates


def written(sweep: Any, incoming: Path | None = None, steps: int = 10_000) -> Any:
    """Journal a sweep, and return its tables; trials write their files into `incoming`."""
    sink, journal = sweep.sink(), sweep.journal()
    for kind, body in sweep.events(incoming or sink.incoming, steps):
        sink.append(journal.append(made_body(kind, body)))
    sink.close()
    return sink


def rebuilt(sweep: Any) -> Any:
    """Return the tables of a sweep that another driver has taken up."""
    sink = sweep.sink()
    sink.rebuild(read_journal(sweep.paths.journal))
    return sink


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_naive_projection_through_crashes_and_resumes(
    seed: int, random_sweep: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(large_tables, "SINGLE_PARTS", 3)
        monkeypatch.setattr(large_tables, "MERGED_PARTS", 4)
    sweep = random_sweep(seed)
    rng = np.random.default_rng(seed)
    while len(sweep.ended) < sweep.count:
        sink, journal = sweep.sink(), sweep.journal()
        sink.rebuild(read_journal(sweep.paths.journal))
        for kind, body in sweep.events(sink.incoming, steps=int(rng.integers(3, 14))):
            sink.append(journal.append(made_body(kind, body)))
            if rng.random() < 0.3:
                sink.flush()
    sink.close()
    assert_equals_journal(sweep, expected)
    sink.rebuild(read_journal(sweep.paths.journal))
    assert_equals_journal(sweep, expected)
    assert not any((sink.incoming / "predictions").iterdir())


def test_names_and_rows_that_were_visible_stay_through_a_rebuild(random_sweep: Any) -> None:
    sweep = random_sweep(3)
    sink, journal = sweep.sink(), sweep.journal()
    for kind, body in sweep.events(sink.incoming):
        sink.append(journal.append(made_body(kind, body)))
        if kind == "report":
            sink.flush()
    before = {p.relative_to(sweep.paths.tables): pq.read_table(p) for p in sweep.paths.tables.rglob("*.parquet")}
    generation = sweep.paths.tables.resolve()
    sink.rebuild(read_journal(sweep.paths.journal))
    assert sweep.paths.tables.resolve() != generation
    assert generation.is_dir()
    after = {p.relative_to(sweep.paths.tables): pq.read_table(p) for p in sweep.paths.tables.rglob("*.parquet")}
    assert before.keys() == after.keys()
    assert all(str(before[name].to_pylist()) == str(after[name].to_pylist()) for name in before)
    sweep.sink()
    assert not generation.exists()


READER = """
import sys, duckdb, pathlib
import pyarrow.dataset as ds
tables, stop = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
keys = {"trials": "trial, replicate", "epochs": "trial, replicate, epoch", "decisions": "trial, epoch, kind",
        "evaluations": "trial, replicate, epoch, split", "predictions": "trial, replicate, epoch, split, sample",
        "reliability": "trial, replicate, epoch, split, bin", "spectra": "trial, replicate, epoch, loss, eigenvalue"}
polls, seen = 0, {}
last = False
while not last:
    last = stop.exists()
    for table, key in keys.items():
        query = f"select count(*), count(distinct ({key})) from read_parquet('{tables}/{table}/**/*.parquet')"
        rows, distinct = duckdb.execute(query).fetchall()[0]
        assert rows == distinct, f"{table}: {rows} rows, {distinct} of them distinct"
        found = ds.dataset(tables / table, format="parquet").to_table()
        names = [name.strip() for name in key.split(",")]
        groups = found.group_by(names).aggregate([]).num_rows
        assert groups == found.num_rows, f"{table}: doubled rows in pyarrow"
        assert min(rows, found.num_rows) >= seen.get(table, 0), f"{table}: rows went missing"
        seen[table] = found.num_rows
        polls += 1
print(polls)
"""


@pytest.mark.integration
def test_a_polling_reader_never_sees_an_error_a_doubled_or_a_missing_row(
    random_sweep: Any, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_tables, "SINGLE_PARTS", 20)
    monkeypatch.setattr(large_tables, "MERGED_PARTS", 4)
    sweep = random_sweep(11, count=18)
    sink = sweep.sink()
    stop = tmp_path / "stop"
    command = [sys.executable, "-c", READER, str(sweep.paths.tables), str(stop)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        while len(sweep.ended) < sweep.count:
            journal = sweep.journal()
            for number, (kind, body) in enumerate(sweep.events(sink.incoming, steps=40)):
                sink.append(journal.append(made_body(kind, body)))
                if number % 3 == 0:
                    sink.flush()
                if number % 12 == 0:
                    sink.rebuild(read_journal(sweep.paths.journal))
        sink.close()
        stop.touch()
        output, errors = reader.communicate(timeout=120)
    assert reader.returncode == 0, errors
    assert int(output) >= 6
    assert_equals_journal(sweep, expected)


def test_every_documented_reader_reads_every_table_before_the_first_row_and_after_the_last(random_sweep: Any) -> None:
    sweep = random_sweep(2)
    sink, journal = sweep.sink(), sweep.journal()
    counts = [dict.fromkeys(TABLES, 0) | {"trials": sweep.count * sweep.replicates}]
    for kind, body in [(None, None), *sweep.events(sink.incoming)]:
        if kind is not None:
            sink.append(journal.append(made_body(kind, body)))
            continue
        read_everything(sweep, counts[0])
    sink.close()
    read_everything(sweep, {table: len(rows_of(sweep, table)) for table in TABLES})


def read_everything(sweep: Any, counts: dict[str, int]) -> None:
    import polars as pl

    for table, count in counts.items():
        pattern = f"{sweep.paths.tables}/{table}/**/*.parquet"
        names = sweep.schemas[table].names
        relation = duckdb.execute(f"select * from read_parquet('{pattern}')")
        assert [column[0] for column in relation.description] == names
        assert len(relation.fetchall()) == count
        frame = pd.read_parquet(sweep.paths.tables / table)
        assert (len(frame), list(frame.columns)) == (count, names)
        lazy = pl.read_parquet(pattern)
        assert (len(lazy), lazy.columns) == (count, names)


def test_predictions_show_only_once_their_evaluation_is_journaled(random_sweep: Any) -> None:
    sweep = random_sweep(5, count=2)
    sink, journal = sweep.sink(), sweep.journal()
    sink.append(journal.append(made_body("attempt", {"attempt": 1})))
    body = sweep.report(0, sink.incoming)
    sink.flush()
    assert rows_of(sweep, "predictions") == []
    record = journal.append(made_body("report", body))
    # The driver dies here; the next one rebuilds from the journal and finds the file.
    leftover = sweep.report(1, sink.incoming)
    resumed = rebuilt(sweep)
    assert {row["trial"] for row in rows_of(sweep, "predictions")} == {"c00000"}
    assert fields(record)["evaluations"]
    resumed.append(journal.append(made_body("report", leftover)))
    resumed.close()
    assert {row["trial"] for row in rows_of(sweep, "predictions")} == {"c00000", "c00001"}


def test_files_that_trials_wrote_straight_into_the_tables_are_carried_over(random_sweep: Any, expected: Any) -> None:
    sweep = random_sweep(6)
    sink = written(sweep, sweep.paths.tables)
    sink.rebuild(read_journal(sweep.paths.journal))
    assert_equals_journal(sweep, expected)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "renamed"])
def test_damaged_files_are_repaired(damage: str, random_sweep: Any, caplog: pytest.LogCaptureFixture) -> None:
    sweep = random_sweep(7)
    written(sweep)
    whole = {table: len(rows_of(sweep, table)) for table in TABLES}
    for table in ("predictions", "evaluations", "trials"):
        part = max((sweep.paths.tables / table).iterdir(), key=lambda p: p.stat().st_size)
        data = bytearray(part.read_bytes())
        data[40] ^= 1
        renamed = part.read_bytes().replace(b"replicate", b"replicbte")
        part.write_bytes({"cut": data[:-20], "flip": data, "empty": b"", "renamed": renamed}[damage])
    rebuilt(sweep)
    left = {table: len(rows_of(sweep, table)) for table in TABLES}
    assert left == whole | {"predictions": whole["predictions"] - 14}
    assert "damaged" in caplog.text
    assert len(list((sweep.paths.generations / "damaged" / "predictions").iterdir())) == 1


def test_merged_files_lose_what_the_journal_lost(random_sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_tables, "SINGLE_PARTS", 0)
    sweep = random_sweep(8)
    sink = written(sweep)
    records = list(read_journal(sweep.paths.journal))[:-8]
    sink.rebuild(records)
    sink.close()
    kept = {
        (trial_name(fields(r)["configuration"]), fields(r)["epoch"]) for r in records if fields(r).get("evaluations")
    }
    found = [(r["trial"], r["epoch"]) for r in rows_of(sweep, "predictions")]
    assert set(found) == kept
    assert len(found) == len(kept) * 14 * sweep.replicates


def test_leftovers_of_a_dead_driver_are_removed_and_never_read(random_sweep: Any) -> None:
    sweep = random_sweep(9)
    sweep.sink()
    leftovers = [sweep.paths.tables / "epochs" / temporary_name(), sweep.paths.root / temporary_name(),
                 sweep.paths.generations / "incoming" / "predictions" / temporary_name(),
                 sweep.paths.journal / temporary_name()]  # fmt: skip
    sweep.paths.journal.mkdir(exist_ok=True)
    for leftover in leftovers:
        leftover.write_bytes(b"half a file")
    unpublished = sweep.paths.generations / "0007"
    (unpublished / "epochs").mkdir(parents=True)
    assert rows_of(sweep, "epochs") == []
    sweep.sink()
    assert not any(path.exists() for path in [*leftovers, unpublished])


def test_deleted_files_that_trials_wrote_are_named(random_sweep: Any) -> None:
    sweep = random_sweep(18)
    sink = written(sweep)
    assert sink.notes == []
    deleted = {table: sorted((sweep.paths.tables / table).glob("c*.parquet"))[:count]
               for table, count in (("predictions", 2), ("reliability", 1))}  # fmt: skip
    kept = {part: part.read_bytes() for parts in deleted.values() for part in parts}
    for part in kept:
        part.unlink()
    again = rebuilt(sweep)
    assert len(again.missing()) == 2
    again.close()
    predictions, reliability = again.notes
    assert "missing predictions of 2 evaluations" in predictions and deleted["predictions"][0].name in predictions
    assert "missing reliability of 1 evaluation," in reliability
    for part, content in kept.items():
        (sweep.paths.tables / part.parent.name / part.name).write_bytes(content)
    restored = rebuilt(sweep)
    assert restored.missing() == [] == restored.notes


def lose_the_link(sweep: Any) -> None:
    sweep.paths.tables.unlink()


def let_it_dangle(sweep: Any) -> None:
    sweep.paths.tables.unlink()
    sweep.paths.tables.symlink_to("generations/9999")


def make_it_a_text_file(sweep: Any) -> None:
    target = str(sweep.paths.tables.readlink())
    sweep.paths.tables.unlink()
    sweep.paths.tables.write_text(target)


def copy_following_links(sweep: Any) -> None:
    shutil.copytree(sweep.paths.root, sweep.paths.root.with_name("copy"))
    shutil.rmtree(sweep.paths.root)
    sweep.paths.root.with_name("copy").rename(sweep.paths.root)


def copy_the_tables_alone(sweep: Any) -> None:
    copy_following_links(sweep)
    shutil.rmtree(sweep.paths.generations)


@pytest.mark.parametrize(
    ("copied", "merged"),
    [(lose_the_link, True), (let_it_dangle, False), (make_it_a_text_file, False), (copy_following_links, False),
     (copy_the_tables_alone, True)],
)  # fmt: skip
def test_tables_whose_link_a_copy_has_lost_are_taken_up(
    copied: Callable[[Any], None], merged: bool, random_sweep: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if merged:
        monkeypatch.setattr(large_tables, "SINGLE_PARTS", 2)
        monkeypatch.setattr(large_tables, "MERGED_PARTS", 3)
    sweep = random_sweep(16)
    written(sweep)
    copied(sweep)
    if copied in (lose_the_link, let_it_dangle, make_it_a_text_file):
        with pytest.raises(SweeperError, match="sweeper resume"):
            current_generation(sweep.paths.root)
    again = rebuilt(sweep)
    again.close()
    assert_equals_journal(sweep, expected)
    assert sweep.paths.tables.is_symlink()
    (note,) = again.notes  # and none that a file is missing
    assert "the link tables was" in note and "that trials wrote" in note


def test_a_copy_that_lacks_the_folders_of_some_tables_is_taken_up(random_sweep: Any, expected: Any) -> None:
    """A driver may be paused while it puts its tables into a store."""
    sweep = random_sweep()
    written(sweep, steps=3)
    for table in ("decisions", "epochs", "trials"):
        shutil.rmtree(sweep.paths.tables.resolve() / table)
    again = rebuilt(sweep)
    again.close()
    assert_equals_journal(sweep, expected)


def test_a_generation_is_kept_until_its_files_are_elsewhere(random_sweep: Any, expected: Any) -> None:
    sweep = random_sweep(17)
    written(sweep)
    full = sweep.paths.tables.resolve()
    poor = full.with_name("0005")
    shutil.copytree(full, poor, symlinks=True)
    for part in [*poor.glob("predictions/c*.parquet")][::2]:
        part.unlink()
    sweep.paths.tables.unlink()
    sweep.paths.tables.symlink_to("generations/0005")  # as an old copy of the link would
    again = sweep.sink()
    assert full.is_dir(), "it has predictions that are nowhere else"
    again.rebuild(read_journal(sweep.paths.journal))
    assert_equals_journal(sweep, expected)
    assert not full.exists(), "now they are"


def test_flushes_keep_to_their_share_of_the_time(random_sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    sweep = random_sweep(10)
    sink, journal = sweep.sink(clock=lambda: now[0]), sweep.journal()
    flushes: list[float] = []

    def slow_flush() -> None:
        flushes.append(now[0])
        now[0] += 0.5

    monkeypatch.setattr(sink, "_flush", slow_flush)
    sink.append(journal.append(made_body("attempt", {"attempt": 1})))
    while now[0] < 100:
        sink.flush_if_due()
        now[0] += 0.1
    assert flushes[0] == pytest.approx(writer.SHORTEST_INTERVAL)
    assert len(flushes) * 0.5 <= 100 * writer.SHARE_OF_TIME + 0.5


def test_parts_grow_with_the_logarithm_of_the_sweeps_age(random_sweep: Any) -> None:
    sweep = random_sweep(12, count=1)
    sink, journal = sweep.sink(), sweep.journal()
    sink.append(journal.append(made_body("attempt", {"attempt": 1})))
    sweep.time += 10 * 3600
    sink.append(journal.append(made_body("started", {"configuration": 0, "attempt": 1})))
    sink.flush()
    assert sink._interval == pytest.approx(36000 * writer.GROWTH, rel=1e-3)


def test_an_unwritable_folder_loses_nothing(random_sweep: Any, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = random_sweep(13)
    sink, journal = sweep.sink(), sweep.journal()
    events = list(sweep.events(sink.incoming))
    for kind, body in events[:9]:
        sink.append(journal.append(made_body(kind, body)))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sweeper.tables.writer.write_parquet", full)
        with pytest.raises(SweeperError, match="No space left on device"):
            sink.flush()
    for kind, body in events[9:]:
        sink.append(journal.append(made_body(kind, body)))
    sink.close()
    assert_equals_journal(sweep, expected)


def test_late_files_are_published_lost_ones_named(random_sweep: Any, caplog: pytest.LogCaptureFixture) -> None:
    sweep = random_sweep(14, count=2)
    sink, journal = sweep.sink(), sweep.journal()
    sink.append(journal.append(made_body("attempt", {"attempt": 1})))
    sink.append(journal.append(made_body("report", sweep.report(0, sink.incoming))))
    late = sink.incoming / "predictions" / "c00000-r0-e00001.parquet"
    missing = sink.incoming / "predictions" / "c00000-r1-e00001.parquet"
    data = late.read_bytes()
    late.unlink(), missing.unlink()
    sink.flush()
    assert rows_of(sweep, "predictions") == []
    late.write_bytes(data)
    for _ in range(3):
        sink.flush()
    assert len(rows_of(sweep, "predictions")) == 14
    assert missing.name in caplog.text
