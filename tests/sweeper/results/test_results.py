"""Reading a sweep: the view `final`, formats, errors, and a generation swapped in the middle."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import yaml

from sweeper.core.display import format_table
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.results import Results, UnknownSweepError, load, queries
from sweeper.results.leaderboard import leaderboard
from sweeper.results.queries import VIEWS, QueryError
from tests.running import typed
from tests.sweeper.changed_tables import change
from tests.sweeper.synthetic_sweep import write_sweep


def rows_of(folder: Path, table: str) -> list[dict]:
    """Read a table without the code under test."""
    return pa.dataset.dataset(folder / "tables" / table, format="parquet").to_table().to_pylist()


def test_final_is_each_replicates_last_evaluation_with_its_trial(quickstart_folder: Path) -> None:
    trials = {(row["trial"], row["replicate"]): row for row in rows_of(quickstart_folder, "trials")}
    last: dict[tuple, dict] = {}
    for row in rows_of(quickstart_folder, "evaluations"):
        key = (row["trial"], row["replicate"], row["split"])
        if key not in last or row["epoch"] > last[key]["epoch"]:
            last[key] = row
    found = Results(quickstart_folder).table("final").to_pylist()
    assert len(found) == len(last) > 0
    for row in found:
        expected = {**trials[row["trial"], row["replicate"]], **last[row["trial"], row["replicate"], row["split"]]}
        np.testing.assert_equal(row, expected)


def test_final_prefers_the_end_to_a_rung_at_the_same_epoch(quickstart_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(quickstart_folder, folder, symlinks=True)
    part = next((folder / "tables" / "evaluations").glob("*.parquet"))
    table = pq.read_table(part)
    ends = table.filter(pa.compute.equal(table["stage"], "end"))
    assert ends.num_rows
    again = ends.set_column(4, "stage", pa.array(["rung"] * ends.num_rows))
    pq.write_table(again, part.with_name("part-9999.parquet"))
    stages = Results(folder).sql("SELECT DISTINCT stage FROM final WHERE status = 'completed'")
    assert stages.to_pylist() == [{"stage": "end"}]


@pytest.mark.parametrize("query", ["SELECT 1 AS one", "DESCRIBE final", "SHOW TABLES", "FROM trials"])
def test_reading_statements_pass(quickstart_folder: Path, query: str) -> None:
    assert Results(quickstart_folder).sql(query).num_columns


@pytest.mark.parametrize(
    "query",
    [
        "DROP VIEW trials", "COPY trials TO 'stolen.csv'", "EXPLAIN ANALYZE COPY trials TO 'stolen.csv'", "ATTACH 'x'",
        "CREATE TABLE t AS SELECT 1", "SELECT 1; SELECT 2", "", "SELEC 1", "SELECT nothing FROM final", "FROM nowhere",
    ],
)  # fmt: skip
def test_refused_statements_give_one_message_and_write_nothing(
    quickstart_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QueryError) as caught:
        Results(quickstart_folder).sql(query)
    assert "Traceback" not in str(caught.value) and "LINE 1" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_unknown_names_offer_the_nearest(quickstart_folder: Path) -> None:
    with pytest.raises(UnknownSweepError, match="did you mean 'quickstart'"):
        load("quikstart", quickstart_folder.parent)
    with pytest.raises(UnknownSweepError, match=f"no sweeps yet in {quickstart_folder}/journal"):
        load("anything", quickstart_folder / "journal")
    with pytest.raises(QueryError, match="did you mean 'evaluations'"):
        load("quickstart", quickstart_folder.parent).table("evaluation")


def test_a_sweep_without_files_has_empty_tables(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "sweep.yaml").write_text("objective: {metric: val_nll, mode: min}")
    results = load("new", tmp_path)
    for name in VIEWS:
        assert results.table(name).num_rows == 0
    assert "status" in results.columns("final")


def test_a_generation_swapped_and_removed_in_the_middle_does_not_hurt(quickstart_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "swapped"
    shutil.copytree(quickstart_folder, folder, symlinks=True)
    paths = SweepPaths(folder)
    stop = threading.Event()
    began = time.monotonic()
    Results(folder).sql("SELECT count(*) FROM trials JOIN epochs USING (trial, replicate)")
    pause = max(0.3, 5 * (time.monotonic() - began))  # most queries get through, on a busy machine as well

    def swap() -> None:
        number = 1
        while not stop.is_set():
            old, number = number, number + 1
            shutil.copytree(paths.generations / f"{old:04d}", paths.generations / f"{number:04d}")
            link = folder / "link"
            link.symlink_to(Path("generations") / f"{number:04d}")
            link.rename(paths.tables)
            shutil.rmtree(paths.generations / f"{old:04d}")
            stop.wait(pause)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        results = Results(folder)
        for _ in range(6):
            assert results.sql("SELECT count(*) AS n FROM trials JOIN epochs USING (trial, replicate)").to_pylist()
            assert len(results.sql("SELECT DISTINCT trial FROM trials")) == 48
    finally:
        stop.set()
        thread.join()


def test_a_generation_removed_while_it_is_looked_through_is_left_for_the_next(
    quickstart_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "swapped"
    shutil.copytree(quickstart_folder, folder, symlinks=True)
    (folder / "generations" / "0001").rename(folder / "generations" / "0002")
    (folder / "generations" / "0001").mkdir()
    glob = Path.glob

    def removed(path: Path, pattern: str) -> object:
        if path.parent.name == "0001":
            (folder / "link").symlink_to(Path("generations") / "0002")
            (folder / "link").rename(folder / "tables")
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return glob(path, pattern)

    monkeypatch.setattr(Path, "glob", removed)
    assert Results(folder).sql("SELECT DISTINCT trial FROM trials").num_rows == 48


def test_a_snapshot_does_not_see_later_rows(quickstart_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "growing"
    shutil.copytree(quickstart_folder, folder, symlinks=True)
    part = next((folder / "tables" / "epochs").glob("*.parquet"))
    with Results(folder).snapshot() as snapshot:
        before = snapshot.table("epochs").num_rows
        shutil.copy(part, part.with_name("part-9999.parquet"))
        assert snapshot.rows("SELECT count(*) AS n FROM epochs") == [{"n": before}]  # not the answer of before
    assert Results(folder).table("epochs").num_rows > before


def test_formats_hold_the_same_values() -> None:
    table = pa.table({"name": ["a", None], "value": [0.25, float("nan")], "count": [1, 2]})
    assert json.loads(format_table(table, "json")) == [
        {"name": "a", "value": 0.25, "count": 1},
        {"name": None, "value": None, "count": 2},
    ]
    lines = list(csv.reader(io.StringIO(str(format_table(table, "csv")))))
    assert lines == [["name", "value", "count"], ["a", "0.25", "1"], ["", "", "2"]]
    binary = format_table(table, "parquet")
    assert isinstance(binary, bytes) and pq.read_table(io.BytesIO(binary)).num_rows == 2
    text = str(format_table(table)).splitlines()
    assert len(text) == 4 and text[0].split() == ["name", "value", "count"] and text[2].split() == ["a", "0.25", "1"]
    with pytest.raises(SweeperError, match="unknown format 'xml'"):
        format_table(table, "xml")


def test_a_snapshot_asks_once_for_small_answers(quickstart_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[str] = []
    execute = queries.execute

    def counted(connection: Any, query: str, most: int | None) -> pa.Table:
        executed.append(query)
        return execute(connection, query, most)

    monkeypatch.setattr(queries, "execute", counted)
    small, large = "SELECT count(*) AS n FROM trials", "SELECT count(*) AS n FROM reliability"
    results = Results(quickstart_folder)
    with results.snapshot() as snapshot:
        answers = [snapshot.rows(query) for query in (small, small, large, large)]
    assert answers[0] == answers[1] == results.rows(small) and answers[2] == answers[3]
    assert executed.count(small) == 2 and executed.count(large) == 2  # once by the snapshot, once without it; twice


def test_a_snapshot_reads_each_leaderboard_once(quickstart_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[str] = []
    execute = queries.execute

    def counted(connection: Any, query: str, most: int | None) -> pa.Table:
        executed.append(query)
        return execute(connection, query, most)

    monkeypatch.setattr(queries, "execute", counted)
    monkeypatch.setattr("sweeper.results.results.MOST_KEPT", 0)  # as in a sweep whose leaderboard is large
    results = Results(quickstart_folder)
    with results.snapshot() as snapshot:
        first, again = leaderboard(snapshot), leaderboard(snapshot)
        few, by_ece = leaderboard(snapshot, 2), leaderboard(snapshot, by="val_ece")
    trials = [row["trial"] for row in leaderboard(results).rows]
    assert trials == [row["trial"] for row in first.rows] == [row["trial"] for row in again.rows]
    assert trials[:2] == [row["trial"] for row in few.rows] and first.objective != by_ece.objective
    assert executed.count(first.sql) == 3  # once for all rows and once for two; once more without the snapshot


READS = "(SELECT content FROM read_text('{secret}'))"
"""What a stranger would like a query of the reader's to run."""


