"""Claims about post-hoc calibration: focal temperature against temperature, and the focal map Ψ^γ."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from search_spaces.papers.claims.base import Detailed, claim
from search_spaces.papers.claims.numbers import (
    STRATUM_POINTS,
    Estimate,
    Estimates,
    Point,
    by_network,
    correlations,
    mean_correlation,
    mean_over,
    means,
    number,
    of_split,
    points_of,
    readings,
)
from sweeper.core.cells import Row, Rows, by_trial, grouped

KL = "kl_to_posterior"

#: Least R² of a relation that counts as close to linear.
STRAIGHT = 0.95


@claim("properness", form=".4f")
def focal_temperature_beats_temperature(rows: Rows) -> Detailed:
    """Focal temperature scaling calibrates better than temperature scaling.

    Rule: equal-mass ECE (what properness fits and reports) after temperature minus after focal temperature scaling,
    paired within each replicate, both fitted by one objective (networks whose methods had different objectives are left
    out); the mean over each network's configurations, of which at least three are needed (if there is only one, over
    its replicates). Holds where every network's 95 % interval on test data lies above 0, does not hold where one lies
    below even at 95 % for all together (Bonferroni), else undecided. On validation data, where both were fitted, the
    richer method can hardly lose, so that gain is reported but is no evidence.

    Estimated: equal-mass ECE of temperature scaling minus that of focal temperature scaling, on test data

    Missing: evaluation.posthoc must name both temperature and focal_temperature, fitted by one objective
    """
    gain = _gain("posthoc_temperature_ada_ece", "posthoc_focal_temperature_ada_ece")
    # Otherwise a difference could come from the objective instead of γ.
    fitted = [row for row in rows if _equally_fitted(row)]
    test, val = (means(of_split(fitted, split), gain) for split in ("test", "val"))
    return test, {"on_validation": {network: estimate.value for network, estimate in val.items()}}


@claim("properness", "val", form=".2f", positive_holds=False)
def temperature_falls_with_training_gamma(val: Rows) -> Estimates:
    """The optimal temperature falls as the training γ grows.

    Rule: ρ(γ_train, T of temperature scaling) over the configurations of each network, averaged over strata that differ
    in nothing else, or pooled if no four differ in γ alone; cross-entropy is γ 0. Holds where every network's 95 %
    interval lies below 0, does not hold where one lies above even at 95 % for all together (Bonferroni), else
    undecided; at least six configurations.

    Estimated: ρ(γ_train, T)

    Missing: ρ needs at least four γ of one network and temperature scaling
    """
    held = [row for row in val if plain_gamma(row) is not None]
    return correlations(held, plain_gamma, "posthoc_temperature_temperature")


@claim("calibratability", "test", form=".2f")
def weight_decay_hurts_calibratability(test: Rows) -> Detailed:
    """Networks trained with more weight decay are calibrated worse after temperature scaling.

    Rule: ρ(weight decay, test ECE after temperature scaling) over the configurations of each network, averaged over
    strata that differ in nothing else; at least six configurations, four weight decays in a stratum. Holds where every
    network's 95 % interval lies above 0, does not hold where one lies below even at 95 % for all together (Bonferroni),
    else undecided. ρ of the ECE before scaling is reported, too: weight decay is known to lower that ECE.

    Estimated: ρ(weight decay, ECE after T)

    Missing: ρ needs at least four weight decays of one network at equal other settings, and temperature scaling
    """
    decay = "config_optimizer_weight_decay"
    after, before = (
        correlations(test, decay, column, pool=False, besides=(decay,)) for column in ("posthoc_temperature_ece", "ece")
    )
    return after, {"rho_before": {network: estimate.value for network, estimate in before.items()}}


@claim("properness", "val", form=".3f")
def temperature_linear_in_gamma_ev(val: Rows) -> Estimates:
    """The optimal temperature is close to linear in the focal map's γ.

    Rule: R² of the straight line through each replicate's best T at the nine γ_ev of the grid; its mean over each
    network's configurations minus .95. Holds where every network's 95 % interval lies above 0, does not hold where one
    lies below even at 95 % for all together (Bonferroni), else undecided; at least three configurations, or one alone.

    Estimated: R² minus .95

    Missing: evaluation.posthoc must name focal_temperature, which records T at every γ_ev
    """
    return means(val, _above_straight)


@claim("properness", "test", form=".2f")
def choosing_by_ece_lowers_ece(test: Rows) -> Estimates:
    """Focal temperature scaling chosen by ECE has a smaller ECE than chosen by log-loss.

    Rule: 1 minus the ratio of two equal-mass test ECEs, with γ and T chosen by ECE and with γ and T chosen by log-loss,
    paired within each replicate; the mean over each network's configurations, of which at least three are needed (if
    there is only one, over its replicates). Holds where every network's 95 % interval lies above 0, does not hold where
    one lies below even at 95 % for all together (Bonferroni), else undecided. The paper finds .2 on average.

    Estimated: share of ECE that choosing by it saves

    Missing: evaluation.posthoc must name focal_temperature by ada_ece and, as focal_temperature_own_nll, by nll
    """
    return means(test, _gain_by_ece)


def _gain_by_ece(row: Row) -> float | None:
    by_ece, by_nll = (number(row, f"posthoc_focal_temperature{label}_ada_ece") for label in ("", "_own_nll"))
    return 1 - by_ece / by_nll if by_ece is not None and by_nll else None


def _above_straight(row: Row) -> float | None:
    """Return R² of T against γ_ev, minus STRAIGHT; `None` if T lacks a γ_ev or is constant."""
    from trainables.posthoc.focal_temperature import GAMMAS, TEMPERATURE_AT  # imported here: few processes need it

    measured = [number(row, f"posthoc_focal_temperature_{name}") for name in TEMPERATURE_AT]
    temperatures = [value for value in measured if value is not None]
    if len(temperatures) < len(GAMMAS) or len(set(temperatures)) == 1:  # a correlation with a constant is NaN
        return None
    return float(np.corrcoef(GAMMAS, temperatures)[0, 1] ** 2) - STRAIGHT


@claim("posterior", "test", form=".2f")
def focal_map_recovers_posterior(test: Rows) -> Estimates:
    """The focal calibration map recovers the true posterior of a focal-trained network.

    Rule: for focal losses of one γ > 0 on data with a known posterior, ln of the Kullback-Leibler divergence from the
    posterior, paired within each replicate: uncalibrated minus after Ψ^γ, and after temperature scaling minus after
    Ψ^γ; means over configurations, of which at least three are needed (if there is only one, over its replicates).
    Holds where both 95 % intervals lie above 0, does not hold where one lies below even for both together, else
    undecided.

    Estimated: ln of the divergence from the true posterior, minus that after Ψ^γ

    Missing: a data set with a known posterior, and both focal_map and temperature, are needed
    """
    columns = {"uncalibrated": KL, "after temperature scaling": f"posthoc_temperature_{KL}"}
    trials = by_trial(test).values()
    estimates = {
        name: mean_over([readings(held, partial(_log_ratio, column=column)) for held in trials])
        for name, column in columns.items()
    }
    return estimates if all(estimate.value is not None for estimate in estimates.values()) else {}


def _equally_fitted(row: Row) -> bool:
    """Return whether both methods were fitted by one objective, so that they differ only in γ."""
    first, second = (row.get(f"posthoc_{label}_fitted_by") for label in ("temperature", "focal_temperature"))
    return first == second


def _log_ratio(row: Row, column: str) -> float | None:
    """Return ln(divergence in `column` / divergence after the focal map) of a replicate trained with one γ > 0."""
    before, after = number(row, column), number(row, f"posthoc_focal_map_{KL}")
    # Ψ^γ inverts a loss with one γ per network; sample-dependent γ and γ = 0 have no such map.
    if row["config_loss_name"] not in ("focal", "focal_lambert") or (number(row, "config_loss_gamma") or 1) <= 0:
        return None
    return math.log(before / after) if before and after and before > 0 and after > 0 else None


#: ECE columns with Ψ^γ, and of TS_FL without and with it; `ts_fl` and `ts_fl_map` are labels in the search spaces.
MAPPED, SCALED, SCALED_AND_MAPPED = (f"posthoc_{label}_ece" for label in ("focal_map", "ts_fl", "ts_fl_map"))


def plain_gamma(row: Row) -> float | None:
    """Return γ of a network trained on one-hot targets, 0 for cross-entropy; `None` for other losses."""
    if row["config_loss_name"] == "cross_entropy":
        return 0.0
    plain = row["config_loss_name"] == "focal" and not row.get("config_loss_smoothing")
    return number(row, "config_loss_gamma") if plain else None


def smoothed_gamma(row: Row) -> float | None:
    """Return γ of a network trained on smoothed targets, 0 for label smoothing; `None` for other losses."""
    if row["config_loss_name"] == "label_smoothing":
        return 0.0
    smoothed = row["config_loss_name"] == "focal" and row.get("config_loss_smoothing")
    return number(row, "config_loss_gamma") if smoothed else None


@claim("posterior", "test", form=".4f")
def focal_map_lowers_ece(test: Rows) -> Estimates:
    """The focal map Ψ lowers the ECE of plain networks.

    Rule: on each network, test ECE without Ψ^γ minus with it, paired within replicates of one-hot focal losses with
    γ > 0; the mean over configurations, of which at least three are needed (if there is only one, over its replicates).
    Holds where every network's 95 % interval lies above 0, does not hold where one lies below even at 95 % for all
    together (Bonferroni), else undecided. The paper finds this on SVHN, and the opposite on CIFAR-10.

    Estimated: Ψ^γ lowers test ECE by

    Missing: networks trained with focal losses of γ > 0 and their ECE before and after Ψ are needed
    """
    return means([row for row in test if (plain_gamma(row) or 0) > 0], _gain("ece", MAPPED))


@claim("posterior", "test", form=".4f")
def focal_map_lowers_ece_with_label_smoothing(test: Rows) -> Estimates:
    """The focal map Ψ lowers the ECE of networks trained with label smoothing.

    Rule: as for focal_map_lowers_ece, over focal losses with smoothed targets. Holds where every network's 95 %
    interval lies above 0, does not hold where one lies below (for all together), else undecided.

    Estimated: Ψ^γ lowers test ECE by

    Missing: networks trained with smoothed focal losses of γ > 0 and their ECE before and after Ψ are needed
    """
    return means([row for row in test if (smoothed_gamma(row) or 0) > 0], _gain("ece", MAPPED))


@claim("posterior", "test", form=".4f")
def focal_map_lowers_ece_after_ts_fl(test: Rows) -> Estimates:
    """The focal map Ψ lowers the ECE after temperature scaling by the focal loss.

    Rule: as for focal_map_lowers_ece, between TS_FL without and with Ψ^γ (labels ts_fl and ts_fl_map). Holds where
    every network's 95 % interval lies above 0, does not hold where one lies below (for all together), else undecided.

    Estimated: Ψ^γ lowers test ECE by

    Missing: networks trained with focal losses of γ > 0 and their ECE before and after Ψ are needed
    """
    return means([row for row in test if (plain_gamma(row) or 0) > 0], _gain(SCALED, SCALED_AND_MAPPED))


@claim("posterior", "test", form=".2f")
def ece_rises_with_gamma_with_label_smoothing(test: Rows) -> Estimates:
    """Under label smoothing and without Ψ, ECE rises with γ.

    Rule: ρ(γ, test ECE) over the configurations of each network, averaged over strata that differ in nothing else, or
    pooled if no four differ in γ alone; label smoothing itself is γ 0. Holds where every network's 95 % interval lies
    above 0, does not hold where one lies below even for all together (Bonferroni), else undecided; at least six
    configurations.

    Estimated: ρ(γ, test ECE)

    Missing: ρ needs at least four γ, 0 among them, of one network
    """
    return correlations([row for row in test if smoothed_gamma(row) is not None], smoothed_gamma, "ece")


@claim("posterior", "test", form=".2f")
def ece_rises_with_gamma_after_ts_fl(test: Rows) -> Estimates:
    """After temperature scaling by the focal loss and without Ψ, ECE rises with γ.

    Rule: as for ece_rises_with_gamma_with_label_smoothing, of test ECE after TS_FL and one-hot targets. Holds where
    every network's 95 % interval lies above 0, does not hold where one lies below (for all together), else undecided.

    Estimated: ρ(γ, test ECE)

    Missing: ρ needs at least four γ, 0 among them, of one network
    """
    return correlations([row for row in test if plain_gamma(row) is not None], plain_gamma, SCALED)


@claim("posterior", "test", form=".2f")
def best_gamma_grows_with_network_size(test: Rows) -> Detailed:
    """The γ with the smallest ECE grows with the network.

    Rule: each network's γ with the smallest mean test ECE, one-hot targets, at least three γ; the statistic is the
    rank correlation of that γ with the network's depth (the number in its name), each network counting once. Holds
    where its 95 % interval lies above 0, does not hold where it lies below, else undecided; at least five networks are
    needed, because four are in perfect order by chance in one case of twelve.

    Estimated: ρ(depth, best γ)

    Missing: five networks with a depth at the end of their name, and three γ, are needed
    """
    plain = [row for row in test if plain_gamma(row) is not None]
    errors = {network: _error_by_gamma(held) for network, held in by_network(plain).items()}
    best = {network: min(held, key=held.__getitem__) for network, held in errors.items() if len(held) >= 3}
    points = [Point(None, depth, gamma) for network, gamma in best.items() if (depth := _depth(network)) is not None]
    rank = mean_correlation(points)
    # A constant has no correlation: the same best γ for all networks is reported as 0, not as a missing estimate.
    if len(points) >= STRATUM_POINTS and rank.value is None:
        rank = Estimate(0.0, None, len(points), lacking="the same γ for all")
    rank = replace(rank, unit="networks", lacking=rank.lacking.replace("configurations", "networks"))
    return {"over networks": rank}, {"best": best}


def _error_by_gamma(rows: Rows) -> dict[float, float]:
    """Return γ → mean ECE of its configurations."""
    # Configurations first, then their mean: more replicates of one learning rate must not weigh more.
    by_gamma = grouped(points_of(rows, plain_gamma, "ece"), lambda point: point.x)
    return {gamma: sum(point.y for point in held) / len(held) for gamma, held in by_gamma.items()}


def _depth(network: str) -> int | None:
    match = re.search(r"(\d+)(?!.*\d)", network)
    return int(match[1]) if match else None


def _gain(before: str, after: str) -> Callable[[Row], float | None]:
    """Return a reading: how far the column `after` lies below `before`."""

    def gain(row: Row) -> float | None:
        first, second = number(row, before), number(row, after)
        return None if first is None or second is None else first - second

    return gain
