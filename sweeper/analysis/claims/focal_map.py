"""Claims of the posterior paper about γ and the map Ψ^γ in practice: with and without smoothing, and after TS_FL."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from sweeper.analysis.claims.base import Claim, Verdict
from sweeper.analysis.claims.networks import by_network, correlations, verdict_of
from sweeper.analysis.claims.numbers import (
    STRATUM_POINTS,
    Estimate,
    Point,
    mean_correlation,
    mean_over,
    number,
    of_split,
    trained_to_the_end,
    trial_mean,
)
from sweeper.analysis.statistics.basics import INTERVAL_PAIRS
from sweeper.text.cells import Row, Rows, by_trial

MAPPED, SCALED, SCALED_AND_MAPPED = (f"posthoc_{label}_ece" for label in ("focal_map", "ts_fl", "ts_fl_map"))
"""Columns of ECE with Ψ^γ, and of TS_FL without and with it: `ts_fl` and `ts_fl_map` are the paper's files' labels."""


def plain_gamma(row: Row) -> float | None:
    """Return γ of a network trained on one-hot targets: 0 of cross-entropy, that of a focal loss, else `None`."""
    if row["config_loss_name"] == "cross_entropy":
        return 0.0
    plain = row["config_loss_name"] == "focal" and not row.get("config_loss_smoothing")
    return number(row, "config_loss_gamma") if plain else None


def smoothed_gamma(row: Row) -> float | None:
    """Return γ of a network trained on smoothed targets: 0 of label smoothing, that of a smoothed focal loss."""
    if row["config_loss_name"] == "label_smoothing":
        return 0.0
    smoothed = row["config_loss_name"] == "focal" and row.get("config_loss_smoothing")
    return number(row, "config_loss_gamma") if smoothed else None


def judge_map(rows: Rows) -> Verdict:
    """Judge that Ψ^γ lowers the ECE of plain networks.

    Rule: on each network, test ECE without Ψ^γ minus with it, paired within replicates of one-hot focal losses with
    γ > 0; the mean over configurations, of which at least three are needed (of one alone, over its replicates). Holds
    where every network's 95 % interval lies above 0, does not hold where one lies below even at 95 % for all together
    (Bonferroni), else undecided. The paper finds so on SVHN, and the contrary on CIFAR-10.
    """
    return _improvement("focal_map_lowers_ece", rows, "ece", MAPPED, smoothed=False)


def judge_map_smoothed(rows: Rows) -> Verdict:
    """Judge that Ψ^γ lowers the ECE of networks trained with label smoothing.

    Rule: as for focal_map_lowers_ece, over focal losses with smoothed targets. Holds where every network's 95 %
    interval lies above 0, does not hold where one lies below (for all together), else undecided.
    """
    return _improvement("focal_map_lowers_ece_with_label_smoothing", rows, "ece", MAPPED, smoothed=True)


def judge_map_scaled(rows: Rows) -> Verdict:
    """Judge that Ψ^γ lowers the ECE after TS_FL, temperature scaling by the focal loss with the network's own γ.

    Rule: as for focal_map_lowers_ece, between TS_FL without and with Ψ^γ (labels ts_fl and ts_fl_map). Holds where
    every network's 95 % interval lies above 0, does not hold where one lies below (for all together), else undecided.
    """
    return _improvement("focal_map_lowers_ece_after_ts_fl", rows, SCALED, SCALED_AND_MAPPED, smoothed=False)


def judge_rise_smoothed(rows: Rows) -> Verdict:
    """Judge that without Ψ^γ, ECE rises with γ under label smoothing.

    Rule: ρ(γ, test ECE) over the configurations of each network, γ 0 being label smoothing itself, averaged over
    strata that differ in nothing else; all together where no four do. Holds where every network's 95 % interval lies
    above 0, does not hold where one lies below even for all together (Bonferroni),
    else undecided; at least six configurations.
    """
    return _rise("ece_rises_with_gamma_with_label_smoothing", rows, "ece", smoothed=True)


def judge_rise_scaled(rows: Rows) -> Verdict:
    """Judge that without Ψ^γ, ECE after TS_FL rises with γ.

    Rule: as for ece_rises_with_gamma_with_label_smoothing, of test ECE after TS_FL and one-hot targets. Holds where
    every network's 95 % interval lies above 0, does not hold where one lies below (for all together), else undecided.
    """
    return _rise("ece_rises_with_gamma_after_ts_fl", rows, SCALED, smoothed=False)


def judge_network_size(rows: Rows) -> Verdict:
    """Judge that the best γ grows with the network.

    Rule: of each network the γ with the smallest mean test ECE, one-hot targets, at least three γ; the statistic is the
    rank correlation of that γ with the network's depth (the number in its name), each network counting once. Holds
    where its 95 % interval lies above 0, does not hold where it lies below, else
    undecided; at least five networks: of four, perfect order has a probability of one in twelve.
    """
    test = [row for row in of_split(trained_to_the_end(rows), "test") if plain_gamma(row) is not None]
    errors = {network: _error_by_gamma(held) for network, held in by_network(test).items()}
    best = {network: min(found, key=lambda gamma: found[gamma]) for network, found in errors.items() if len(found) >= 3}
    points = [Point(None, depth, gamma) for network, gamma in best.items() if (depth := _depth(network)) is not None]
    found = mean_correlation(points)
    if len(points) >= STRATUM_POINTS and found.value is None:
        found = Estimate(0.0, None, len(points), lacking="the same γ for all")
    what = f"best γ {', '.join(f'{gamma:g} of {network}' for network, gamma in best.items())}; ρ(depth, best γ)"
    missing = f"{len(points)} networks have a depth at the end of their name and three γ; {INTERVAL_PAIRS} are needed"
    return verdict_of(
        "best_gamma_grows_with_network_size",
        {"over networks": replace(found, unit="networks", lacking=found.lacking.replace("configurations", "networks"))},
        what,
        missing=missing,
        form=".2f",
        details={"best": best},
    )


def _error_by_gamma(rows: Rows) -> dict[float, float]:
    """Return the mean ECE of the configurations of each γ."""
    found: dict[float, list[float]] = {}
    for held in by_trial(rows).values():
        gamma, error = plain_gamma(held[0]), trial_mean(held, "ece")
        if gamma is not None and error is not None:
            found.setdefault(gamma, []).append(error)
    return {gamma: sum(errors) / len(errors) for gamma, errors in found.items()}


def _depth(network: str) -> int | None:
    found = re.search(r"(\d+)(?!.*\d)", network)
    return int(found[1]) if found else None


def _improvement(claim: str, rows: Rows, before: str, after: str, *, smoothed: bool) -> Verdict:
    gamma_of = smoothed_gamma if smoothed else plain_gamma
    test = [row for row in of_split(trained_to_the_end(rows), "test") if (gamma_of(row) or 0) > 0]
    found = {}
    for network, held in by_network(test).items():
        groups = [
            [a - b for row in each if (a := number(row, before)) is not None and (b := number(row, after)) is not None]
            for each in by_trial(held).values()
        ]
        if any(groups):
            found[network] = mean_over(groups)
    kind = "smoothed focal losses" if smoothed else "focal losses"
    missing = f"networks trained with {kind} of γ > 0 and their ECE before and after Ψ are needed"
    return verdict_of(claim, found, "Ψ^γ lowers test ECE by", missing=missing, form=".4f")


def _rise(claim: str, rows: Rows, column: str, *, smoothed: bool) -> Verdict:
    gamma_of = smoothed_gamma if smoothed else plain_gamma
    test = [row for row in of_split(trained_to_the_end(rows), "test") if gamma_of(row) is not None]
    found = correlations(test, gamma_of, column)
    missing = "ρ needs at least four γ, 0 among them, of one network"
    return verdict_of(claim, found, "ρ(γ, test ECE)", missing=missing, form=".2f")


_of = partial(Claim, paper="posterior")

CLAIMS = (
    _of("focal_map_lowers_ece", statement="The focal map Ψ lowers the ECE of plain networks.", judge=judge_map),
    _of(
        "focal_map_lowers_ece_with_label_smoothing",
        statement="The focal map Ψ lowers the ECE of networks trained with label smoothing.",
        judge=judge_map_smoothed,
    ),
    _of(
        "focal_map_lowers_ece_after_ts_fl",
        statement="The focal map Ψ lowers the ECE after temperature scaling by the focal loss.",
        judge=judge_map_scaled,
    ),
    _of(
        "ece_rises_with_gamma_with_label_smoothing",
        statement="Under label smoothing and without Ψ, ECE rises with γ.",
        judge=judge_rise_smoothed,
    ),
    _of(
        "ece_rises_with_gamma_after_ts_fl",
        statement="After temperature scaling by the focal loss and without Ψ, ECE rises with γ.",
        judge=judge_rise_scaled,
    ),
    _of(
        "best_gamma_grows_with_network_size",
        statement="The γ with the smallest ECE grows with the network.",
        judge=judge_network_size,
    ),
)
