"""A figure on paper: drawn by matplotlib with embedded fonts, as PDF, SVG or PNG.

plotly, which draws the page, writes files only with a browser.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sweeper.core.errors import SweeperError, writing_to
from sweeper.figures.base import SERIES, Axis, Bars, Colour, Curve, Figure, HeatMap, Panel, Scale, report_figures
from sweeper.results import Results
from sweeper.text.labels import STATUS_WORDS
from trainables.files.atomic import replacing
from trainables.registry.names import nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure as Drawing
    from matplotlib.lines import Line2D

SUFFIXES = (".pdf", ".svg", ".png")
#: Width of a panel: one column of a two-column paper.
COLUMN_INCHES = 3.5
PANEL_INCHES, TRIANGLE_INCHES = 2.6, 3.1
#: Of the caption's font that fit into a column.
CAPTION_CHARACTERS = 62
TITLE_CHARACTERS = 40
#: Heights of a line of the caption and of the legend.
LINE_INCHES, LEGEND_INCHES = 0.14, 0.17
DOTS_PER_INCH = 300

#: Fonts are embedded as TrueType in PDF, which journals ask for, and drawn as outlines in SVG.
_STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "sweeper",
    "mathtext.default": "regular",
}  # fmt: skip

#: More of them below one plot are a table, which the report has.
MOST_REMARKS = 4

#: Told apart by the colour-blind (Okabe & Ito 2008, Color universal design), the yellow darkened for white paper.
SERIES_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#777777")
NAMED = {"axis": "#444444", "grid": "#dddddd", "ink": "#111111", "soft": "#333333", "shade": "#dddddd"}
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "x-thin": "x", "hexagon": "h"}
ERRORS: dict[str, Any] = {"elinewidth": 0.6, "capsize": 1.5}
DASHES = {"dot": ":", "dash": "--", "dashdot": "-."}


def write_report_figure(results: Results, name: str, to: Path) -> None:
    """Draw a figure of a sweep's report into a file whose suffix says the format.

    Args:
        results: of the sweep.
        name: of the figure; `-` counts as `_`.
        to: the file.

    Raises:
        SweeperError: an unknown figure or format, one that does not apply to this sweep, or cannot be drawn on paper.
    """
    require_format(to)
    write_figure(report_figure(results, name), to, "Rehearsal, no results." if results.rehearsed else "")


def report_figure(results: Results, name: str) -> Figure:
    """Return a figure of a sweep's report; arguments and errors as of `write_report_figure`."""
    known, asked = report_figures(), name.replace("-", "_")
    found = next((each for each in known if asked in (each.name, *each.aliases)), None)
    if found is None:
        names = [each.name for each in known]
        raise SweeperError(f"the report has no figure {name!r}", f"figures: {', '.join(names)}{nearest(asked, names)}")
    with results.snapshot() as snapshot:
        figure: Figure | None = found.build(snapshot)
    if figure is None:
        raise SweeperError(f"the sweep {results.name!r} has nothing for this figure: {found.absent}")
    return figure


