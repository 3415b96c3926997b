"""A figure of the report on paper: drawn by matplotlib with embedded fonts, as PDF, SVG or PNG.

The report's figures are plotly's, which writes files only with a browser. What they are made of (points, lines, error
bars, bars, bands, heat maps) is drawn here again; what cannot be is refused.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.core.errors import SweeperError, writing_to
from sweeper.reporting.figure_parts.figure import SERIES, Figure, Panel
from sweeper.reporting.figures import FIGURES
from sweeper.results import Results
from sweeper.text.labels import STATUS_WORDS
from trainables.files.atomic import replacing
from trainables.registry.names import nearest

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.lines import Line2D


SUFFIXES = (".pdf", ".svg", ".png")
COLUMN_INCHES = 3.5
"""Width of a panel: one column of a two-column paper."""
PANEL_INCHES = 2.6
CAPTION_CHARACTERS = 62
"""Of the caption's font that fit into a column."""
LINE_INCHES, LEGEND_INCHES = 0.14, 0.17
"""Heights of a line of the caption and of the legend."""
DOTS_PER_INCH = 300

_STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "sweeper",
    "mathtext.default": "regular",
}  # fmt: skip
"""Fonts are embedded as TrueType in PDF, which journals ask for, and drawn as outlines in SVG."""


MOST_REMARKS = 4
"""More of them below one plot are a table, which the report has."""

OTHER_NAMES = {"lambda_max_against_gamma": "curvature_against_gamma"}
"""What figures are called after what most readers look for in them."""


def figure_names() -> dict[str, Any]:
    """Return the report's figures by name."""
    return {module.__name__.rpartition(".")[2]: module for module in FIGURES}  # type: ignore[attr-defined]  # modules


def write_figure(results: Results, name: str, to: Path) -> None:
    """Draw a figure of a sweep's report into a file whose suffix says the format.

    Args:
        results: of the sweep.
        name: of the figure, as its file in `sweeper/reporting/figures/` is called; `-` counts as `_`.
        to: the file.

    Raises:
        SweeperError: an unknown figure or format, one that does not apply to this sweep, or cannot be drawn on paper.
    """
    known, asked = figure_names(), name.replace("-", "_")
    asked = OTHER_NAMES.get(asked, asked)
    if asked not in known:
        raise SweeperError(
            f"the report has no figure {name!r}", f"figures: {', '.join(known)}{nearest(asked, list(known))}"
        )
    if to.suffix.lower() not in SUFFIXES:
        raise SweeperError(f"a figure cannot be written as {to.name!r}", f"use one of {', '.join(SUFFIXES)}")
    with results.snapshot() as snapshot:
        figure = known[asked].draw(snapshot)
    if figure is None:
        raise SweeperError(f"the sweep {results.name!r} has nothing for this figure: {known[asked].ABSENT}")
    with writing_to(to, "give --to another path"):
        _draw(figure, _caption(figure, results), asked, to)


def _caption(figure: Figure, results: Results) -> str:
    """Return the figure's caption with the remarks that the report prints below each plot."""
    parts = ["Rehearsal, no results."] if results.rehearsed else []
    parts.append(without_tags(figure.caption))
    for panel in figure.panels:
        if 0 < len(panel.remarks) <= MOST_REMARKS:
            heading = f"{without_tags(panel.heading)}: " if panel.heading and len(figure.panels) > 1 else ""
            parts.append(f"{heading}{'; '.join(without_tags(remark).rstrip('.') for remark in panel.remarks)}.")
    return " ".join(parts)


