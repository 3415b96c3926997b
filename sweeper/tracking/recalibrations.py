"""Recalibrations as points of MLflow runs: metrics after a post-hoc method, at the epoch of the evaluation.

A point's time is when its file's rows were first written, and recalibrating to the same rows leaves the file alone: so
a point that is sent twice is the same point, and changed values are newer ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from sweeper.analysis.recalibration.request import method_label
from sweeper.core.ids import configuration_index
from sweeper.tables.recalibrations import RecalibrationPart
from sweeper.tracking.points import Point, mean_and_spread

METRICS = ("accuracy", "nll", "brier", "ece", "ada_ece", "mce", "cw_ece", "aurc")
"""What a post-hoc method can move; all other metrics are in the table."""

FITTED = ("temperature", "gamma")

LONGEST_KEY = 200
"""MLflow takes 250 characters; the metric and `_std` come after."""


def recalibration_points(part: RecalibrationPart) -> Iterator[tuple[int, list[Point]]]:
    """Yield (configuration, points) of one file: means over replicates and, of several, their `…_std`.

    Keys are `recalibrated_<method>_<options>_bins<n>/<split>_<metric>`, which MLflow's pages show as one group.
    """
    groups: dict[tuple[int, int, str], list[Mapping[str, Any]]] = {}
    prefix = ""
    for row in pq.read_table(part.path).to_pylist():
        prefix = prefix or _prefix(row["method"], json.loads(row["options"]), row["bins"])
        groups.setdefault((configuration_index(row["trial"]), row["epoch"], row["split"]), []).append(row)
    found: dict[int, list[Point]] = {}
    for (configuration, epoch, split), rows in groups.items():
        measured = [*mean_and_spread(rows, METRICS, f"{prefix}/{split}_", epoch)]
        if split == "val":
            measured += mean_and_spread(rows, FITTED, f"{prefix}/", epoch)
        points = found.setdefault(configuration, [])
        points += [Point(key, value, part.written, step) for key, value, step in measured]
    yield from found.items()


def _prefix(method: str, options: Mapping[str, Any], bins: int) -> str:
    """Return a name that MLflow allows: letters, digits, `_`, `-`, `.`, `:`, space and `/`."""
    words = method_label(method, options).replace("=", ":")
    return f"recalibrated_{re.sub(r'[^A-Za-z0-9_.:-]+', '_', words).strip('_')[:LONGEST_KEY]}_bins{bins}"
