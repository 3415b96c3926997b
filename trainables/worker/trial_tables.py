"""The large tables that a trial's own process writes: `predictions`, `reliability`; if requested, `spectra`, `blocks`.

A trial writes one file per table and evaluation, named after (trial, replicate, epoch), so writing an evaluation
twice leaves one file. A file is written under a temporary name and renamed: under its final name it is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike

from trainables.files.atomic import replacing
from trainables.worker.trial_reports import Row

if TYPE_CHECKING:  # they bring torch along, which a process that only reads tables does not need
    from trainables.metrics.tokens import TokenStatistics
    from trainables.training.evaluation import Evaluation
    from trainables.worker.checkpoints import TrialFiles

TEXT, COUNT, NUMBER = pa.string(), pa.int64(), pa.float64()

#: The columns that say which evaluation a row belongs to.
EVALUATION = {"trial": TEXT, "replicate": COUNT, "epoch": COUNT}

#: An evaluation: its trial's name, its replicate's number and its completed epochs.
Place: TypeAlias = tuple[str, int, int]


def evaluation_schema(**columns: pa.DataType) -> pa.Schema:
    """Return the schema of a table of evaluations: which evaluation a row belongs to, and these columns."""
    return pa.schema({**EVALUATION, **columns})


#: One row per confidence bin; `confidence` and `accuracy` are null where the bin is empty.
RELIABILITY_SCHEMA = evaluation_schema(
    split=TEXT, bin=COUNT, lower=NUMBER, upper=NUMBER, n=COUNT, confidence=NUMBER, accuracy=NUMBER
)

#: The spectral density of a Hessian, one row per point of its even grid; `loss` is `cross_entropy` or `training`,
#: `samples` how many validation samples it is taken over, `weight` the share of eigenvalues nearest to this point,
#: `mean` that of all eigenvalues over `probes` random vectors, and `mean_se` its standard error.
SPECTRA_SCHEMA = evaluation_schema(
    loss=TEXT, samples=COUNT, eigenvalue=NUMBER, density=NUMBER, weight=NUMBER, probes=COUNT, mean=NUMBER,
    mean_se=NUMBER,
)  # fmt: skip

#: Curvature layer by layer: `layer` counts from 0 at the input, `block` is its name; traces sum to the whole's. λ_max
#: is the largest eigenvalue of the layer's diagonal block of the Hessian, `residual` its ‖Hv − λv‖/|λ|.
BLOCKS_SCHEMA = evaluation_schema(
    loss=TEXT, layer=COUNT, block=TEXT, parameters=COUNT, trace=NUMBER, trace_se=NUMBER, lambda_max=NUMBER,
    residual=NUMBER, gradient_norm=NUMBER, samples=COUNT,
)  # fmt: skip

#: The tables of curvature, which a trial writes where they are asked for.
CURVATURE_SCHEMAS = {"spectra": SPECTRA_SCHEMA, "blocks": BLOCKS_SCHEMA}


def predictions_schema(classes: int) -> pa.Schema:
    """Return the schema of `predictions`, one row per sample, for `classes` classes (`logits` float32 [classes])."""
    return evaluation_schema(split=TEXT, sample=COUNT, target=COUNT, logits=pa.list_(pa.float32(), classes))


def token_predictions_schema(kept: int) -> pa.Schema:
    """Return the schema of `predictions` where samples are tokens of translations, one row a token.

    Of thousands of logits the `kept` largest are there, with their classes; `log_sum_exp` is that of all.
    """
    return evaluation_schema(
        split=TEXT, sample=COUNT, target=COUNT, target_logit=pa.float32(), log_sum_exp=NUMBER,
        top_logits=pa.list_(pa.float32(), kept), top_classes=pa.list_(pa.int32(), kept),
    )  # fmt: skip


def part_name(trial: str, replicate: int, epoch: int) -> str:
    """Return the file name of one evaluation's part, e.g. `c00007-r0-e00009.parquet`."""
    return f"{trial}-r{replicate}-e{epoch:05d}.parquet"


