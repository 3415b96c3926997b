"""Curves against the epoch, as mukhoti's Figs. 2, 3, 7 and 10 draw them, or another number: a picture a column."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.results import Results
from trainables.training.trajectory import TRAJECTORY_METRICS, TRAJECTORY_NORMS, WEIGHT_NORM

WIDTH, HEIGHT, LEFT, BOTTOM = 340, 200, 46, 24

COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a7ea4")


@dataclass(frozen=True)
class Curves:
    """One column against the epoch, or against what `axis` names.

    Attributes:
        sweep: where it comes from.
        column: of the table `epochs`.
        lines: loss → (epoch, mean over replicates).
        axis: what the values are drawn against.
    """

    sweep: str
    column: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    axis: str = "epoch"


def trajectories(results: Results) -> list[Curves]:
    """Return the trajectory columns of a sweep, a line for each loss; nothing where it has none. Raises QueryError."""
    trajectory = results.specification.get("evaluation", {}).get("trajectory")
    if not trajectory:
        return []
    there = set(results.columns("epochs"))
    wanted = [f"{split}_{name}" for split in trajectory["splits"] for name in (*TRAJECTORY_METRICS, *TRAJECTORY_NORMS)]
    columns = [name for name in (*wanted, WEIGHT_NORM) if name in there]
    means = ", ".join(f"avg({name}) AS {name}" for name in columns)
    gamma = "config_loss_gamma" if "config_loss_gamma" in results.columns("trials") else "NULL"
    rows = results.rows(
        f"SELECT config_loss_name || coalesce(' γ ' || format('{{:g}}', {gamma}::DOUBLE), '') AS loss, epoch, {means} "
        "FROM epochs JOIN trials USING (trial, replicate) WHERE status = 'completed' GROUP BY ALL ORDER BY loss, epoch"
    )
    found = []
    for column in columns:
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            epoch, value = row["epoch"], row[column]
            if isinstance(epoch, int) and isinstance(value, float) and value == value:
                lines.setdefault(str(row["loss"]), []).append((float(epoch), value))
        if lines:
            found.append(Curves(results.name, column, lines))
    return found


def drawn(curves: Curves) -> str:
    """Return curves as an HTML figure that needs no script."""
    points = [point for line in curves.lines.values() for point in line]
    (left, right), (low, high) = (_range([point[axis] for point in points]) for axis in (0, 1))

    def place(point: tuple[float, float]) -> str:
        x = LEFT + (WIDTH - LEFT - 6) * (point[0] - left) / (right - left)
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 8) * (point[1] - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    colours = dict(zip(curves.lines, COLOURS * len(curves.lines), strict=False))
    lines = [
        f"<polyline fill='none' stroke='{colours[name]}' stroke-width='1.5' points='{' '.join(map(place, line))}'/>"
        for name, line in curves.lines.items()
    ]
    keys = " ".join(f"<span style='color:{colour}'>{html.escape(name)}</span>" for name, colour in colours.items())
    axis = f"<path fill='none' stroke='#9a9aa2' d='M{LEFT},4 V{HEIGHT - BOTTOM} H{WIDTH - 4}'/>"
    marks = (
        f"<text x='{LEFT - 4}' y='14' text-anchor='end'>{high:.3g}</text>"
        f"<text x='{LEFT - 4}' y='{HEIGHT - BOTTOM}' text-anchor='end'>{low:.3g}</text>"
        f"<text x='{WIDTH - 6}' y='{HEIGHT - 8}' text-anchor='end'>{html.escape(curves.axis)} {right:g}</text>"
    )
    svg = (
        f"<svg width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' font-size='11' role='img'>"
        f"{axis}{marks}{''.join(lines)}</svg>"
    )
    title = f"{html.escape(curves.column)}, {html.escape(curves.sweep)}: {keys}"
    return f"<figure>{svg}<figcaption>{title}</figcaption></figure>"


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
