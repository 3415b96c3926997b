"""What a trial's report says of its replicates: the value that is judged, and which of them diverged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

NON_FINITE, TIMED_OUT = "non_finite", "timed_out"
"""The kinds of failure that a trial finds in itself."""


def non_finite(rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return the replicates that diverged in an epoch, with one sentence each."""
    found: dict[int, str] = {}
    for row in rows:
        number, epoch = row["replicate"], row["epoch"]
        for column in ("train_loss", "val_nll"):
            if not math.isfinite(row[column]):
                found.setdefault(number, f"{column} of replicate {number} is {row[column]} in epoch {epoch}")
    return found


def mean_objective(
    metric: str, epoch_rows: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
) -> float | None:
    """Return the mean over replicates of the judged metric at the last epoch; `None` where it was not measured."""
    last = max(row["epoch"] for row in epoch_rows)
    values = [row[metric] for row in epoch_rows if row["epoch"] == last and metric in row]
    if not values:
        split, _, name = metric.partition("_")
        values = [row[name] for row in evaluations if row["split"] == split and name in row]
    return math.fsum(values) / len(values) if values else None
