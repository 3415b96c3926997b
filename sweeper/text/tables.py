"""An Arrow table as text or bytes: aligned plain text, JSON, CSV, Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from sweeper.core.errors import SweeperError
from sweeper.text.display import printable

FORMATS = ("table", "json", "csv", "parquet")


def format_table(table: pa.Table, kind: str = "table") -> str | bytes:
    """Return a table as text (`table`, `json`: one object a row in a list, `csv`) or as bytes (`parquet`).

    Raises:
        SweeperError: for another format.
    """
    if kind == "parquet":
        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()
    rows = [{key: json_value(value) for key, value in row.items()} for row in table.to_pylist()]
    if kind == "json":
        return json.dumps(rows, indent=1, ensure_ascii=False)
    if kind == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows(row.values() for row in rows)
        return text.getvalue()
    if kind == "table":
        return text_table(table.column_names, rows)
    raise SweeperError(f"unknown format {kind!r}", f"formats: {', '.join(FORMATS)}")


def json_value(value: object) -> object:
    """Return a value that JSON and CSV can hold: times as ISO 8601 text, NaN and infinities as None."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def text_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as aligned plain text: numbers to the right with six digits, nothing for null."""
    cells = [[shown(row[column]) for column in columns] for row in rows]
    widths = [max([len(column), *(len(line[at]) for line in cells)]) for at, column in enumerate(columns)]
    numeric = [any(isinstance(row[column], (int, float)) for row in rows) for column in columns]

    def line(values: Sequence[str]) -> str:
        aligned = [v.rjust(w) if right else v.ljust(w) for v, w, right in zip(values, widths, numeric, strict=True)]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(columns), line(["─" * width for width in widths]), *map(line, cells)])


def shown(value: object) -> str:
    """Return a value as text in a table."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value)).replace("\n", "\\n")
