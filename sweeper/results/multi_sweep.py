"""Several sweeps as one: every table is a union with a column `sweep` that names the source.

A column that only some sweeps have is null in the rows of the others; the view `final` is each replicate's last
evaluation within its own sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from sweeper.core.errors import SweeperError
from sweeper.results import Results, load
from sweeper.results.queries import (
    READ_TABLES,
    QueryError,
    bring_what_is_read,
    check_reads_only,
    create_final_view,
    current_generation,
    empty_table,
    first_line,
    open_database,
    read_steadily,
)


@dataclass(frozen=True)
class SeveralResults:
    """The tables of several sweeps.

    Attributes:
        members: each sweep's own results, by name.
    """

    members: Mapping[str, Results]

    def sql(self, query: str) -> pa.Table:
        """Return the rows of one reading SQL statement over the united tables and the view `final`.

        Raises:
            QueryError: when DuckDB refuses it, or it is not exactly one statement that reads.
        """
        check_reads_only(query)
        for member in self.members.values():
            bring_what_is_read(member.paths, query)
        return read_steadily(
            lambda: {name: current_generation(found.folder) for name, found in self.members.items()}, connect_all, query
        )


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


@contextmanager
def connect_all(generations: Mapping[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give a connection with one view a table, the union over sweeps by column name, and the view `final`."""
    connection = open_database()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        for name in READ_TABLES:
            columns, parts = empty_table(name).column_names, []
            for sweep, generation in generations.items():
                if next((generation / name).glob("**/*.parquet"), None) is not None:
                    files = _quoted(f"{generation}/{name}/**/*.parquet")
                    parts.append(_rows(sweep, f"read_parquet({files}, hive_partitioning = false)", columns))
            if not parts:
                connection.register(f"no_{name}", empty_table(name))
                parts = [_rows("", f"no_{name}", columns)]
            connection.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(parts)}")
        create_final_view(connection, ("sweep", "trial", "replicate"))
        yield connection
    except (duckdb.Error, OSError) as error:  # OSError: a generation is removed while its folders are looked through
        raise QueryError(first_line(error), "the sweeps' tables could not be read together") from error
    finally:
        connection.close()


def _rows(sweep: str, source: str, columns: Sequence[str]) -> str:
    """Return the query of one sweep's rows of a table, with its name first."""
    rest = "* EXCLUDE (sweep)" if "sweep" in columns else "*"
    return f"SELECT {_quoted(sweep)} AS sweep, {rest} FROM {source}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
