"""Query a sweep's Parquet files with DuckDB: the tables, the view `final`, and read-only queries."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import duckdb
import pyarrow as pa

from sweeper.core.errors import SweeperError
from sweeper.core.ids import KEPT, RECALIBRATIONS, TABLES, SweepPaths, trial_of
from sweeper.core.schemas import table_schemas
from sweeper.storage.lease import holder
from sweeper.storage.places import bring_predictions, is_copy
from sweeper.tables.file_list import REBUILT, TRIALS_FILE, LostFilesError, Names, absent_files, read_list, table_files
from sweeper.tables.generations import RECALIBRATIONS_SCHEMA
from trainables.files.sealed import is_sealed, require_sound
from trainables.registry.names import measured_as, nearest

if TYPE_CHECKING:
    from sweeper.results.results import Results

READ_TABLES = (*TABLES, RECALIBRATIONS)

VIEWS = (*READ_TABLES, "final")

#: Tables with many rows per evaluation. A snapshot does not copy them, and reads only the rows that a query needs.
LARGE_TABLES = frozenset({"reliability", "predictions", "spectra", "blocks"})

#: Number of attempts at a query. Opening a sweep may remove the generation that a query is reading, and removed files
#: look like missing rows, so the query restarts if the link changed meanwhile. Compactions are minutes apart, so the
#: second attempt usually succeeds.
READ_ATTEMPTS = 8

#: `QUALIFY` keeps each replicate's last evaluation; `EXCLUDE` drops the columns that both tables have, so that `trial`
#: is not ambiguous.
_FINAL = """
CREATE VIEW final AS
SELECT evaluations.*, trials.* EXCLUDE ({shared})
FROM (
    SELECT * FROM evaluations
    QUALIFY row_number() OVER (PARTITION BY trial, replicate, split ORDER BY epoch DESC, stage) = 1
) AS evaluations
JOIN trials ON trials.trial = evaluations.trial AND trials.replicate = evaluations.replicate
"""

#: A name that needs no quotes in SQL. Names go into queries unquoted. A column name of a foreign table could contain a
#: call of `read_text`, which reads any file, so names are checked before DuckDB parses them.
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

CHANGED = "another program changed the sweep's files; use an unchanged copy"

#: Characters that DuckDB expands in a path.
_PATTERN = re.compile(r"[*?\[\\]")

#: How often a missing file of a running sweep is looked for again, as a network file system can show files late.
LOOKS, LOOK_SECONDS = 5, 0.5

#: Percentage of the machine's memory that one query may take. Without a limit, `SELECT * FROM range(1e10)` would take
#: all of it, and the kernel would kill the process.
MEMORY_PERCENT = 50

#: Seconds after which a query is interrupted, so that an accidental cross join does not run forever.
DEADLINE_SECONDS = 600.0

#: Matches words instead of parsed table names. A false match only costs a checksum or a fetch; a missed one would skip
#: them.
_NAMED_TABLES = re.compile(rf"\b(?:{'|'.join(VIEWS)})\b", re.IGNORECASE)


T = TypeVar("T")

#: Numbers for the names of the databases that hold a query's views.
_NUMBERS = count(1)


class QueryError(SweeperError):
    """DuckDB refused the query, or it is not read-only."""


def current_generation(folder: Path) -> Path:
    """Return the folder that the link `tables` points to now.

    Raises SweeperError if the link is missing although files of trials exist, or if it leads out of the sweep's folder.
    """
    tables = folder / "tables"
    # Without this check, a copy without symbolic links would look like a sweep without trials.
    if not tables.is_dir() and next((folder / "generations").glob("[0-9]*/*/c*.parquet"), None) is not None:
        raise SweeperError(
            f"{tables} is no longer a link to the tables: the folder was probably copied without symbolic links",
            f"`sweeper resume {SweepPaths(folder).in_commands}` restores it from the files in {folder / 'generations'}",
        )
    target = Path(os.path.realpath(tables))  # `Path.resolve` raises RuntimeError for a link to itself
    if not target.is_relative_to(os.path.realpath(folder)):
        raise SweeperError(f"{tables} leads out of the sweep's folder, to {target}", CHANGED)
    return target


@contextmanager
def _without_patterns(folder: Path) -> Iterator[Path]:
    """Yield a path of `folder` that DuckDB does not take for a pattern: the folder itself, or a link to it.

    DuckDB 2.0 cannot escape `*`, `?` and `[` in a path, and reads a backslash as a separator where access is limited.
    """
    if not _PATTERN.search(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        link = Path(place, "sweep")
        link.symlink_to(folder, target_is_directory=True)
        yield link


@lru_cache(maxsize=4)
def _database(folder: Path, process: int) -> duckdb.DuckDBPyConnection:
    """Return a database in memory whose queries read files in `folder` only.

    It is kept, because opening one takes thirty milliseconds, most of a query's time. A fork has no threads of its
    parent's database, so `process` is the id of the process that uses it.
    """
    # DuckDB 2.0 starts eight threads to fetch files over a network. They take 576 MB of address space, which batch
    # systems count and local files do not need.
    database = duckdb.connect(config={"async_threads": 0})
    # The order matters: the directories cannot be set after external access is disabled, and the last setting locks
    # all settings. `python_enable_replacements` would let a query read this process's variables by name. A cache of
    # files could outlive a change within a second.
    with _without_patterns(folder) as plain:  # DuckDB follows the link now, and keeps the folder's own path
        database.execute(f"SET allowed_directories = [{literal(plain)}]; SET memory_limit = '{MEMORY_PERCENT}%'")
    database.execute("SET GLOBAL TimeZone = 'UTC'; SET GLOBAL python_enable_replacements = false")
    database.execute("SET enable_external_file_cache = false; SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database


@contextmanager
def connect(generation: Path, query: str = "", *, in_memory: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with one view per table, and the view `final`.

    The folder is not trusted: a query can read no other file and no address, and column names that would need quotes
    in SQL are refused.

    Args:
        generation: folder of the sweep's files.
        query: the statement to run. The files of the tables that it names are first compared with their checksums.
        in_memory: copy all but the large tables, so that later queries do not open the files again.
    """
    tables = {*READ_TABLES} - LARGE_TABLES if in_memory else tables_of(query)
    # A view opens its files, so one query gets only the views it names. `SHOW TABLES` names none and gets all.
    views = READ_TABLES if in_memory or not tables else [name for name in READ_TABLES if name in tables]
    generation = Path(os.path.realpath(generation))
    schema, sweep = f"query_{next(_NUMBERS)}", _sweep_of(generation)
    connection = _database(sweep, os.getpid()).cursor()
    try:
        with _without_patterns(sweep) as plain:
            require_listed_files(generation, tables)
            files = {name: table_files(generation, name) for name in READ_TABLES}
            require_files(generation, files)
            require_sound_files(generation, tables)
            connection.execute(f"ATTACH ':memory:' AS {schema}; USE {schema}")
            for name in views:
                kind = "TABLE" if in_memory and files[name] and name not in LARGE_TABLES else "VIEW"
                _create(connection, kind, name, [plain / path.relative_to(sweep) for path in files[name]])
            columns = _plain_columns(connection, views)
            if "evaluations" in columns and "trials" in columns:
                _create_final_view(connection, columns["evaluations"], columns["trials"])
            yield connection
    except (duckdb.Error, OSError) as error:  # OSError: a generation was removed while its folders were listed
        raise QueryError(first_line(error), "the sweep's tables could not be read") from error
    finally:
        connection.execute(f"USE memory; DETACH DATABASE IF EXISTS {schema}")
        connection.close()


