"""A figure that is computed and not trained: its rows, what is said about it, and its curves as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.text.cells import Row


@dataclass(frozen=True)
class MapFigure:
    """What a figure shows.

    Attributes:
        rows: one per point, the same columns in each.
        remarks: sentences: fitted lines and what the papers print.
        curves: label → (x, y) columns' values, for the picture.
        axes: names of the picture's axes.
    """

    rows: list[Row]
    remarks: list[str]
    curves: dict[str, tuple[list[float], list[float]]]
    axes: tuple[str, str]


def write_picture(figure: MapFigure, path: Path) -> None:
    """Draw the curves into one HTML file that opens offline. Raises SweeperError where it cannot be written."""
    import plotly.graph_objects as go

    drawn = go.Figure(
        [go.Scatter(x=x, y=y, name=label, mode="lines+markers") for label, (x, y) in figure.curves.items()]
    )
    for trace in drawn.data:
        trace.mode = "lines" if len(trace.x) > 30 else "lines+markers"
    drawn.update_layout(
        template="plotly_white",
        xaxis_title=figure.axes[0],
        yaxis_title=figure.axes[1],
        title={"text": "<br>".join(figure.remarks), "font": {"size": 12}, "y": 0.98, "yanchor": "top"},
        margin={"t": 50 + 18 * len(figure.remarks)},
    )
    try:
        path.write_text(drawn.to_html(include_plotlyjs=True), encoding="utf-8")
    except OSError as error:
        raise SweeperError(f"the picture cannot be written: {error}", "give --picture another path") from error
