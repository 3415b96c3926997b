"""Scatter traces shared by the figures: colour by architecture, marker by status, error bars by replicates."""

from __future__ import annotations

from collections.abc import Sequence

from plotly.basedatatypes import BaseTraceType

from sweeper.reporting.figure_parts.configurations import gamma_axis, rank_correlations
from sweeper.reporting.figure_parts.figure import (
    Axis,
    Panel,
    colour,
    marker,
    plot,
    scatter_type,
    statuses,
    symbol,
    tagged,
    thinned,
)  # fmt: skip
from sweeper.text.cells import Row, Rows, float_of, text_of
from sweeper.text.labels import STATUS_WORDS, label, number

ERROR_BARS_UP_TO = 300
"""Points above which error bars only blacken the plot; the hover text still has them."""


def configuration_traces(
    rows: Rows, x: str, y: str, architectures: Sequence[str], *, connect: bool = False, shape: str = ""
) -> list[BaseTraceType]:
    """Return one trace an architecture and status: mean against mean, with standard deviations.

    Args:
        rows: one per configuration, with `trial status epoch architecture replicates` and the columns x and y.
        x: column of the abscissa.
        y: column of the ordinate; `<y>_sd` gives its error bar.
        architectures: all categories, in the order of their colours.
        connect: draw a line through finished trials where each x occurs once, as in a grid.
        shape: `square` for what stands apart; by default the status's marker.
    """
    kind = scatter_type(len(rows))
    traces: list[BaseTraceType] = []
    for status in reversed(statuses(rows)):
        for index, architecture in enumerate(architectures):
            mine = sorted(
                (r for r in rows if r["status"] == status and str(r["architecture"]) == architecture),
                key=lambda row: float_of(row, x),
            )
            if not mine:
                continue
            distinct = len({row[x] for row in mine}) == len(mine) > 2
            line = connect and status == "completed" and distinct and len(mine) <= 30
            traces.append(
                kind(
                    x=[row[x] for row in mine],
                    y=[row[y] for row in mine],
                    mode="lines+markers" if line else "markers",
                    name=f"{architecture}, {STATUS_WORDS[status]}",
                    meta=tagged(status, architecture),
                    marker=marker(index, symbol(status, shape)),
                    line={"color": colour(index), "width": 1.2, "dash": "dot"},
                    opacity=1.0 if status == "completed" else 0.65,
                    text=[hover(row, x, y) for row in mine],
                    hovertemplate="%{text}<extra></extra>",
                    **error_bars(mine, y, index, len(rows)),
                )
            )
    return traces


def gamma_panel(
    heading: str, rows: Rows, zero: Rows, column: str, architectures: Sequence[str], y: Axis, *, line: bool = False
) -> Panel:
    """Return a column against γ, with its rank correlations below.

    Args:
        heading: of the panel.
        rows: configurations with a γ and the column.
        zero: those of cross-entropy, drawn as squares at γ = 0.
        column: the ordinate.
        architectures: as of `configuration_traces`.
        y: its axis.
        line: draw a line through finished trials.
    """
    (squares, fewer), (points, few) = thinned(zero), thinned(rows)
    traces = [
        *configuration_traces(squares, "gamma", column, architectures, shape="square"),
        *configuration_traces(points, "gamma", column, architectures, connect=line),
    ]
    remarks = [*rank_correlations(rows, "gamma", column), *few, *(f"At γ = 0: {remark}" for remark in fewer)]
    return Panel(heading, remarks, plot(traces, gamma_axis(rows), y), points=len(rows))


def error_bars(mine: Rows, y: str, index: int, points: int) -> dict[str, object]:
    """Return the error bars' arguments: standard deviations over replicates, where they can be read."""
    if points > ERROR_BARS_UP_TO or mine[0]["status"] != "completed":
        return {}
    style = {"color": colour(index), "thickness": 1, "width": 2}
    return {"error_y": {"type": "data", "array": [row[f"{y}_sd"] or 0 for row in mine], **style}}


def hover(row: Row, x: str, y: str) -> str:
    """Return what a point says of itself."""
    family = f"{row['loss']}" + (f" γ {number(row['gamma'])}" if row.get("gamma") is not None else "")
    lines = [
        f"<b>{row['trial']}</b> {family} · {row['architecture']}",
        f"{STATUS_WORDS[text_of(row, 'status')]}, epoch {row['epoch']}, n = {row['replicates']}",
        *(f"{label(name)} {with_deviation(row, name)}" for name in (x, y) if name != "gamma"),
    ]
    return "<br>".join(lines)


def with_deviation(row: Row, name: str) -> str:
    """Return a mean and its standard deviation in three digits."""
    deviation = row.get(f"{name}_sd")
    return number(row[name]) + (f" ± {number(deviation)}" if deviation is not None else "")
