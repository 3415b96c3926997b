"""A figure: panels (each a Vega-Lite chart with its rows), a caption, and the queries of the rows.

`drawing` adds the theme. The page draws charts interactively; `drawing` writes them as PDF, SVG or PNG. To add a
figure to the report, add a file such as the following to this folder; it is discovered there:

    @FIGURES.add("trials_by_status", place=160, absent="Trials by status: there are none.")
    def draw(results: Results) -> Figure | None:
        sql = "SELECT status, count(*) AS n FROM trials GROUP BY 1 ORDER BY 1"
        bars = mark("bar", results.rows(sql))
        panel = Panel("trials", [bars], names("status"), quantity("n", "trials"))
        return Figure("Trials by status", "Trials of the sweep.", [sql], [panel], ["trials"])

`draw` returns None if the figure does not apply to a sweep. A figure's file imports this module, queries and
statistics, but never the page. A row's `says` is its tooltip. A click on a row with a `trial` opens that trial. The
page's filters hide rows by `status` and by the category of their colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast

from sweeper.core.cells import Row
from sweeper.core.labels import STATUS_WORDS, plural
from sweeper.core.statistics.basics import MINIMUM_PAIRS
from sweeper.judging.question import BETTER, OPEN, SAME, WORSE
from trainables.registry import Component, Registry

if TYPE_CHECKING:
    from sweeper.results import Results

#: A part of a Vega-Lite specification: https://vega.github.io/vega-lite/docs/.
Json: TypeAlias = dict[str, object]
#: The rows that a layer draws. The page contains only the columns that the layer encodes.
Data: TypeAlias = Sequence[Mapping[str, object]]

Channel: TypeAlias = Json | list[Json] | None

#: Shapes as SVG paths over [−1, 1]. Vega-Lite's colour channel sets a layer's fill or its stroke. A ring with a hole
#: needs only the fill, so one layer can contain full and hollow marks.
RING = "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0ZM.62,0A.62,.62,0,1,0,-.62,0A.62,.62,0,1,0,.62,0Z"
FRAME = "M-.9,-.9H.9V.9H-.9ZM-.55,-.55V.55H.55V-.55Z"
_LOZENGE = "M0,-1.2L1.2,0L0,1.2L-1.2,0ZM0,-.7L-.7,0L0,.7L.7,0Z"
_CROSS = "M-1,-.7L-.7,-1L0,-.3L.7,-1L1,-.7L.3,0L1,.7L.7,1L0,.3L-.7,1L-1,.7L-.3,0Z"

#: The shape of a point by its trial's status.
SHAPES = {**dict.fromkeys(STATUS_WORDS, _LOZENGE), "completed": "circle", "early_stopped": RING, "failed": _CROSS}
DONE = "datum.status == 'completed'"

#: Mark of a verdict.
MARKS = {BETTER: "✓", WORSE: "✗", SAME: "≈", OPEN: "?"}

#: Opacity of trials that did not finish.
FAINT = 0.6


def quantity(
    column: str, title: str = "", *, log: bool = False, zero: bool = False, limits: tuple[float, float] | None = None,
    step: float | None = None,
) -> Json:  # fmt: skip
    """Return a channel of numbers.

    Args:
        column: column of the rows.
        title: title of the axis.
        log: use a logarithmic scale; values that are not positive are not drawn.
        zero: begin the axis at 0.
        limits: exact ends of the axis; values outside are cut off. The data's range by default.
        step: distance between labels; needs `limits`.

    Example:
        >>> quantity("ece", "test ECE", zero=True)["scale"]
        {'zero': True}
    """
    scale: Json = {"zero": zero} if limits is None else {"domain": [*limits]}
    # "Nice" ends would widen exact limits. On a logarithmic axis they would add up to a whole empty decade.
    scale |= {"nice": False} if limits or not zero else {}
    scale |= {"padding": 10} if limits is None and not zero else {}
    axis: Json = {"format": ",.6~g", "tickCount": 8} if log else {}
    if step is not None and limits is not None:
        # Limits such as 1.03 leave room for marks at 1, so labels stop below them. 1e-9 is needed because 0.6 / 0.2 is
        # 2.9999….
        axis["values"] = [round(step * at, 9) for at in range(int(limits[1] / step + 1e-9) + 1)]
    return {"field": column, "type": "quantitative", "title": title or None, "axis": axis,
            "scale": {"type": "log", "nice": False, **scale} if log else scale}  # fmt: skip


def unseen(column: str, limits: tuple[float, float]) -> Json:
    """Return a channel of numbers without an axis."""
    scale = {"domain": [*limits], "nice": False, "zero": False}
    return {"field": column, "type": "quantitative", "axis": None, "scale": scale}


def names(column: str, title: str = "", order: Iterable[object] | None = None) -> Json:
    """Return a channel of names, in the rows' order or the given one.

    Example:
        >>> names("status", "trials by status")["title"]
        'trials by status'
    """
    # An explicit null keeps the rows' order. Without it, Vega-Lite sorts names.
    sort = None if order is None else [*order]
    return {"field": column, "type": "nominal", "title": title or None, "sort": sort, "axis": {"labelAngle": 0}}


def colour(column: str, categories: Sequence[str]) -> Json:
    """Return a channel that colours categories. A category has the same colour in all panels of the figure.

    Example:
        >>> colour("loss", ["cross_entropy", "focal"])["scale"]
        {'domain': ['cross_entropy', 'focal']}
    """
    return {"field": column, "type": "nominal", "scale": {"domain": [*categories]}, "legend": None}


def shade(column: str, low: float, high: float, *, larger_is_better: bool = False, signed: bool = False) -> Json:
    """Return a channel that colours values, better ones darker; if `signed`, 0 has no colour."""
    scale: Json = {"domain": [low, 0, high], "range": "diverging"} if signed else {"domain": [low, high]}
    return {"field": column, "type": "quantitative", "legend": {"title": None},
            "scale": scale | ({"reverse": True} if larger_is_better else {})}  # fmt: skip


def dash(column: str, categories: Sequence[str]) -> Json:
    """Return a channel that dashes lines by category. The fifth category repeats the first pattern."""
    patterns = [DASHES[at % len(DASHES)] for at in range(len(categories))]
    return {"field": column, "type": "nominal", "scale": {"domain": [*categories], "range": patterns}, "legend": None}


#: Dash patterns: lengths of strokes and gaps in pixels.
DASHES = ([1, 0], [6, 3], [2, 3], [6, 3, 2, 3])


def full_where(test: str, full: str = "circle", hollow: str = RING) -> Json:
    """Return a channel of shapes: `full` for rows where Vega's expression `test` is true, else `hollow`."""
    return {"condition": {"test": test, "value": full}, "value": hollow}


