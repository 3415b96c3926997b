"""DuckDB over a sweep's Parquet files: the tables, the view `final`, and queries that can only read."""

from __future__ import annotations

import math
import os
import re
import resource
import stat
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from sweeper.core.errors import SweeperError
from sweeper.core.ids import RECALIBRATIONS, TABLES, SweepPaths
from sweeper.core.schemas import table_schemas
from sweeper.tables.generations import RECALIBRATIONS_SCHEMA
from trainables.files.sealed import require_sound
from trainables.registry.names import measured_as, nearest

if TYPE_CHECKING:
    from sweeper.results.results import Results

READ_TABLES = (*TABLES, RECALIBRATIONS)

VIEWS = (*READ_TABLES, "final")

#: The column of `decisions` that is computed when it is asked for: how fragile a stop was.
FRAGILITY = "fragility"

#: Tables with many rows an evaluation: a snapshot leaves them in their files and reads only what a query asks for.
LARGE_TABLES = frozenset({"reliability", "predictions", "spectra", "blocks"})

#: A sweep that is opened in the middle of a query may remove the generation being read, and files that are gone look
#: like fewer rows: a query during which the link moved restarts. Compactions are minutes apart, so one is enough.
READ_ATTEMPTS = 8

#: Bytes of address space without which no query begins: DuckDB's threads and Arrow's buffers take 150 MiB of it.
ADDRESS_SPACE = 256 * 2**20

_FINAL = """
CREATE VIEW final AS
SELECT evaluations.*, trials.* EXCLUDE ({shared})
FROM (
    SELECT * FROM evaluations
    QUALIFY row_number() OVER (PARTITION BY {key}, split ORDER BY epoch DESC, stage) = 1
) AS evaluations
JOIN trials ON {same}
"""

#: A name that needs no quotes in SQL.
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

CHANGED = "its files were changed by something else than the sweeper; use its own copy"

#: Share of the machine's memory that one query may take, and the seconds after which it is interrupted.
MEMORY_PERCENT = 50

DEADLINE_SECONDS = 600.0

_NAMED_TABLES = re.compile(rf"\b(?:{'|'.join(VIEWS)})\b", re.IGNORECASE)

EXPLAIN = re.compile(r"\s*explain\s+(analyze\s+)?(?P<statement>.+)", re.IGNORECASE | re.DOTALL)


class QueryError(SweeperError):
    """A query that DuckDB refuses, or one that would do more than read."""


def current_generation(folder: Path) -> Path:
    """Return the folder of files that `tables` points to at this moment.

    Raises SweeperError where the link is gone and files of trials are beside it, which would look like none at all, and
    where it leads out of the sweep's folder.
    """
    tables = folder / "tables"
    if not tables.is_dir() and next((folder / "generations").glob("[0-9]*/*/c*.parquet"), None) is not None:
        raise SweeperError(
            f"{tables} is no longer a link to the tables: the folder was probably copied without symbolic links",
            f"`sweeper resume {SweepPaths(folder).in_commands}` restores it from the files in {folder / 'generations'}",
        )
    target = Path(os.path.realpath(tables))  # takes a link to itself, where `resolve` does not
    if not target.is_relative_to(os.path.realpath(folder)):
        raise SweeperError(f"{tables} leads out of the sweep's folder, to {target}", CHANGED)
    return target


def open_database() -> duckdb.DuckDBPyConnection:
    """Return a connection to a database in memory.

    DuckDB 2.0 starts eight more threads to fetch files over a network, 576 MB of address space that batch systems count
    and local files do not need; releases before it do not know the setting.

    Raises QueryError where a limit leaves too little address space: a library that is refused some ends the process.
    """
    left = _address_space_left()
    if left < ADDRESS_SPACE:
        raise QueryError(
            f"{left / 2**20:.0f} MiB of address space are left, and a query needs {ADDRESS_SPACE / 2**20:.0f} MiB",
            "raise the limit (ulimit -v)",
        )
    try:
        return duckdb.connect(config={"async_threads": 0})
    except duckdb.Error:
        return duckdb.connect()


