"""Rows of a table as raw inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.raw_inputs.arrays import SHOWN, Array, RefusedInputsError, columns_by_name
from trainables.datasets.raw_inputs.arrow import NUMERIC, TEXTUAL, as_numbers, as_texts, form_of, parsed, trimmed


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: name.
        form: `number`, `timestamp`, `time`, `duration` (the last three are seconds in an array), `text` or `bool`.
        levels: values of a text or bool column in the training rows; the program takes their indices, and −1 for any
            other value. A missing text is the level "".
        missing: whether a number may be missing (NaN): rows of the training table lack it, too.
    """

    name: str
    form: str
    levels: tuple[str, ...] = ()
    missing: bool = False

    def codes(self, texts: Iterable[str]) -> NDArray[np.float64]:
        """Return the index of each text among the levels, −1 for a text that is none of them."""
        places = {level: float(number) for number, level in enumerate(self.levels)}
        return np.array([places.get(text, -1.0) for text in texts], np.float64)

    def value(self, code: float) -> Any:
        """Return the value that has a number or code, as JSON has it: `None` if it is missing."""
        if self.form in TEXTUAL:
            text = self.levels[int(code)] if code >= 0 else ""
            return text or None if self.form == "text" else {"true": True, "false": False}.get(text)
        if not np.isfinite(code):
            return None
        moment = np.datetime64(round(1e6 * code), "us") if self.form in ("timestamp", "time") else None
        return (
            code
            if moment is None
            else str(moment).replace("T", " ").removeprefix("1970-01-01 " * (self.form == "time"))
        )


