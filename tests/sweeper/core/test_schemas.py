"""Schemas of the tables and rows made to fit them."""

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.ids import TABLES
from sweeper.core.schemas import record_batch, table_schemas

SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64()), ("value", pa.float64()), ("flag", pa.bool_())])


def test_every_table_has_a_schema_and_no_name_needs_quoting() -> None:
    types = {"config_loss_name": str, "config_loss_gamma": float, "config_layers": int, "config_flag": bool}
    schemas = table_schemas(types, 10, ("nll", "hessian_training_samples", "posthoc_temperature_unavailable"))
    assert set(schemas) == set(TABLES)
    for schema in schemas.values():
        assert len(set(schema.names)) == len(schema.names)
        assert all(name.isidentifier() and name == name.lower() for name in schema.names)
    trials = schemas["trials"]
    assert [trials.field(name).type for name in types] == [pa.string(), pa.float64(), pa.int64(), pa.bool_()]
    assert schemas["predictions"].field("logits").type == pa.list_(pa.float32(), 10)
    evaluations = schemas["evaluations"]
    assert evaluations.field("hessian_training_samples").type == pa.int64()
    assert evaluations.field("posthoc_temperature_unavailable").type == pa.string()
    assert evaluations.field("nll").type == pa.float64()


ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.none() | st.text(),
            "count": st.none() | st.integers(-(2**63), 2**63 - 1),
            "value": st.none() | st.floats(),
            "flag": st.none() | st.booleans(),
        },
    )
)


@settings(deadline=None)  # the first example also imports what measures
@given(ROWS)
def test_rows_come_back_as_they_were_with_nulls_for_what_they_lack(rows: list[dict[str, object]]) -> None:
    batch = record_batch("table", SCHEMA, rows)
    assert batch.schema == SCHEMA
    assert batch.num_rows == len(rows)
    for found, row in zip(batch.to_pylist(), rows, strict=True):
        for column in SCHEMA.names:
            value = row.get(column)
            if isinstance(value, float) and math.isnan(value):
                assert math.isnan(found[column])
            else:
                assert found[column] == value


def test_an_unknown_column_and_an_unfit_value_are_named() -> None:
    with pytest.raises(ValueError, match="the table epochs has no column losss, misspelt"):
        record_batch("epochs", SCHEMA, [{"name": "a"}, {"misspelt": 1, "losss": 2}])
    for unfit in ({"value": "high"}, {"count": 2**63}):
        with pytest.raises(ValueError, match="a row of the table epochs does not fit"):
            record_batch("epochs", SCHEMA, [unfit])


def test_a_fraction_is_never_cut_off() -> None:
    with pytest.raises(ValueError, match=r"table\.count is not a whole number: 0\.345"):
        record_batch("table", SCHEMA, [{"count": 1}, {"count": 0.345}])
    assert record_batch("table", SCHEMA, [{"count": 2.0}]).to_pylist()[0]["count"] == 2
