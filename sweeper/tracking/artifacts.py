"""Artifacts of a sweep's parent run: tables, report, the best trial's reliability diagram."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds

from sweeper.core.ids import RECALIBRATIONS, SweepPaths, trial_name
from sweeper.journal.best import Judging, best_trial, best_words
from sweeper.journal.state import SweepState
from sweeper.tables.recalibrations import recalibration_parts
from sweeper.tracking.diagrams import DIAGRAM, SPLIT, Bins, merged, reliability_diagram, said_of
from trainables.worker.trial_tables import write_parquet

TABLES = ("trials", "epochs", "evaluations", "decisions", "reliability")
"""The attached tables, one file each; predictions are large and stay in the results folder."""


def artifacts(
    paths: SweepPaths, state: SweepState, judging: Judging, folder: Path
) -> Iterator[tuple[Path, str | None]]:
    """Make the files in `folder` and yield each with the artifact folder it belongs to.

    Args:
        paths: of the sweep.
        state: of its trials, to find the best.
        judging: the scheduler, which says what is better.
        folder: for temporary files.
    """
    for table in (*TABLES, *([RECALIBRATIONS] if recalibration_parts(paths) else [])):
        source = ds.dataset(paths.tables / table, format="parquet")
        yield write_parquet(folder / f"{table}.parquet", source.schema, source.to_batches()), "tables"
    if paths.report.is_file():
        yield paths.report, None
    best = best_trial(state, judging)
    if best is not None:
        name = trial_name(best.configuration)
        bins = reliability_of(paths, name)
        if bins:
            target = folder / DIAGRAM
            target.write_text(reliability_diagram(bins, f"{name}, the {best_words(best)}", said_of(bins)), "utf-8")
            yield target, None


def reliability_of(paths: SweepPaths, trial: str) -> Bins:
    """Return the bins of a trial's last evaluation on the test split, counted together over its replicates."""
    rows = ds.dataset(paths.tables / "reliability", format="parquet").to_table(
        filter=(pc.field("trial") == trial) & (pc.field("split") == SPLIT)
    )
    return merged([row for row in rows.to_pylist() if row["epoch"] == pc.max(rows["epoch"]).as_py()])