def paint(name: str) -> Json:
    """Return a channel with one colour of the palette in page.css: `ink`, `soft`, `axis` or `shade`."""
    return {"value": {"expr": name}}


def mark(kind: str, rows: Data, *, look: Json | None = None, **channels: Channel) -> Json:
    """Return one layer of a panel.

    Args:
        kind: Vega-Lite's `point`, `line`, `bar`, `rule`, `rect`, `area`, `text` …
        rows: rows to draw. Later rows are drawn on top.
        look: further properties of the mark.
        channels: encodings in addition to the panel's axes. None removes an axis that the layer does not use.

    Example:
        >>> layer = mark("bar", [{"status": "completed", "n": 8}])
        >>> layer["mark"], layer["data"]
        ({'type': 'bar'}, {'values': [{'status': 'completed', 'n': 8}]})
    """
    # Vega-Lite sorts a line's points by x. A null order keeps the rows' order, which curves that turn back need.
    order = {"order": {"value": None}} if kind == "line" else {}
    return {"mark": {"type": kind, **(look or {})}, "data": {"values": rows}, "encoding": {**order, **channels}}


def points(rows: Data, says: Callable[[Row], str] | None = None, *, size: float = 50, **channels: Channel) -> Json:
    """Return a layer of points whose shape shows the trial's status. Unfinished trials are faint and below the others.

    Args:
        rows: rows to draw.
        says: returns the tooltip of a row; by default a row's `says`.
        size: area in square pixels.
        channels: as in `mark`.
    """
    drawn = [row if says is None else {**row, "says": says(cast(Row, row))} for row in rows]
    seen = {"condition": {"test": f"datum.status && !({DONE})", "value": FAINT}, "value": 1}
    shape: Json = {"field": "status", "type": "nominal", "scale": {"domain": [*SHAPES]}, "legend": None}
    # The invisible stroke covers a ring's hole, so that the tooltip also appears there.
    look: Json = {"filled": True, "size": size, "stroke": "rgba(0,0,0,0)", "strokeWidth": 7}
    by_status = {"shape": shape} if drawn and "status" in drawn[0] else {}
    drawn.sort(key=lambda row: row.get("status") == "completed")  # later rows are drawn on top
    return mark("point", drawn, look=look, **{**by_status, "opacity": seen, **channels})


def rings(rows: Data, name: str, *, size: float = 50, **channels: Channel) -> Json:
    """Return a layer of hollow circles in a colour of the palette."""
    look: Json = {"filled": False, "stroke": {"expr": name}, "strokeWidth": 1.4, "shape": "circle"}
    return mark("point", rows, look={**look, "size": size}, **channels)


def ends(interval: tuple[float, float] | None) -> Json:
    """Return the columns of an error bar for `bars_to`; empty without an interval."""
    return {} if interval is None else {"low": interval[0], "high": interval[1]}


