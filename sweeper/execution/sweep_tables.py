"""The Parquet tables of a sweep, with the columns that its search space and its data ask for."""

from __future__ import annotations

from sweeper.core.schemas import epoch_columns, evaluation_columns, table_schemas
from sweeper.space.configurations import column_types
from sweeper.storage.mirror import Mirror, SharedFolder
from sweeper.storage.sweeps import Sweep
from sweeper.tables.writer import ParquetSink
from trainables.datasets.base import DataSet
from trainables.datasets.shifts import build_shift
from trainables.metrics.tokens import KEPT


def open_tables(sweep: Sweep, dataset: DataSet, mirror: Mirror | SharedFolder) -> ParquetSink:
    """Open the tables for writing; they hold nothing yet, or what an earlier driver wrote."""
    spec = sweep.spec
    measured = spec.evaluation
    own = [metric["name"] for metric in measured.metrics]
    detected = [name for shift in map(build_shift, measured.shifts) if shift.detected for name in shift.names]
    columns = evaluation_columns(measured.posthoc, own, spec.cross_fitted, [*measured.own_splits, *detected])
    trajectory = spec.evaluation.trajectory
    more = epoch_columns(None if trajectory is None else trajectory.model_dump())
    return ParquetSink(
        sweep.paths,
        table_schemas(
            column_types(spec.space),
            dataset.classes,
            columns,
            epoch_columns=more,
            rehearsal=spec.is_rehearsal,
            arithmetic=spec.training.settings.described,
            kept_logits=None if dataset.translation is None else min(KEPT, dataset.classes),
        ),
        [None] * len(sweep.configurations) if spec.searcher.learns else sweep.configurations,
        replicates=spec.replicates.count,
        sweep_seed=spec.seed,
        common_seeds=spec.replicates.common_seeds,
        arrivals=mirror.arrivals,
    )
