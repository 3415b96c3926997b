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
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from sweeper.core.cells import Row
from sweeper.core.display import as_html
from sweeper.core.domains.values import Values
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.core.labels import rehearsal_notice
from sweeper.results import queries
from sweeper.results.queries import VIEWS, QueryError
from sweeper.storage.lookup import find_sweep
from sweeper.storage.metadata import quantities_of, read_manifest, read_specification
from sweeper.storage.places import local_copy
from sweeper.tables.file_list import lost_sentence
from trainables.files.stores.base import is_store_address
from trainables.registry.names import nearest

if TYPE_CHECKING:
    from sweeper.results.leaderboard import Leaderboard

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
        boards: cached leaderboards of a snapshot, by the arguments of `leaderboard`. A report needs it 14 times.

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
    boards: dict[tuple[int | None, str | None], Leaderboard] = field(default_factory=dict, repr=False, compare=False)

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
            return queries.read_one_generation(self.folder, query, most)
        large = queries.tables_of(query) & queries.LARGE_TABLES if self.generation is not None else set()
        # A snapshot checked the small tables when it copied them. The large tables are still read from their files.
        with queries.fresh_views(self.frozen, self.generation, large) if self.generation and large else nullcontext():
            table = queries.execute(self.frozen, query, most)
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
    def quantities(self) -> dict[str, dict[str, str]]:
        """Column → component → quantity of hyperparameters with other names; empty if the manifest is damaged."""
        return quantities_of(read_manifest(self.paths.manifest, unknown_if_damaged=True))

    def quantity(self, name: str, table: str = "") -> str | None:
        """Return a quantity of the loss, a key of `QUANTITIES`, as an SQL expression on `trials` or `final`.

        It is NULL for losses that do not have the quantity; None is returned if no loss has it. `table` is the table's
        alias in a join.
        """
        present, place = self.columns("trials"), f"{table}." if table else ""
        plain = [f"{place}config_loss_{name}"] if f"config_loss_{name}" in present else []
        renamed = [
            f"if({place}config_loss_name = {queries.literal(loss)}, {place}{column}, NULL)"
            for column, of in self.quantities.items()
            for loss, quantity in of.items()
            if quantity == name and column in present
        ]
        both = [*plain, *renamed]
        return f"coalesce({', '.join(both)})" if len(both) > 1 else both[0] if both else None

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
        """The settings that a rehearsal changed, `path = value` each; empty for a real sweep."""
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
