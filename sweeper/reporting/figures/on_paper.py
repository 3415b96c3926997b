"""Write a figure for a paper, with legend and caption, as PDF with embedded fonts, SVG or PNG."""

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

#: Size of a panel in pixels of 1/96 inch. With its axis, it fills one column (3.5 inches) of a two-column paper.
WIDTH, HEIGHT = 270, 200
#: Number of characters of the caption, and of a heading, that fit into a column. Vega does not wrap text.
CAPTION_CHARACTERS, TITLE_CHARACTERS = 62, 44
DOTS_PER_INCH = 300  # most journals require it

#: Colours that colour-blind readers can distinguish (Okabe & Ito 2008, Color universal design). The yellow is darkened
#: for white paper. Values are coloured by the ends and the middle of viridis.
PALETTE = {
    "axis": "#444444", "grid": "#dddddd", "ink": "#111111", "soft": "#333333", "shade": "#dddddd", "card": "#ffffff",
    "series-1": "#0072B2", "series-2": "#D55E00", "series-3": "#009E73", "series-4": "#CC79A7",
    "series-5": "#E69F00", "series-6": "#56B4E9", "series-7": "#882255", "series-8": "#777777",
    "ramp-1": "#440154", "ramp-2": "#21918c", "ramp-3": "#fde725",
}  # fmt: skip
#: Liberation Sans has Arial's widths and is free, so it can be embedded.
FONT = "Liberation Sans, Arial, sans-serif"

LEGEND: Json = {"orient": "bottom", "title": None, "columns": 2, "labelLimit": 0}

#: Largest number of remarks of one plot in the caption. More would be a table, which the report contains.
MOST_REMARKS = 4

FORMATS: dict[str, Callable[[str], bytes]] = {
    ".pdf": vl_convert.vegalite_to_pdf,
    ".svg": lambda spec: vl_convert.vegalite_to_svg(spec).encode(),
    ".png": lambda spec: vl_convert.vegalite_to_png(spec, ppi=DOTS_PER_INCH),
}
SUFFIXES = tuple(FORMATS)


def write_report_figure(results: Results, name: str, to: Path) -> None:
    """Write a figure of a sweep's report to a file whose suffix gives the format.

    Args:
        results: the sweep.
        name: name of the figure; `-` counts as `_`.
        to: the file.

    Raises:
        SweeperError: the figure or the format is unknown, the figure does not apply to this sweep, or the file cannot
            be written.
    """
    require_format(to)
    write_figure(report_figure(results, name), to, "Rehearsal, no results." if results.rehearsed else "")


def report_figure(results: Results, name: str) -> Figure:
    """Return a figure of a sweep's report; arguments and errors as in `write_report_figure`."""
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
    """Raise SweeperError unless a file has one of these suffixes."""
    if to.suffix.lower() not in suffixes:
        raise SweeperError(f"a figure cannot be written as {to.name!r}", f"use one of {', '.join(suffixes)}")


def write_figure(figure: Figure, to: Path, before: str = "") -> None:
    """Write a figure with its caption, which begins with `before`, to a file.

    Raises:
        SweeperError: the file cannot be written.
    """
    drawn = FORMATS[to.suffix.lower()](json_text(on_paper(figure, caption(figure, before))))
    with writing_to(to, "give another path"), replacing(to) as temporary:
        Path(temporary).write_bytes(drawn)


def svg_text(figure: Figure) -> str:
    """Return a figure without caption as the text of an SVG file."""
    return vl_convert.vegalite_to_svg(json_text(on_paper(figure)))


def caption(figure: Figure, before: str = "") -> str:
    """Return the caption followed by the remarks that the report prints below each plot."""
    parts = [before, figure.caption]
    for panel in figure.panels:
        if 0 < len(panel.remarks) <= MOST_REMARKS:
            heading = f"{panel.heading}: " if panel.heading and len(figure.panels) > 1 else ""
            parts.append(f"{heading}{'; '.join(remark.rstrip('.') for remark in panel.remarks)}.")
    return " ".join(filter(None, parts))


def on_paper(figure: Figure, words: str = "") -> Json:
    """Return a figure as one specification: panels side by side, legends below them, and `words` at the bottom."""
    columns = min(2, len(figure.panels))
    panels = [
        {
            **_with_legends(chart(panel), figure), "height": HEIGHT, "width": max(panel.width, WIDTH),
            "title": textwrap.wrap(panel.heading, TITLE_CHARACTERS) or "",
        }
        for panel in figure.panels
    ]  # fmt: skip
    # Shared scales give one legend for all panels. Without categories, each panel has its own range of colours.
    shared = {"color": "shared" if figure.legend else "independent", "shape": "shared", "strokeDash": "shared"}
    below = {"text": textwrap.wrap(words, CAPTION_CHARACTERS * columns), "orient": "bottom", "fontWeight": "normal",
             "fontSize": 9.5, "offset": 12}  # fmt: skip
    return {
        "config": {**themed(CONFIG, PALETTE), "font": FONT, "background": "white"},  # type: ignore[dict-item]
        "concat": panels, "columns": columns, "resolve": {"scale": shared}, **({"title": below} if words else {}),
    }  # fmt: skip


def _with_legends(part: object, figure: Figure) -> Json:
    """Return a chart with legends (the page has them in HTML) and without selections and tooltips."""
    if isinstance(part, list):
        return [_with_legends(item, figure) for item in part]  # type: ignore[return-value]
    if not isinstance(part, dict):
        return part  # type: ignore[return-value]
    if "values" in part or "value" in part:  # rows of data, which may have keys such as `type`
        return part
    kept: Json = {key: _with_legends(value, figure) for key, value in part.items() if key not in ("params", "tooltip")}
    if part.get("type") == "nominal" and "legend" in part:
        if part["field"] != "status":
            lines = {"symbolType": "stroke"} if part["scale"].get("range") else {}
            longest = max(map(len, part["scale"]["domain"]), default=0)
            # 5 is the width of the symbol and the gap to the next entry, in characters.
            across = CAPTION_CHARACTERS * min(2, len(figure.panels)) // (longest + 5)
            kept["legend"] = {**LEGEND, **lines, "columns": min(6, max(1, across))}
        elif len(figure.statuses) > 1:
            kept["legend"] = {**LEGEND, "values": [*figure.statuses], "labelExpr": f"{STATUS_WORDS}[datum.label]"}
    return kept
