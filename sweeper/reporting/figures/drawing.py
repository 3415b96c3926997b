"""Vega-Lite charts: the specification of a panel, the common theme, and the libraries for a page.

Colours are CSS variables (`var(--series-1)`). The page resolves them when it draws, so the same chart works in light
mode, dark mode and print. `on_paper` replaces them with its own palette.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import cast

import vl_convert

from sweeper.core.ids import cache_folder
from sweeper.reporting.figures.base import SHAPES, Data, Json, Panel
from trainables.files.atomic import write_text

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
    return json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"), default=str)


def finite(value: object) -> object:
    """Return a value in which every NaN and infinity is replaced by None."""
    if isinstance(value, float):
        return value if value - value == 0 else None  # inf − inf and NaN − NaN are NaN
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


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