def _draw(figure: Figure, words: str, name: str, to: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(2, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    caption = "\n".join(textwrap.wrap(words, CAPTION_CHARACTERS * columns))
    handles = _handles(figure)
    across = max(1, min(len(handles), int(CAPTION_CHARACTERS * columns / (max(map(_length, handles), default=1) + 6))))
    lines = -(-len(handles) // across)
    below = LINE_INCHES * (caption.count("\n") + 2) + LEGEND_INCHES * lines
    size = (COLUMN_INCHES * columns, PANEL_INCHES * rows + below)
    with pyplot.rc_context(_STYLE):
        drawn, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        try:
            drawn.get_layout_engine().set(rect=(0, below / size[1], 1, 1 - below / size[1]))
            for at, axes in enumerate(grid.flat):
                if at < len(figure.panels):
                    draw_panel(figure.panels[at], axes, name)
                else:
                    axes.set_axis_off()
            drawn.text(0.01, 0.01, caption, ha="left", va="bottom", fontsize=7)
            if handles:
                drawn.legend(
                    handles=handles, loc="upper left", bbox_to_anchor=(0.0, below / size[1]), ncols=across,
                    frameon=False, borderaxespad=0.1, handletextpad=0.2, columnspacing=1.0, labelspacing=0.3,
                )  # fmt: skip
            metadata = {"Date": None} if to.suffix.lower() == ".svg" else None
            with replacing(to) as temporary:
                form = to.suffix.lower().removeprefix(".")
                drawn.savefig(temporary, format=form, dpi=DOTS_PER_INCH, metadata=metadata)
        finally:
            pyplot.close(drawn)


def _handles(figure: Figure) -> list[Line2D]:
    """Return the legend's entries: the categories in their colours, and the statuses by their markers."""
    from matplotlib.lines import Line2D

    entries = [(SERIES_COLOURS[at % SERIES], False, without_tags(words)) for at, words in enumerate(figure.legend)]
    if len(figure.statuses) > 1:
        entries += [("#555555", each != "completed", STATUS_WORDS.get(each, each)) for each in figure.statuses]
    return [
        Line2D(
            [], [], linestyle="", marker="o", markersize=4, color=colour,
            markerfacecolor="none" if empty else colour, label=words,
        )
        for colour, empty, words in entries
    ]  # fmt: skip


def _length(handle: Line2D) -> int:
    return len(str(handle.get_label()))


TITLE_CHARACTERS = 40

SERIES_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#777777")
"""Told apart by the colour-blind (Okabe & Ito 2008, Color universal design), the yellow darkened for white paper."""
NAMED = {"axis": "#444444", "grid": "#dddddd", "card": "#ffffff", "soft": "#333333", "shade": "#dddddd"}
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "x-thin": "x", "triangle-up": "^", "cross": "P", "star": "*"}
DASHES = {"dot": ":", "dash": "--", "dashdot": "-."}


def draw_panel(panel: Panel, axes: Axes, name: str) -> None:
    """Draw one plot of the figure `name`. Raises SweeperError for what has no form on paper."""
    for trace in panel.plot.data:
        if trace.visible in (False, "legendonly"):
            continue
        if trace.type in ("scatter", "scattergl"):
            _scatter(trace, axes)
        elif trace.type == "bar":
            _bar(trace, axes)
        elif trace.type == "heatmap":
            _heatmap(trace, axes)
        else:
            raise SweeperError(
                f"{name} is drawn with {trace.type}, which cannot be drawn on paper", "print it from the report"
            )
    valued = next(filter(_is_valued, panel.plot.data), None)
    if valued is not None:
        axes.figure.colorbar(_scale(valued.marker), ax=axes)
    layout = panel.plot.layout
    for shape in layout.shapes:
        if shape.type == "line" and shape.x0 == shape.x1:
            axes.axvline(shape.x0, **_line(shape.line), zorder=0)
        elif shape.type == "line":
            axes.axhline(shape.y0, **_line(shape.line), zorder=0)
    _set_axis(axes, "x", layout.xaxis)
    _set_axis(axes, "y", layout.yaxis)
    axes.set_title("\n".join(textwrap.wrap(without_tags(panel.heading), TITLE_CHARACTERS)), loc="left")


def _scatter(trace: go.Scatter, axes: Axes) -> None:
    x, y = _gaps(trace.x), _gaps(trace.y)
    opacity = 1.0 if trace.opacity is None else trace.opacity
    if trace.fill == "toself":
        axes.fill(x, y, color=_colour(trace.fillcolor), alpha=opacity, linewidth=0, zorder=1)
        return
    mode = trace.mode or "lines"
    for bars, across in ((trace.error_y, False), (trace.error_x, True)):
        if bars.array is not None:
            spans = [bars.arrayminus if bars.arrayminus is not None else bars.array, bars.array]
            look: dict[str, Any] = {"fmt": "none", "elinewidth": 0.6, "capsize": 1.5, "zorder": 2}
            axes.errorbar(x, y, ecolor=_colour(bars.color), **{**look, "xerr" if across else "yerr": spans})
    if "lines" in mode:
        width = {**_line(trace.line), "drawstyle": "steps-post" if trace.line.shape == "hv" else "default"}
        axes.plot(x, y, **width, alpha=opacity, zorder=2)
    if "markers" in mode:
        _markers(trace, axes, x, y, opacity)
    if "text" in mode and trace.text is not None:
        texts = [trace.text] * len(x) if isinstance(trace.text, str) else trace.text
        for at, words in enumerate(texts):
            axes.annotate(
                without_tags(str(words)), (x[at], y[at]), fontsize=6, xytext=(3, 3), textcoords="offset points"
            )


def _markers(trace: go.Scatter, axes: Axes, x: list[Any], y: list[Any], opacity: float) -> None:
    shape = trace.marker.symbol if isinstance(trace.marker.symbol, str) else "circle"
    empty = shape.endswith("-open")
    marker = MARKERS.get(shape.removesuffix("-open"), "o")
    size = trace.marker.size if isinstance(trace.marker.size, (int, float)) else 6
    if _is_valued(trace):
        colours = _scale(trace.marker).to_rgba(np.asarray(trace.marker.color))
        face = "none" if empty else colours
        axes.scatter(x, y, s=(0.5 * size) ** 2, marker=marker, facecolors=face, edgecolors=colours, zorder=3)
        return
    colour = _colour(trace.marker.color)
    edge = _colour(trace.marker.line.color) if trace.marker.line.color else colour
    face = "none" if empty else colour
    look: dict[str, Any] = {"color": colour} if marker == "x" else {"markerfacecolor": face, "markeredgecolor": edge}
    axes.plot(
        x,
        y,
        linestyle="",
        marker=marker,
        markersize=0.5 * size,
        markeredgewidth=0.8,
        alpha=opacity,
        zorder=3,
        **look,
    )


def _is_valued(trace: Any) -> bool:
    """Return whether a trace's points are coloured by a value each."""
    return trace.type in ("scatter", "scattergl") and not isinstance(trace.marker.color, (str, type(None)))


def _scale(marker: Any) -> ScalarMappable:
    """Return the colours of values; dark is better."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(marker.cmin, marker.cmax), "viridis_r" if marker.reversescale else "viridis")


def _bar(trace: go.Bar, axes: Axes) -> None:
    colour = _colour(trace.marker.color if isinstance(trace.marker.color, str) else None)
    if trace.orientation == "h":
        axes.barh(_gaps(trace.y), _gaps(trace.x), color=colour, height=0.7, zorder=1)
    else:
        width = trace.width if trace.width is not None else 0.8
        axes.bar(_gaps(trace.x), _gaps(trace.y), width=width, color=colour, edgecolor="white", linewidth=0.4, zorder=1)


def _heatmap(trace: go.Heatmap, axes: Axes) -> None:
    values = [[float("nan") if value is None else value for value in row] for row in trace.z]
    scale = "viridis_r" if trace.reversescale else "viridis"
    drawn = axes.imshow(values, origin="lower", aspect="auto", cmap=scale, vmin=trace.zmin, vmax=trace.zmax)
    axes.set_xticks(range(len(trace.x)), [str(each) for each in trace.x])
    axes.set_yticks(range(len(trace.y)), [str(each) for each in trace.y])
    axes.figure.colorbar(drawn, ax=axes)


def _set_axis(axes: Axes, which: str, style: go.layout.XAxis) -> None:
    log = style.type == "log"
    if log:
        getattr(axes, f"set_{which}scale")("log")
    limits = getattr(axes, f"get_{which}lim")()
    if style.range is not None:
        limits = tuple(10.0**value for value in style.range) if log else tuple(style.range)
    elif style.rangemode == "tozero" and not log:
        limits = (min(0.0, limits[0]), limits[1])
    if style.tickvals is not None:
        inside = [at for at, value in enumerate(style.tickvals) if min(limits) <= value <= max(limits)]
        texts = style.ticktext if style.ticktext is not None else style.tickvals
        ticks = [style.tickvals[at] for at in inside]
        getattr(axes, f"set_{which}ticks")(ticks, [without_tags(str(texts[at])) for at in inside])
        getattr(axes, f"{which}axis").set_minor_locator(_no_ticks())
    getattr(axes, f"set_{which}lim")(limits)
    getattr(axes, f"set_{which}label")(without_tags(style.title.text or ""))
    axes.grid(axis="both", color=NAMED["grid"], linewidth=0.4, zorder=0)
    axes.set_axisbelow(True)


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _line(line: Any) -> dict[str, Any]:
    width = 0.7 * (line.width if line.width is not None else 2)
    return {"color": _colour(line.color), "linewidth": width, "linestyle": DASHES.get(line.dash or "", "-")}


def _colour(written: str | None) -> str:
    """Return a colour of the report's page as one for paper."""
    match = re.fullmatch(r"var\(--([a-z]+)(?:-(\d+))?\)", written or "")
    if match is None:
        return "none" if (written or "").startswith("rgba(0,0,0,0") else written or SERIES_COLOURS[0]
    if match[1] == "series":
        return SERIES_COLOURS[(int(match[2]) - 1) % SERIES]
    return NAMED.get(match[1], "#555555")


def _gaps(values: Iterable[Any] | None) -> list[Any]:
    """Return values as matplotlib expects them, with not-a-number for the gaps in a line."""
    return [float("nan") if value is None else value for value in values] if values is not None else []


_SUBSCRIPT: Mapping[str, str] = {"sub": "_", "sup": "^"}


def without_tags(text: str) -> str:
    """Return a label of the report without HTML, its subscripts in mathematical type."""
    escaped = text.replace("$", r"\$")
    marked = re.sub(r"<(sub|sup)>(.*?)</\1>", lambda found: f"${_SUBSCRIPT[found[1]]}{{{found[2]}}}$", escaped)
    return re.sub(r"<[^>]+>", "", marked.replace("<br>", " ")).replace("&lt;", "<").replace("&gt;", ">")
