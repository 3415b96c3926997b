"""The structure and the style of the report's figures.

Colours are written as CSS variables (`var(--series-1)`); the page resolves them when it draws, so one figure serves
light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType

from sweeper.analysis.statistics.basics import MINIMUM_PAIRS
from sweeper.results import Results
from sweeper.text.cells import Row, Rows
from sweeper.text.labels import STATUS_WORDS, plural

AnyRow = TypeVar("AnyRow", bound=Row)

Axis = dict[str, object]
"""An axis, or a shape or note on one, as plotly expects it."""

SERIES = 8
"""Colours of the categorical palette in page.css; a ninth category starts again with the first."""

LOG_LABELS = ((0.5, (1, 1.5, 2, 3, 4, 5, 6, 8)), (1.2, (1, 2, 3, 5)), (2.2, (1, 2, 5)), (3.2, (1, 3)))
"""Multiples of powers of ten that are labelled on a logarithmic axis, by how many powers of ten it spans at most."""

SYMBOLS = {"completed": "circle", "early_stopped": "circle-open", "failed": "x-thin-open"}
"""Marker by status; whatever has not ended is drawn as OTHER_SYMBOL."""
OTHER_SYMBOL = "diamond-open"

MOST_POINTS = 1000
"""Points of trials that did not finish, drawn a panel at most: more cover each other, and take seconds to draw."""


@dataclass(frozen=True)
class Panel:
    """One plot of a figure.

    Attributes:
        heading: above the plot; may be empty.
        remarks: sentences below it.
        plot: the plot.
        width: pixels it needs at least; where there are fewer it scrolls sideways. 0 takes what there is.
        points: configurations that it compares, where few of them say nothing; None where any number does.
    """

    heading: str
    remarks: Sequence[str]
    plot: go.Figure
    width: int = 0
    points: int | None = None


@dataclass(frozen=True)
class Figure:
    """A figure with everything that a reader needs to trust it.

    Attributes:
        key: an identifier, unique in the report; also the anchor.
        title: the heading.
        caption: one sentence that says what is shown, with n.
        findings: sentences that say what it shows here, for the top of the report.
        sql: the queries whose rows are drawn.
        panels: the plots, side by side where there is room.
        tables: the tables that the queries read.
        legend: categories in the order of their colours; the statuses drawn are added by `statuses`.
        statuses: statuses of the trials drawn.
        folded: sentences on panels that are not drawn.
    """

    key: str
    title: str
    caption: str
    sql: Sequence[str]
    panels: Sequence[Panel]
    tables: Sequence[str] = ("evaluations", "trials")
    findings: Sequence[str] = ()
    legend: Sequence[str] = ()
    statuses: Sequence[str] = ()
    folded: Sequence[str] = ()


def folded(figure: Figure | None, absent: str) -> Figure | str:
    """Return a figure without the panels that have too few points to say anything, or a sentence if none is left.

    Args:
        figure: as drawn, None where it does not apply.
        absent: what to say then.
    """
    if figure is None:
        return absent
    few = [panel for panel in figure.panels if panel.points is not None and panel.points < MINIMUM_PAIRS]
    if not few:
        return figure
    counts = "; ".join(
        f"{panel.heading or figure.title}: {plural(panel.points or 0, 'configuration')}" for panel in few
    )
    if len(few) == len(figure.panels):
        return f"{figure.title}: too few configurations, at least {MINIMUM_PAIRS} are needed ({counts})."
    kept = [panel for panel in figure.panels if panel not in few]
    sentence = f"Not drawn, fewer than {MINIMUM_PAIRS} configurations: {counts}."
    return replace(figure, panels=kept, folded=[sentence])


class FigureModule(Protocol):
    """A file of `figures/`: what it draws, and what to say where there is nothing to draw."""

    ABSENT: str

    def draw(self, results: Results) -> Figure | None:
        """Return the figure, or None where it does not apply to this sweep."""


def colour(index: int) -> str:
    """Return the colour of category number `index`."""
    return f"var(--series-{index % SERIES + 1})"


def categories(rows: Iterable[Row], column: str) -> list[str]:
    """Return the values of `column`, sorted, so that a category keeps its colour from figure to figure."""
    return sorted({str(row[column]) for row in rows})


def statuses(rows: Iterable[Row]) -> list[str]:
    """Return the statuses among rows, finished ones first."""
    order = list(STATUS_WORDS)
    return sorted({str(row["status"]) for row in rows}, key=order.index)


def counted(rows: Rows, noun: str = "configuration") -> str:
    """Return e.g. `14 configurations (5 finished, 9 stopped early)`."""
    parts = [f"{sum(row['status'] == s for row in rows)} {STATUS_WORDS[s]}" for s in statuses(rows)]
    return f"{plural(len(rows), noun)} ({', '.join(parts)})"


def symbol(status: str, shape: str = "") -> str:
    """Return the marker of a status; `shape` takes the circle's place."""
    return SYMBOLS.get(status, OTHER_SYMBOL).replace("circle", shape or "circle")


