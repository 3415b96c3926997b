"""What a figure is: panels, each a Vega-Lite chart with the rows that it draws, a caption, and the queries behind it.

`drawing` completes charts with a theme; the page draws them interactively, `on_paper` as PDF, SVG or PNG.
Adding one to the report: a file of this folder, found there by its place, such as

    @FIGURES.add("trials_by_status", place=160, absent="Trials by status: there are none.")
    def draw(results: Results) -> Figure | None:
        sql = "SELECT status, count(*) AS n FROM trials GROUP BY 1 ORDER BY 1"
        bars = mark("bar", results.rows(sql))
        panel = Panel("trials", [bars], names("status"), quantity("n", "trials"))
        return Figure("trials-by-status", "Trials by status", "Trials of the sweep.", [sql], [panel], ["trials"])

`draw` returns None where the figure does not apply to a sweep. It imports this module, what asks tables and statistics;
never the page. A row's `says` is its tooltip; rows with a `trial` open it when they are clicked, and the page's filters
hide rows by `status` and by what their colour stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from sweeper.core.cells import Row
from sweeper.core.labels import STATUS_WORDS, plural
from sweeper.core.statistics.basics import MINIMUM_PAIRS
from trainables.registry import Component, Registry

#: A part of a Vega-Lite specification: https://vega.github.io/vega-lite/docs/.
Json: TypeAlias = dict[str, object]
#: What a layer draws: its rows, of which only the columns that it encodes reach the page.
Data: TypeAlias = Sequence[Mapping[str, object]]

Channel: TypeAlias = Json | list[Json] | None

#: Shapes as SVG paths over [−1, 1]; rings have a hole, so that one colour channel serves full and hollow marks.
RING = "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0ZM.62,0A.62,.62,0,1,0,-.62,0A.62,.62,0,1,0,.62,0Z"
FRAME = "M-.9,-.9H.9V.9H-.9ZM-.55,-.55V.55H.55V-.55Z"
_LOZENGE = "M0,-1.2L1.2,0L0,1.2L-1.2,0ZM0,-.7L-.7,0L0,.7L.7,0Z"
_CROSS = "M-1,-.7L-.7,-1L0,-.3L.7,-1L1,-.7L.3,0L1,.7L.7,1L0,.3L-.7,1L-1,.7L-.3,0Z"

#: The shape of a point by its trial's status.
SHAPES = {**dict.fromkeys(STATUS_WORDS, _LOZENGE), "completed": "circle", "early_stopped": RING, "failed": _CROSS}
DONE = "datum.status == 'completed'"

#: Below the most opaque points: what did not finish, and what lies outside a range that was brushed.
FAINT = 0.6


def quantity(
    column: str, title: str = "", *, log: bool = False, zero: bool = False, limits: tuple[float, float] | None = None,
    step: float | None = None,
) -> Json:  # fmt: skip
    """Return a channel of numbers.

    Args:
        column: of the rows.
        title: of the axis.
        log: whether the scale is logarithmic; what is not above 0 is not drawn.
        zero: whether it begins at 0.
        limits: what it shows, exactly; what lies outside is cut off. All there is if unset.
        step: between labels.
    """
    scale: Json = {"zero": zero} if limits is None else {"domain": [*limits]}
    scale |= {"nice": False} if limits or not zero else {}
    scale |= {"padding": 10} if limits is None and not zero else {}
    axis: Json = {"format": ",.6~g", "tickCount": 8} if log else {}
    if step is not None and limits is not None:
        axis["values"] = [round(step * at, 9) for at in range(int(limits[1] / step + 1e-9) + 1)]
    return {"field": column, "type": "quantitative", "title": title or None, "axis": axis,
            "scale": {"type": "log", "nice": False, **scale} if log else scale}  # fmt: skip


def unseen(column: str, limits: tuple[float, float]) -> Json:
    """Return a channel of numbers whose axis is not drawn."""
    scale = {"domain": [*limits], "nice": False, "zero": False}
    return {"field": column, "type": "quantitative", "axis": None, "scale": scale}


def names(column: str, title: str = "", order: Iterable[object] | None = None) -> Json:
    """Return a channel of names, in the order in which they come or as given."""
    sort = None if order is None else [*order]
    return {"field": column, "type": "nominal", "title": title or None, "sort": sort, "axis": {"labelAngle": 0}}


def colour(column: str, categories: Sequence[str]) -> Json:
    """Return a channel that colours categories, which keep their colours in every panel of the figure."""
    return {"field": column, "type": "nominal", "scale": {"domain": [*categories]}, "legend": None}


def shade(column: str, low: float, high: float, *, larger_is_better: bool = False, signed: bool = False) -> Json:
    """Return a channel that colours values: the better the darker; where `signed`, 0 has no colour."""
    scale: Json = {"domain": [low, 0, high], "range": "diverging"} if signed else {"domain": [low, high]}
    return {"field": column, "type": "quantitative", "legend": {"title": None},
            "scale": scale | ({"reverse": True} if larger_is_better else {})}  # fmt: skip


def dash(column: str, categories: Sequence[str]) -> Json:
    """Return a channel that dashes the lines of categories; a fifth begins again."""
    patterns = [DASHES[at % len(DASHES)] for at in range(len(categories))]
    return {"field": column, "type": "nominal", "scale": {"domain": [*categories], "range": patterns}, "legend": None}


#: Lengths of strokes and gaps.
DASHES = ([1, 0], [6, 3], [2, 3], [6, 3, 2, 3])


def full_where(test: str, full: str = "circle", hollow: str = RING) -> Json:
    """Return a channel of shapes: full where Vega's expression `test` is true, else hollow."""
    return {"condition": {"test": test, "value": full}, "value": hollow}


