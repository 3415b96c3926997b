"""Figure of focal temperature scaling: the best T at each γ_ev, and the line through T at γ_ev 0 and 1.

The line is that of Fig. 8 of the properness paper.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sweeper.core.cells import int_of, text_of
from sweeper.core.labels import plural
from sweeper.core.statistics.basics import spread
from sweeper.reporting.figures.base import FIGURES, Figure, Json, Panel, bars_to, colour, ends, mark, points, quantity
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED
from sweeper.results.posthoc import Posthoc, posthoc_measurements

METHOD = "focal_temperature"
#: The number of colours of the palette.
MOST_LINES = 8

REMARKS = ("If several T have the same objective, the smallest is chosen, so T is noisy with few samples.",)

Fits = Sequence[Mapping[str, float]]


@FIGURES.add(
    "posthoc_temperature",
    place=150,
    absent="T against the focal map’s γ: no focal temperature scaling was measured; add it with `sweeper recalibrate`.",
)
def draw(results: Results) -> Figure | None:
    """Return the best T against γ_ev, one panel per variant of the method; None if it was never fitted."""
    measured = posthoc_measurements(results)
    if measured is None:
        return None
    variants = [variant for variant in measured.variants if variant.method == METHOD]
    panels, shown = [], list(measured.names)[:MOST_LINES]
    axes = quantity("gamma", "γ of the focal map"), quantity("T", "T", zero=True)
    for variant in variants:
        fits = {trial: fits_of(measured, trial, variant.options) for trial in shown}
        if any(fits.values()):
            panels.append(Panel(variant.label, lines_of(measured, fits), *axes, REMARKS))
    if not panels:
        return None
    return Figure(
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
    """Return the fitted parameters of every replicate of a configuration; each replicate occurs once."""
    # The table has a row per number of bins. A fit does not depend on the bins, so one number of bins suffices.
    wanted = (trial, METHOD, options, "val")
    rows = [row for row in measured.rows if (row["trial"], row["method"], row["options"], row["split"]) == wanted]
    bins = min((int_of(row, "bins") for row in rows), default=None)
    fitted = [row for row in rows if row["bins"] == bins and not row["unavailable"]]
    parameters = (json.loads(text_of(row, "parameters")) for row in fitted)
    return [fitted_line for fitted_line in parameters if "line_slope" in fitted_line]


def lines_of(measured: Posthoc, fits: Mapping[str, Fits]) -> list[Json]:
    """Return each configuration's mean line, over the range of γ_ev with T > 0, and its points with error bars."""
    lines: list[Json] = []
    best: list[Json] = []
    for trial, sets in fits.items():
        if not sets:
            continue
        of: Json = {"trial": trial, "configuration": measured.names[trial], "status": FINISHED}
        keys = sorted((gamma_of(key), key) for key in sets[0] if key.startswith("temperature_at_"))
        temperatures = {gamma: spread([fit[key] for fit in sets]) for gamma, key in keys}
        intercept, slope = (spread([fit[key] for fit in sets]).mean for key in ("line_intercept", "line_slope"))
        low, high = min(temperatures, default=0.0), max(temperatures, default=1.0)
        if slope < 0:  # the line ends where it reaches T = 0, since temperatures are positive
            high = min(high, -intercept / slope)
        lines += [{**of, "gamma": gamma, "T": intercept + slope * gamma} for gamma in (low, high)]
        for gamma, temperature in temperatures.items():
            said, deviation = (
                f"{measured.names[trial]}\nγ {gamma:g}, T {temperature.text()}",
                temperature.deviation or 0,
            )
            bar = ends((temperature.mean - deviation, temperature.mean + deviation))
            best.append({**of, "gamma": gamma, "T": temperature.mean, **bar, "says": said})
    by = colour("configuration", [measured.names[trial] for trial in fits])
    return [mark("line", lines, color=by), bars_to(best, color=by), points(best, color=by)]


def gamma_of(name: str) -> float:
    """Return the γ_ev in a parameter's name, e.g. −0.5 for `temperature_at_minus_0_5`."""
    written = name.removeprefix("temperature_at_").replace("minus_", "-").replace("_", ".")
    return float(written)
