"""Claims about curvature: that it falls with γ, and the open question whether every calibration loss lowers it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping

from sweeper.analysis.claims.base import FAILS, HOLDS, UNDECIDED, Claim, Verdict, decide, undecided
from sweeper.analysis.claims.networks import by_network
from sweeper.analysis.claims.numbers import (
    LEVEL,
    Estimate,
    Point,
    difference,
    mean_correlation,
    number,
    of_split,
    other_settings,
    trained_to_the_end,
    trial_mean,
)
from sweeper.text.cells import Row, Rows, by_trial, text_of

CROSS_ENTROPY, TRAINING = "hessian_cross_entropy_lambda_max", "hessian_training_lambda_max"

Reading = Callable[[Row], float | None]


def judge_gamma(rows: Rows) -> Verdict:
    """Judge that λ_max falls with γ, on the Hessian of cross-entropy and on the training loss's without its scale.

    Rule: ρ(γ, λ_max) over each network's configurations, averaged over strata that differ in nothing else. Holds where
    on every network the 95 % intervals of both readings (cross-entropy's Hessian; the training loss's λ_max over the
    mean focal weight (1 − p_y)^γ) lie below 0, does not hold where one of them lies above 0, and is undecided
    otherwise. The training loss's own λ_max is reported beside them: it falls partly because the loss is multiplied by
    weights below 1. The mean weight is that of easy samples, which most are, while curvature comes from hard ones,
    whose weights are near 1: the second reading leans against the claim as the training loss's own leans towards it.
    """
    name = "curvature_falls_with_gamma"
    held = [r for r in of_split(trained_to_the_end(rows), "val") if _gamma(r) is not None]
    readings: dict[str, Reading] = {
        "cross_entropy": lambda row: number(row, CROSS_ENTROPY),
        "training_per_weight": _per_weight,
        "training": lambda row: number(row, TRAINING),
    }
    networks = {network: by_trial(of_it) for network, of_it in by_network(held).items()}
    found = {
        label: {network: mean_correlation(_points(trials, read)) for network, trials in networks.items()}
        for label, read in readings.items()
    }
    cross, scaled = (
        {n: e for n, e in found[label].items() if e.value is not None}
        for label in ("cross_entropy", "training_per_weight")
    )
    if not cross or not scaled:
        return undecided(
            name,
            "ρ needs at least four γ of the focal loss (cross-entropy counts as γ 0) that differ in nothing else, "
            "with the Hessians of both losses and stored predictions",
        )
    verdicts = {n: _both(cross.get(n), scaled.get(n)) for n in cross | scaled}
    kinds = set(verdicts.values())
    verdict = HOLDS if kinds == {HOLDS} else FAILS if FAILS in kinds else UNDECIDED
    sentence = "; ".join(_gamma_words(network, found) for network in cross)
    details = {f"rho_{label}": {n: each.value for n, each in of_it.items()} for label, of_it in found.items()}
    worst = max(cross.values(), key=lambda each: each.value or 0.0)
    more = {"verdicts": verdicts, **details}
    return Verdict(name, verdict, worst.value, worst.interval, worst.n, "configurations", sentence, more)


def _both(cross: Estimate | None, scaled: Estimate | None) -> str:
    """Return the verdict of one network from both readings."""
    verdicts = [decide(each.interval, positive_holds=False) if each else UNDECIDED for each in (cross, scaled)]
    return HOLDS if verdicts == [HOLDS, HOLDS] else FAILS if FAILS in verdicts else UNDECIDED


def _gamma_words(network: str, found: Mapping[str, Mapping[str, Estimate]]) -> str:
    cross, scaled, mechanical = (of_it[network] for of_it in found.values())
    return (
        f"{network}: ρ(γ, λ_max) of cross-entropy's Hessian {cross.text('.2f')}; of the training loss's Hessian over "
        f"the mean focal weight {scaled.text('.2f')}; n = {cross.n} configurations. Of the training loss's "
        f"Hessian itself, partly mechanical, {mechanical.text('.2f')}"
    )


def judge_every_loss(rows: Rows) -> Verdict:
    """Judge that every loss family lowers λ_max of cross-entropy's Hessian below cross-entropy training's own.

    Rule: for each family, ln λ_max minus that of cross-entropy under the same other settings, Welch's interval over
    replicates at 95 % for all families together (Bonferroni). Holds where every family's interval lies below 0, does
    not hold where one lies above 0, and is undecided otherwise. A family counts with all its hyperparameters pooled.
    """
    name = "every_loss_controls_curvature"
    families: dict[str, dict[Hashable, list[float]]] = {}
    for row in of_split(trained_to_the_end(rows), "val"):
        value = number(row, CROSS_ENTROPY)
        if value is not None and value > 0:
            stratum = other_settings(row, ("config_loss_",))
            families.setdefault(text_of(row, "config_loss_name"), {}).setdefault(stratum, []).append(math.log(value))
    reference = families.pop("cross_entropy", None)
    if reference is None or not families:
        return undecided(name, "cross-entropy and at least one other loss are needed, with cross-entropy's Hessian")
    level = 1 - (1 - LEVEL) / len(families)
    found = {family: _against(strata, reference, level) for family, strata in sorted(families.items())}
    verdicts = {family: decide(each.interval, positive_holds=False) for family, each in found.items()}
    kinds = set(verdicts.values())
    verdict = HOLDS if kinds == {HOLDS} else FAILS if FAILS in kinds else UNDECIDED
    worst = max((f for f in found if found[f].value is not None), key=lambda f: found[f].value or 0.0, default=None)
    if worst is None:
        return undecided(name, "no loss shares its other settings with cross-entropy")
    words = "; ".join(f"{family} {_factor(each)}" for family, each in found.items())
    sentence = f"λ_max of cross-entropy's Hessian as a multiple of cross-entropy training's: {words}"
    details = {f"log_ratio_{family}": each.value for family, each in found.items()} | {"verdicts": verdicts}
    highest = found[worst]
    return Verdict(name, verdict, highest.value, highest.interval, highest.n, "replicates", sentence, details)


def _against(
    strata: Mapping[Hashable, list[float]], reference: Mapping[Hashable, list[float]], level: float
) -> Estimate:
    """Return the difference of a family from cross-entropy, each stratum's values less cross-entropy's mean there."""
    shared = [stratum for stratum in strata if stratum in reference]
    means = {stratum: math.fsum(reference[stratum]) / len(reference[stratum]) for stratum in shared}
    here = [value - means[stratum] for stratum in shared for value in strata[stratum]]
    there = [value - means[stratum] for stratum in shared for value in reference[stratum]]
    return difference(here, there, level)


def _factor(estimate: Estimate) -> str:
    if estimate.value is None:
        return "not measurable"
    if estimate.interval is None:
        return f"{math.exp(estimate.value):.2g} (too few replicates for an interval)"
    low, high = (math.exp(limit) for limit in estimate.interval)
    return f"{math.exp(estimate.value):.2g} ({low:.2g} … {high:.2g})"


def _gamma(row: Row) -> float | None:
    """Return γ of a row: 0 of plain cross-entropy, that of a focal loss on one-hot targets, else `None`."""
    if row["config_loss_name"] == "cross_entropy":
        return 0.0
    if row["config_loss_name"] == "focal" and not row.get("config_loss_smoothing"):
        return number(row, "config_loss_gamma")
    return None


def _per_weight(row: Row) -> float | None:
    value, weight = number(row, TRAINING), number(row, "mean_focal_weight")
    return value / weight if value is not None and weight else None


def _points(trials: Mapping[str, list[Row]], read: Reading) -> list[Point]:
    points = []
    for rows in trials.values():
        value, gamma = trial_mean(rows, read), _gamma(rows[0])
        if value is not None and gamma is not None:
            points.append(Point(other_settings(rows[0], ("config_loss_",)), gamma, value, len(rows)))
    return points


CLAIMS = (
    Claim(
        "curvature_falls_with_gamma",
        "curvature",
        "The largest eigenvalue of the validation Hessian falls as the focal loss's γ grows.",
        judge_gamma,
        weights=True,
    ),
    Claim(
        "every_loss_controls_curvature",
        "curvature",
        "Every calibration loss lowers the curvature of cross-entropy, as focal loss does.",
        judge_every_loss,
    ),
)