def paint(name: str) -> Json:
    """Return a channel of one colour of the palette in page.css: `ink`, `soft`, `axis`, `shade`."""
    return {"value": {"expr": name}}


def mark(kind: str, rows: Data, *, look: Json | None = None, **channels: Channel) -> Json:
    """Return one layer of a panel.

    Args:
        kind: Vega-Lite's `point`, `line`, `bar`, `rule`, `rect`, `area`, `text` …
        rows: what is drawn; the last lies on top.
        look: further properties of the mark.
        channels: what is encoded by which column, where it differs from the panel's axes; None for an axis that the
            layer does not have.
    """
    order = {"order": {"value": None}} if kind == "line" else {}  # as the rows come, not by x
    return {"mark": {"type": kind, **(look or {})}, "data": {"values": rows}, "encoding": {**order, **channels}}


def points(rows: Data, says: Callable[[Row], str] | None = None, *, size: float = 50, **channels: Channel) -> Json:
    """Return a layer of points, each by its trial's status: its shape, and faint and below others if unfinished.

    Args:
        rows: what is drawn.
        says: makes the tooltip of a row; without it a row's `says`.
        size: in square pixels.
        channels: as of `mark`.
    """
    drawn = [row if says is None else {**row, "says": says(cast(Row, row))} for row in rows]
    seen = {"condition": {"test": f"datum.status && !({DONE})", "value": FAINT}, "value": 1}
    shape: Json = {"field": "status", "type": "nominal", "scale": {"domain": [*SHAPES]}, "legend": None}
    # The invisible stroke is where a ring's hole can be pointed at.
    look: Json = {"filled": True, "size": size, "stroke": "rgba(0,0,0,0)", "strokeWidth": 7}
    by_status = {"shape": shape} if drawn and "status" in drawn[0] else {}
    drawn.sort(key=lambda row: row.get("status") == "completed")
    return mark("point", drawn, look=look, **{**by_status, "opacity": seen, **channels})


def rings(rows: Data, name: str, *, size: float = 50, **channels: Channel) -> Json:
    """Return a layer of circles in a colour of the palette."""
    look: Json = {"filled": False, "stroke": {"expr": name}, "strokeWidth": 1.4, "shape": "circle"}
    return mark("point", rows, look={**look, "size": size}, **channels)


