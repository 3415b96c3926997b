"""Claims about the Hessian's trace: an intermediate one calibrates best, and penalising it calibrates."""

from __future__ import annotations

import math

import numpy as np

from sweeper.analysis.claims.base import FAILS, HOLDS, UNDECIDED, Claim, Verdict, decide, undecided
from sweeper.analysis.claims.numbers import (
    Estimate,
    Point,
    mean_correlation,
    number,
    of_split,
    other_settings,
    trained_to_the_end,
    trial_mean,
)
from sweeper.analysis.statistics.basics import bootstrap_interval
from sweeper.text.cells import Row, Rows, by_trial

TRACE = "hessian_cross_entropy_trace"

DEGREE = 3
"""The curvature paper's Fig. 3 fits a cubic in log–log."""

CONFIGURATIONS = 12
"""Fewer leave a cubic's ends to single configurations, and their resamples too."""

EDGE = 0.1
"""The share of the fitted range at each end that does not count as its inside."""


def judge_interior_minimum(rows: Rows) -> Verdict:
    """Judge that ECE is smallest at an intermediate trace.

    Rule: a cubic of log10 ECE in log10 Tr(H), both on validation data as in the paper's Fig. 3, cross-entropy's
    Hessian, over configurations (means over replicates; each network's means of both logarithms are taken off, because
    networks of different sizes have different traces). The statistic is the depth: the lower of the fit's two ends
    minus its minimum over the inner 80 % of the range, in decades. Holds where its 95 % bootstrap interval over
    configurations lies above 0, does not hold where it lies below, else undecided; at least 12 configurations.
    """
    name = "ece_smallest_at_intermediate_trace"
    points = _trace_and_ece(trained_to_the_end(rows))
    data = np.array([[math.log10(p.x), math.log10(p.y)] for p in points]).reshape(-1, 2)
    if len(data) < CONFIGURATIONS or np.ptp(data[:, 0]) == 0:
        return undecided(
            name, f"{len(data)} configurations have a positive trace and ECE; {CONFIGURATIONS} are needed", len(data)
        )
    labels = [p.stratum for p in points]
    shift = data[:, 0].mean()
    for label in set(labels):
        here = [place for place, each in enumerate(labels) if each == label]
        data[here] -= data[here].mean(axis=0)
    data[:, 0] += shift  # so that traces keep their order of magnitude
    value, interval = depth(data), bootstrap_interval(data, depth)
    fit = np.polyfit(data[:, 0] - data[:, 0].mean(), data[:, 1], DEGREE)
    x = np.linspace(data[:, 0].min(), data[:, 0].max(), 200)
    lowest = 10 ** float(x[np.argmin(np.polyval(fit, x - data[:, 0].mean()))])
    low, high = 10 ** data[:, 0].min(), 10 ** data[:, 0].max()
    shown = Estimate(value, interval, len(data))
    sentence = (
        f"the cubic's depth below the lower of its ends is {shown.text('.2f')} decades of ECE; its minimum lies at "
        f"Tr(H) = {lowest:.3g} of {low:.3g} to {high:.3g}; n = {len(data)} configurations"
    )
    details = {"trace_at_minimum": lowest, "trace_range": (float(low), float(high))}
    return Verdict(name, decide(interval), value, interval, len(data), "configurations", sentence, details)


def depth(data: np.ndarray) -> float:
    """Return how far the cubic through [n, 2] dips inside below the lower of its ends; NaN at too few distinct x."""
    x, y = data[:, 0], data[:, 1]
    if len(np.unique(x)) <= DEGREE:
        return math.nan
    centre, low, high = x.mean(), x.min(), x.max()
    fit = np.polyfit(x - centre, y, DEGREE)
    inside = np.linspace(low + EDGE * (high - low), high - EDGE * (high - low), 100)
    ends = np.polyval(fit, np.array([low, high]) - centre)
    return float(ends.min() - np.polyval(fit, inside - centre).min())


def judge_regularisation(rows: Rows) -> Verdict:
    """Judge that penalising the trace with a growing weight τ lowers both the trace and ECE.

    Rule: ρ(τ, Tr(H) of cross-entropy) and ρ(τ, ECE), both on validation data as in the paper's Fig. 4, over
    configurations, averaged over strata that differ in nothing but τ (so within a network and learning rate);
    cross-entropy is τ = 0. Holds where the 95 % bootstrap intervals of both lie below 0, does not hold where one lies
    above 0, else undecided.
    """
    name = "trace_regularisation_calibrates"
    held = trained_to_the_end(rows)
    trace, ece = (_against_weight(of_split(held, "val"), column) for column in (TRACE, "ece"))
    if trace.value is None or ece.value is None:
        return undecided(name, "ρ needs at least four τ of hessian_trace that differ in nothing else, with the trace")
    verdicts = [decide(each.interval, positive_holds=False) for each in (trace, ece)]
    verdict = HOLDS if verdicts == [HOLDS, HOLDS] else FAILS if FAILS in verdicts else UNDECIDED
    sentence = f"ρ(τ, ECE) {ece.text('.2f')} and ρ(τ, Tr(H)) {trace.text('.2f')}; n = {ece.n} configurations"
    return Verdict(
        name, verdict, ece.value, ece.interval, ece.n, "configurations", sentence, {"rho_trace": trace.value}
    )


def _trace_and_ece(rows: Rows) -> list[Point]:
    """Return trace (x) and validation ECE (y) of every configuration that has both above 0, networks as strata."""
    points = []
    for val in by_trial(of_split(rows, "val")).values():
        trace, ece = trial_mean(val, TRACE), trial_mean(val, "ece")
        if trace is not None and ece is not None and trace > 0 and ece > 0:
            points.append(Point(_network(val[0]), trace, ece, len(val)))
    return points


def _network(row: Row) -> tuple[tuple[str, object], ...]:
    """Return the values of a row's network: one name at two widths is two networks."""
    return tuple((key, value) for key, value in sorted(row.items()) if key.startswith("config_architecture_"))


def _against_weight(rows: Rows, column: str) -> Estimate:
    points = []
    for held in by_trial(rows).values():
        weight, value = _weight(held[0]), trial_mean(held, column)
        if weight is not None and value is not None:
            points.append(Point(other_settings(held[0], ("config_loss_",)), weight, value, len(held)))
    return mean_correlation(points)


def _weight(row: Row) -> float | None:
    """Return τ of a row: 0 of plain cross-entropy, that of `hessian_trace` on cross-entropy, else `None`."""
    if row["config_loss_name"] == "cross_entropy":
        return 0.0
    regularised = row["config_loss_name"] == "hessian_trace" and row.get("config_loss_base") == "cross_entropy"
    return number(row, "config_loss_weight") if regularised else None


CLAIMS = (
    Claim(
        "ece_smallest_at_intermediate_trace",
        "curvature",
        "Calibration error is smallest at an intermediate trace of the Hessian.",
        judge_interior_minimum,
    ),
    Claim(
        "trace_regularisation_calibrates",
        "curvature",
        "Regularising the Hessian's trace lowers trace and calibration error as its weight τ grows.",
        judge_regularisation,
    ),
)