def marker(index: int, shape: str, size: float = 8) -> dict[str, object]:
    """Return the marker of category number `index`."""
    return {"color": colour(index), "size": size, "symbol": shape, "line": {"width": 1.4, "color": colour(index)}}


def scatter_type(points: int) -> type[go.Scatter] | type[go.Scattergl]:
    """Return the SVG scatter for few points and the WebGL one for many.

    SVG prints and works everywhere; above some thousand points it becomes slow (plotly's own advice is 1,000 or more).
    """
    chosen: type[go.Scatter] | type[go.Scattergl] = go.Scattergl if points > 4000 else go.Scatter
    return chosen


def thinned(rows: Sequence[AnyRow]) -> tuple[list[AnyRow], list[str]]:
    """Return the points to draw, and a remark where not all are: every finished one, and MOST_POINTS of the others.

    They are chosen evenly, in the order of `rows`; what is computed from all of them is computed from all of them.
    """
    others = [at for at, row in enumerate(rows) if row["status"] != "completed"]
    if len(others) <= MOST_POINTS:
        return list(rows), []
    left_out = set(others) - {others[at * (len(others) - 1) // (MOST_POINTS - 1)] for at in range(MOST_POINTS)}
    shown = [row for at, row in enumerate(rows) if at not in left_out]
    return shown, [
        f"Evenly thinned: {MOST_POINTS:,} of {len(others):,} unfinished points are drawn; statistics use all."
    ]


def tagged(status: str, group: str = "") -> dict[str, str]:
    """Return the tags by which the page's filters find a trace."""
    return {"status": status, "group": group}


def axis(title: str, **more: object) -> Axis:
    """Return an axis in the report's style."""
    style: Axis = {
        "title": {"text": title, "standoff": 8, "font": {"size": 12}},
        "gridcolor": "var(--grid)", "linecolor": "var(--axis)", "zeroline": False, "ticks": "outside", "ticklen": 4,
        "tickcolor": "var(--axis)", "showline": True, "automargin": True, "tickfont": {"size": 11},
    }  # fmt: skip
    return style | more


def log_axis(title: str, values: Iterable[float | None], **more: object) -> Axis:
    """Return a logarithmic axis for positive values, with round labels: 1, 2, 5 or finer, by how far they range."""
    ticks = log_ticks(values)
    return axis(title, type="log", tickvals=[at for at, _ in ticks], ticktext=[text for _, text in ticks], **more)


def log_ticks(values: Iterable[float | None]) -> list[tuple[float, str]]:
    """Return the ticks of a logarithmic axis for positive values, each with its label."""
    logs = [math.log10(value) for value in values if value is not None and value > 0] or [0.0]
    low, high = min(logs), max(logs)
    multiples = next((m for limit, m in LOG_LABELS if high - low <= limit), (1,))
    ticks = [m * 10.0**e for e in range(math.floor(low) - 1, math.ceil(high) + 2) for m in multiples]
    return [(tick, f"{tick:,.6g}" if 1e-4 <= tick < 1e6 else f"{tick:.0e}") for tick in ticks]


def plot(
    traces: Sequence[BaseTraceType], x: Mapping[str, object], y: Mapping[str, object], **layout: object
) -> go.Figure:
    """Return a plot in the report's style."""
    return go.Figure(
        data=list(traces),
        layout={
            "template": "none",
            "paper_bgcolor": "var(--card)",
            "plot_bgcolor": "var(--card)",
            "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "color": "var(--soft)"},
            "margin": {"l": 52, "r": 14, "t": 10, "b": 44},
            "showlegend": False,
            "hovermode": "closest",
            "hoverlabel": {"font": {"size": 12}, "align": "left"},
            "xaxis": dict(x),
            "yaxis": dict(y),
            **layout,
        },
    )
