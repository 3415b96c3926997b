"""A panel as plotly draws it on a page: JSON of traces and layout.

Colours are written as CSS variables (`var(--series-1)`); the page resolves them when it draws, so one figure serves
light, dark and print. The dictionaries go to plotly's script as they are: building plotly's Python objects of them
takes twice as long as drawing the figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sweeper.figures.base import SERIES, Axis, Bars, Colour, Curve, Dimension, HeatMap, Mark, Panel, Parallel, Scale

Json: TypeAlias = dict[str, object]

#: Points above which a panel is drawn by WebGL: SVG prints and works everywhere, but becomes slow above some thousand
#: (plotly's own advice is 1,000 or more).
MOST_SVG_POINTS = 4000

#: Best is darkest on paper and brightest on a dark page.
RAMP = [[0, "var(--ramp-1)"], [0.5, "var(--ramp-2)"], [1, "var(--ramp-3)"]]
SIGNED = [[0, "var(--series-1)"], [0.5, "var(--grid)"], [1, "var(--series-2)"]]
RANKS = [[0, "var(--ramp-1)"], [0.35, "var(--ramp-2)"], [1, "var(--ramp-3)"]]

#: The bar beside a plot that says what colours mean.
BAR = {"thickness": 10, "outlinewidth": 0, "tickfont": {"size": 10.5}}


def plot_json(panel: Panel) -> Json:
    """Return a panel as plotly's `data` and `layout`."""
    points = sum(len(mark.x) for mark in panel.marks if isinstance(mark, Curve))
    return {
        "data": [_trace(mark, webgl=points > MOST_SVG_POINTS) for mark in panel.marks],
        "layout": {
            "paper_bgcolor": "var(--card)", "plot_bgcolor": "var(--card)",
            "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "color": "var(--soft)"},
            "margin": _margin(panel), "showlegend": False, "hovermode": "closest", "bargap": 0.35,
            "hoverlabel": {"font": {"size": 12}, "align": "left"},
            "xaxis": {"visible": False, "range": [-0.1, 1.1]} if panel.x is None else _axis(panel.x),
            "yaxis": {"visible": False, "scaleanchor": "x"} if panel.y is None else _axis(panel.y),
            "shapes": [_vertical(value) for value in panel.verticals],
            "annotations": [*(_label(*each) for each in panel.verticals.items() if each[1]),
                            *(_corner(x, y, text) for (x, y), text in panel.corners.items())],
            **_scale(panel.scale),
        },
    }  # fmt: skip


def colour(of: Colour) -> str:
    """Return the CSS variable of category number `of`, or of a name of the palette."""
    return f"var(--series-{of % SERIES + 1})" if isinstance(of, int) else f"var(--{of})"


def _trace(mark: Mark, *, webgl: bool) -> Json:
    if isinstance(mark, Curve):
        return _curve(mark, webgl=webgl and not mark.fill)
    if isinstance(mark, Bars):
        return _bars(mark)
    return _heat_map(mark) if isinstance(mark, HeatMap) else _parallel(mark)


def _curve(mark: Curve, *, webgl: bool) -> Json:
    paint = colour(mark.colour)
    mode = "+".join(["lines"] * (mark.line > 0) + ["markers"] * (mark.size > 0)) or "none"
    found: Json = {
        "type": "scattergl" if webgl else "scatter", "mode": mode, "x": _plain(mark.x), "y": _plain(mark.y),
        "name": mark.name, "opacity": mark.opacity, **_hover(mark.hover, mark.text), **_meta(mark.status, mark.group),
    }  # fmt: skip
    if mark.line:
        shape = {"dash": mark.dash or "solid", "shape": "hv" if mark.steps else "linear"}
        found["line"] = {"color": paint, "width": mark.line, **shape}
    if mark.fill:
        found |= {"fill": "toself", "fillcolor": paint}
    if mark.size:
        painted = {"color": paint, "line": {"width": 1.4, "color": paint}}
        edge = {"width": 1.4 * mark.symbol.endswith("-open")}
        valued = {"color": _plain(mark.values), "coloraxis": "coloraxis", "line": edge}
        found["marker"] = {"size": mark.size, "symbol": mark.symbol, **(valued if mark.values else painted)}
    for which, errors in (("error_x", mark.error_x), ("error_y", mark.error_y)):
        if errors is not None:
            found[which] = {"type": "data", "symmetric": False, "arrayminus": _plain(errors[0]),
                            "array": _plain(errors[1]), "color": paint, "thickness": 1.2, "width": 3}  # fmt: skip
    return found


