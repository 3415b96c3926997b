"""Claims of the posterior paper about γ and the map Ψ^γ in practice: with and without smoothing, and after TS_FL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from sweeper.analysis.claims.base import Claim, Verdict
from sweeper.analysis.claims.networks import by_network, correlations, verdict_of
from sweeper.analysis.claims.numbers import (
    LEVEL,
    Estimate,
    number,
    of_split,
    paired_mean,
    trained_to_the_end,
    trial_mean,
)
from sweeper.text.cells import Row, Rows, by_trial

MAPPED, SCALED, SCALED_AND_MAPPED = (f"posthoc_{label}_ece" for label in ("focal_map", "ts_fl", "ts_fl_map"))
"""Columns of ECE with Ψ^γ, and of TS_FL without and with it: `ts_fl` and `ts_fl_map` are the paper's files' labels."""

RESAMPLES = 1000


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
    γ > 0; the mean over γ with Student's interval over seeds. Holds where every network's 95 % interval lies above 0,
    does not hold where one lies below, else undecided. The paper finds so on SVHN, and the contrary on CIFAR-10.
    """
    return _improvement("focal_map_lowers_ece", rows, "ece", MAPPED, smoothed=False)


def judge_map_smoothed(rows: Rows) -> Verdict:
    """Judge that Ψ^γ lowers the ECE of networks trained with label smoothing.

    Rule: as for focal_map_lowers_ece, over focal losses with smoothed targets. Holds where every network's 95 %
    interval lies above 0, does not hold where one lies below, else undecided.
    """
    return _improvement("focal_map_lowers_ece_with_label_smoothing", rows, "ece", MAPPED, smoothed=True)


def judge_map_scaled(rows: Rows) -> Verdict:
    """Judge that Ψ^γ lowers the ECE after TS_FL, temperature scaling by the focal loss with the network's own γ.

    Rule: as for focal_map_lowers_ece, between TS_FL without and with Ψ^γ (labels ts_fl and ts_fl_map). Holds where
    every network's 95 % interval lies above 0, does not hold where one lies below, else undecided.
    """
    return _improvement("focal_map_lowers_ece_after_ts_fl", rows, SCALED, SCALED_AND_MAPPED, smoothed=False)


def judge_rise_smoothed(rows: Rows) -> Verdict:
    """Judge that without Ψ^γ, ECE rises with γ under label smoothing.

    Rule: ρ(γ, test ECE) over the replicates of each network, γ 0 being label smoothing itself, with a bootstrap
    interval over replicates. Holds where every network's 95 % interval lies above 0, does not hold where one lies
    below, else undecided.
    """
    return _rise("ece_rises_with_gamma_with_label_smoothing", rows, "ece", smoothed=True)


def judge_rise_scaled(rows: Rows) -> Verdict:
    """Judge that without Ψ^γ, ECE after TS_FL rises with γ.

    Rule: ρ(γ, test ECE after TS_FL) over the replicates of each network, with a bootstrap interval over replicates.
    Holds where every network's 95 % interval lies above 0, does not hold where one lies below, else undecided.
    """
    return _rise("ece_rises_with_gamma_after_ts_fl", rows, SCALED, smoothed=False)


def judge_network_size(rows: Rows) -> Verdict:
    """Judge that the best γ grows with the network.

    Rule: of each network the γ with the smallest mean test ECE, one-hot targets; the statistic is the slope of that γ
    against the network's place by depth (the number in its name), with a bootstrap over replicates within each
    configuration. Holds where its 95 % interval lies above 0, does not hold where it lies below, else undecided; at
    least three networks with three γ and three replicates each.
    """
    name = "best_gamma_grows_with_network_size"
    test = [row for row in of_split(trained_to_the_end(rows), "test") if plain_gamma(row) is not None]
    networks = {network: _errors_by_gamma(held) for network, held in by_network(test).items()}
    usable = {
        network: found
        for network, found in networks.items()
        if _depth(network) is not None and len(found) >= 3 and min(map(len, found.values())) >= 3
    }
    ordered = [usable[network] for network in sorted(usable, key=lambda network: _depth(network) or 0)]
    found = {"by place": _slope_of_best(ordered)} if len(ordered) >= 3 else {}
    best = {network: _best(errors) for network, errors in usable.items()}
    what = f"best γ {', '.join(f'{gamma:g} of {network}' for network, gamma in best.items())}; slope"
    missing = "three networks whose names end in their depth are needed, each with three γ and three replicates"
    return verdict_of(name, found, what, "networks", missing=missing, form=".2f", details={"best": best})


Errors = Mapping[float, Sequence[float]]
"""ECE of each replicate, by γ."""


def _slope_of_best(networks: Sequence[Errors]) -> Estimate:
    """Return the slope of the best γ against a network's place, with a bootstrap over replicates."""
    random = np.random.default_rng(0)
    places = np.arange(len(networks))

    def slope(of: Sequence[Errors]) -> float:
        return float(np.polyfit(places, [_best(errors) for errors in of], 1)[0])

    drawn = [
        slope(
            [{gamma: random.choice(held, len(held)).tolist() for gamma, held in errors.items()} for errors in networks]
        )
        for _ in range(RESAMPLES)
    ]
    tail = 100 * (1 - LEVEL) / 2
    low, high = (float(limit) for limit in np.percentile(drawn, [tail, 100 - tail]))
    return Estimate(slope(networks), (low, high), sum(len(held) for errors in networks for held in errors.values()))


def _best(errors: Errors) -> float:
    """Return the γ with the smallest mean ECE."""
    return min((float(np.mean(held)), gamma) for gamma, held in errors.items())[1]


def _errors_by_gamma(rows: Rows) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for held in by_trial(rows).values():
        gamma = plain_gamma(held[0])
        if gamma is not None and trial_mean(held, "ece") is not None:
            found[gamma] = [ece for row in held if (ece := number(row, "ece")) is not None]
    return found


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
            found[network] = paired_mean(groups)
    kind = "smoothed focal losses" if smoothed else "focal losses"
    missing = f"networks trained with {kind} of γ > 0 and their ECE before and after Ψ are needed"
    return verdict_of(claim, found, "Ψ^γ lowers test ECE by", "networks", missing=missing, form=".4f")


def _rise(claim: str, rows: Rows, column: str, *, smoothed: bool) -> Verdict:
    gamma_of = smoothed_gamma if smoothed else plain_gamma
    test = [row for row in of_split(trained_to_the_end(rows), "test") if gamma_of(row) is not None]
    found = correlations(test, gamma_of, column)
    missing = "ρ needs at least four γ, 0 among them, of one network"
    return verdict_of(claim, found, "ρ(γ, test ECE)", "networks", missing=missing, form=".2f")


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
