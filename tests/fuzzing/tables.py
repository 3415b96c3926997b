"""Results folders whose tables somebody has edited: valid Parquet files with values, types and columns of all kinds."""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeper.api import analyses, exports
from sweeper.core.errors import SweeperError

READ, REFUSED = "read", "refused"

Edit = Callable[[pa.Table, str], pa.Table]


def _replaced(table: pa.Table, column: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(column), column, values)


def _all(value: object) -> Edit:
    """Give every row one value, as far as the column's type allows it."""

    def edit(table: pa.Table, column: str) -> pa.Table:
        try:
            scalar = pa.scalar(value).cast(table.schema.field(column).type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return table
        return _replaced(table, column, pa.repeat(scalar, len(table)))

    edit.__name__ = f"all {value!r}"
    return edit


def nulls(table: pa.Table, column: str) -> pa.Table:
    """No value at all."""
    return _replaced(table, column, pa.nulls(len(table), table.schema.field(column).type))


def half_nulls(table: pa.Table, column: str) -> pa.Table:
    """Every other value is missing."""
    kept = pa.array([index % 2 == 0 for index in range(len(table))])
    return _replaced(table, column, pc.if_else(kept, table[column], None))


def texts(table: pa.Table, column: str) -> pa.Table:
    """Another type: texts."""
    return _replaced(table, column, pa.array([f"x{value}" for value in table[column].to_pylist()], pa.string()))


def structs(table: pa.Table, column: str) -> pa.Table:
    """Another type: structs."""
    return _replaced(
        table, column, pa.array([{"a": 1, "b": "x"}] * len(table), pa.struct({"a": pa.int64(), "b": pa.string()}))
    )


def lists(table: pa.Table, column: str) -> pa.Table:
    """Another type: lists."""
    return _replaced(table, column, pa.array([[1.5, None]] * len(table), pa.list_(pa.float64())))


def whole_numbers(table: pa.Table, column: str) -> pa.Table:
    """Another type: whole numbers, as pandas writes whole floats."""
    return _replaced(table, column, pa.array(range(len(table)), pa.int64()))


def gone(table: pa.Table, column: str) -> pa.Table:
    """A missing column."""
    return table.drop_columns([column])


def extra(table: pa.Table, column: str) -> pa.Table:
    """Further columns, among them a struct and a list."""
    more = {"notes": pa.array([{"a": None}] * len(table), pa.struct({"a": pa.string()})),
            "config_extra": pa.array([[1]] * len(table), pa.list_(pa.int64()))}  # fmt: skip
    for name, values in more.items():
        table = table.append_column(name, values)
    return table


def empty(table: pa.Table, column: str) -> pa.Table:
    """No rows."""
    return table.slice(0, 0)


def twice(table: pa.Table, column: str) -> pa.Table:
    """Every row twice."""
    return pa.concat_tables([table, table])


EDITS: tuple[Edit, ...] = (
    nulls, half_nulls, texts, structs, lists, whole_numbers, gone, extra, empty, twice,
    _all(float("nan")), _all(float("inf")), _all(-1), _all(0), _all(2**62), _all(1e308), _all("x"), _all("unavailable"),
)  # fmt: skip
TABLES = ("trials", "epochs", "evaluations", "decisions", "reliability", "spectra")


class Tables:
    """A sound folder of tables, edited and mended again and again."""

    def __init__(self, sound: Path, work: Path) -> None:
        """Copy the sweep's folder `sound` below `work`."""
        self.folder = Path(shutil.copytree(sound, work / sound.name, symlinks=True))
        self.ways = (self._results, self._all_columns, self._show, self._report, self._compare)

    def fuzz(self, count: int, seed: int) -> Counter[str]:
        """Edit the tables in `count` ways, read them in all ways each, and count the answers.

        Raises AssertionError for any exception but `SweeperError`.
        """
        return sum((self.check(*case) for case in self.draw(count, seed)), Counter())

    def draw(self, count: int, seed: int) -> list[tuple[str, str, Edit]]:
        """Return cases: a table, a column of it, and what happens to the column."""
        chance = random.Random(seed)
        columns = {table: pq.read_schema(self._files(table)[0]).names for table in TABLES}
        tables = [chance.choice(TABLES) for _ in range(count)]
        return [(table, chance.choice(columns[table]), chance.choice(EDITS)) for table in tables]

    def _files(self, table: str) -> list[Path]:
        return sorted((self.folder / "tables" / table).glob("*.parquet"))

    def check(self, table: str, column: str, edit: Edit) -> Counter[str]:
        """Edit one column of a table and read the sweep in all ways; mend it. Errors are those of `fuzz`."""
        files = {path: path.read_bytes() for path in self._files(table)}
        try:
            for path in files:
                pq.write_table(edit(pq.read_table(path), column), path)
            return Counter(self._answer(way, f"{edit.__name__}: {table}.{column}") for way in self.ways)
        finally:
            for path, content in files.items():
                path.write_bytes(content)

    def _answer(self, way: Callable[[], object], case: str) -> str:
        try:
            way()
        except SweeperError as error:
            assert str(error)
            return REFUSED
        except Exception as error:
            raise AssertionError(f"{way.__name__}: {case}") from error
        return READ

    def _results(self) -> None:
        repr(exports.results_(str(self.folder)))

    def _all_columns(self) -> None:
        repr(exports.results_(str(self.folder), everything=True, columns=[""]))

    def _show(self) -> None:
        repr(exports.show(str(self.folder), "c00000"))

    def _report(self) -> None:
        exports.report(str(self.folder))

    def _compare(self) -> None:
        repr(analyses.compare(str(self.folder), "cross_entropy", "focal"))