def _create(connection: duckdb.DuckDBPyConnection, kind: str, name: str, files: Sequence[Path]) -> None:
    """Create the view or table `name` of the rows in these files."""
    rows = f"read_parquet([{', '.join(map(literal, files))}], hive_partitioning = false)"
    if not files:  # a new sweep has no decisions yet
        connection.register(rows := f"no_{name}", empty_table(name))
    connection.execute(f"CREATE OR REPLACE {kind} {name} AS SELECT * FROM {rows}")


@contextmanager
def fresh_views(connection: duckdb.DuckDBPyConnection, generation: Path, tables: Collection[str]) -> Iterator[None]:
    """Let a snapshot's large tables have the files that exist now, since predictions are fetched when needed.

    Raises QueryError or LostFilesError if a file is damaged or lost.
    """
    sweep = _sweep_of(generation)
    with _without_patterns(sweep) as plain:
        for name in tables:
            require_listed_files(generation, [name])
            require_sound_files(generation, [name])
            files = [plain / path.relative_to(sweep) for path in table_files(generation, name)]
            _create(connection, "VIEW", name, files)
        _plain_columns(connection, tables)
        yield


def tables_of(query: str) -> set[str]:
    """Return the tables that a query names; `final` counts as `evaluations` and `trials`."""
    named = {name.lower() for name in _NAMED_TABLES.findall(query)}
    return (named - {"final"}) | ({"evaluations", "trials"} if "final" in named else set())