def _address_space_left() -> float:
    """Return the bytes of address space that this process may still take."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return math.inf
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    return max(0, limit - pages * resource.getpagesize())


@contextmanager
def connect(
    generations: Mapping[str, Path], query: str = "", *, in_memory: bool = False, named: bool = False
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give a connection with one view a table, the union over sweeps by column name, and the view `final`.

    A folder may be a stranger's, with anything in its names and cells: a query reads no other file and no address, and
    column names that would need quotes in SQL are refused.

    Args:
        generations: the folder of each sweep's files.
        query: a statement; the files of the tables that it names are compared with their checksums first.
        in_memory: copies all but the large tables, so that later queries do not open the files again.
        named: gives every row the name of its sweep in the first column, `sweep`.
    """
    tables = {*READ_TABLES} - LARGE_TABLES if in_memory else tables_of(query)
    connection = open_database()
    try:
        for generation in generations.values():
            require_files(generation)
            require_sound_files(generation, tables)
        connection.execute("SET TimeZone = 'UTC'")
        for name in READ_TABLES:
            empty, parts = empty_table(name), []
            for sweep, generation in generations.items():
                if next((generation / name).glob("**/*.parquet"), None) is not None:
                    files = literal(f"{generation}/{name}/**/*.parquet")
                    parts.append((sweep, f"read_parquet({files}, hive_partitioning = false)"))
            kind = "TABLE" if in_memory and parts and name not in LARGE_TABLES else "VIEW"
            if not parts:
                connection.register(f"no_{name}", empty)
                parts = [("", f"no_{name}")]
            rest = "* EXCLUDE (sweep)" if named and "sweep" in empty.column_names else "*"
            rows = (
                f"SELECT {f'{literal(sweep)} AS sweep, ' if named else ''}{rest} FROM {table}" for sweep, table in parts
            )
            connection.execute(f"CREATE {kind} {name} AS {' UNION ALL BY NAME '.join(rows)}")
        create_final_view(connection, ("sweep", "trial", "replicate") if named else ("trial", "replicate"))
        _require_plain_columns(connection)
        folders = ", ".join(literal(str(_sweep_of(generation))) for generation in generations.values())
        connection.execute(f"SET allowed_directories = [{folders}]; SET memory_limit = '{MEMORY_PERCENT}%'")
        connection.execute("SET python_enable_replacements = false; SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection
    except (duckdb.Error, OSError) as error:  # OSError: a generation is removed while its folders are looked through
        owner = "the sweeps' tables could not be read together" if named else "the sweep's tables could not be read"
        raise QueryError(first_line(error), owner) from error
    finally:
        connection.close()


def tables_of(query: str) -> set[str]:
    """Return the tables that a query names, those of the view `final` among them."""
    named = {name.lower() for name in _NAMED_TABLES.findall(query)}
    return (named - {"final"}) | ({"evaluations", "trials"} if "final" in named else set())


def require_files(generation: Path) -> None:
    """Raise QueryError where a table has a link, pipe or device among its files: opening it may read or wait."""
    for path in (path for name in READ_TABLES for path in (generation / name).glob("**/*.parquet")):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise QueryError(f"{path} is not a regular file", CHANGED)


def require_sound_files(generation: Path, tables: Iterable[str]) -> None:
    """Raise QueryError naming the first file of these tables that is damaged; DuckDB compares no checksums."""
    for path in (path for name in sorted(tables) for path in sorted((generation / name).glob("**/*.parquet"))):
        try:
            require_sound(path)
        except (OSError, ValueError) as error:
            again = f"sweeper resume {SweepPaths(_sweep_of(generation)).in_commands} --discard-damaged"
            reason = getattr(error, "strerror", None) or first_line(error)
            raise QueryError(f"{path} cannot be read: {reason}", f"`{again}` quarantines it") from error


def _sweep_of(generation: Path) -> Path:
    """Return the sweep's folder: DuckDB follows links, and `recalibrations` links to a folder beside generations."""
    folder = Path(os.path.realpath(generation))
    return folder.parents[1] if folder.parent.name == "generations" else folder.parent


def _require_plain_columns(connection: duckdb.DuckDBPyConnection) -> None:
    """Raise QueryError for a column whose name would need quotes in SQL: no sweep writes any."""
    known = connection.execute("SELECT table_name, column_name FROM duckdb_columns() ORDER BY ALL").fetchall()
    odd = [(table, column) for table, column in known if not PLAIN.fullmatch(column)]
    if odd:
        table, column = odd[0]
        raise QueryError(f"the table {table} has a column named {column!r}, which no sweep writes", CHANGED)


def literal(value: object) -> str:
    """Return a cell's value as SQL, whatever a stranger's table holds."""
    return repr(value) if isinstance(value, int | float) else "'" + str(value).replace("'", "''") + "'"


def read_steadily(folders: Mapping[str, Path], query: str, most: int | None = None, *, named: bool = False) -> pa.Table:
    """Return a query's rows from one generation of each sweep's files, however often they are replaced meanwhile.

    Args:
        folders: of the sweeps, by name.
        query: one statement that reads.
        most: rows.
        named: as `connect`.

    Raises:
        QueryError: DuckDB refuses it.
    """
    for _ in range(READ_ATTEMPTS):
        before = {name: current_generation(folder) for name, folder in folders.items()}
        found: pa.Table | QueryError
        try:
            with connect(before, query, named=named) as connection:
                found = execute(connection, query, most)
        except QueryError as error:
            found = error
        if before == {name: current_generation(folder) for name, folder in folders.items()}:
            if isinstance(found, QueryError):
                raise found
            return found
    raise QueryError("the tables kept being replaced while they were read", "try again")


def bring_what_is_read(paths: SweepPaths, query: str, trials: Collection[str] | None = None) -> None:
    """Fetch the predictions of a sweep whose copy from a store lacks them, if a query reads any. Raises StoreError.

    Args:
        paths: of the sweep.
        query: any text with the table's name counts as one that reads it.
        trials: whose predictions it reads; those of all trials by default.
    """
    if "predictions" in tables_of(query):
        from sweeper.storage.places import bring_predictions

        bring_predictions(paths, trials)


def create_final_view(connection: duckdb.DuckDBPyConnection, key: Sequence[str]) -> None:
    """Create the view `final`: each replicate's last evaluation, every split, with its configuration and status.

    What both tables have is given once. Of two stages at one epoch, `end` sorts before `rung`.

    Args:
        connection: has the tables `evaluations` and `trials`.
        key: the columns that together name a replicate.
    """
    same = " AND ".join(f"trials.{column} = evaluations.{column}" for column in key)
    columns = [connection.sql(f"SELECT * FROM {name} LIMIT 0").columns for name in ("evaluations", "trials")]
    shared = ", ".join(name for name in columns[1] if name in columns[0])  # a rehearsal's mark is younger than some
    connection.execute(_FINAL.format(key=", ".join(key), same=same, shared=shared))


def empty_table(name: str) -> pa.Table:
    """Return a table of the columns that every sweep has, without rows: what a table without files reads as."""
    if name == RECALIBRATIONS:
        return RECALIBRATIONS_SCHEMA.empty_table()
    return table_schemas({}, classes=1, evaluation_columns=())[name].empty_table()


def check_reads_only(query: str) -> None:
    """Raise QueryError unless `query` is exactly one statement that reads.

    EXPLAIN ANALYZE runs the statement it explains, so that one has to read too.
    """
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise QueryError(first_line(error)) from error
    if len(statements) != 1:
        raise QueryError(f"{len(statements)} SQL statements were given", "give exactly one statement")
    explained = EXPLAIN.match(query)
    if explained:
        check_reads_only(explained["statement"])
        return
    reading = {duckdb.StatementType.SELECT, duckdb.StatementType.RELATION}
    if statements[0].type not in reading:
        raise QueryError(
            f"a {statements[0].type.name} statement is not read-only", "use SELECT, DESCRIBE, SHOW or EXPLAIN"
        )


def execute(connection: duckdb.DuckDBPyConnection, query: str, most: int | None = None) -> pa.Table:
    """Return a query's rows as Arrow, the first `most` of them at most.

    Raises QueryError with DuckDB's message alone, or after DEADLINE_SECONDS.
    """
    alarm = threading.Timer(DEADLINE_SECONDS, connection.interrupt)
    alarm.daemon = True
    alarm.start()
    try:
        rows = connection.sql(query)
        return (rows if most is None else rows.limit(most)).to_arrow_table()
    except duckdb.InterruptException as error:
        rule = f"the query took longer than {DEADLINE_SECONDS:.0f} s"
        raise QueryError(rule, "read fewer rows, or aggregate them in the query") from error
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise QueryError(first_line(error), f"tables: {', '.join(VIEWS)}") from error
    finally:
        alarm.cancel()


def first_line(error: Exception) -> str:
    """Return what an error says, without the query it repeats."""
    return str(error).split("\n\nLINE", 1)[0].strip()


class NotMeasuredError(SweeperError):
    """A metric that a sweep did not measure."""


#: Of rows of epochs: a replicate diverged in any other, and a trial's mean leaves it out from there
#: (`trainables.worker.trial_reports.non_finite`). Evaluations of it there are none.
SOUND = "isfinite(train_loss) AND isfinite(val_nll)"


def measured_sql(results: Results, metric: str) -> str:
    """Return the query of a metric as an objective's value: rows `trial replicate epoch value`.

    The evaluation at a trial's end counts before the epoch's own measurement, see
    `trainables.worker.trial_reports.of_kept_weights`: with `checkpoint: best_val_nll` it is of the weights that are
    kept, and the last epoch's are gone.

    Raises:
        NotMeasuredError: the sweep did not measure it.
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
