"""Reading a sweep: SQL, Arrow, pandas and Polars over its Parquet tables.

Everything here reads `<sweep>/tables/<table>/**/*.parquet` and writes nothing. It may be used while the sweep runs:
`tables` is a symbolic link to a generation of files, and each query resolves it once, so that a query sees one
generation from beginning to end even when the link is swapped meanwhile.

    from sweeper.results import load
    results = load("quickstart")
    results.sql("SELECT config_loss_name, avg(ece) FROM final WHERE split = 'test' GROUP BY 1")
    results.pandas("final")

Several sweeps read as one: every table is a union with a column `sweep` that names the source. A column that only
some sweeps have is null in the rows of the others; the view `final` is each replicate's last evaluation within its own
sweep.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import duckdb
import pyarrow as pa

from sweeper.core.cells import Row, float_of, int_of, text_of
from sweeper.core.display import as_html
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, configuration_index, trial_name
from sweeper.core.labels import rehearsal_notice
from sweeper.results import queries
from sweeper.results.leaderboard import leaderboard, objective
from sweeper.results.queries import FRAGILITY, VIEWS, QueryError
from sweeper.scheduling import Scheduler
from sweeper.scheduling.simulation import Chances, chances
from sweeper.space.parts import SchedulerSettings
from sweeper.storage.lookup import find_sweep
from sweeper.storage.metadata import read_manifest, read_specification
from trainables.files.stores.base import is_store_address
from trainables.registry.names import nearest

if TYPE_CHECKING:
    import pandas
    import polars


@dataclass(frozen=True)
class Results:
    """One sweep's tables.

    Attributes:
        folder: the sweep's results folder.
        frozen: a connection that already holds the tables (see `snapshot`); None reads the files at each query.
        generation: the folder of files that the connection reads.
    """

    folder: Path
    frozen: duckdb.DuckDBPyConnection | None = field(default=None, repr=False, compare=False)
    generation: Path | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.folder.name

    @property
    def paths(self) -> SweepPaths:
        """The places of the sweep's files."""
        return SweepPaths(self.folder)

    def sql(self, query: str, *, trials: Collection[str] | None = None, most: int | None = None) -> pa.Table:
        """Return the rows of one reading SQL statement over the tables and the view `final`.

        Args:
            query: the statement.
            trials: whose predictions it reads, where these are still in a store; those of all trials by default.
            most: rows to read; all by default.

        Raises:
            QueryError: when DuckDB refuses it, or it is not exactly one statement that reads.
            StoreError: when predictions have to be fetched and cannot be.
        """
        queries.check_reads_only(query)
        queries.bring_what_is_read(self.paths, query, trials)
        if self.generation is not None:
            queries.require_sound_files(self.generation, queries.tables_of(query) & queries.LARGE_TABLES)
        if NAMED.search(query):
            with nullcontext(self) if self.frozen is not None else self.snapshot() as held:
                return with_fragility(held, query, most)
        if self.frozen is not None:
            return queries.execute(self.frozen, query, most)
        return queries.read_steadily({self.name: self.folder}, query, most)

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
        from sweeper.results.listing import overview, overview_table

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
        generation = queries.current_generation(self.folder)
        with queries.connect({self.name: generation}, in_memory=True) as connection:
            yield Results(self.folder, connection, generation)

    @cached_property
    def specification(self) -> dict[str, Any]:
        """What was run: the resolved search space. Empty where the file is missing. Raises SweeperError if damaged."""
        return read_specification(self.paths.sweep_file)

    @property
    def posthoc(self) -> list[dict[str, Any]]:
        """The post-hoc methods of the sweep's own evaluations: each its name and the options that were written."""
        written = self.specification.get("evaluation", {}).get("posthoc") or ()
        return [{"name": each} if isinstance(each, str) else dict(each) for each in written]

    @property
    def rehearsed(self) -> list[str]:
        """What a rehearsal changed, a sentence each; empty for the real thing."""
        return list(self.specification.get("rehearsed") or ())

    @property
    def marks(self) -> list[str]:
        """What goes with every number: that it is a rehearsal's."""
        return [rehearsal_notice(self.rehearsed)] if self.rehearsed else []

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
        output: where sweeps are.
        table: a table, or the view `final`; the whole sweep if unset.

    Raises:
        UnknownSweepError: when there is none, with the nearest names of `output`.
        QueryError: when it has no such table.
    """
    if is_store_address(name_or_path) or is_store_address(output):
        from sweeper.storage.places import local_copy  # brings along what checks search spaces

        name_or_path, output = local_copy(str(name_or_path), output)
    found = Results(find_sweep(name_or_path, output).root)
    return found if table is None else found.table(table)


def sql(name_or_path: str | Path, query: str, output: str | Path = "results") -> pa.Table:
    """Return the rows of one reading SQL statement as Arrow. Raises as `load` and `Results.sql` do."""
    return load(name_or_path, output).sql(query)


@dataclass(frozen=True)
class SeveralResults:
    """The tables of several sweeps.

    Attributes:
        members: each sweep's own results, by name.
    """

    members: Mapping[str, Results]

    def sql(self, query: str, *, most: int | None = None) -> pa.Table:
        """Return the rows of one reading SQL statement over the united tables and the view `final`, at most `most`.

        Raises:
            QueryError: when DuckDB refuses it, or it is not exactly one statement that reads.
        """
        queries.check_reads_only(query)
        for member in self.members.values():
            queries.bring_what_is_read(member.paths, query)
        folders = {name: found.folder for name, found in self.members.items()}
        return queries.read_steadily(folders, query, most, named=True)


def load_several(names: Sequence[str | Path], output: str | Path = "results") -> SeveralResults:
    """Open several sweeps by name or path.

    Raises:
        UnknownSweepError: where there is none of a name.
        SweeperError: where two of them have the same name, so that their rows could not be distinguished.
    """
    members: dict[str, Results] = {}
    for name in names:
        found = load(name, output)
        if found.name in members:
            raise SweeperError(
                f"{members[found.name].folder} and {found.folder} have the same name, {found.name!r}",
                "name each sweep once; rename one of two folders with the same name",
            )
        members[found.name] = found
    return SeveralResults(members)


#: What a query says that reads the column.
NAMED = re.compile(rf"\b{FRAGILITY}\b", re.IGNORECASE)

_DECISIONS = (
    "CREATE TEMP TABLE decisions AS SELECT written.*, CASE kind WHEN 'stop' THEN chance END AS fragility\n"
    "FROM memory.main.decisions AS written LEFT JOIN stop_chances USING (trial) ORDER BY trial, epoch, decided_at"
)


def with_fragility(results: Results, query: str, most: int | None = None) -> pa.Table:
    """Return the rows of a query that names `decisions.fragility`. `results` is a snapshot. Raises QueryError.

    The column is in no file: what it says follows from values that are there.
    """
    assert results.frozen is not None
    found = stop_chances(results)
    columns = {"trial": pa.array(found, pa.string()), "chance": pa.array([c.finishes for c in found.values()])}
    connection = results.frozen
    connection.register("stop_chances", pa.table(columns))
    connection.execute(_DECISIONS)  # a temporary table hides the one of its name
    try:
        return queries.execute(connection, query, most)
    finally:
        connection.execute("DROP TABLE temp.main.decisions")
        connection.unregister("stop_chances")


def stop_chances(results: Results) -> dict[str, Chances]:
    """Return the chances of every trial, by name, that it finishes and that it wins by other seeds in another order.

    None where trials are not compared by one objective, or nothing says how far seeds spread.
    """
    scheduler = _scheduler(results)
    if scheduler is None:
        return {}
    try:
        measured = queries.measured_sql(results, scheduler.metric)
    except SweeperError:
        return {}
    rows = results.rows(
        "SELECT trial, stratum, epoch, seed, value\nFROM decisions\n"
        f"JOIN ({measured}) AS measured USING (trial, epoch)\n"
        "JOIN (SELECT trial, replicate, seed FROM trials) USING (trial, replicate)\n"
        "WHERE kind IN ('continue', 'stop', 'pause', 'complete') AND isfinite(value)\n"
        f"AND epoch IN ({', '.join(map(str, scheduler.rungs))}) ORDER BY trial, epoch, replicate"
    )
    rungs: dict[int, dict[int, dict[int, float]]] = {rung: {} for rung in scheduler.rungs}
    pools: dict[object, dict[int, None]] = {}
    for row in rows:
        trial = configuration_index(text_of(row, "trial"))
        rungs[int_of(row, "epoch")].setdefault(trial, {})[int_of(row, "seed")] = float_of(row, "value")
        pools.setdefault(row["stratum"], {})[trial] = None
    found = chances([(scheduler, [*pool]) for pool in pools.values()], [*rungs.values()])
    return {trial_name(trial): each for trial, each in found.items()}


def _scheduler(results: Results) -> Scheduler | None:
    """Return what decides within a stratum; None where it is not known here, or compares several objectives or none."""
    written, goal = results.specification, objective(results)
    if written.get("objectives") or written.get("constraints"):
        return None
    try:
        found = SchedulerSettings.model_validate(written.get("scheduler", {})).built(goal.metric, goal.mode)
    except (SweeperError, ValueError):
        return None
    return found if found.compares and len(found.rungs) > 1 else None