def require_files(generation: Path, files: Mapping[str, Iterable[Path]]) -> None:
    """Raise QueryError if a table's files include a link, pipe or device: a link can lead anywhere, a pipe blocks."""
    for path in (path for of_table in files.values() for path in of_table):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise QueryError(f"{path} is not a regular file", CHANGED)
        if _PATTERN.search(str(path.relative_to(generation))):
            raise QueryError(f"{path} has a name that no sweep writes", CHANGED)


def require_listed_files(generation: Path, tables: Iterable[str], trials: Collection[str] | None = None) -> None:
    """Raise LostFilesError if files are lost, of tables that the journal has, or of `tables`.

    With `trials`, a lost file of another trial is no error. Raises QueryError if the generation is no longer current.
    """
    paths = SweepPaths(_sweep_of(generation))
    # Predictions of a copy are fetched when they are needed, and are compared with the store's then.
    checked = {*REBUILT, *tables} - ({KEPT} if is_copy(paths) else set())
    try:
        absent = absent_files(generation, sorted(checked))
        for _ in range(LOOKS):
            if not absent or holder(paths.lease) is None:
                break
            time.sleep(LOOK_SECONDS)
            absent = absent_files(generation, sorted(checked))
    except (OSError, ValueError) as error:
        raise _unreadable(generation, generation / TRIALS_FILE, error) from error
    if trials is not None:
        absent = {table: [n for n in names if trial_of(n) in (None, *trials)] for table, names in absent.items()}
    if any(absent.values()):
        if os.path.realpath(paths.tables) != str(generation):  # a later driver is removing this generation
            raise QueryError("the sweep's tables were replaced while they were read", "try again")
        raise LostFilesError(paths, absent)


def require_sound_files(generation: Path, tables: Iterable[str]) -> None:
    """Raise QueryError naming the first damaged file of these tables; DuckDB does not verify checksums."""
    for path in (path for name in sorted(tables) for path in table_files(generation, name)):
        try:
            require_sound(path)
        except (OSError, ValueError) as error:
            raise _unreadable(generation, path, error) from error


def unsealed_files(generation: Path) -> list[Path]:
    """Return the files of tables that another program wrote, such as an edited copy."""

    def is_foreign(path: Path) -> bool:
        try:
            return not is_sealed(path)
        except (OSError, ValueError):  # not even a Parquet file
            return True

    return [path for table in READ_TABLES for path in table_files(generation, table) if is_foreign(path)]


def _unreadable(generation: Path, path: Path, error: Exception) -> QueryError:
    again = f"sweeper resume {SweepPaths(_sweep_of(generation)).in_commands} --discard-damaged"
    reason = getattr(error, "strerror", None) or first_line(error)
    return QueryError(f"{path} cannot be read: {reason}", f"`{again}` quarantines it")