def _bars(mark: Bars) -> Json:
    places, lengths = _plain(mark.places), _plain(mark.lengths)
    found: Json = {
        "type": "bar", "x": lengths if mark.lying else places, "y": places if mark.lying else lengths,
        "orientation": "h" if mark.lying else "v", "textposition": "none",
        "marker": {"color": colour(mark.colour), "line": {"color": "var(--card)", "width": 1}},
        **_hover(mark.hover, mark.text), **_meta("", mark.group),
    }  # fmt: skip
    if mark.labels:
        found |= {"texttemplate": [*mark.labels], "textposition": "auto", "insidetextanchor": "start", "textangle": 0,
                  "textfont": {"size": 9, "color": "var(--soft)"}, "cliponaxis": False}  # fmt: skip
    if mark.widths:
        found["width"] = _plain(mark.widths)
    if mark.errors:
        found["error_x" if mark.lying else "error_y"] = {
            "type": "data", "array": _plain(mark.errors), "color": "var(--soft)", "thickness": 1.2, "width": 3,
        }  # fmt: skip
    return found


def _heat_map(mark: HeatMap) -> Json:
    return {
        "type": "heatmap", "x": _plain(mark.columns), "y": _plain(mark.rows), "z": [_plain(row) for row in mark.values],
        "xgap": 2, "ygap": 2, "coloraxis": "coloraxis", **_hover(mark.hover, mark.text), **_meta(mark.status, ""),
    }  # fmt: skip


def _parallel(mark: Parallel) -> Json:
    return {
        "type": "parcoords", "dimensions": [_dimension(each) for each in mark.dimensions],
        "meta": {"statuses": [*mark.statuses], "trials": [*mark.trials]},
        "line": {"color": [*mark.ranks], "cmin": 0, "cmax": max(1, len(mark.ranks) - 1), "colorscale": RANKS},
        "unselected": {"line": {"color": "var(--grid)", "opacity": 0.35}},
        "labelfont": {"size": 12, "color": "var(--ink)"}, "tickfont": {"size": 9.5, "color": "var(--soft)"},
        "rangefont": {"size": 1, "color": "rgba(0,0,0,0)"},
    }  # fmt: skip


def _dimension(each: Dimension) -> Json:
    ticks = {"tickvals": [*each.ticks], "ticktext": [*each.ticks.values()]}
    return {"label": each.label, "values": _plain(each.places), "range": [*each.limits], **ticks}


def _scale(scale: Scale | None) -> Json:
    if scale is None:
        return {}
    limits = {"cmin": scale.low, "cmax": scale.high, "reversescale": scale.reversed}
    return {"coloraxis": {"colorscale": SIGNED if scale.signed else RAMP, "colorbar": BAR, **limits}}


def _hover(template: str, text: Sequence[object]) -> Json:
    if not template or ("%{text}" in template and not text):
        return {"hoverinfo": "skip"}
    return {"hovertemplate": f"{template}<extra></extra>"} | ({"text": _plain(text)} if text else {})


def _meta(status: str, group: str) -> Json:
    """Return the tags by which the page's filters find a trace."""
    return {"meta": {"status": status, "group": group}}


def _plain(values: Sequence[object]) -> list[object]:
    """Return values as JSON has them, also those of NumPy's arrays."""
    plain: list[object] = values.tolist() if hasattr(values, "tolist") else [*values]
    return plain


def _margin(panel: Panel) -> Mapping[str, int]:
    first = panel.marks[0] if panel.marks else None
    if isinstance(first, Parallel):
        return {"l": first.margin, "r": 34, "t": 50, "b": 24}
    return {"l": 52, "r": 14, "t": 10, "b": 44}


def _axis(axis: Axis) -> Json:
    found: Json = {
        "title": {"text": axis.title, "standoff": 8, "font": {"size": 12}},
        "gridcolor": "var(--grid)", "linecolor": "var(--axis)", "zeroline": False, "ticks": "outside", "ticklen": 4,
        "tickcolor": "var(--axis)", "showline": True, "automargin": True, "tickfont": {"size": 11},
    }  # fmt: skip
    if axis.log or axis.names:
        found["type"] = "log" if axis.log else "category"
    if axis.ticks:
        found |= {"tickvals": [*axis.ticks], "ticktext": [*axis.ticks.values()]}
    if axis.step is not None:
        found["dtick"] = axis.step
    if axis.limits is not None:
        found["range"] = [math.log10(value) if axis.log else value for value in axis.limits]
    if axis.from_zero:
        found["rangemode"] = "tozero"
    return found


def _vertical(value: float) -> Json:
    line = {"color": "var(--axis)", "width": 1.1, "dash": "dot"}
    return {"type": "line", "x0": value, "x1": value, "y0": 0, "y1": 1, "yref": "paper", "line": line, "layer": "below"}


def _label(value: float, text: str) -> Json:
    font = {"size": 10.5, "color": "var(--soft)"}
    place = {"x": value, "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top", "showarrow": False}
    return {**place, "text": f" {text}", "font": font}


def _corner(x: float, y: float, text: str) -> Json:
    return {"x": x, "y": y, "text": text, "yshift": 12 if y else -12, "showarrow": False}
