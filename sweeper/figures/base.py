"""What a figure is: panels of curves, bars or heat maps with axes, a caption, and the queries behind it.

A figure says what is drawn and nothing of how: `on_page` makes it interactive, `on_paper` makes it PDF, SVG or PNG.
Adding one to the report: a file of this folder, found there by its place, such as

    @FIGURES.add("trials_by_status", place=160, absent="Trials by status: there are none.")
    def draw(results: Results) -> Figure | None:
        sql = "SELECT status, count(*) AS n FROM trials GROUP BY 1 ORDER BY 1"
        rows = results.rows(sql)
        bars = Bars([row["status"] for row in rows], [row["n"] for row in rows])
        panel = Panel("trials", [], [bars], Axis("status", names=True), Axis("trials"))
        return Figure("trials-by-status", "Trials by status", "Trials of the sweep.", [sql], [panel], ["trials"])

`draw` returns None where the figure does not apply to a sweep. It imports this module, what asks tables and statistics;
never the page. Colours are numbers of categories, or names of the palette in page.css.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sweeper.analysis.statistics.basics import MINIMUM_PAIRS
from sweeper.text.cells import Value
from sweeper.text.labels import plural
from trainables.registry import Component, Registry

Values: TypeAlias = Sequence[Value]
#: The number of a category, or a name of the palette: `ink`, `soft`, `axis`, `shade`.
Colour: TypeAlias = int | str
#: How far the bars reach below and above each value.
Errors: TypeAlias = tuple[Sequence[float], Sequence[float]]

#: Colours of the categorical palette in page.css; a ninth category starts again with the first.
SERIES = 8

#: Multiples of powers of ten that are labelled on a logarithmic axis, by how many powers of ten it spans at most.
LOG_LABELS = ((0.5, (1, 1.5, 2, 3, 4, 5, 6, 8)), (1.2, (1, 2, 3, 5)), (2.2, (1, 2, 5)), (3.2, (1, 3)))


@dataclass(frozen=True)
class Axis:
    """An axis of a panel.

    Attributes:
        title: its label, HTML.
        log: whether it is logarithmic.
        names: whether its values are names, in the order in which they come.
        ticks: what is labelled, value → label; chosen by whoever draws it if empty.
        step: between labels, in place of `ticks`.
        limits: what it shows; all there is if unset.
        from_zero: whether it begins at 0.
    """

    title: str
    log: bool = False
    names: bool = False
    ticks: Mapping[float, str] = field(default_factory=dict)
    step: float | None = None
    limits: tuple[float, float] | None = None
    from_zero: bool = False


@dataclass(frozen=True)
class Scale:
    """The values between which colours go; the best is darkest, which is the lowest unless `reversed`.

    Where `signed`, below and above the middle have colours of their own, and the middle, 0, has none.
    """

    low: float
    high: float
    reversed: bool = False
    signed: bool = False


@dataclass(frozen=True)
class Curve:
    """A line, points, or both.

    Attributes:
        x, y: where; None or NaN parts a line.
        colour: of both.
        line: width of the line in pixels; 0 for none.
        dash: `dot`, `dash` or `dashdot`; solid if empty.
        steps: whether the line keeps each value until the next.
        fill: whether the line closes an area, which is drawn in place of it.
        size: of the points in pixels; 0 for none.
        symbol: plotly's name of their shape.
        opacity: of all of it.
        values: colour the points by the panel's scale, in place of `colour`.
        error_x, error_y: error bars.
        text: of each point, for `hover`.
        hover: what a point says, plotly's template; nothing if empty.
        name: for readers of the page's source.
        status, group: by which the page's filters find it.
    """

    x: Values
    y: Values
    colour: Colour = 0
    line: float = 0
    dash: str = ""
    steps: bool = False
    fill: bool = False
    size: float = 0
    symbol: str = "circle"
    opacity: float = 1
    values: Sequence[float] = ()
    error_x: Errors | None = None
    error_y: Errors | None = None
    text: Values = ()
    hover: str = "%{text}"
    name: str = ""
    status: str = ""
    group: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars from 0, upright or, if `lying`, sideways; as wide as `widths` say, with `labels`, and `hover` of a curve."""

    places: Values
    lengths: Sequence[float]
    lying: bool = False
    widths: Sequence[float] = ()
    colour: Colour = 0
    errors: Sequence[float] = ()
    text: Values = ()
    hover: str = "%{text}"
    group: str = ""
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class HeatMap:
    """A value for each pair of two settings, [rows][columns], coloured by the panel's scale; `text` is for `hover`."""

    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float | None]]
    text: Sequence[Sequence[str]]
    hover: str
    status: str = "completed"


