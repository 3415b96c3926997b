"""Reading a sweep: SQL, Arrow, pandas and Polars over its Parquet tables.

Everything here reads `<sweep>/tables/<table>/**/*.parquet` and writes nothing. It may be used while the sweep runs:
`tables` is a symbolic link to a generation of files, and each query resolves it once, so that a query sees one
generation from beginning to end even when the link is swapped meanwhile.

    from sweeper.results import load
    results = load("quickstart")
    results.sql("SELECT config_loss_name, avg(ece) FROM final WHERE split = 'test' GROUP BY 1")
    results.pandas("final")
"""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import duckdb
import pyarrow as pa

from sweeper.errors import SweeperError
from sweeper.ids import RECALIBRATIONS, TABLES, SweepPaths
from sweeper.recalibration.table import RECALIBRATIONS_SCHEMA
from sweeper.tables import table_schemas
from sweeper.written import read_manifest, read_specification
from trainables.storage import is_store_address

if TYPE_CHECKING:
    import pandas
    import polars

READ_TABLES = (*TABLES, RECALIBRATIONS)

VIEWS = (*READ_TABLES, "final")

LARGE_TABLES = frozenset({"reliability", "predictions", "spectra"})
"""Tables with many rows an evaluation: a snapshot leaves them in their files and reads only what a query asks for."""

READ_ATTEMPTS = 8
"""A sweep that is opened in the middle of a query may remove the generation being read, and files that are gone look
like fewer rows: a query during which the link moved starts anew. Compactions are minutes apart, so one is enough."""

FINAL = """
CREATE VIEW final AS
SELECT evaluations.*, trials.* EXCLUDE ({shared})
FROM (
    SELECT * FROM evaluations
    QUALIFY row_number() OVER (PARTITION BY trial, replicate, split ORDER BY epoch DESC, stage) = 1
) AS evaluations
JOIN trials ON trials.trial = evaluations.trial AND trials.replicate = evaluations.replicate
"""
"""Each replicate's last evaluation, both splits, with its configuration and its trial's status; what both tables have
is given once.
Of two stages at one epoch, `end` sorts before `rung`."""


EXPLAIN = re.compile(r"\s*explain\s+(analyze\s+)?(?P<statement>.+)", re.IGNORECASE | re.DOTALL)


class UnknownSweepError(SweeperError):
    """No sweep of that name or at that path."""


class QueryError(SweeperError):
    """A query that DuckDB refuses, or one that would do more than read."""


@dataclass(frozen=True)
class Results:
    """One sweep's tables.

    Attributes:
        folder: the sweep's results folder.
        frozen: a connection that already holds the tables (see `snapshot`); None reads the files at each query.
    """

    folder: Path
    frozen: duckdb.DuckDBPyConnection | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.folder.name

    @property
    def paths(self) -> SweepPaths:
        """The places of the sweep's files."""
        return SweepPaths(self.folder)

    def sql(self, query: str) -> pa.Table:
        """Return the rows of one reading SQL statement over the tables and the view `final`.

        Raises:
            QueryError: when DuckDB refuses it, or it is not exactly one statement that reads.
        """
        check_reads_only(query)
        if self.frozen is not None:
            return execute(self.frozen, query)
        for _ in range(READ_ATTEMPTS):
            generation = current_generation(self.folder)
            try:
                with connect(generation) as connection:
                    found = execute(connection, query)
            except QueryError:
                if generation == current_generation(self.folder):
                    raise
                continue
            if generation == current_generation(self.folder):
                return found
        raise QueryError("the tables were replaced again and again while they were read", "try again")

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query as dictionaries. Raises as `sql` does."""
        return self.sql(query).to_pylist()

    def table(self, name: str) -> pa.Table:
        """Return a whole table, or the view `final`, as Arrow. Raises QueryError when there is none of that name."""
        if name not in VIEWS:
            raise QueryError(f"there is no table {name!r}", f"tables: {', '.join(VIEWS)}{nearest(name, VIEWS)}")
        return self.sql(f"SELECT * FROM {name}")

    def columns(self, name: str) -> list[str]:
        """Return the column names of a table. Raises as `table` does."""
        return self.sql(f"SELECT * FROM {name} LIMIT 0").column_names

    def pandas(self, name: str = "final") -> pandas.DataFrame:
        """Return a whole table as a pandas data frame (pandas must be installed). Raises as `table` does."""
        return self.table(name).to_pandas()

    def polars(self, name: str = "final") -> polars.DataFrame:
        """Return a whole table as a Polars data frame (Polars must be installed). Raises as `table` does."""
        import polars

        frame = polars.from_arrow(self.table(name))
        assert isinstance(frame, polars.DataFrame)
        return frame

    def _repr_html_(self) -> str:
        """What `sweeper run` prints at a sweep's end, for a notebook."""
        from sweeper.shown import as_html
        from sweeper.summary import summary

        try:
            return as_html(summary(self))
        except QueryError as error:
            return f"<p>{html.escape(f'{self.name}: {error}')}</p>"

    @contextmanager
    def snapshot(self) -> Iterator[Results]:
        """Give these results as they are now: every query in the block sees the same rows, read once.

        The small tables are held in memory; those of `LARGE_TABLES` stay in the files of this moment's generation.
        """
        with connect(current_generation(self.folder), in_memory=True) as connection:
            yield Results(self.folder, connection)

    @cached_property
    def specification(self) -> dict[str, Any]:
        """What was run: the resolved search space. Empty where the file is missing. Raises SweeperError if damaged."""
        return read_specification(self.paths.sweep_file)

    @property
    def rehearsed(self) -> list[str]:
        """What a rehearsal changed, a sentence each; empty for the real thing."""
        return list(self.specification.get("rehearsed") or ())

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """With what it was run: versions, commit, seeds, hardware, command. Empty and raises as `specification`."""
        return read_manifest(self.paths.manifest)


