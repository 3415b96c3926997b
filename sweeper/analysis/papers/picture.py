"""A figure that is computed and not trained: its rows, what is said about it, and its curves as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.core.errors import SweeperError, writing_to
from sweeper.text.cells import Row

Points = tuple[list[float], list[float]]

CORNERS = ((0.0, 0.0, "class 1"), (1.0, 0.0, "class 2"), (0.5, 0.866, "class 3"))
"""Of the triangle of three classes' probabilities."""

FORMATS = (".html", ".png", ".svg", ".pdf")


@dataclass(frozen=True)
class MapFigure:
    """What a figure shows.

    Attributes:
        rows: one per point, the same columns in each.
        remarks: sentences: fitted lines and what the papers print.
        curves: label → (x, y) columns' values, for the picture; not-a-number parts a curve.
        axes: names of the picture's axes.
        triangle: whether it is drawn over the probabilities of three classes.
        ends: label → points that mark where a curve's parts lead.
        shaded: label → (x, y, value) of points drawn by colour, a panel each.
        limits: of the picture's y axis, for curves that leave it; the whole of them if unset.
    """

    rows: list[Row]
    remarks: list[str]
    curves: dict[str, Points]
    axes: tuple[str, str]
    triangle: bool = False
    ends: Mapping[str, Points] = field(default_factory=dict)
    shaded: Mapping[str, tuple[list[float], list[float], list[float]]] = field(default_factory=dict)
    limits: tuple[float, float] | None = None


COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a7ea4", "#e16f24", "#6e7781")
STYLES = (("-", "solid"), ("--", "dash"), (":", "dot"), ("-.", "dashdot"))
"""matplotlib's and plotly's names."""

FEW_POINTS = 15
"""Up to so many points of a curve are marked."""


def looks(labels: Sequence[str]) -> dict[str, tuple[str, tuple[str, str]]]:
    """Return colour and style of each curve by its label `what, which`: the part with more values has the colours."""
    parts = {label: label.rpartition(", ")[::2] for label in labels}
    values = [list(dict.fromkeys(pair[side] for pair in parts.values())) for side in (0, 1)]
    coloured = int(len(values[1]) > len(values[0]))
    return {
        label: (
            COLOURS[values[coloured].index(pair[coloured]) % len(COLOURS)],
            STYLES[values[1 - coloured].index(pair[1 - coloured]) % len(STYLES)],
        )
        for label, pair in parts.items()
    }


def write_picture(figure: MapFigure, path: Path) -> None:
    """Draw the curves: into one HTML file that opens offline, or as PNG, SVG or PDF by the path's suffix.

    Raises:
        SweeperError: another suffix, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise SweeperError(f"pictures cannot be written as {path.suffix or 'files without a suffix'!s}", _REMEDY)
    with writing_to(path, "give --picture another path"):
        if path.suffix.lower() == ".html":
            path.write_text(_page(figure), encoding="utf-8")
        else:
            _draw(figure, path)


_REMEDY = f"give --picture a path that ends in {', '.join(FORMATS)}"


def _page(figure: MapFigure) -> str:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels = len(figure.shaded) or 1
    drawn = make_subplots(1, panels, subplot_titles=[*figure.shaded] if panels > 1 else None)
    look = looks([*figure.curves])
    for label, (x, y) in figure.curves.items():
        mode = "lines" if len(x) > FEW_POINTS else "lines+markers"
        line = {"color": look[label][0], "dash": look[label][1][1], "width": 1.5}
        drawn.add_trace(go.Scatter(x=x, y=y, name=label, mode=mode, line=line, legendgroup=label), 1, 1)
    dots: dict[str, object]
    for label, (x, y) in figure.ends.items():
        dots = {"size": 5, "color": look[label][0]}
        drawn.add_trace(go.Scatter(x=x, y=y, mode="markers", marker=dots, legendgroup=label, showlegend=False), 1, 1)
    for place, (label, (x, y, value)) in enumerate(figure.shaded.items(), start=1):
        dots = {"color": value, "coloraxis": "coloraxis", "size": 6, "symbol": "hexagon"}
        drawn.add_trace(go.Scatter(x=x, y=y, name=label, mode="markers", marker=dots, showlegend=False), 1, place)
    drawn.update_layout(
        template="plotly_white",
        title={"text": "<br>".join(figure.remarks), "font": {"size": 12}, "y": 0.98, "yanchor": "top"},
        margin={"t": 50 + 18 * len(figure.remarks)},
        coloraxis={"colorscale": "Viridis"},
    )
    drawn.update_xaxes(title=figure.axes[0])
    drawn.update_yaxes(title=figure.axes[1], range=figure.limits)
    if figure.triangle:
        drawn.update_xaxes(visible=False, range=[-0.1, 1.1])
        drawn.update_yaxes(visible=False, range=[-0.08, 0.95])
        for place in range(1, panels + 1):
            drawn.update_yaxes(scaleanchor="x" if place == 1 else f"x{place}", row=1, col=place)
            x, y = _outline()
            edge = {"color": "#9a9aa2", "width": 1}
            drawn.add_trace(go.Scatter(x=x, y=y, mode="lines", line=edge, showlegend=False), 1, place)
            for x_of, y_of, name in CORNERS:
                drawn.add_annotation(
                    x=x_of, y=y_of, text=name, yshift=12 if y_of else -12, showarrow=False, row=1, col=place
                )
    return str(drawn.to_html(include_plotlyjs=True))


def _outline() -> Points:
    """Return the triangle's sides."""
    closed = (*CORNERS, CORNERS[0])
    return [x for x, _, _ in closed], [y for _, y, _ in closed]


def _draw(figure: MapFigure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = len(figure.shaded) or 1
    drawn = Figure(figsize=(6.4 * panels + 1.6, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.subplots(1, panels, squeeze=False)[0]
    look = looks([*figure.curves])
    for label, (x, y) in figure.curves.items():
        colour, (style, _) = look[label]
        marker = "" if len(x) > FEW_POINTS else "o"
        axes[0].plot(x, y, label=label, color=colour, linestyle=style, linewidth=1.2, marker=marker)
    for label, (x, y) in figure.ends.items():
        axes[0].plot(x, y, linestyle="", marker="o", markersize=3, color=look[label][0])
    for axis, (label, (x, y, value)) in zip(axes, figure.shaded.items(), strict=False):
        points = axis.scatter(x, y, c=value, s=9, marker="h")
        axis.set_title(label)
        drawn.colorbar(points, ax=axis)
    for axis in axes:
        _frame(axis, figure)
    if figure.curves:
        drawn.legend(loc="outside right upper", fontsize=7, frameon=False)
    drawn.suptitle("\n".join(textwrap.fill(each, 90 * panels) for each in figure.remarks), fontsize=7)
    drawn.savefig(path)


def _frame(axis: Any, figure: MapFigure) -> None:
    if not figure.triangle:
        axis.set_xlabel(figure.axes[0])
        axis.set_ylabel(figure.axes[1])
        axis.set_ylim(figure.limits)
        return
    axis.set_axis_off()
    axis.set_aspect("equal")
    axis.plot(*_outline(), color="#9a9aa2", linewidth=0.8)
    for x_of, y_of, name in CORNERS:
        axis.annotate(name, (x_of, y_of), (0, 5 if y_of else -10), textcoords="offset points", ha="center", fontsize=8)