def ends(interval: tuple[float, float] | None) -> Json:
    """Return the columns of an error bar, which `bars_to` draws; none without an interval."""
    return {} if interval is None else {"low": interval[0], "high": interval[1]}


def bars_to(rows: Data, *, along: str = "y", **channels: Channel) -> Json:
    """Return error bars between the columns that `ends` makes, of the rows that have them."""
    between: dict[str, Channel] = {along: {"field": "low"}, f"{along}2": {"field": "high"}}
    known = [row for row in rows if "low" in row]
    return mark("rule", known, look={"strokeWidth": 1.2}, **between, **channels)


def fields(*texts: str, **numbers: str) -> list[Json]:
    """Return a tooltip of columns of text, and of columns of numbers with their titles."""
    words: list[Json] = [{"field": column, "type": "nominal"} for column in texts]
    return words + [{"field": column, "title": title, "type": "quantitative"} for column, title in numbers.items()]


def verticals(places: Mapping[float, str]) -> list[Json]:
    """Return lines from top to bottom at values of x, with their labels."""
    rows = [{"at": at, "words": f" {words}"} for at, words in places.items()]
    x: Json = {"field": "at"}
    rule = mark("rule", rows, look={"strokeDash": [2, 3]}, x=x, y=None, color=paint("axis"))
    text = mark("text", rows, look={"align": "left", "baseline": "top", "fontSize": 10.5}, x=x, y={"value": 0},
                 text={"field": "words"}, color=paint("soft"))  # fmt: skip
    return [rule, text] if any(places.values()) else [rule]


def curves(
    lines: Mapping[str, Sequence[tuple[object, object]]], legend: Sequence[str], *, dashed: bool = False
) -> list[Json]:
    """Return a layer with a line for each name; axes' columns are `x` and `y`.

    Args:
        lines: name → (x, y); None parts a line.
        legend: all names of the figure, in the order of their colours.
        dashed: whether lines are thin and dashed.
    """
    rows = [{"x": x, "y": y, "name": name} for name, line in lines.items() for x, y in line]
    look: Json = {"strokeDash": [6, 3], "strokeWidth": 1} if dashed else {"point": {"size": 16}}
    return [mark("line", rows, look=look, color=colour("name", legend), tooltip=fields("name", x="x", y="y"))]


def diagonal() -> Json:
    """Return the dashed line from (0, 0) to (1, 1); axes' columns are `x` and `y`."""
    ends = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
    return mark("line", ends, look={"strokeDash": [6, 3], "strokeWidth": 1.2}, color=paint("axis"))


@dataclass(frozen=True)
class Panel:
    """One plot of a figure.

    Attributes:
        heading: above the plot; may be empty.
        layers: what is drawn, the last on top.
        x, y: the axes that layers share.
        remarks: sentences below it.
        width: pixels it needs at least; where there are fewer it scrolls sideways. 0 takes what there is.
        points: configurations that it compares, where few of them say nothing; None where any number does.
    """

    heading: str
    layers: Sequence[Json]
    x: Json
    y: Json
    remarks: Sequence[str] = ()
    width: int = 0
    points: int | None = None


@dataclass(frozen=True)
class Figure:
    """A figure with everything that a reader needs to trust it.

    Attributes:
        key: an identifier, unique in the report; also the anchor.
        title: the heading.
        caption: one sentence that says what is shown, with n.
        sql: the queries whose rows are drawn.
        panels: the plots, side by side where there is room.
        tables: the tables that the queries read.
        findings: sentences that say what it shows here, for the top of the report.
        legend: categories in the order of their colours.
        statuses: statuses of the trials drawn.
        dashes: what dashed lines stand for, in the order of DASHES.
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
    dashes: Sequence[str] = ()
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
    return sorted(FIGURES.values(), key=lambda figure: figure.place)


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
