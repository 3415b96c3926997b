"""Claims that hold one training loss against cross-entropy: selective risk's ECE, and confidence on mistakes."""

from __future__ import annotations

from sweeper.analysis.claims.base import Claim, Verdict
from sweeper.analysis.claims.networks import by_network, is_loss, verdict_of
from sweeper.analysis.claims.numbers import (
    Point,
    clusters,
    difference,
    mean_correlation,
    number,
    of_split,
    other_settings,
    trained_to_the_end,
    trial_mean,
    tuned_difference,
)
from sweeper.text.cells import Rows, by_trial


def judge_selective(rows: Rows) -> Verdict:
    """Judge that the selective-risk loss, its coverage and ν chosen on validation data, calibrates below cross-entropy.

    Rule: on each network, cross-entropy's test ECE minus selective_risk's, each with the configuration that has the
    smallest mean validation ECE: chosen anew at every setting (learning rate …) that both have, or else in each of
    several searches among which the configurations are dealt out; at least three. Holds where every network's 95 %
    interval lies above 0, does not hold where one lies below even for all together (Bonferroni), else undecided. The
    rank correlations of test ECE with coverage and with ν over all configurations say which of the two matters.
    """
    held = trained_to_the_end(rows)
    found = {}
    for network, of_it in by_network(held).items():
        plain, ours = ([row for row in of_it if is_loss(name)(row)] for name in ("cross_entropy", "selective_risk"))
        if plain and ours:
            found[network] = tuned_difference(plain, ours, "ece", "ece")
    rho = {
        key: mean_correlation(_selective_points(of_split(held, "test"), key), pool=True) for key in ("coverage", "nu")
    }
    words = " and ".join(f"ρ({key}, ECE) {each.text('.2f')}" for key, each in rho.items())
    what = f"test ECE of cross-entropy minus that of selective risk, tuned on validation data (over all, {words})"
    return verdict_of(
        "coverage_and_nu_calibrate",
        found,
        what,
        missing="configurations of both cross_entropy and selective_risk are needed",
        form=".4f",
        details={f"rho_{key}": each.value for key, each in rho.items()},
    )


def judge_mistakes(rows: Rows) -> Verdict:
    """Judge that cross-entropy is more confident in its mistakes than FLSD-53, or than focal loss without it.

    Rule: on each network, mean confidence on wrongly classified test samples, cross-entropy minus FLSD-53 (focal losses
    where there is none), over the settings that both have, or over each loss's configurations; at least three (of one
    configuration each at one setting, over their replicates). Holds where every network's 95 % interval lies above 0,
    does not hold where one lies below even for all together (Bonferroni), else undecided. Meant for training labels of
    which a share is flipped, while test labels are right.
    """
    name = "cross_entropy_overconfident_on_mistakes"
    test = of_split(trained_to_the_end(rows), "test")
    of_flsd = [row for row in test if row["config_loss_name"] == "focal_sample_dependent"]
    others = [row for row in of_flsd if row.get("config_loss_variant") in (None, "flsd_53")]
    others = others or [row for row in test if row["config_loss_name"] == "focal"]
    plain = by_network([row for row in test if row["config_loss_name"] == "cross_entropy"])
    found, means, errors = {}, {}, {}
    for network, focal in by_network(others).items():
        groups = (plain.get(network, []), focal)
        before, after = (clusters(held, "confidence_wrong") for held in groups)
        if before and after:
            found[network] = difference(before, after)
            means[network] = [trial_mean(held, "confidence_wrong") for held in groups]
            errors[network] = [1 - (trial_mean(held, "accuracy") or 0.0) for held in groups]
    details = {"error": errors, "confidence": means}
    missing = "cross_entropy and focal_sample_dependent (flsd_53) or focal are needed on one network"
    what = "mean confidence on mistakes, cross-entropy minus focal loss"
    return verdict_of(name, found, what, missing=missing, form=".3f", details=details)


def _selective_points(test: Rows, key: str) -> list[Point]:
    points = []
    for held in by_trial(test).values():
        row, ece = held[0], trial_mean(held, "ece")
        x = number(row, f"config_loss_{key}")
        if row["config_loss_name"] == "selective_risk" and x is not None and ece is not None:
            stratum = other_settings(row, ("config_loss_coverage", "config_loss_nu", "config_optimizer_lr"))
            points.append(Point(stratum, x, ece))
    return points


CLAIMS = (
    Claim(
        "coverage_and_nu_calibrate",
        "selective",
        "With coverage and ν chosen on validation data, the selective-risk loss calibrates better than cross-entropy.",
        judge_selective,
    ),
    Claim(
        "cross_entropy_overconfident_on_mistakes",
        "mukhoti",
        "Cross-entropy is over-confident in its mistakes, and FLSD-53 less so.",
        judge_mistakes,
    ),
)