def write_predictions(
    folder: Path, place: Place, logits: Mapping[str, ArrayLike], targets: Mapping[str, ArrayLike]
) -> Path:
    """Write the logits of one evaluation below `folder`, so that every metric can be computed again later.

    Args:
        folder: where the trial's tables go; the file lies in its sub-folder `predictions`.
        place: the evaluation.
        logits: split → logits [N, K]; row i is sample i of the split.
        targets: split → class indices [N].

    Returns:
        The file's path.
    """
    arrays = {split: np.asarray(values, np.float32) for split, values in logits.items()}
    columns = {split: [np.asarray(targets[split], np.int64), _lists(values)] for split, values in arrays.items()}
    return _write_splits(folder, place, predictions_schema(next(iter(arrays.values())).shape[1]), columns)


def write_token_predictions(folder: Path, place: Place, tokens: Mapping[str, TokenStatistics]) -> Path:
    """Write what is kept of one evaluation's tokens (split → statistics), as `write_predictions` does of samples."""
    columns = {
        split: [
            each.targets, each.target_logits, each.log_sum_exp(),
            _lists(each.top_logits), _lists(each.top_classes.astype(np.int32)),
        ]
        for split, each in tokens.items()
    }  # fmt: skip
    kept = next(iter(tokens.values())).top_logits.shape[1]
    return _write_splits(folder, place, token_predictions_schema(kept), columns)


def write_rows(folder: Path, place: Place, table: str, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write the rows of one evaluation below `folder`, in the sub-folder `table`; return the file's path.

    Args:
        folder: where the trial's tables go.
        place: the evaluation.
        table: `reliability`, or one of `CURVATURE_SCHEMAS`.
        rows: by the other columns of its schema; none where it was unavailable.
    """
    schema = CURVATURE_SCHEMAS.get(table, RELIABILITY_SCHEMA)
    key = dict(zip(EVALUATION, place, strict=True))
    batch = pa.RecordBatch.from_pylist([{**key, **row} for row in rows], schema=schema)
    return write_parquet(folder / table / part_name(*place), schema, [batch], durable=True)


def write_parquet(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, durable: bool = False) -> Path:
    """Write record batches, a row group each, to a temporary file and rename it to `path`.

    Args:
        path: the final name; its folder is created when missing, a file of that name is replaced in one step.
        schema: the table's schema.
        batches: taken one at a time, so that a large table never has to fit in memory; may be empty.
        durable: flush the file to the disk before it gets its name, for data that nothing else could restore.

    Raises:
        OSError: the folder cannot be written to; the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Dictionaries for texts, whose values repeat, checksums so that damage shows.
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    with (
        replacing(path, durable=durable) as temporary,
        temporary.open("wb") as file,
        pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=texts, write_page_checksum=True) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    return path


def _write_splits(
    folder: Path, place: Place, schema: pa.Schema, columns: Mapping[str, Sequence[ArrayLike | pa.Array]]
) -> Path:
    """Write a part of `predictions`, given each split's columns after the sample's number."""
    batches = []
    for split, own in columns.items():
        count = len(own[0])  # type: ignore[arg-type]  # arrays have a length
        key = [pa.repeat(pa.scalar(value), count) for value in (*place, split)]
        batches.append(pa.RecordBatch.from_arrays([*key, np.arange(count), *own], schema=schema))
    path = folder / "predictions" / part_name(*place)
    return write_parquet(path, schema, [pa.concat_batches(batches)], durable=True)


def _lists(values: np.ndarray) -> pa.FixedSizeListArray:
    """Return a column of one list a row, of values [N, L]."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])


def evaluation_rows(evaluations: Mapping[int, Evaluation], epoch: int) -> list[Row]:
    """Return the rows of an epoch's evaluations, by number of the replicate."""
    return [{"replicate": n, "epoch": epoch, **row} for n, found in evaluations.items() for row in found.rows]


def write_evaluations(files: TrialFiles, trial: str, epoch: int, evaluations: Mapping[int, Evaluation]) -> None:
    """Write the tables of an epoch's evaluations, by number of the replicate, where tables are written at all."""
    if files.tables is None:
        return
    for number, evaluation in evaluations.items():
        place = (trial, number, epoch)
        if evaluation.tokens:
            written = [write_token_predictions(files.tables, place, evaluation.tokens)]
        else:
            written = [write_predictions(files.tables, place, evaluation.logits, evaluation.targets)]
        tables = {"reliability": evaluation.reliability, **evaluation.curvature}
        written += [write_rows(files.tables, place, table, rows) for table, rows in tables.items()]
        for path in written:
            files.table_written(path)
