"""Claims that hold one training loss against cross-entropy: selective risk's ECE, and confidence on mistakes."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.analysis.claims.base import Claim, Verdict, decide, undecided
from sweeper.analysis.claims.networks import by_network, verdict_of
from sweeper.analysis.claims.numbers import (
    Point,
    difference,
    mean_correlation,
    number,
    of_split,
    other_settings,
    trained_to_the_end,
    trial_mean,
)
from sweeper.text.cells import Row, Rows, by_trial, float_of


def judge_selective(rows: Rows) -> Verdict:
    """Judge that the selective-risk loss, its coverage and ν chosen on validation data, calibrates below cross-entropy.

    Rule: of all configurations of selective_risk, and of all of cross-entropy, the one with the smallest mean
    validation ECE is chosen; the statistic is cross-entropy's test ECE minus selective_risk's, Welch's interval over
    replicates. Holds where the 95 % interval lies above 0, does not hold where it lies below, else undecided. The rank
    correlations of test ECE with coverage and with ν over all configurations say which of the two matters.
    """
    name = "coverage_and_nu_calibrate"
    held = trained_to_the_end(rows)
    val, test = (by_trial(of_split(held, split)) for split in ("val", "test"))
    chosen = {loss: _calibrated(val, loss) for loss in ("cross_entropy", "selective_risk")}
    if None in chosen.values():
        return undecided(name, "configurations of both cross_entropy and selective_risk are needed", 0, "replicates")
    values = {loss: _values(test[trial], "ece") for loss, trial in chosen.items() if trial is not None}
    found = difference(values["cross_entropy"], values["selective_risk"])
    row = val[chosen["selective_risk"] or ""][0]
    rho = {key: mean_correlation(_selective_points(test, key)) for key in ("coverage", "nu")}
    coverage, nu = float_of(row, "config_loss_coverage"), float_of(row, "config_loss_nu")
    sentence = (
        f"test ECE of cross-entropy minus that of selective risk (coverage {coverage:.2g}, ν "
        f"{nu:.2g}, chosen on validation data): {found.text('.4f')}, n = {found.n} networks; over "
        f"all coverages and ν, ρ(coverage, ECE) {rho['coverage'].text('.2f')} and ρ(ν, ECE) {rho['nu'].text('.2f')}"
    )
    correlations = {f"rho_{key}": each.value for key, each in rho.items()}
    details = {**correlations, "coverage": coverage, "nu": nu}
    return Verdict(name, decide(found.interval), found.value, found.interval, found.n, "networks", sentence, details)


def judge_mistakes(rows: Rows) -> Verdict:
    """Judge that cross-entropy is more confident in its mistakes than FLSD-53, or than focal loss without it.

    Rule: on each network, mean confidence on wrongly classified test samples, cross-entropy minus FLSD-53 (focal losses
    where there is none; each loss's replicates of all its configurations), Welch's interval. Holds where every
    network's 95 % interval lies above 0, does not hold where one lies below, else undecided. Meant for training labels
    of which a share is flipped, while test labels are right.
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
        before, after = (_values(held, "confidence_wrong") for held in groups)
        estimate = difference(before, after)
        if estimate.value is not None:
            found[network] = estimate
            means[network] = [trial_mean(held, "confidence_wrong") for held in groups]
            errors[network] = [1 - (trial_mean(held, "accuracy") or 0.0) for held in groups]
    details = {"error": errors, "confidence": means}
    missing = "cross_entropy and focal_sample_dependent (flsd_53) or focal are needed on one network"
    what = "mean confidence on mistakes, cross-entropy minus focal loss"
    return verdict_of(name, found, what, "networks", missing=missing, form=".3f", details=details)


def _calibrated(trials: Mapping[str, list[Row]], loss: str) -> str | None:
    """Return the trial of `loss` with the smallest mean validation ECE."""
    means = {
        trial: mean
        for trial, held in trials.items()
        if held[0]["config_loss_name"] == loss and (mean := trial_mean(held, "ece")) is not None
    }
    return min(means, key=lambda trial: means[trial]) if means else None


def _values(rows: Rows, column: str) -> list[float]:
    return [value for row in rows if (value := number(row, column)) is not None]


def _selective_points(test: Mapping[str, list[Row]], key: str) -> list[Point]:
    points = []
    for held in test.values():
        row, ece = held[0], trial_mean(held, "ece")
        x = number(row, f"config_loss_{key}")
        if row["config_loss_name"] == "selective_risk" and x is not None and ece is not None:
            stratum = other_settings(row, ("config_loss_coverage", "config_loss_nu", "config_optimizer_lr"))
            points.append(Point(stratum, x, ece, len(held)))
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
