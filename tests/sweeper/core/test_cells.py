"""Cells of tables are read as the type that their column has, and anything else is refused."""

import math
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from sweeper.core.cells import Row, Value, float_of, float_or_none, floats, int_of, measured_or_none, text_of

ROW: Row = {
    "epoch": 3,
    "ece": 0.25,
    "nan": math.nan,
    "null": None,
    "trial": "t00001",
    "decided_at": datetime(2026, 1, 1, tzinfo=UTC),
}


def test_values_come_as_they_are() -> None:
    assert float_of(ROW, "ece") == 0.25 and float_of(ROW, "epoch") == int_of(ROW, "epoch") == 3
    assert text_of(ROW, "trial") == "t00001"
    assert isinstance(float_of(ROW, "epoch"), int), "a whole number is written into JSON as one"


def test_null_and_absent_columns_are_none_or_nan_where_they_may_be() -> None:
    assert [float_or_none(ROW, column) for column in ("ece", "null", "absent")] == [0.25, None, None]
    assert [measured_or_none(ROW, column) for column in ("ece", "nan", "null", "absent")] == [0.25, None, None, None]
    assert math.isnan(float_or_none(ROW, "nan") or 0.0)
    assert [repr(value) for value in floats([ROW, {"ece": None}, {}], "ece")] == ["0.25", "nan", "nan"]


@pytest.mark.parametrize(
    ("read", "columns"),
    [(float_or_none, ("trial", "decided_at")), (measured_or_none, ("trial",)), (float_of, ("null", "trial")),
     (int_of, ("ece", "null")), (text_of, ("null", "epoch"))],
)  # fmt: skip
def test_a_cell_of_another_kind_is_refused_by_its_column(
    read: Callable[[Row, str], Value], columns: tuple[str, ...]
) -> None:
    for column in columns:
        with pytest.raises(TypeError, match=f"the column '{column}' holds"):
            read(ROW, column)


@pytest.mark.parametrize("read", [float_of, int_of, text_of])
def test_a_column_that_must_be_there_is_missed(read: Callable[[Row, str], Value]) -> None:
    with pytest.raises(KeyError, match="absent"):
        read(ROW, "absent")