def stranger(tmp_path: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """Return a sweep whose table `trials` was written by somebody else."""
    write_sweep(tmp_path / "theirs", configurations=2, failures=0, samples=20)
    for file in (tmp_path / "theirs" / "tables" / "trials").resolve().glob("**/*.parquet"):
        pq.write_table(change(pq.read_table(file)), file)
    return tmp_path / "theirs"


@pytest.mark.parametrize("column", ["config_loss_name, CAST({reads} AS INT)", 'config_"x', "config_a b"])
def test_a_strangers_column_name_is_refused_and_never_run(tmp_path: Path, column: str) -> None:
    (tmp_path / "secret.txt").write_text("the reader's own")
    name = column.format(reads=READS.format(secret=tmp_path / "secret.txt"))
    folder = stranger(tmp_path, lambda table: table.append_column(name, pa.array(range(len(table)))))
    for arguments in (["results"], ["report"], ["show"], ["compare", str(folder)]):
        done = typed(arguments[0], str(folder), *arguments[1:])
        said = done.stdout + done.stderr
        assert "which no sweep writes" in said and "the reader's own" not in said and done.returncode


def test_a_strangers_cells_are_values(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("the reader's own")
    name = f"c00000' UNION SELECT {READS.format(secret=tmp_path / 'secret.txt')} --"
    folder = stranger(
        tmp_path, lambda table: table.set_column(table.schema.get_field_index("trial"), "trial", [[name] * len(table)])
    )
    for arguments in (["results", str(folder)], ["report", str(folder)], ["show", str(folder), name]):
        done = typed(*arguments)
        assert "the reader's own" not in done.stdout + done.stderr


@pytest.mark.parametrize("where", ["'{file}'", "read_csv('{file}')", "read_text('{file}')", "glob('/etc/*')"])
def test_a_query_reads_nothing_outside_of_the_sweep(quickstart_folder: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(QueryError, match="disabled"):
        Results(quickstart_folder).sql(f"SELECT * FROM {where.format(file=tmp_path / 'other.csv')}")


def test_queries_share_a_locked_database_and_leave_nothing_in_it(quickstart_folder: Path) -> None:
    databases = "SELECT count(*) AS n FROM duckdb_databases()"
    settings = "SELECT current_setting('TimeZone') AS zone, current_setting('python_enable_replacements') AS by_name, "
    settings += "current_setting('enable_external_access') AS outside"
    first = load(quickstart_folder).rows(databases)
    with load(quickstart_folder).snapshot() as held, load(quickstart_folder).snapshot() as beside:
        assert held.rows("SELECT count(*) AS n FROM trials") == beside.rows("SELECT count(*) AS n FROM trials")
        for results in (held, beside, load(quickstart_folder)):
            (row,) = results.rows(settings)
            assert (row["zone"], row["by_name"], row["outside"]) == ("UTC", False, False)
    for _ in range(3):
        with pytest.raises(QueryError):
            load(quickstart_folder).sql("SELECT nothing FROM trials")
    assert load(quickstart_folder).rows(databases) == first, "views of ended queries are gone"


@pytest.mark.parametrize("table", ["trials", "evaluations", "reliability", "spectra", "predictions"])
def test_a_flipped_bit_is_named_by_every_query(quickstart_folder: Path, tmp_path: Path, table: str) -> None:
    folder = shutil.copytree(quickstart_folder, tmp_path / "damaged", symlinks=True)
    results, draw = Results(folder), random.Random(7)
    other = "trials" if table == "decisions" else "decisions"
    for part in draw.choices(sorted((folder / "tables" / table).glob("*.parquet")), k=2):
        sound = part.read_bytes()
        content = bytearray(sound)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        part.write_bytes(content)
        with pytest.raises(QueryError, match=rf"{part.name} cannot be read(.|\n)*--discard-damaged"):
            results.sql(f"SELECT count(*) FROM {table}")
        with pytest.raises(QueryError, match="cannot be read"), results.snapshot() as frozen:
            frozen.sql(f"SELECT count(*) FROM {table}")
        part.write_bytes(sound)
        os.utime(part, ns=(0, draw.randrange(10**9)))
    assert results.sql(f"SELECT * FROM {other}").num_rows


@pytest.mark.parametrize("odd", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_pipe_or_device_is_refused(quickstart_folder: Path, tmp_path: Path, odd: Callable[[Path], None]) -> None:
    folder = shutil.copytree(quickstart_folder, tmp_path / "odd", symlinks=True)
    odd((folder / "tables" / "predictions").resolve() / "c99999.parquet")
    with pytest.raises(QueryError, match="not a regular file"):
        Results(folder).sql("SELECT * FROM trials")


def test_tables_that_lead_out_of_the_folder_are_not_read(quickstart_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(quickstart_folder, tmp_path / "theirs", symlinks=True)
    (folder / "tables").unlink()
    (folder / "tables").symlink_to((quickstart_folder / "tables").resolve())
    with pytest.raises(SweeperError, match="leads out of the sweep's folder"):
        Results(folder).sql("SELECT * FROM trials")
    (folder / "tables").unlink()
    (folder / "tables").symlink_to("tables")
    with contextlib.suppress(SweeperError):
        assert Results(folder).sql("SELECT * FROM trials").num_rows == 0


def test_no_more_rows_are_read_than_asked_for(quickstart_folder: Path) -> None:
    results = Results(quickstart_folder)
    assert results.sql("SELECT * FROM range(10000000000)", most=3)["range"].to_pylist() == [0, 1, 2]
    assert results.sql("DESCRIBE trials", most=1).num_rows == results.sql("SHOW TABLES", most=1).num_rows == 1
    best = [row["trial"] for row in leaderboard(results).rows]
    assert [row["trial"] for row in leaderboard(results, 5).rows] == best[:5] and len(best) > 5


def test_a_query_that_takes_too_long_is_interrupted(quickstart_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.results.queries.DEADLINE_SECONDS", 0.5)
    with pytest.raises(QueryError, match="took longer than"):
        Results(quickstart_folder).sql(
            "SELECT count(*) FROM range(10000000) AS a, range(10000000) AS b WHERE (a.range * b.range) % 7 = 3"
        )


def test_a_query_leaves_no_thread(quickstart_folder: Path) -> None:
    before, interval = set(threading.enumerate()), sys.getswitchinterval()
    with queries.connect(queries.current_generation(quickstart_folder)) as connection:
        sys.setswitchinterval(60)  # a thread that is not waited for gets no turn to end
        try:
            queries.execute(connection, "SELECT 1 AS one")
            assert set(threading.enumerate()) <= before
        finally:
            sys.setswitchinterval(interval)


def test_a_strangers_objective_is_refused(tmp_path: Path) -> None:
    write_sweep(tmp_path / "theirs", configurations=2, failures=0, samples=20)
    file = tmp_path / "theirs" / "sweep.yaml"
    written = yaml.safe_load(file.read_text("utf-8"))
    written["objective"]["metric"] = "val_nll FROM epochs) --"
    file.write_text(yaml.safe_dump(written), "utf-8")
    with pytest.raises(SweeperError, match="which is no metric's name"):
        leaderboard(load(tmp_path / "theirs"))


@pytest.mark.parametrize(
    "place", ["[2026] thesis", "p[1]", "a\\b", "x**y", "q?z", "it's", "[!a]", "{a,b}", "new\nline"]
)
def test_no_folder_s_name_is_a_pattern(tmp_path: Path, place: str) -> None:
    """Neither are its own files missed, nor a sibling's read that the pattern would match."""
    for folder, count in ((tmp_path / place / "s", 2), (tmp_path / "p1" / "s", 3)):
        folder.parent.mkdir(exist_ok=True)
        write_sweep(folder, configurations=count, failures=0, samples=4, replicates=1)
    results = load("s", tmp_path / place)
    assert len(results.table("trials")) == 2 and len(results.table("predictions"))
    with results.snapshot() as frozen:
        assert len(frozen.table("final")) == 4 and len(frozen.table("reliability"))
        with pytest.raises(QueryError, match="disabled"):
            frozen.sql(f"SELECT * FROM '{tmp_path}/p1/s/tables/trials/part-0000.parquet'")
    odd = (results.paths.tables / "epochs").resolve() / "a[1].parquet"
    shutil.copy(next(odd.parent.glob("part-*.parquet")), odd)
    with pytest.raises(QueryError, match="has a name that no sweep writes"):
        results.table("trials")


def test_without_memory_for_a_thread_a_query_runs_without_a_deadline(
    quickstart_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refused)
    assert Results(quickstart_folder).rows("SELECT count(DISTINCT trial) AS n FROM trials") == [{"n": 48}]


def test_values_that_fit_no_sweep_are_another_program_s_fault_and_own_ones_the_program_s(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", configurations=2, failures=0, samples=4)
    with pytest.raises(ZeroDivisionError), Results(folder).snapshot():
        _ = 1 / 0
    change(folder, "trials", lambda rows: rows.assign(status="x"))
    with pytest.raises(QueryError, match=r"another program wrote .*trials.*part-0000"), Results(folder).snapshot():
        _ = 1 / 0
