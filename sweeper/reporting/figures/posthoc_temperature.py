"""Focal temperature scaling: the best T at each γ_ev, and the line through T at γ_ev 0 and 1 (properness, Fig. 8)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType

from sweeper.analysis.statistics.basics import spread
from sweeper.reporting.figure_parts.figure import Figure, Panel, axis, colour, plot, tagged
from sweeper.reporting.figure_parts.posthoc import Posthoc, posthoc_measurements
from sweeper.results import Results
from sweeper.text.cells import int_of, text_of
from sweeper.text.labels import plural

ABSENT = "T against the focal map’s γ: no focal temperature scaling was measured; add it with `sweeper recalibrate`."

METHOD = "focal_temperature"
MOST_LINES = 8
"""As many as the palette has colours."""

REMARKS = ("If several T have the same objective, the smallest is chosen, so T is noisy with few samples.",)

Fits = Sequence[Mapping[str, float]]


def draw(results: Results) -> Figure | None:
    """Return best T against γ_ev, a panel a variant of the method; None where it was never fitted."""
    measured = posthoc_measurements(results)
    if measured is None:
        return None
    variants = [variant for variant in measured.variants if variant.method == METHOD]
    panels, shown = [], list(measured.names)[:MOST_LINES]
    for variant in variants:
        fits = {trial: fits_of(measured, trial, variant.options) for trial in shown}
        if any(fits.values()):
            panels.append(Panel(variant.label, REMARKS, drawn(measured, fits)))
    if not panels:
        return None
    return Figure(
        key="posthoc-temperature",
        title="Focal temperature scaling: T against γ",
        caption=(
            "For each γ of the focal map (not of the loss), the temperature with the lowest objective on validation "
            f"data: mean ± standard deviation over replicates, {plural(len(shown), 'configuration')}"
            + (f" of {len(measured.names)}" if len(shown) < len(measured.names) else "")
            + ". Lines: T = T₀ + (T₁ − T₀)·γ through the best T at γ = 0 and 1, which the line search follows."
        ),
        sql=[measured.sql],
        tables=["evaluations", "recalibrations", "trials"],
        panels=panels,
        legend=[measured.names[trial] for trial in shown],
    )


def fits_of(measured: Posthoc, trial: str, options: str) -> Fits:
    """Return the fitted parameters of every replicate of a configuration, each set once."""
    rows = [
        row
        for row in measured.rows
        if (row["trial"], row["method"], row["options"], row["split"]) == (trial, METHOD, options, "val")
    ]
    bins = min((int_of(row, "bins") for row in rows), default=None)
    fitted = [row for row in rows if row["bins"] == bins and not row["unavailable"]]
    parameters = (json.loads(text_of(row, "parameters")) for row in fitted)
    return [found for found in parameters if "line_slope" in found]


def drawn(measured: Posthoc, fits: Mapping[str, Fits]) -> go.Figure:
    """Return the plot: a line and points a configuration."""
    traces: list[BaseTraceType] = []
    for index, (trial, sets) in enumerate(fits.items()):
        if sets:
            traces += traces_of(measured.names[trial], index, sets)
    return plot(traces, axis("γ of the focal map"), axis("T", rangemode="tozero"))


def traces_of(name: str, index: int, sets: Fits) -> list[BaseTraceType]:
    """Return a configuration's mean line over the range of γ_ev where T > 0, and its points."""
    gammas = {key: gamma_of(key) for key in sets[0] if key.startswith("temperature_at_")}
    points = {gamma: spread([found[key] for found in sets]) for key, gamma in sorted(gammas.items(), key=by_gamma)}
    intercept = spread([found["line_intercept"] for found in sets]).mean
    slope = spread([found["line_slope"] for found in sets]).mean
    low, high = min(points, default=0.0), max(points, default=1.0)
    if slope < 0:
        high = min(high, -intercept / slope)
    paint = colour(index)
    line = go.Scatter(
        x=[low, high],
        y=[intercept + slope * low, intercept + slope * high],
        mode="lines",
        line={"color": paint, "width": 1.5},
        hoverinfo="skip",
        meta=tagged("completed", name),
    )
    dots = go.Scatter(
        x=list(points),
        y=[found.mean for found in points.values()],
        mode="markers",
        marker={"color": paint, "size": 7},
        error_y={
            "type": "data", "array": [found.deviation or 0 for found in points.values()], "color": paint,
            "thickness": 1, "width": 2,
        },
        text=[f"<b>{name}</b><br>γ {gamma:g}, T {found.text()}" for gamma, found in points.items()],
        hovertemplate="%{text}<extra></extra>",
        meta=tagged("completed", name),
    )  # fmt: skip
    return [line, dots]


def gamma_of(name: str) -> float:
    """Return the γ_ev of a parameter's name: −0.5 of `temperature_at_minus_0_5`."""
    written = name.removeprefix("temperature_at_").replace("minus_", "-").replace("_", ".")
    return float(written)


def by_gamma(entry: tuple[str, float]) -> float:
    """Sort by γ_ev."""
    return entry[1]
