"""The numbers of figures that need no training: fits and bounds of the focal map, from its formula."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from search_spaces.published_numbers import PublishedNumber
from sweeper.analysis.papers.focal_map_figures import GAMMAS

if TYPE_CHECKING:
    from trainables.posthoc.focal_temperature_fits import ClosestTemperature


def formula_value(number: PublishedNumber) -> float:
    """Return the value of a published number that no data set is named for.

    Its options name the classes, and the γ or the kind of bounds where it is of one alone. NaN where the quantity does
    not exist.

    Raises:
        KeyError: an unknown quantity.
    """
    from trainables.posthoc.focal_temperature_fits import largest_overconfident_gamma

    classes = int(number.options["classes"])
    if number.metric == "largest_overconfident_gamma":
        largest = largest_overconfident_gamma(classes)
        return float("nan") if largest is None else largest
    if number.metric in ("temperature_lower", "temperature_upper"):
        return _bound(number.options["bounds"], float(number.options["gamma"]), number.metric)
    return _of_fits(number.metric, classes, number.options.get("gamma"))


@cache
def _bound(kind: str, gamma: float, side: str) -> float:
    from trainables.posthoc.focal_temperature_fits import measured_bounds, theoretical_bounds

    bounds = {"theory": theoretical_bounds, "measured": measured_bounds}[kind](gamma)
    return bounds.lower if side == "temperature_lower" else bounds.upper


@cache
def _of_fits(metric: str, classes: int, gamma: str | None) -> float:
    from trainables.posthoc.focal_temperature_fits import line_through

    fits = [_fit(classes, each) for each in ((float(gamma),) if gamma else GAMMAS["temperatures"])]
    if metric == "temperature":
        return fits[0].temperature
    if metric == "max_error":
        return max(fit.max_error for fit in fits)
    return dict(zip(("slope", "intercept"), line_through(fits), strict=True))[metric]


@cache
def _fit(classes: int, gamma: float) -> ClosestTemperature:
    from trainables.posthoc.focal_temperature_fits import closest_temperature, simplex_logits

    return closest_temperature(gamma, simplex_logits(classes))