def _sweep_of(generation: Path) -> Path:
    """Return the sweep's folder of a generation."""
    # DuckDB checks paths after following links, and `recalibrations` is a link to a folder next to `generations`. So
    # the allowed directory has to be the sweep's folder.
    folder = Path(os.path.realpath(generation))
    return folder.parents[1] if folder.parent.name == "generations" else folder.parent


def _plain_columns(connection: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> dict[str, list[str]]:
    """Return table → its columns. Raises QueryError if a name needs quotes in SQL; no sweep writes such a column."""
    # The catalogue `duckdb_columns()` would take 17 ms, because it first describes DuckDB's own views.
    columns = {table: connection.sql(f"SELECT * FROM {table} LIMIT 0").columns for table in tables}
    for table, column in ((table, column) for table, names in columns.items() for column in names):
        if not PLAIN.fullmatch(column):
            raise QueryError(f"the table {table} has a column named {column!r}, which no sweep writes", CHANGED)
    return columns


def literal(value: object) -> str:
    """Return a cell's value as a SQL literal, safe for any text."""
    return repr(value) if isinstance(value, int | float) else "'" + str(value).replace("'", "''") + "'"


def read_one_generation(folder: Path, query: str, most: int | None = None) -> pa.Table:
    """Return a query's rows from one generation of a sweep's files, even if the files are replaced meanwhile.

    Args:
        folder: the sweep's folder.
        query: one read-only statement.
        most: largest number of rows; all by default.

    Raises:
        QueryError: DuckDB refuses the query, or the files were replaced READ_ATTEMPTS times.
        LostFilesError: files are lost.
    """

    def read(generation: Path) -> pa.Table:
        with connect(generation, query) as connection:
            return execute(connection, query, most)

    return _attempts(folder, read)


def connect_to_current(folder: Path, opened: ExitStack) -> tuple[Path, duckdb.DuckDBPyConnection]:
    """Return the current generation, and a connection that holds its small tables until `opened` is closed."""
    return _attempts(folder, lambda generation: (generation, opened.enter_context(connect(generation, in_memory=True))))


def _attempts(folder: Path, read: Callable[[Path], T]) -> T:
    """Return what `read` returns for the current generation; repeat it if the generation was replaced meanwhile."""
    for _ in range(READ_ATTEMPTS):
        before = current_generation(folder)
        try:
            rows = read(before)
        except SweeperError:  # files may have vanished, if the link has changed
            if before == current_generation(folder):
                raise
        else:
            if before == current_generation(folder):
                return rows
    raise QueryError(f"the tables were replaced {READ_ATTEMPTS} times while they were read", "try again")


def lost_for_good(folder: Path) -> Names:
    """Return, by table, the files that only trials wrote, and that were lost before the last `sweeper resume`."""
    try:
        files = read_list(current_generation(folder) / TRIALS_FILE)
    except (SweeperError, OSError, ValueError):  # the next query says what is wrong
        return {}
    return {} if files is None else {table: sorted(names) for table, names in files.lost.items() if names}


def fetch_needed_predictions(paths: SweepPaths, query: str, trials: Collection[str] | None = None) -> None:
    """Fetch predictions that the sweep's local copy lacks, if the query names them. Raises StoreError.

    Args:
        paths: the sweep's files.
        query: the statement; any text with the table's name counts.
        trials: trials whose predictions are fetched; all by default.
    """
    if "predictions" in tables_of(query):  # predictions take gigabytes, so they stay in the store until needed
        bring_predictions(paths, trials)


def _create_final_view(connection: duckdb.DuckDBPyConnection, evaluations: list[str], trials: list[str]) -> None:
    """Create the view `final`: each replicate's last evaluation per split, with its configuration and status.

    Columns that both tables have occur once. If one epoch was evaluated twice, stage `end` wins over `rung`.
    """
    # The shared columns are looked up, because a foreign sweep may lack a column such as `rehearsal`.
    shared = ", ".join(name for name in trials if name in evaluations)
    connection.execute(_FINAL.format(shared=shared))


def empty_table(name: str) -> pa.Table:
    """Return a table without rows, with the columns that every sweep has. It replaces a table without files."""
    if name == RECALIBRATIONS:
        return RECALIBRATIONS_SCHEMA.empty_table()
    return table_schemas({}, classes=1, evaluation_columns=())[name].empty_table()


def check_reads_only(query: str) -> None:
    """Raise QueryError unless `query` is exactly one read-only statement."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise QueryError(first_line(error)) from error
    if len(statements) != 1:
        raise QueryError(f"{len(statements)} SQL statements were given", "give exactly one statement")
    if statements[0].type not in {duckdb.StatementType.SELECT, duckdb.StatementType.RELATION}:
        raise QueryError(f"a {statements[0].type.name} statement is not read-only", "use SELECT, DESCRIBE or SHOW")


def execute(connection: duckdb.DuckDBPyConnection, query: str, most: int | None = None) -> pa.Table:
    """Return a query's rows as Arrow, at most the first `most`.

    Raises QueryError with DuckDB's message, or after DEADLINE_SECONDS.
    """
    try:
        with _deadline(connection):
            rows = connection.sql(query)
            return (rows if most is None else rows.limit(most)).to_arrow_table()
    except duckdb.InterruptException as error:
        rule = f"the query took longer than {DEADLINE_SECONDS:.0f} s"
        raise QueryError(rule, "read fewer rows, or aggregate them in the query") from error
    except (duckdb.Error, UnicodeDecodeError) as error:  # a damaged file may hold text that is not UTF-8
        raise QueryError(first_line(error), f"tables: {', '.join(VIEWS)}") from error


@contextmanager
def _deadline(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Interrupt the query inside the context after DEADLINE_SECONDS; DuckDB itself has no timeout."""
    alarm = threading.Timer(DEADLINE_SECONDS, connection.interrupt)
    alarm.daemon = True  # a waiting timer must not keep the process alive
    try:
        alarm.start()
    except RuntimeError:  # too little memory for a thread (`ulimit -v`): the query runs without a deadline
        yield
        return
    try:
        yield
    finally:
        alarm.cancel()
        # A thread that is still ending when the interpreter exits holds the connection, which DuckDB 2.0 calls leaked.
        alarm.join()


def first_line(error: Exception) -> str:
    """Return DuckDB's error message without the query that it repeats."""
    return str(error).split("\n\nLINE", 1)[0].strip()


class NotMeasuredError(SweeperError):
    """The sweep did not measure the metric."""


#: Condition for rows of `epochs` in which a replicate had not diverged. From its divergence on, the trial's mean leaves
#: a replicate out (`trainables.worker.trial_reports.non_finite`), and the replicate has no evaluations.
SOUND = "isfinite(train_loss) AND isfinite(val_nll)"


def measured_sql(results: Results, metric: str) -> str:
    """Return the query of a metric's values as the scheduler received them: rows `trial replicate epoch value`.

    The evaluation at a trial's end takes precedence over the epoch's own measurement (see
    `trainables.worker.trial_reports.of_kept_weights`). With `checkpoint: best_val_nll`, this evaluation measures the
    weights that are kept, which can be older than the last epoch's.

    Raises:
        NotMeasuredError: the sweep did not measure the metric.
    """
    split, column = measured_as(metric)
    known = results.columns("evaluations")
    evaluated = f"SELECT trial, replicate, epoch, {column} AS value FROM evaluations WHERE split = {literal(split)}"
    if metric not in results.columns("epochs"):
        if column not in known:
            raise NotMeasuredError(
                f"the sweep did not measure {metric!r}{nearest(column, known)}", "see `sweeper results`"
            )
        return f"{evaluated} AND value IS NOT NULL"
    own = f"SELECT trial, replicate, epoch, {metric} AS value FROM epochs WHERE {metric} IS NOT NULL AND {SOUND}"
    if column not in known:
        return own
    return (
        f"SELECT trial, replicate, epoch, coalesce(ended.value, own.value) AS value FROM ({own}) AS own\n"
        f"LEFT JOIN ({evaluated} AND stage IN ('end', 'final')) AS ended USING (trial, replicate, epoch)"
    )
