"""Read a sweep: SQL over its Parquet tables, with Arrow tables as results.

This module reads `<sweep>/tables/<table>/**/*.parquet` and writes nothing. It works while the sweep runs: `tables` is a
symbolic link to a generation of files, and each query resolves the link once. So a query sees one generation from
beginning to end, even if the link changes meanwhile.

    from sweeper.results import load
    results = load("quickstart")
    results.sql("SELECT config_loss_name, avg(ece) FROM final WHERE split = 'test' GROUP BY 1")
    results.table("final").to_pandas()
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from sweeper.core.cells import Row, float_of, int_of, text_of
from sweeper.core.display import as_html
from sweeper.core.domains import Values
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, configuration_index, trial_name
from sweeper.core.labels import rehearsal_notice
from sweeper.results import queries
from sweeper.results.leaderboard import objective
from sweeper.results.queries import FRAGILITY, VIEWS, QueryError
from sweeper.scheduling import Scheduler
from sweeper.scheduling.simulation import Chances, chances
from sweeper.space.spec import SchedulerSettings
from sweeper.storage.lookup import find_sweep
from sweeper.storage.metadata import read_manifest, read_specification
from sweeper.storage.places import local_copy
from sweeper.tables.file_list import lost_sentence
from trainables.files.stores.base import is_store_address
from trainables.registry.names import nearest

#: A snapshot caches the rows of a query if they take at most this many bytes. A page has hundreds of small queries.
MOST_KEPT = 2**16


@dataclass(frozen=True)
class Results:
    """One sweep's tables.

    Attributes:
        folder: the sweep's results folder.
        frozen: a connection that already holds the tables (see `snapshot`). If None, each query reads the files.
        generation: the folder of files that the connection reads.
        answers: cached small results of a snapshot's queries. A report repeats about a hundred of its queries.

    Example:
        >>> from pathlib import Path
        >>> results = Results(Path("results/example"))
        >>> results.columns("trials")[:2]
        ['sweep', 'trial']
        >>> results.rows("SELECT DISTINCT config_loss_name AS loss FROM trials ORDER BY loss")
        [{'loss': 'cross_entropy'}, {'loss': 'focal'}]
        >>> with results.snapshot() as frozen:  # several queries over the same rows
        ...     frozen.table("trials").num_rows
        4
    """

    folder: Path
    frozen: duckdb.DuckDBPyConnection | None = field(default=None, repr=False, compare=False)
    generation: Path | None = field(default=None, repr=False, compare=False)
    answers: dict[tuple[str, int | None], pa.Table] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.folder.name

    @property
    def paths(self) -> SweepPaths:
        """The paths of the sweep's files."""
        return SweepPaths(self.folder)

    def sql(self, query: str, *, trials: Collection[str] | None = None, most: int | None = None) -> pa.Table:
        """Return the rows of one read-only SQL statement over the tables and the view `final`.

        Args:
            query: the statement.
            trials: trials whose predictions are fetched if they are still in a store; all by default.
            most: largest number of rows to read; all by default.

        Raises:
            QueryError: DuckDB refuses the query, or it is not exactly one read-only statement.
            LostFilesError: files of a table are lost.
            StoreError: the predictions have to be fetched, and the store does not answer.
        """
        if (answer := self.answers.get((query, most))) is not None:
            return answer
        queries.check_reads_only(query)
        queries.fetch_needed_predictions(self.paths, query, trials)
        if self.frozen is None:
            if not NAMES_FRAGILITY.search(query):
                return queries.read_one_generation(self.folder, query, most)
            # The simulation and the query must see the same rows, even if the tables are replaced between them.
            with self.snapshot() as held:
                return held.sql(query, trials=trials, most=most)
        named = NAMES_FRAGILITY.search(query)
        large = queries.tables_of(query) & queries.LARGE_TABLES if self.generation is not None else set()
        # A snapshot checked the small tables when it copied them. The large tables are still read from their files.
        with queries.fresh_views(self.frozen, self.generation, large) if self.generation and large else nullcontext():
            table = with_fragility(self, query, most) if named else queries.execute(self.frozen, query, most)
        # Results from large tables are not cached, because the predictions that are present depend on `trials`.
        if table.nbytes <= MOST_KEPT and not large:
            self.answers[query, most] = table
        return table

    def rows(self, query: str, *, trials: Collection[str] | None = None) -> list[Row]:
        """Return the rows of a query. Arguments and errors are those of `sql`."""
        rows: list[Row] = self.sql(query, trials=trials).to_pylist()
        return rows

    def table(self, name: str) -> pa.Table:
        """Return a whole table, or the view `final`, as Arrow. Raises QueryError for an unknown name."""
        if name not in VIEWS:
            raise QueryError(f"there is no table {name!r}", f"tables: {', '.join(VIEWS)}{nearest(name, VIEWS)}")
        return self.sql(f"SELECT * FROM {name}")

    def columns(self, name: str) -> list[str]:
        """Return the column names of a table. Raises QueryError for an unknown name."""
        # With `trials=()`, no predictions are fetched from a store: only the schema is read.
        names: list[str] = self.sql(f"SELECT * FROM {name} LIMIT 0", trials=()).column_names
        return names

    def _repr_html_(self) -> str:
        """Show the best trials in a notebook."""
        # `listing` imports this package, so it is imported when first needed.
        from sweeper.results.listing import listed

        try:
            with self.snapshot() as snapshot:
                return as_html(listed(snapshot))
        except SweeperError as error:  # a notebook would print a traceback and no value
            return f"<p>{html.escape(f'{self.name}: {error}')}</p>"

    @contextmanager
    def snapshot(self) -> Iterator[Results]:
        """Yield a snapshot of these results, in which all queries see the same rows. The rows are read once.

        The small tables are copied into memory; `LARGE_TABLES` are read from the files of the current generation.
        """
        with ExitStack() as opened:
            generation, connection = queries.connect_to_current(self.folder, opened)
            try:
                yield Results(self.folder, connection, generation)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # In files that a sweep wrote, this is a fault of the program. Others may have put anything into theirs.
                edited = queries.unsealed_files(generation)
                if not edited:
                    raise
                raise QueryError(
                    f"another program wrote {edited[0]}, and its values do not fit a sweep's tables: {error!r}",
                    f"use an unchanged copy, or `sweeper resume {self.paths.in_commands}`",
                ) from error

    @cached_property
    def specification(self) -> Values:
        """The resolved search space; empty if its file is missing. Raises SweeperError if the file is damaged."""
        return read_specification(self.paths.sweep_file)

    @property
    def posthoc(self) -> list[Values]:
        """The post-hoc methods that the sweep's evaluations use, each with its name and the options given."""
        written = self.specification.get("evaluation", {}).get("posthoc") or ()
        return [{"name": method} if isinstance(method, str) else dict(method) for method in written]

    @property
    def rehearsed(self) -> list[str]:
        """One sentence for each setting that a rehearsal changed; empty for a real sweep."""
        return list(self.specification.get("rehearsed") or ())

    @property
    def marks(self) -> list[str]:
        """The notices that every figure and table must show: of a rehearsal, and of lost files."""
        notices = [rehearsal_notice(self.rehearsed)] if self.rehearsed else []
        lost = queries.lost_for_good(self.folder)
        return [*notices, f"lost, and missing here: {lost_sentence(lost)}"] if lost else notices

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Versions, commit, seeds, hardware and command of the sweep; missing or damaged as for `specification`."""
        return read_manifest(self.paths.manifest)


def load(name_or_path: str | Path, output: str | Path = "results") -> Results:
    """Open a sweep.

    Args:
        name_or_path: name of the sweep (a folder in `output`), path of its results folder, or its address in a store. A
            sweep in a store is copied first.
        output: the folder of sweeps, or a store.

    Raises:
        UnknownSweepError: there is no such sweep; the message has the nearest names.

    Example:
        >>> load("example").table("trials").num_rows
        4
    """
    if is_store_address(name_or_path) or is_store_address(output):
        name_or_path, output = local_copy(str(name_or_path), output)
    return Results(find_sweep(name_or_path, output).root)


#: Matches queries that read the column `fragility`. The simulation takes seconds, so it runs only for these.
NAMES_FRAGILITY = re.compile(rf"\b{FRAGILITY}\b", re.IGNORECASE)

#: Fragility is defined only for stops; after other decisions, the trial went on.
_DECISIONS = (
    "CREATE TEMP TABLE decisions AS SELECT written.*, CASE kind WHEN 'stop' THEN chance END AS fragility\n"
    "FROM decisions AS written LEFT JOIN stop_chances USING (trial) ORDER BY trial, epoch, decided_at"
)


def with_fragility(results: Results, query: str, most: int | None = None) -> pa.Table:
    """Return the rows of a query that names `decisions.fragility`. `results` is a snapshot. Raises QueryError.

    The column is in no file; it is simulated from the stored values of all trials.
    """
    assert results.frozen is not None
    chances_of_trials = stop_chances(results)
    columns = {
        "trial": pa.array(chances_of_trials, pa.string()),
        "chance": pa.array([c.finishes for c in chances_of_trials.values()]),
    }
    connection = results.frozen
    connection.register("stop_chances", pa.table(columns))
    connection.execute(_DECISIONS)  # a temporary table hides the permanent one of the same name
    try:
        return queries.execute(connection, query, most)
    finally:  # later queries of the snapshot must see the stored table again
        connection.execute("DROP TABLE temp.main.decisions")
        connection.unregister("stop_chances")


def stop_chances(results: Results) -> dict[str, Chances]:
    """Return trial name → chances to finish and to win with other seeds and in another order.

    Empty if trials are not compared by one objective, or if the spread of seeds is unknown.
    """
    scheduler = _scheduler(results)
    if scheduler is None:
        return {}
    try:
        measured = queries.measured_sql(results, scheduler.metric)
    except SweeperError:  # the objective is in no table, e.g. because another program wrote the sweep
        return {}
    # Failed trials are left out, because they have no comparable value. So are diverged replicates, which would make
    # every simulated mean infinite.
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
    chances_of_trials = chances([(scheduler, [*pool]) for pool in pools.values()], [*rungs.values()])
    return {trial_name(trial): of_trial for trial, of_trial in chances_of_trials.items()}


def _scheduler(results: Results) -> Scheduler | None:
    """Return the scheduler of one stratum; None if it is unknown here or does not compare exactly one objective."""
    written, goal = results.specification, objective(results)
    if written.get("objectives") or written.get("constraints"):
        return None
    try:
        scheduler = SchedulerSettings.model_validate(written.get("scheduler", {})).built(goal.metric, goal.mode)
    except (SweeperError, ValueError):  # an extension's scheduler that is not installed here, or a damaged sweep.yaml
        return None
    return scheduler if scheduler.compares and len(scheduler.rungs) > 1 else None