@overload
def load(name_or_path: str | Path, output: str | Path = "results", *, table: None = None) -> Results: ...
@overload
def load(name_or_path: str | Path, output: str | Path = "results", *, table: str) -> pa.Table: ...
def load(name_or_path: str | Path, output: str | Path = "results", *, table: str | None = None) -> Results | pa.Table:
    """Open a sweep, or read one table of it as Arrow (`.to_pandas()`, `polars.from_arrow`).

    Args:
        name_or_path: its name (a folder of `output`), the path of its results folder, or its address in a store, from
            where it is copied first.
        output: where sweeps lie.
        table: a table, or the view `final`; the whole sweep if unset.

    Raises:
        UnknownSweepError: when there is none, with the nearest names of `output`.
        QueryError: when it has no such table.
    """
    found = _opened(name_or_path, output)
    return found if table is None else found.table(table)


def sql(name_or_path: str | Path, query: str, output: str | Path = "results") -> pa.Table:
    """Return the rows of one reading SQL statement as Arrow. Raises as `load` and `Results.sql` do."""
    return load(name_or_path, output).sql(query)


def _opened(name_or_path: str | Path, output: str | Path) -> Results:
    if is_store_address(name_or_path) or is_store_address(output):
        from sweeper.store.places import local_copy  # brings along what checks search spaces

        name_or_path, output = local_copy(str(name_or_path), output)
    for folder in (Path(output) / name_or_path, Path(name_or_path)):
        if is_sweep(folder):
            return Results(folder.resolve())
    names = sweep_names(output)
    known = f"sweeps there: {', '.join(names[:8])}" if names else "there are no sweeps there yet"
    raise UnknownSweepError(
        f"there is no sweep {str(name_or_path)!r} in {Path(output)}/", known + nearest(str(name_or_path), names)
    )


def sweep_names(output: str | Path = "results") -> list[str]:
    """Return the names of the sweeps in `output`, latest first."""
    folders = [folder for folder in Path(output).glob("*") if is_sweep(folder)]
    return [folder.name for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True)]


def is_sweep(folder: Path) -> bool:
    """Tell whether a folder holds a sweep: its tables, or one that has only begun."""
    return (folder / "tables").is_dir() or (folder / "sweep.yaml").is_file()


def nearest(name: str, names: list[str] | tuple[str, ...]) -> str:
    """Return `; did you mean 'x'?` for the nearest of `names`, or nothing."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def current_generation(folder: Path) -> Path:
    """Return the folder of files that `tables` points to at this moment."""
    return (folder / "tables").resolve()


@contextmanager
def connect(generation: Path, *, in_memory: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give a connection with one view a table of `generation`, and the view `final`.

    `in_memory` copies all but the large tables, so that later queries do not open the files again.
    """
    connection = duckdb.connect()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        for name in READ_TABLES:
            files = f"{generation}/{name}/**/*.parquet".replace("'", "''")
            if next((generation / name).glob("**/*.parquet"), None) is None:
                connection.register(f"no_{name}", empty_table(name))
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM no_{name}")
                continue
            kind = "TABLE" if in_memory and name not in LARGE_TABLES else "VIEW"
            connection.execute(
                f"CREATE {kind} {name} AS SELECT * FROM read_parquet('{files}', hive_partitioning = false)"
            )
        connection.execute(FINAL.format(shared=", ".join(_shared_columns(connection))))
        yield connection
    except duckdb.Error as error:
        raise QueryError(first_line(error), "the sweep's tables could not be read") from error
    finally:
        connection.close()


def _shared_columns(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the columns that `trials` and `evaluations` both have: the mark of rehearsals is younger than some."""
    columns = [connection.sql(f"SELECT * FROM {name} LIMIT 0").columns for name in ("evaluations", "trials")]
    return [name for name in columns[1] if name in columns[0]]


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
        raise QueryError(f"{len(statements)} SQL statements were given", "give exactly one")
    explained = EXPLAIN.match(query)
    if explained:
        check_reads_only(explained["statement"])
        return
    reading = {duckdb.StatementType.SELECT, duckdb.StatementType.RELATION}
    if statements[0].type not in reading:
        raise QueryError(
            f"a {statements[0].type.name} statement would do more than read", "use SELECT, DESCRIBE, SHOW or EXPLAIN"
        )


def execute(connection: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    """Return a query's rows as Arrow. Raises QueryError with DuckDB's message alone."""
    try:
        return connection.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise QueryError(first_line(error), f"tables: {', '.join(VIEWS)}") from error


def first_line(error: Exception) -> str:
    """Return what an error says, without the query it repeats."""
    return str(error).split("\n\nLINE", 1)[0].strip()
