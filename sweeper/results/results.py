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

import html
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import duckdb
import pyarrow as pa

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.results.queries import (
    VIEWS,
    QueryError,
    bring_what_is_read,
    check_reads_only,
    connect,
    current_generation,
    execute,
    read_steadily,
)
from sweeper.storage.lookup import find_sweep
from sweeper.storage.metadata import read_manifest, read_specification
from sweeper.text.cells import Row
from trainables.files.stores.base import is_store_address
from trainables.registry.names import measured_as, nearest

if TYPE_CHECKING:
    import pandas
    import polars


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

    def sql(self, query: str, *, trials: Collection[str] | None = None) -> pa.Table:
        """Return the rows of one reading SQL statement over the tables and the view `final`.

        Args:
            query: the statement.
            trials: whose predictions it reads, where these are still in a store; those of all trials by default.

        Raises:
            QueryError: when DuckDB refuses it, or it is not exactly one statement that reads.
            StoreError: when predictions have to be fetched and cannot be.
        """
        check_reads_only(query)
        bring_what_is_read(self.paths, query, trials)
        if self.frozen is not None:
            return execute(self.frozen, query)
        return read_steadily(lambda: current_generation(self.folder), connect, query)

    def rows(self, query: str, *, trials: Collection[str] | None = None) -> list[Row]:
        """Return the rows of a query. Arguments and errors are those of `sql`."""
        rows: list[Row] = self.sql(query, trials=trials).to_pylist()
        return rows

    def table(self, name: str) -> pa.Table:
        """Return a whole table, or the view `final`, as Arrow. Raises QueryError when there is none of that name."""
        if name not in VIEWS:
            raise QueryError(f"there is no table {name!r}", f"tables: {', '.join(VIEWS)}{nearest(name, VIEWS)}")
        return self.sql(f"SELECT * FROM {name}")

    def columns(self, name: str) -> list[str]:
        """Return the column names of a table. Raises as `table` does."""
        names: list[str] = self.sql(f"SELECT * FROM {name} LIMIT 0", trials=()).column_names
        return names

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
        """The best trials and what became of all of them, for a notebook."""
        from sweeper.results.leaderboard import leaderboard
        from sweeper.results.overview import overview
        from sweeper.results.overview_table import overview_table
        from sweeper.text.display import as_html

        try:
            with self.snapshot() as snapshot:
                return as_html(overview_table(leaderboard(snapshot), overview(snapshot)))
        except QueryError as error:
            return f"<p>{html.escape(f'{self.name}: {error}')}</p>"

    @contextmanager
    def snapshot(self) -> Iterator[Results]:
        """Yield a snapshot of these results: every query in the block sees the same rows, read once.

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


class NotMeasuredError(SweeperError):
    """A metric that a sweep did not measure."""


SOUND = "isfinite(train_loss) AND isfinite(val_nll)"
"""Of rows of epochs: a replicate diverged in any other, and a trial's mean leaves it out from there
(`trainables.worker.trial_reports.non_finite`). Evaluations of it there are none."""


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
    evaluated = f"SELECT trial, replicate, epoch, {column} AS value FROM evaluations WHERE split = '{split}'"
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
        f"LEFT JOIN ({evaluated} AND stage = 'end') AS ended USING (trial, replicate, epoch)"
    )


@overload
def load(name_or_path: str | Path, output: str | Path = "results", *, table: None = None) -> Results: ...
@overload
def load(name_or_path: str | Path, output: str | Path = "results", *, table: str) -> pa.Table: ...
def load(name_or_path: str | Path, output: str | Path = "results", *, table: str | None = None) -> Results | pa.Table:
    """Open a sweep, or read one table of it as Arrow (`.to_pandas()`, `polars.from_arrow`).

    Args:
        name_or_path: its name (a folder of `output`), the path of its results folder, or its address in a store, from
            where it is copied first.
        output: where sweeps are.
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
        from sweeper.storage.places import local_copy  # brings along what checks search spaces

        name_or_path, output = local_copy(str(name_or_path), output)
    return Results(find_sweep(name_or_path, output).root)
