"""Columns of Arrow tables as numbers or texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Texts for a missing value: those of pyarrow's CSV reader, which include those of pandas, and UCI's `?`.
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "n/a", "nan", "null", "?",
)  # fmt: skip

#: Types that `as_numbers` and `as_texts` read, by the name that a `Column` has for them.
NUMERIC, TEXTUAL = ("number", "timestamp", "time", "duration"), ("text", "bool")


def form_of(kind: Any) -> str | None:
    """Return the `Column.form` of an Arrow type, `null` for a column without values, `None` for other types."""
    import pyarrow as pa

    is_kind = pa.types
    forms = {
        "number": is_kind.is_integer(kind) or is_kind.is_floating(kind) or is_kind.is_decimal(kind),
        "timestamp": is_kind.is_timestamp(kind) or is_kind.is_date(kind),
        "time": is_kind.is_time(kind),
        "duration": is_kind.is_duration(kind),
        "bool": is_kind.is_boolean(kind),
        "text": is_kind.is_string(kind) or is_kind.is_large_string(kind) or is_kind.is_dictionary(kind),
        "null": is_kind.is_null(kind),
    }
    return next((form for form, holds in forms.items() if holds), None)


def as_numbers(column: Any) -> NDArray[np.float64] | None:
    """Return an Arrow column of numbers or times (in seconds) as float64 [N], NaN for missing values, else `None`."""
    import pyarrow as pa

    form = form_of(column.type)
    if form not in NUMERIC:
        return None
    divisor = 1.0
    if form != "number":
        # pyarrow casts times to integers only, and each kind only from its own unit
        short = pa.types.is_time32(column.type)
        units = {"timestamp": pa.timestamp("us"), "duration": pa.duration("us"), "time": pa.time64("us")}
        column = column.cast(pa.time32("ms") if short else units[form], safe=False)
        column, divisor = column.cast(pa.int32() if short else pa.int64()), 1e3 if short else 1e6
    numbers: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers / divisor if divisor != 1 else numbers


def as_texts(column: Any, lower: bool = False) -> NDArray[Any] | None:
    """Return an Arrow column of texts or booleans as texts [N], "" for missing values; `None` for other types."""
    import pyarrow as pa
    import pyarrow.compute as compute

    form = form_of(column.type)
    if form not in (*TEXTUAL, "null"):
        return None
    column = trimmed(column) if form == "text" else column.cast(pa.string())
    column = compute.utf8_lower(column) if lower else column
    texts: NDArray[Any] = compute.fill_null(column, "").to_numpy(zero_copy_only=False)
    return texts


def trimmed(column: Any) -> Any:
    """Return an Arrow column of texts without surrounding whitespace, null for the texts in `MISSING`."""
    import pyarrow as pa
    import pyarrow.compute as compute

    text = compute.utf8_trim_whitespace(column.cast(pa.string()))
    return compute.if_else(compute.is_in(text, pa.array(MISSING)), pa.scalar(None, pa.string()), text)


def parsed(column: Any, form: str) -> Any:
    """Return an Arrow column of texts as numbers, timestamps or times; times become timestamps of 1970-01-01.

    Raises:
        pyarrow.ArrowInvalid: a text is none.
    """
    import pyarrow as pa
    import pyarrow.compute as compute

    texts = trimmed(column)
    if form == "time":  # pyarrow parses no times alone
        texts = compute.binary_join_element_wise(pa.scalar("1970-01-01"), texts, " ")
    return texts.cast(pa.float64() if form == "number" else pa.timestamp("us"))
