"""The Arrow schema of every table of a sweep, and the conversion of rows to it.

A schema is fixed when the sweep starts, from its search space alone. An absent value is a typed null, never a missing
column, so all files of a table can be read together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from trainables.curvature.statistics.base import statistic_of
from trainables.worker.trial_tables import (
    COUNT,
    CURVATURE_SCHEMAS,
    EVALUATION,
    NUMBER,
    RELIABILITY_SCHEMA,
    TEXT,
    evaluation_schema,
    predictions_schema,
)

#: The column that marks a rehearsal's rows. It is constant, so the metadata of its field hold the value.
REHEARSAL = "rehearsal"

#: The column of `trials` with the arithmetic of training steps, e.g. `bfloat16, channels_last`. It is constant, except
#: that a trial on a CPU says float32 where TF32 is requested.
ARITHMETIC = "arithmetic"

TRIAL_COLUMNS = {
    "sweep": TEXT, "trial": TEXT, "replicate": COUNT, "seed": COUNT, "config_hash": TEXT, "status": TEXT,
    "stop_kind": TEXT, "stop_rung": COUNT, "epochs": COUNT, "last_evaluation_epoch": COUNT,
    "wall_seconds": NUMBER, "device": TEXT, "packing": TEXT, "error": TEXT,
    "objective": NUMBER, "attempt": COUNT,
}  # fmt: skip

EVALUATION_KEYS = {**EVALUATION, "split": TEXT, "stage": TEXT}

EPOCHS_SCHEMA = evaluation_schema(
    train_loss=NUMBER, val_nll=NUMBER, val_accuracy=NUMBER, val_ece=NUMBER, lr=NUMBER, seconds=NUMBER
)

# Times are UTC without a time zone: DuckDB needs a further package to return times that have one.
DECISIONS_SCHEMA = pa.schema({
    "trial": TEXT, "epoch": COUNT, "stage": TEXT, "kind": TEXT, "rule": TEXT, "rung": COUNT, "metric": NUMBER,
    "place": COUNT, "count": COUNT, "quota": COUNT, "cutoff": NUMBER, "kept_by": TEXT, "left_out": COUNT,
    "stratum": TEXT, "decided_at": pa.timestamp("us"),
})  # fmt: skip

_CONSTANT = b"constant"

_ARROW_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(), int: COUNT, float: NUMBER, str: TEXT,
    list: pa.list_(pa.int64()),  # counts of a histogram
}  # fmt: skip


def table_schemas(
    configuration_types: Mapping[str, type],
    classes: int,
    evaluation_columns: Sequence[str],
    *,
    epoch_columns: Mapping[str, type] | None = None,
    rehearsal: bool = False,
    arithmetic: str = "float32",
) -> dict[str, pa.Schema]:
    """Return the schema of every table by name.

    Args:
        configuration_types: hyperparameter column (`config_…`) → bool, int, float or str.
        classes: number of classes of the data set, the length of a row of logits.
        evaluation_columns: result of `sweeper.core.columns.evaluation_columns` for the sweep.
        epoch_columns: result of `sweeper.core.columns.epoch_columns` for the sweep's trajectory.
        rehearsal: whether the sweep is a rehearsal; stored in every row of the tables that the driver writes.
        arithmetic: arithmetic of training steps, in words; stored in every row of `trials`.
    """
    computed = pa.field(ARITHMETIC, pa.string(), metadata={_CONSTANT: arithmetic.encode()})
    mark = pa.field(REHEARSAL, pa.bool_(), metadata={_CONSTANT: b"true" if rehearsal else b"false"})
    configuration = [(name, _ARROW_TYPES[kind]) for name, kind in configuration_types.items()]
    more = [(name, _ARROW_TYPES[kind]) for name, kind in (epoch_columns or {}).items()]
    measured = [(name, _measured_type(name)) for name in evaluation_columns]
    return {
        "trials": pa.schema([*TRIAL_COLUMNS.items(), computed, mark, *configuration]),
        "epochs": pa.schema([*EPOCHS_SCHEMA, *more, mark]),
        "evaluations": pa.schema([*EVALUATION_KEYS.items(), *measured, mark]),
        "reliability": RELIABILITY_SCHEMA,
        "predictions": predictions_schema(classes),
        **CURVATURE_SCHEMAS,
        "decisions": DECISIONS_SCHEMA.append(mark),
    }


def record_batch(table: str, schema: pa.Schema, rows: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
    """Convert rows to one typed batch: a missing value becomes null (or its constant), a NaN stays a NaN.

    Args:
        table: the table's name, for messages.
        schema: the table's schema.
        rows: column → value.

    Raises:
        ValueError: a row has columns the schema lacks, or a value does not fit its column's type.
    """
    known = set(schema.names)
    unknown = sorted(set().union(*rows) - known) if rows else []
    if unknown:
        raise ValueError(
            f"the table {table} has no column {', '.join(unknown)}: "
            "every column is declared in sweeper/core/schemas.py when the sweep starts"
        )
    measured = [field for field in schema if not (field.metadata and _CONSTANT in field.metadata)]
    for name in (field.name for field in measured if pa.types.is_integer(field.type)):
        for value in (row.get(name) for row in rows):
            if isinstance(value, float) and not value.is_integer():  # Arrow would silently truncate it
                raise ValueError(f"a value of {table}.{name} is not a whole number: {value!r}")
    try:
        # Arrow converts all rows at once in a tenth of the time that one list per column takes.
        columns = dict(zip((f.name for f in measured), pa.array(rows, pa.struct(measured)).flatten(), strict=True))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ValueError(f"a row of the table {table} does not fit its schema: {error}") from error
    for field in schema:
        if field.name not in columns:
            constant = pa.scalar(field.metadata[_CONSTANT].decode()).cast(field.type)
            columns[field.name] = pa.repeat(constant, len(rows))
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _measured_type(column: str) -> pa.DataType:
    if column.endswith("_unavailable"):
        return pa.string()
    statistic = statistic_of(column)
    return pa.int64() if statistic is not None and statistic[1].counted else pa.float64()
