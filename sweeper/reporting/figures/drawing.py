"""Vega-Lite charts: the specification of a panel, the common theme, the libraries for a page, and files for papers.

Colours are CSS variables (`var(--series-1)`). The page resolves them when it draws, so the same chart works in light
mode, dark mode and print. `on_paper` replaces them with its own palette. Figures for papers, with legend and caption,
are written as PDF with embedded fonts, SVG or PNG.
"""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import cast

import vl_convert

from sweeper.core.display import as_data
from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.ids import cache_folder
from sweeper.core.labels import STATUS_WORDS
from sweeper.reporting.figures.base import SHAPES, Data, Figure, Json, Panel, report_figures
from sweeper.results import Results
from trainables.files.atomic import replacing, write_text
from trainables.registry.names import nearest

#: Columns that the page needs for clicks, filters and tooltips, even if no channel encodes them.
ALWAYS = ("trial", "status", "says")

#: Vega expressions over parameters that page.js sets in its function `drawn`: the statuses that the reader hides, and
#: the trials in a brushed range. Trials outside that range stay faintly visible, so that the axes keep their scale.
HIDDEN_STATUS, BRUSHED_AWAY = "!hidden[datum.status]", "chosen && !chosen[datum.trial]"
GONE = 0.08

SERIES = [f"var(--series-{at})" for at in range(1, 9)]
RAMP = [f"var(--ramp-{at})" for at in (1, 2, 3)]

#: The theme of all charts. Named colours are parameters, because an expression in a mark can only refer to parameters.
CONFIG: Json = {
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
    "background": "transparent", "padding": 4, "view": {"stroke": None},
    "axis": {
        "domainColor": "var(--axis)", "tickColor": "var(--axis)", "gridColor": "var(--grid)", "labelFontSize": 11,
        "labelColor": "var(--soft)", "titleColor": "var(--soft)", "titleFontSize": 12, "titleFontWeight": "normal",
        "titlePadding": 8, "tickSize": 4, "labelLimit": 200, "labelOverlap": "greedy",
        "labelSeparation": 5,
    },
    "legend": {
        "labelColor": "var(--soft)", "titleColor": "var(--soft)", "labelLimit": 300, "labelFontSize": 10.5,
        "gradientThickness": 10, "symbolLimit": 40,
    },
    "title": {"color": "var(--ink)", "anchor": "start", "fontSize": 12},
    "mark": {"color": SERIES[0]}, "bar": {"discreteBandSize": {"band": 0.65}}, "axisQuantitative": {"tickCount": 7},
    "line": {"strokeWidth": 1.6}, "rule": {"color": "var(--axis)"},
    "text": {"color": "var(--soft)"},
    "range": {"category": SERIES, "ramp": RAMP, "heatmap": RAMP,
              "diverging": ["var(--series-1)", "var(--grid)", "var(--series-2)"], "symbol": [*SHAPES.values()]},
    "params": [
        *({"name": name, "value": f"var(--{name})"} for name in ("ink", "soft", "axis", "shade", "card")),
        {"name": "second", "value": SERIES[1]},
        {"name": "hidden", "value": {}}, {"name": "off", "value": {}}, {"name": "chosen", "value": None},
    ],
}  # fmt: skip


def chart(panel: Panel) -> Json:
    """Return a panel as a layered Vega-Lite specification, without size and theme."""
    axes: Json = {"x": panel.x, "y": panel.y}
    layers = [layer_of(part, axes) for part in panel.layers]
    brushed = [part for part in layers if BRUSHED_AWAY in str(part["encoding"])]
    if brushed:  # Vega-Lite refuses one selection in two layers
        brushed[-1]["params"] = [{"name": "brush", "select": "interval"}]
    return {"encoding": axes, "layer": layers}


def layer_of(part: Json, axes: Json) -> Json:
    """Return a layer with only the columns that it encodes, its tooltip, and the page's filters."""
    channels = dict(cast(Mapping[str, Json | None], part["encoding"]))
    rows = cast(Data, cast(Json, part["data"])["values"])
    both = {**axes, **channels}.values()
    encoded = [cast(Json, one) for given in both if given for one in (given if isinstance(given, list) else [given])]
    steps = cast(list[Json], part.get("transform", []))
    folded = {name for step in steps for name in cast(list[str], step.get("fold", []))}
    columns = {str(channel["field"]) for channel in encoded if "field" in channel} | folded | {*ALWAYS}
    held = set[str]().union(*rows) & {*ALWAYS}
    filters = [HIDDEN_STATUS] if "status" in held else []
    by = next((channel for name in ("color", "detail") if (channel := channels.get(name) or {}).get("type")), {})
    if by.get("type") == "nominal":
        filters.append(f"!off[datum.{by['field']}]")
    if "says" in held:
        channels["tooltip"] = {"field": "says"}
    if "trial" in held:
        # `opacity` would also make a line's transparent points visible, which only carry its tooltip.
        look = dict(cast(Json, part["mark"]))
        name = "strokeOpacity" if look["type"] == "line" else "opacity"
        seen = channels.get(name) or {"value": look.pop("opacity", 1)}
        fades = [{"test": BRUSHED_AWAY, "value": GONE}, *([seen["condition"]] if "condition" in seen else [])]
        channels[name] = {**seen, "condition": fades}
        part = {**part, "mark": look}
    # Null cells are dropped too: Vega treats a missing field as null, and the page is smaller.
    kept = [{name: row[name] for name in row if name in columns and row[name] is not None} for row in rows]
    return {
        **part, "data": {"values": kept}, "encoding": channels,
        "transform": [*({"filter": test} for test in filters), *steps],
    }  # fmt: skip


def themed(node: object, palette: Mapping[str, str]) -> object:
    """Return a theme with every CSS variable replaced by a palette's colour."""
    if isinstance(node, dict):
        return {key: themed(value, palette) for key, value in node.items()}
    if isinstance(node, list):
        return [themed(value, palette) for value in node]
    return palette[node[6:-1]] if isinstance(node, str) and node.startswith("var(--") else node


def json_text(value: object) -> str:
    """Return compact JSON; NaN and infinities, which JSON lacks, become null."""
    return json.dumps(as_data(value), ensure_ascii=False, separators=(",", ":"))


@functools.cache
def javascript() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, so that `vegaEmbed` works offline.

    Bundling takes 2 s of processor time, so the script is kept in the user's cache.
    """
    file = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    if file.exists():
        return file.read_text("utf-8")
    script: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub demands a snippet
    with suppress(OSError):  # without a writable cache, only the next call takes 2 s more
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, script)
    return script


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