@dataclass(frozen=True)
class Dimension:
    """An axis of parallel coordinates: its label, the lines' places on it, what it shows, and its ticks."""

    label: str
    places: Sequence[float]
    limits: tuple[float, float]
    ticks: Mapping[float, str]


@dataclass(frozen=True)
class Parallel:
    """Parallel coordinates: a line through all dimensions for each row; drawn on the page only.

    Attributes:
        dimensions: from left to right.
        ranks: of the rows, 0 the best, by which they are coloured.
        statuses: of the rows.
        trials: of the rows.
        margin: pixels left of the first dimension, for its labels.
    """

    dimensions: Sequence[Dimension]
    ranks: Sequence[int]
    statuses: Sequence[str]
    trials: Sequence[str]
    margin: int


Mark: TypeAlias = Curve | Bars | HeatMap | Parallel


@dataclass(frozen=True)
class Panel:
    """One plot of a figure.

    Attributes:
        heading: above the plot; may be empty.
        remarks: sentences below it.
        marks: what is drawn, the last on top.
        x, y: the axes; None where there are none, as of parallel coordinates, and over a triangle of probabilities.
        scale: of the colours that stand for values.
        verticals: values of x at which a line is drawn from top to bottom, with their labels.
        corners: of the triangle, (x, y) → label.
        width: pixels it needs at least; where there are fewer it scrolls sideways. 0 takes what there is.
        points: configurations that it compares, where few of them say nothing; None where any number does.
    """

    heading: str
    remarks: Sequence[str]
    marks: Sequence[Mark]
    x: Axis | None = None
    y: Axis | None = None
    scale: Scale | None = None
    verticals: Mapping[float, str] = field(default_factory=dict)
    corners: Mapping[tuple[float, float], str] = field(default_factory=dict)
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
        dashes: what lines that are drawn in different ways stand for, dash → words.
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
    dashes: Mapping[str, str] = field(default_factory=dict)
    folded: Sequence[str] = ()


@dataclass(frozen=True)
class ReportFigure(Component):
    """A figure of the report: `build` is its `draw(results)`.

    Attributes:
        place: in the report; the smallest comes first.
        absent: what to say where there is nothing to draw.
        aliases: other names that `sweeper figure` takes.
    """

    place: int = 0
    absent: str = ""
    aliases: tuple[str, ...] = ()


#: The report's figures by the names that `sweeper figure` takes.
FIGURES = Registry("figure", None, ReportFigure, ["results"])


def report_figures() -> list[ReportFigure]:
    """Return the figures in the order of the report."""
    found = [each for each in FIGURES.values() if isinstance(each, ReportFigure)]
    return sorted(found, key=lambda each: each.place)


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


def error_bars(middles: Sequence[float], intervals: Sequence[tuple[float, float] | None]) -> Errors:
    """Return error bars that reach from each of some values to the ends of its interval; no bar where it is None."""
    ends = [(middle, middle) if pair is None else pair for middle, pair in zip(middles, intervals, strict=True)]
    below = [middle - low for middle, (low, _) in zip(middles, ends, strict=True)]
    return below, [high - middle for middle, (_, high) in zip(middles, ends, strict=True)]


def log_axis(title: str, values: Iterable[float | None], limits: tuple[float, float] | None = None) -> Axis:
    """Return a logarithmic axis for positive values, with round labels: 1, 2, 5 or finer, by how far they range."""
    return Axis(title, log=True, ticks=log_ticks(values), limits=limits)


def log_ticks(values: Iterable[float | None]) -> dict[float, str]:
    """Return the ticks of a logarithmic axis for positive values, each with its label."""
    logs = [math.log10(value) for value in values if value is not None and 0 < value < math.inf] or [0.0]
    low, high = min(logs), max(logs)
    multiples = next((m for limit, m in LOG_LABELS if high - low <= limit), (1,))
    ticks = [m * 10.0**e for e in range(math.floor(low) - 1, math.ceil(high) + 2) for m in multiples]
    return {tick: f"{tick:,.6g}" if 1e-4 <= tick < 1e6 else f"{tick:.0e}" for tick in ticks}
