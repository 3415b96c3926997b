"""The large tables that a trial's process writes: `predictions`, `reliability`, and optionally `spectra` and `blocks`.

A trial writes one file per table and evaluation, named after (trial, replicate, epoch), so writing an evaluation twice
leaves one file. A file is written under a temporary name and renamed, so under its final name it is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike

from trainables.files.atomic import replacing
from trainables.files.sealed import seal
from trainables.worker.trial_reports import Row

if TYPE_CHECKING:  # these import torch, which a process that only reads tables does not need
    from trainables.training.evaluation import Evaluation
    from trainables.worker.checkpoints import TrialFiles

TEXT, COUNT, NUMBER = pa.string(), pa.int64(), pa.float64()

#: The key columns of an evaluation.
EVALUATION = {"trial": TEXT, "replicate": COUNT, "epoch": COUNT}

#: An evaluation: trial name, replicate number, completed epochs.
Place: TypeAlias = tuple[str, int, int]


def evaluation_schema(**columns: pa.DataType) -> pa.Schema:
    """Return the schema of a table of evaluations: the key columns and `columns`."""
    return pa.schema({**EVALUATION, **columns})


#: One row per confidence bin; `confidence` and `accuracy` are null in an empty bin.
RELIABILITY_SCHEMA = evaluation_schema(
    split=TEXT, bin=COUNT, lower=NUMBER, upper=NUMBER, n=COUNT, confidence=NUMBER, accuracy=NUMBER
)

#: The spectral density of a Hessian, one row per point of its even grid; `loss` is `cross_entropy` or `training`,
#: `samples` is the number of validation samples, `weight` the share of eigenvalues nearest to this point, `mean` the
#: mean of all eigenvalues over `probes` random vectors, and `mean_se` its standard error.
SPECTRA_SCHEMA = evaluation_schema(
    loss=TEXT, samples=COUNT, eigenvalue=NUMBER, density=NUMBER, weight=NUMBER, probes=COUNT, mean=NUMBER,
    mean_se=NUMBER,
)  # fmt: skip

#: Curvature layer by layer: `layer` counts from 0 at the input, `block` is its name; traces sum to the trace of the
#: whole Hessian. λ_max is the largest eigenvalue of the layer's diagonal block of the Hessian, `residual` its ‖Hv −
#: λv‖/|λ|.
BLOCKS_SCHEMA = evaluation_schema(
    loss=TEXT, layer=COUNT, block=TEXT, parameters=COUNT, trace=NUMBER, trace_se=NUMBER, lambda_max=NUMBER,
    residual=NUMBER, gradient_norm=NUMBER, samples=COUNT,
)  # fmt: skip

#: The tables of curvature, written on request.
CURVATURE_SCHEMAS = {"spectra": SPECTRA_SCHEMA, "blocks": BLOCKS_SCHEMA}


def predictions_schema(classes: int) -> pa.Schema:
    """Return the schema of `predictions`, one row per sample, for `classes` classes (`logits` float32 [classes])."""
    return evaluation_schema(split=TEXT, sample=COUNT, target=COUNT, logits=pa.list_(pa.float32(), classes))


def part_name(trial: str, replicate: int, epoch: int) -> str:
    """Return the file name of one evaluation's part, e.g. `c00007-r0-e00009.parquet`."""
    return f"{trial}-r{replicate}-e{epoch:05d}.parquet"


def write_predictions(
    folder: Path, place: Place, logits: Mapping[str, ArrayLike], targets: Mapping[str, ArrayLike]
) -> Path:
    """Write the logits of one evaluation, from which every metric can be computed again.

    Args:
        folder: folder of the tables; the file is written to its sub-folder `predictions`.
        place: trial, replicate and epoch of the evaluation.
        logits: split → logits [N, K]; row i is sample i of the split.
        targets: split → class indices [N].

    Returns:
        The file's path.
    """
    batches = []
    for split, values in logits.items():
        rows = np.asarray(values, np.float32)  # the precision of the network; float64 would double the largest table
        count = len(rows)
        key = [pa.repeat(pa.scalar(part), count) for part in (*place, split)]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])
        columns = [*key, np.arange(count), np.asarray(targets[split], np.int64), lists]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=predictions_schema(rows.shape[1])))
    path = folder / "predictions" / part_name(*place)
    return write_parquet(path, batches[0].schema, [pa.concat_batches(batches)], durable=True)


def write_rows(folder: Path, place: Place, table: str, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write the rows of one evaluation to the sub-folder `table` of `folder`; return the file's path.

    Args:
        folder: folder of the tables.
        place: trial, replicate and epoch of the evaluation.
        table: `reliability`, or one of `CURVATURE_SCHEMAS`.
        rows: column → value, without the key columns; no rows if the measurement was unavailable.
    """
    schema = CURVATURE_SCHEMAS.get(table, RELIABILITY_SCHEMA)
    key = dict(zip(EVALUATION, place, strict=True))
    batch = pa.RecordBatch.from_pylist([{**key, **row} for row in rows], schema=schema)
    return write_parquet(folder / table / part_name(*place), schema, [batch], durable=True)


def write_parquet(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, durable: bool = False) -> Path:
    """Write record batches atomically to a Parquet file, one row group each.

    Args:
        path: the file, replaced in one step; its folder is created if missing.
        schema: the table's schema.
        batches: record batches, possibly none. They are consumed one at a time, so a large table need not fit in
            memory.
        durable: flush the file to disk before the rename, for data that cannot be restored from elsewhere.

    Raises:
        OSError: the folder cannot be written to; the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Dictionaries only for texts, whose values repeat; nearly every float is distinct.
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    with replacing(path, durable=durable) as temporary:
        with (
            temporary.open("wb") as file,
            pq.ParquetWriter(
                file, schema, compression="zstd", use_dictionary=texts, write_page_checksum=True
            ) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)
        seal(temporary)
    return path


def evaluation_rows(evaluations: Mapping[int, Evaluation], epoch: int) -> list[Row]:
    """Return the rows of an epoch's evaluations, given by replicate number."""
    return [{"replicate": n, "epoch": epoch, **row} for n, measured in evaluations.items() for row in measured.rows]


def write_evaluations(files: TrialFiles, trial: str, epoch: int, evaluations: Mapping[int, Evaluation]) -> None:
    """Write the tables of an epoch's evaluations, given by replicate number, if the trial writes tables."""
    if files.tables is None:
        return
    for number, evaluation in evaluations.items():
        place = (trial, number, epoch)
        written = [write_predictions(files.tables, place, evaluation.logits, evaluation.targets)]
        tables = {"reliability": evaluation.reliability, **evaluation.curvature}
        written += [write_rows(files.tables, place, table, rows) for table, rows in tables.items()]
        for path in written:
            files.table_written(path)