def require_format(to: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise SweeperError unless a file's suffix is one of those."""
    if to.suffix.lower() not in suffixes:
        raise SweeperError(f"a figure cannot be written as {to.name!r}", f"use one of {', '.join(suffixes)}")


def write_figure(figure: Figure, to: Path, before: str = "") -> None:
    """Draw a figure with its caption, which begins with `before`, into a file.

    Raises:
        SweeperError: paper cannot show it, or the file cannot be written.
    """
    form = to.suffix.lower().removeprefix(".")
    metadata = {"Date": None} if form == "svg" else None
    with (
        _drawn(figure, caption(figure, before)) as drawn,
        writing_to(to, "give another path"),
        replacing(to) as temporary,
    ):
        drawn.savefig(temporary, format=form, dpi=DOTS_PER_INCH, metadata=metadata)


def svg_text(figure: Figure) -> str:
    """Return a figure without its caption as the text of an SVG file."""
    text = io.StringIO()
    with _drawn(figure, "") as drawn:
        drawn.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def caption(figure: Figure, before: str = "") -> str:
    """Return the figure's caption with the remarks that the report prints below each plot."""
    parts = [before, without_tags(figure.caption)]
    for panel in figure.panels:
        if 0 < len(panel.remarks) <= MOST_REMARKS:
            heading = f"{without_tags(panel.heading)}: " if panel.heading and len(figure.panels) > 1 else ""
            parts.append(f"{heading}{'; '.join(without_tags(remark).rstrip('.') for remark in panel.remarks)}.")
    return " ".join(filter(None, parts))


@contextmanager
def _drawn(figure: Figure, words: str) -> Iterator[Drawing]:
    """Draw a figure's panels, its legend below them, and below that the caption."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    columns = min(2, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    text = "\n".join(textwrap.wrap(words, CAPTION_CHARACTERS * columns))
    with rc_context(_STYLE):
        handles = _handles(figure)
        longest = max((len(str(each.get_label())) for each in handles), default=1)
        across = max(1, min(len(handles), int(CAPTION_CHARACTERS * columns / (longest + 6))))
        below = LINE_INCHES * (text.count("\n") + 2 if text else 0) + LEGEND_INCHES * -(-len(handles) // across)
        height = max(TRIANGLE_INCHES if panel.corners else PANEL_INCHES for panel in figure.panels)
        size = (COLUMN_INCHES * columns, height * rows + below)
        drawn = Drawing(figsize=size)
        FigureCanvasAgg(drawn)
        drawn.set_layout_engine("constrained", rect=(0, below / size[1], 1, 1 - below / size[1]))
        for at, axes in enumerate(drawn.subplots(rows, columns, squeeze=False).flat):
            if at < len(figure.panels):
                _panel(figure.panels[at], axes)
            else:
                axes.set_axis_off()
        drawn.text(0.01, 0.01, text, ha="left", va="bottom", fontsize=7)
        if handles:
            drawn.legend(
                handles=handles, loc="upper left", bbox_to_anchor=(0.0, below / size[1]), ncols=across,
                frameon=False, borderaxespad=0.1, handletextpad=0.4, columnspacing=1.0, labelspacing=0.3,
            )  # fmt: skip
        yield drawn


def _handles(figure: Figure) -> list[Line2D]:
    """Return the legend: categories in their colours, statuses by their markers, lines by their dashes."""
    from matplotlib.lines import Line2D

    entries = [(SERIES_COLOURS[at % SERIES], False, without_tags(words)) for at, words in enumerate(figure.legend)]
    if len(figure.statuses) > 1:
        entries += [("#555555", each != "completed", STATUS_WORDS.get(each, each)) for each in figure.statuses]
    points = [
        Line2D([], [], linestyle="", marker="o", markersize=4, color=paint, label=words,
               markerfacecolor="none" if empty else paint)
        for paint, empty, words in entries
    ]  # fmt: skip
    lines = [
        Line2D([], [], linestyle=DASHES.get(dash, "-"), linewidth=1, color="#555555", label=without_tags(words))
        for dash, words in figure.dashes.items()
    ]
    return points + lines


def _panel(panel: Panel, axes: Axes) -> None:
    """Draw one plot. Raises SweeperError for what has no form on paper."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = None
    if panel.scale is not None:
        scale = ScalarMappable(Normalize(panel.scale.low, panel.scale.high), _colours(panel.scale))
    for mark in panel.marks:
        if isinstance(mark, Curve):
            _curve(mark, axes, scale)
        elif isinstance(mark, Bars):
            _bars(mark, axes)
        elif isinstance(mark, HeatMap) and panel.scale is not None:
            _heat_map(mark, axes, panel.scale)
        else:
            raise SweeperError("parallel coordinates cannot be drawn on paper", "print them from the report")
    if scale is not None:
        axes.figure.colorbar(scale, ax=axes)
    for value in panel.verticals:
        axes.axvline(value, color=NAMED["axis"], linewidth=0.8, linestyle=":", zorder=0)
    axes.set_title("\n".join(textwrap.wrap(without_tags(panel.heading), TITLE_CHARACTERS)), loc="left")
    for place, text in panel.corners.items():
        axes.annotate(text, place, (0, 3 if place[1] else -9), textcoords="offset points", ha="center", fontsize=7)
    if panel.x is None or panel.y is None:
        axes.set_axis_off()
        axes.set_aspect("equal")
        return
    heat = any(isinstance(mark, HeatMap) for mark in panel.marks)
    _axis(axes, "x", panel.x, ticked=heat)
    _axis(axes, "y", panel.y, ticked=heat)
    axes.grid(axis="both", color=NAMED["grid"], linewidth=0.4, zorder=0)
    axes.set_axisbelow(True)


def _curve(mark: Curve, axes: Axes, scale: ScalarMappable | None) -> None:
    x, y, paint = _gaps(mark.x), _gaps(mark.y), _colour(mark.colour)
    if mark.fill:
        axes.fill(x, y, color=paint, alpha=mark.opacity, linewidth=0, zorder=1)
        return
    if mark.error_x or mark.error_y:
        axes.errorbar(x, y, xerr=mark.error_x, yerr=mark.error_y, fmt="none", ecolor=paint, zorder=2, **ERRORS)
    if mark.line:
        axes.plot(
            x, y, color=paint, linewidth=0.7 * mark.line, linestyle=DASHES.get(mark.dash, "-"), alpha=mark.opacity,
            drawstyle="steps-post" if mark.steps else "default", zorder=2,
        )  # fmt: skip
    if not mark.size:
        return
    shape, empty = MARKERS.get(mark.symbol.removesuffix("-open"), "o"), mark.symbol.endswith("-open")
    if mark.values and scale is not None:
        colours = scale.to_rgba(np.array(mark.values))
        face = "none" if empty else colours
        axes.scatter(x, y, s=(0.5 * mark.size) ** 2, marker=shape, facecolors=face, edgecolors=colours, zorder=3)
    else:
        face = "none" if empty and shape != "x" else paint
        axes.plot(
            x, y, linestyle="", marker=shape, markersize=0.5 * mark.size, markeredgewidth=0.8, color=paint,
            markerfacecolor=face, alpha=mark.opacity, zorder=3,
        )  # fmt: skip


def _bars(mark: Bars, axes: Axes) -> None:
    places, lengths, widths = _gaps(mark.places), _gaps(mark.lengths), [*mark.widths] or 0.7
    paint, errors = _colour(mark.colour), [*mark.errors] or None
    draw, which = (axes.barh, "xerr") if mark.lying else (axes.bar, "yerr")
    edge: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.4, "error_kw": ERRORS, which: errors}
    drawn = draw(places, lengths, widths, color=paint, zorder=1, **edge)
    if mark.labels:
        axes.bar_label(drawn, mark.labels, fontsize=5, rotation=90 - 90 * mark.lying, padding=1)