def bars_to(rows: Data, *, along: str = "y", **channels: Channel) -> Json:
    """Return error bars for the rows that have the columns of `ends`."""
    between: dict[str, Channel] = {along: {"field": "low"}, f"{along}2": {"field": "high"}}
    known = [row for row in rows if "low" in row]
    return mark("rule", known, look={"strokeWidth": 1.2}, **between, **channels)


def fields(*texts: str, **numbers: str) -> list[Json]:
    """Return a tooltip with columns of text, and columns of numbers with their titles."""
    words: list[Json] = [{"field": column, "type": "nominal"} for column in texts]
    return words + [{"field": column, "title": title, "type": "quantitative"} for column, title in numbers.items()]


def verticals(places: Mapping[float, str]) -> list[Json]:
    """Return vertical lines at values of x, with their labels."""
    rows = [{"at": at, "words": f" {words}"} for at, words in places.items()]
    x: Json = {"field": "at"}
    rule = mark("rule", rows, look={"strokeDash": [2, 3]}, x=x, y=None, color=paint("axis"))
    text = mark("text", rows, look={"align": "left", "baseline": "top", "fontSize": 10.5}, x=x, y={"value": 0},
                 text={"field": "words"}, color=paint("soft"))  # fmt: skip
    return [rule, text] if any(places.values()) else [rule]


def curves(
    lines: Mapping[str, Sequence[tuple[object, object]]], legend: Sequence[str], *, dashed: bool = False
) -> list[Json]:
    """Return a layer with one line per name; the axes' columns are `x` and `y`.

    Args:
        lines: name → (x, y) points. None interrupts a line.
        legend: all names of the figure, in the order of their colours.
        dashed: draw thin dashed lines.
    """
    rows = [{"x": x, "y": y, "name": name} for name, line in lines.items() for x, y in line]
    look: Json = {"strokeDash": [6, 3], "strokeWidth": 1} if dashed else {"point": {"size": 16}}
    return [mark("line", rows, look=look, color=colour("name", legend), tooltip=fields("name", x="x", y="y"))]


def diagonal() -> Json:
    """Return the dashed line from (0, 0) to (1, 1); the axes' columns are `x` and `y`."""
    ends = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
    return mark("line", ends, look={"strokeDash": [6, 3], "strokeWidth": 1.2}, color=paint("axis"))


@dataclass(frozen=True)
class Panel:
    """One plot of a figure.

    Attributes:
        heading: text above the plot; can be empty.
        layers: layers; the last is on top.
        x, y: axes that the layers share.
        remarks: sentences below the plot.
        width: smallest width in pixels; a narrower page scrolls sideways. With 0, the plot takes the available width.
        points: number of configurations compared, if the panel needs a minimum; None if there is no minimum.
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
    """A figure with its caption, queries and findings.

    Attributes:
        title: heading.
        caption: what is shown, and of how many configurations and seeds.
        sql: queries whose rows are drawn.
        panels: plots, side by side if there is room.
        tables: tables that the queries read.
        findings: sentences on what the figure shows for this sweep, for the top of the report.
        legend: categories, in the order of their colours.
        statuses: statuses of the trials drawn.
        dashes: categories of dashed lines, in the order of DASHES.
        folded: sentences on panels that are not drawn.
        key: anchor in the report, which `folded` sets; empty elsewhere.

    Example:
        >>> bars = mark("bar", [{"status": "completed", "n": 8}, {"status": "early_stopped", "n": 40}])
        >>> panel = Panel("trials", [bars], names("status"), quantity("n", "trials", zero=True))
        >>> figure = Figure("Trials by status", "Trials of the sweep.", [], [panel])
        >>> figure.tables
        ('evaluations', 'trials')
    """

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
    key: str = ""


@dataclass(frozen=True)
class ReportFigure(Component):
    """A figure of the report: `build` is its `draw(results)`.

    Attributes:
        place: position in the report; the smallest comes first.
        absent: sentence shown if there is nothing to draw.
        aliases: other names that `sweeper figure` accepts.
    """

    place: int = 0
    absent: str = ""
    aliases: tuple[str, ...] = ()


#: The report's figures by the names that `sweeper figure` accepts.
FIGURES = Registry("figure", None, ReportFigure, ["results"])


def report_figures() -> list[ReportFigure]:
    """Return the figures in the order of the report."""
    return sorted(FIGURES.values(), key=lambda figure: figure.place)


def folded(wanted: ReportFigure, results: Results) -> Figure | str:
    """Return a figure of a sweep without panels that have too few points, or a sentence if no panel is left."""
    drawn: Figure | None = wanted.build(results)
    if drawn is None:
        return wanted.absent
    figure = replace(drawn, key=wanted.name.replace("_", "-"))
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
