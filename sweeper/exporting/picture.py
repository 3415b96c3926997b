"""A figure of the report on paper: drawn by matplotlib with embedded fonts, as PDF, SVG or PNG.

The report's figures are plotly's, which writes files only with a browser. What they are made of (points, lines, error
bars, bars, bands, heat maps) is drawn here again; what cannot be is refused.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.core.errors import SweeperError, unwritable
from sweeper.exporting.panels import SERIES_COLOURS, draw_panel, plain
from sweeper.reporting.figure_parts.figure import SERIES, Figure
from sweeper.reporting.figures import FIGURES
from sweeper.results import Results
from sweeper.text.labels import STATUS_WORDS
from trainables.files.atomic import replacing
from trainables.registry.nearest import nearest

if TYPE_CHECKING:
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
    try:
        _draw(figure, _caption(figure, results), asked, to)
    except OSError as error:
        raise unwritable(f"{to} cannot be written", "give --to another path", error) from error


def _caption(figure: Figure, results: Results) -> str:
    """Return the figure's caption with the remarks that the report prints below each plot."""
    parts = ["Rehearsal, no results."] if results.rehearsed else []
    parts.append(plain(figure.caption))
    for panel in figure.panels:
        if 0 < len(panel.remarks) <= MOST_REMARKS:
            heading = f"{plain(panel.heading)}: " if panel.heading and len(figure.panels) > 1 else ""
            parts.append(f"{heading}{'; '.join(plain(remark).rstrip('.') for remark in panel.remarks)}.")
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

    entries = [(SERIES_COLOURS[at % SERIES], False, plain(words)) for at, words in enumerate(figure.legend)]
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
