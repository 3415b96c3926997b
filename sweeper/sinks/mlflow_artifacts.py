"""What is attached to a sweep's parent run: its tables, its report, the best trial's reliability diagram."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from sweeper.ids import RECALIBRATIONS, SweepPaths, trial_name
from sweeper.recalibration_table import recalibration_parts
from sweeper.state import SweepState
from trainables.trial_tables import write_parquet

TABLES = ("trials", "epochs", "evaluations", "decisions", "reliability")
"""The tables that are attached, a file each; predictions are large and stay in the results folder."""

_SIDE, _MARGIN = 360, 45


def artifacts(paths: SweepPaths, state: SweepState, mode: str, folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Make the files in `folder` and yield each with the artifact folder it belongs to.

    Args:
        paths: of the sweep.
        state: of its trials, to find the best.
        mode: `min` or `max`, of the objective.
        folder: for temporary files.
    """
    for table in (*TABLES, *([RECALIBRATIONS] if recalibration_parts(paths) else [])):
        source = ds.dataset(paths.tables / table, format="parquet")
        yield write_parquet(folder / f"{table}.parquet", source.schema, source.to_batches()), "tables"
    if paths.report.is_file():
        yield paths.report, None
    best = best_trial(state, mode)
    if best is not None:
        bins = reliability_of(paths, trial_name(best))
        if bins:
            target = folder / "reliability_diagram.svg"
            title = f"{trial_name(best)}, test split, mean of its replicates"
            target.write_text(reliability_diagram(bins, title), encoding="utf-8")
            yield target, None


def best_trial(state: SweepState, mode: str) -> int | None:
    """Return the trial that trained longest and, among those, has the best objective; `None` when there is none."""
    judged = [t for t in state.trials.values() if t.objective is not None and math.isfinite(t.objective)]
    sign = 1 if mode == "min" else -1
    best = min(judged, key=lambda t: (-t.epochs, sign * (t.objective or 0.0)), default=None)
    return None if best is None else best.configuration


def reliability_of(paths: SweepPaths, trial: str) -> list[dict[str, Any]]:
    """Return the bins of a trial's last evaluation on the test split, counted together over its replicates."""
    rows = ds.dataset(paths.tables / "reliability", format="parquet").to_table(
        filter=(pc.field("trial") == trial) & (pc.field("split") == "test")
    )
    lines = [row for row in rows.to_pylist() if row["epoch"] == pc.max(rows["epoch"]).as_py()]
    merged = []
    for number in sorted({line["bin"] for line in lines}):
        group = [line for line in lines if line["bin"] == number]
        n = sum(line["n"] for line in group)
        merged.append({"lower": group[0]["lower"], "upper": group[0]["upper"], "n": n})
        for column in ("confidence", "accuracy"):
            total = sum(line["n"] * line[column] for line in group if line["n"])
            merged[-1][column] = total / n if n else None
    return merged


def reliability_diagram(bins: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return a reliability diagram as SVG: accuracy against confidence, a bar a bin, the diagonal dashed."""

    def x(value: float) -> float:
        return _MARGIN + value * _SIDE

    def y(value: float) -> float:
        return _MARGIN + (1 - value) * _SIDE

    bars = [
        f'<rect x="{x(row["lower"]):.1f}" y="{y(row["accuracy"]):.1f}" width="{x(row["upper"]) - x(row["lower"]):.1f}" '
        f'height="{_SIDE * row["accuracy"]:.1f}" fill="#4477aa" fill-opacity="0.75" stroke="white">'
        f"<title>confidence {row['confidence']:.3f}, accuracy {row['accuracy']:.3f}, n {row['n']}</title></rect>"
        for row in bins
        if row["n"]
    ]
    size = _SIDE + 2 * _MARGIN
    ticks = [
        f'<text x="{x(t / 5):.1f}" y="{y(0) + 16:.1f}" text-anchor="middle">{t / 5:g}</text>'
        f'<text x="{x(0) - 6:.1f}" y="{y(t / 5) + 4:.1f}" text-anchor="end">{t / 5:g}</text>'
        for t in range(6)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{size}" height="{size}" fill="white"/>',
            f'<rect x="{x(0)}" y="{y(1)}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#999999"/>',
            *bars,
            f'<line x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}" stroke="#333333" stroke-dasharray="5 4"/>',
            *ticks,
            f'<text x="{size / 2}" y="{_MARGIN - 20}" text-anchor="middle" font-size="13">{title}</text>',
            f'<text x="{size / 2}" y="{size - 8}" text-anchor="middle">confidence</text>',
            f'<text transform="translate(14 {size / 2}) rotate(-90)" text-anchor="middle">accuracy</text>',
            "</svg>",
        ]
    )