@dataclass(frozen=True)
class TableRows:
    """Reads rows of a table.

    Rows are a DataFrame, an Arrow table, a dict of columns, a dict or a list of dicts; their columns are found by name.
    Or they are an array [N, columns] in the order of `columns`, in which texts can be replaced by their codes.

    Attributes:
        columns: columns that the program takes.
        unused: columns of the training table that the network does not see, such as the target.

    Example:
        >>> reader = TableRows((Column("age", "number"), Column("ward", "text", ("A", "B"))))
        >>> reader.array([{"ward": "B", "age": 50}]).tolist(), reader.array([[50, 1]]).tolist()
        ([[50.0, 1.0]], [[50.0, 1.0]])
    """

    kind: ClassVar[str] = "table"

    columns: tuple[Column, ...]
    unused: tuple[str, ...] = ()

    def array(self, inputs: Any) -> Array:
        """Return the rows as numbers and codes, float64 [N, columns].

        Raises:
            RefusedInputsError: columns are missing or unknown, or have values that the network cannot take.
        """
        named = columns_by_name(inputs)
        faults: list[str] = []
        given = self._by_position(inputs) if named is None else self._by_name(named, faults)
        made = [] if faults else [_read(column, values, named is None, faults) for column, values in given]
        if not faults and len({len(values) for values in made}) > 1:
            faults.append("its columns have unequal numbers of rows")
        if faults:
            more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
            names = ", ".join(column.name for column in self.columns[:SHOWN]) + ", …" * (len(self.columns) > SHOWN)
            raise RefusedInputsError(
                f"the model cannot take these rows: {'; '.join(faults[:SHOWN])}{more}",
                f"give the {len(self.columns)} columns {names} as model_card.md describes them",
            )
        return np.stack(made, axis=1)

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the columns of texts."""
        return tuple(column.name for column in self.columns if column.form == "text")

    def example(self, sample: Array) -> dict[str, Any]:
        """Return the one row in an array [1, columns] as a user gives it."""
        return {column.name: column.value(float(code)) for column, code in zip(self.columns, sample[0], strict=True)}

    def _by_name(self, named: Mapping[str, Any], faults: list[str]) -> list[tuple[Column, Any]]:
        known = {column.name for column in self.columns}
        lacking = [column.name for column in self.columns if column.name not in named]
        extra = [name for name in named if name not in known and name not in self.unused]
        if lacking:
            faults.append(f"they lack the column {', '.join(map(repr, lacking))}")
        if extra:
            faults.append(f"the training table has no column {', '.join(map(repr, extra))}: remove it")
        return [] if lacking else [(column, named[column.name]) for column in self.columns]

    def _by_position(self, inputs: Any) -> list[tuple[Column, Any]]:
        # `object` keeps numbers beside texts; without it, numpy would turn both into texts
        try:
            rows = inputs if hasattr(inputs, "dtype") else np.array(inputs, dtype=object)
            rows = np.asarray(rows)
        except ValueError:
            rows = np.asarray(None)
        rows = rows[None] if rows.shape == (len(self.columns),) else rows
        if rows.ndim != 2 or rows.shape[1] != len(self.columns):
            shape = ", ".join(map(str, rows.shape))
            raise RefusedInputsError(
                f"the model cannot take {rows.dtype} [{shape}]",
                f"give rows with named columns, or an array [N, {len(self.columns)}] in the order of model_card.md",
            )
        return [(column, rows[:, at]) for at, column in enumerate(self.columns)]


def _read(column: Column, values: Any, codes: bool, faults: list[str]) -> NDArray[np.float64]:
    """Return a column as float64 [N]; what it cannot take is added to `faults`.

    Args:
        column: description of the column.
        values: its values.
        codes: whether numbers in a column of texts are its codes.
        faults: list of sentences.
    """
    import pyarrow as pa

    try:
        given = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, from_pandas=True)
        given = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
    except (pa.ArrowException, TypeError, ValueError):
        shown = " and ".join(map(repr, [*{type(value): value for value in values if value is not None}.values()][:2]))
        faults.append(f"{column.name} has values of several types, such as {shown}")
        return np.empty(0)
    form, wanted = form_of(given.type), column.form
    if wanted in NUMERIC:
        return _as_form(column, given, codes, faults)
    if codes and form == "number":
        return _as_codes(column, given, faults)
    texts = as_texts(given, lower=wanted == "bool")
    if texts is None:
        faults.append(f"{column.name} holds {given.type}, and the training table {wanted} values")
        return np.empty(0)
    found = column.codes(texts)
    if len(unknown := np.flatnonzero(found < 0)):
        row, text = int(unknown[0]), texts[unknown[0]]
        shown = f"{column.name} = {text!r}" if text else f"{column.name} is missing"
        known = ", ".join(map(repr, column.levels[:SHOWN])) + ", …" * (len(column.levels) > SHOWN)
        faults.append(f"{shown} in row {row} ({len(unknown)} in all), which no training row has: it has {known}")
    return found


def _as_form(column: Column, given: Any, codes: bool, faults: list[str]) -> NDArray[np.float64]:
    import pyarrow as pa

    form = form_of(given.type)
    if form == "text" and column.form in ("number", "timestamp", "time"):
        try:
            given, form = parsed(given, column.form), column.form
        except pa.ArrowInvalid:
            text = next(text for text in trimmed(given).to_pylist() if text is not None)
            faults.append(f"{column.name} holds texts such as {text!r}, and the training table {column.form}s")
            return np.empty(0)
    # numbers are seconds: in an array, and as JSON has no durations
    seconds = "number" if codes or column.form == "duration" else column.form
    if form not in (column.form, "null", seconds):
        faults.append(f"{column.name} holds {given.type}, and the training table {column.form}s")
        return np.empty(0)
    numbers = np.full(len(given), np.nan) if form == "null" else as_numbers(given)
    assert numbers is not None
    lost = np.flatnonzero(~np.isfinite(numbers))
    if len(lost) and not column.missing:
        faults.append(f"{column.name} is missing in row {lost[0]} ({len(lost)} in all), and in no row of the table")
    return numbers


def _as_codes(column: Column, given: Any, faults: list[str]) -> NDArray[np.float64]:
    codes = given.cast("float64").to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(~np.isin(codes, np.arange(-1, len(column.levels))))
    if len(wrong):
        rule = f"its codes are 0 to {len(column.levels) - 1}, and −1 for a value that no training row has"
        faults.append(f"{column.name} = {codes[wrong[0]]:g} in row {wrong[0]}, and {rule}")
    return np.asarray(codes, np.float64)
