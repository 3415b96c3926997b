"""A figure on paper: its panels in two columns with legend and caption, as PDF with embedded fonts, SVG or PNG."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import vl_convert

from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.labels import STATUS_WORDS
from sweeper.reporting.figures.base import Figure, Json, report_figures
from sweeper.reporting.figures.drawing import CONFIG, chart, json_text, themed
from sweeper.results import Results
from trainables.files.atomic import replacing
from trainables.registry.names import nearest

#: Size of a panel in pixels of 1/96 inch: with its axis a column of a two-column paper, 3.5 inches.
WIDTH, HEIGHT = 270, 200
#: Characters of the caption and of a heading that fit into a column.
CAPTION_CHARACTERS, TITLE_CHARACTERS = 62, 44
DOTS_PER_INCH = 300

#: Told apart by the colour-blind (Okabe & Ito 2008, Color universal design), the yellow darkened for white paper; of
#: values viridis's ends and middle.
PALETTE = {
    "axis": "#444444", "grid": "#dddddd", "ink": "#111111", "soft": "#333333", "shade": "#dddddd", "card": "#ffffff",
    "series-1": "#0072B2", "series-2": "#D55E00", "series-3": "#009E73", "series-4": "#CC79A7",
    "series-5": "#E69F00", "series-6": "#56B4E9", "series-7": "#882255", "series-8": "#777777",
    "ramp-1": "#440154", "ramp-2": "#21918c", "ramp-3": "#fde725",
}  # fmt: skip
FONT = "Liberation Sans, Arial, sans-serif"

LEGEND: Json = {"orient": "bottom", "title": None, "columns": 2, "labelLimit": 0}

#: More of them below one plot are a table, which the report has.
MOST_REMARKS = 4

FORMATS: dict[str, Callable[[str], bytes]] = {
    ".pdf": vl_convert.vegalite_to_pdf,
    ".svg": lambda spec: vl_convert.vegalite_to_svg(spec).encode(),
    ".png": lambda spec: vl_convert.vegalite_to_png(spec, ppi=DOTS_PER_INCH),
}
SUFFIXES = tuple(FORMATS)


def write_report_figure(results: Results, name: str, to: Path) -> None:
    """Draw a figure of a sweep's report into a file whose suffix says the format.

    Args:
        results: of the sweep.
        name: of the figure; `-` counts as `_`.
        to: the file.

    Raises:
        SweeperError: an unknown figure or format, one that does not apply to this sweep, or a file that cannot be
            written.
    """
    require_format(to)
    write_figure(report_figure(results, name), to, "Rehearsal, no results." if results.rehearsed else "")


def report_figure(results: Results, name: str) -> Figure:
    """Return a figure of a sweep's report; arguments and errors as of `write_report_figure`."""
    known, asked = report_figures(), name.replace("-", "_")
    match = next((figure for figure in known if asked in (figure.name, *figure.aliases)), None)
    if match is None:
        names = [figure.name for figure in known]
        raise SweeperError(f"the report has no figure {name!r}", f"figures: {', '.join(names)}{nearest(asked, names)}")
    with results.snapshot() as snapshot:
        figure: Figure | None = match.build(snapshot)
    if figure is None:
        raise SweeperError(f"the sweep {results.name!r} has nothing for this figure: {match.absent}")
    return figure


def require_format(to: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise SweeperError unless a file's suffix is one of those."""
    if to.suffix.lower() not in suffixes:
        raise SweeperError(f"a figure cannot be written as {to.name!r}", f"use one of {', '.join(suffixes)}")


def write_figure(figure: Figure, to: Path, before: str = "") -> None:
    """Draw a figure with its caption, which begins with `before`, into a file.

    Raises:
        SweeperError: the file cannot be written.
    """
    drawn = FORMATS[to.suffix.lower()](json_text(on_paper(figure, caption(figure, before))))
    with writing_to(to, "give another path"), replacing(to) as temporary:
        Path(temporary).write_bytes(drawn)


def svg_text(figure: Figure) -> str:
    """Return a figure without its caption as the text of an SVG file."""
    return vl_convert.vegalite_to_svg(json_text(on_paper(figure)))


def caption(figure: Figure, before: str = "") -> str:
    """Return the figure's caption with the remarks that the report prints below each plot."""
    parts = [before, figure.caption]
    for panel in figure.panels:
        if 0 < len(panel.remarks) <= MOST_REMARKS:
            heading = f"{panel.heading}: " if panel.heading and len(figure.panels) > 1 else ""
            parts.append(f"{heading}{'; '.join(remark.rstrip('.') for remark in panel.remarks)}.")
    return " ".join(filter(None, parts))


def on_paper(figure: Figure, words: str = "") -> Json:
    """Return a figure as one specification: panels side by side, legends below them, and `words` below these."""
    columns = min(2, len(figure.panels))
    panels = [
        {
            **_with_legends(chart(panel), figure), "height": HEIGHT, "width": max(panel.width, WIDTH),
            "title": textwrap.wrap(panel.heading, TITLE_CHARACTERS) or "",
        }
        for panel in figure.panels
    ]  # fmt: skip
    shared = {"color": "shared" if figure.legend else "independent", "shape": "shared", "strokeDash": "shared"}
    below = {"text": textwrap.wrap(words, CAPTION_CHARACTERS * columns), "orient": "bottom", "fontWeight": "normal",
             "fontSize": 9.5, "offset": 12}  # fmt: skip
    return {
        "config": {**themed(CONFIG, PALETTE), "font": FONT, "background": "white"},  # type: ignore[dict-item]
        "concat": panels, "columns": columns, "resolve": {"scale": shared}, **({"title": below} if words else {}),
    }  # fmt: skip


def _with_legends(part: object, figure: Figure) -> Json:
    """Return a chart with legends, which the page has in HTML, and without what only a page can do."""
    if isinstance(part, list):
        return [_with_legends(item, figure) for item in part]  # type: ignore[return-value]
    if not isinstance(part, dict):
        return part  # type: ignore[return-value]
    if "values" in part or "value" in part:
        return part
    kept: Json = {key: _with_legends(value, figure) for key, value in part.items() if key not in ("params", "tooltip")}
    if part.get("type") == "nominal" and "legend" in part:
        if part["field"] != "status":
            lines = {"symbolType": "stroke"} if part["scale"].get("range") else {}
            longest = max(map(len, part["scale"]["domain"]), default=0)
            across = CAPTION_CHARACTERS * min(2, len(figure.panels)) // (longest + 5)
            kept["legend"] = {**LEGEND, **lines, "columns": min(6, max(1, across))}
        elif len(figure.statuses) > 1:
            kept["legend"] = {**LEGEND, "values": [*figure.statuses], "labelExpr": f"{STATUS_WORDS}[datum.label]"}
    return kept
