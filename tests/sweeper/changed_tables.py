"""Tables of a finished sweep, changed by a known amount."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq


def shift(folder: Path, column: str, by: float, split: str) -> None:
    """Add `by` to a column of `evaluations` in every file of a sweep."""
    for part in (folder / "tables" / "evaluations").rglob("*.parquet"):
        table = pq.read_table(part)
        values = np.array(table[column].to_pylist(), dtype=float)
        values[np.array(table["split"].to_pylist()) == split] += by
        at = table.column_names.index(column)
        array = pa.array([None if np.isnan(v) else v for v in values], table.schema.field(at).type)
        pq.write_table(table.set_column(at, table.schema.field(at), array), part)


def change(folder: Path, name: str, edit: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Replace the rows of every file of a table by what `edit` makes of them."""
    for part in (folder / "tables" / name).rglob("*.parquet"):
        schema = pq.read_schema(part)
        pq.write_table(pa.Table.from_pandas(edit(pq.read_table(part).to_pandas()), schema, preserve_index=False), part)