def _colours(scale: Scale) -> str:
    """Return the colours of values: dark is better, and grey is 0 where they are signed."""
    return "coolwarm" if scale.signed else "viridis_r" if scale.reversed else "viridis"


def _heat_map(mark: HeatMap, axes: Axes, scale: Scale) -> None:
    values = [_gaps(row) for row in mark.values]
    axes.imshow(values, origin="lower", aspect="auto", cmap=_colours(scale), vmin=scale.low, vmax=scale.high)
    axes.set_xticks(range(len(mark.columns)), [*mark.columns])
    axes.set_yticks(range(len(mark.rows)), [*mark.rows])


def _axis(axes: Axes, which: str, style: Axis, *, ticked: bool) -> None:
    """Give one of the axes its scale, limits, ticks and label; `ticked`: it has ticks and limits already."""
    from matplotlib.ticker import NullLocator

    axis = getattr(axes, f"{which}axis")
    axis.set_label_text(without_tags(style.title))
    if ticked:
        return
    if style.log:
        axes.set(**{f"{which}scale": "log"})
    limits = style.limits or getattr(axes, f"get_{which}lim")()
    if style.from_zero and style.limits is None and not style.log:
        limits = (min(0.0, limits[0]), limits[1])
    if style.ticks:
        inside = {value: text for value, text in style.ticks.items() if min(limits) <= value <= max(limits)}
        axis.set_ticks([*inside], [without_tags(text) for text in inside.values()])
        axis.set_minor_locator(NullLocator())
    axes.set(**{f"{which}lim": limits})


def _colour(of: Colour) -> str:
    return SERIES_COLOURS[of % SERIES] if isinstance(of, int) else NAMED[of]


def _gaps(values: Sequence[object]) -> list[float | str]:
    """Return values as matplotlib expects them, with not-a-number for the gaps in a line."""
    return cast("list[float | str]", [float("nan") if value is None else value for value in values])


_SUBSCRIPT = {"sub": "_", "sup": "^"}


def without_tags(text: str) -> str:
    """Return a label of the report without HTML, its subscripts in mathematical type."""
    escaped = text.replace("$", r"\$")
    marked = re.sub(r"<(sub|sup)>(.*?)</\1>", lambda found: f"${_SUBSCRIPT[found[1]]}{{{found[2]}}}$", escaped)
    return re.sub(r"<[^>]+>", "", marked.replace("<br>", " ")).replace("&lt;", "<").replace("&gt;", ">")
