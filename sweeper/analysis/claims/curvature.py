"""Claims about curvature: that it falls with γ, and the open question whether every calibration loss lowers it."""

from __future__ import annotations

import math
from dataclasses import replace

from sweeper.analysis.claims.base import Claim, Verdict
from sweeper.analysis.claims.focal_map import plain_gamma
from sweeper.analysis.claims.networks import correlations, is_loss, verdict_of
from sweeper.analysis.claims.numbers import clusters, difference, number, of_split, trained_to_the_end
from sweeper.text.cells import Row, Rows

CROSS_ENTROPY, TRAINING = "hessian_cross_entropy_lambda_max", "hessian_training_lambda_max"


def judge_gamma(rows: Rows) -> Verdict:
    """Judge that λ_max falls with γ, on the Hessian of cross-entropy and on the training loss's without its scale.

    Rule: ρ(γ, λ_max) over each network's configurations, averaged over strata that differ in nothing else. Holds where
    on every network the 95 % intervals of both readings (cross-entropy's Hessian; the training loss's λ_max over the
    mean focal weight (1 − p_y)^γ) lie below 0, does not hold where one of them lies above 0 (at 95 % for all together),
    and is undecided otherwise. The training loss's own λ_max is reported beside them: it falls partly because the loss
    is multiplied by weights below 1. The mean weight is that of easy samples, which most are, while curvature comes
    from hard ones, whose weights are near 1: the second reading leans against the claim as the training loss's own
    leans towards it.
    """
    held = [row for row in of_split(trained_to_the_end(rows), "val") if plain_gamma(row) is not None]
    cross, scaled, mechanical = (
        correlations(held, plain_gamma, reading, pool=False) for reading in (CROSS_ENTROPY, _per_weight, TRAINING)
    )
    readings = {"cross-entropy's Hessian": cross, "the training loss's over the mean focal weight": scaled}
    found = {f"{network}, {label}": each for label, of_it in readings.items() for network, each in of_it.items()}
    missing = (
        "ρ needs at least four γ of the focal loss (cross-entropy counts as γ 0) that differ in nothing else, "
        "with the Hessians of both losses and stored predictions"
    )
    if not all(any(each.value is not None for each in of_it.values()) for of_it in (cross, scaled)):
        found = {}
    details = {"rho_training": {network: each.value for network, each in mechanical.items()}}
    verdict = verdict_of(
        "curvature_falls_with_gamma",
        found,
        "ρ(γ, λ_max)",
        missing=missing,
        form=".2f",
        positive_holds=False,
        details=details,
    )
    if not found:
        return verdict
    words = ", ".join(f"{each.text('.2f')} on {network}" for network, each in mechanical.items())
    return replace(
        verdict, sentence=f"{verdict.sentence}. Of the training loss's Hessian itself, partly mechanical: {words}"
    )


def judge_every_loss(rows: Rows) -> Verdict:
    """Judge that every loss family lowers λ_max of cross-entropy's Hessian below cross-entropy training's own.

    Rule: for each family, ln λ_max minus that of cross-entropy under the same other settings (network, learning rate
    …), each setting once; at one setting, over configurations or, of one each, replicates. Holds where every family's
    95 % interval lies below 0, does not hold where one lies above 0 even at 95 % for all together (Bonferroni), and is
    undecided otherwise. A family counts with all its hyperparameters pooled.
    """
    val = of_split(trained_to_the_end(rows), "val")
    reference = clusters([row for row in val if is_loss("cross_entropy")(row)], _log_eigenvalue)
    families = {}
    for name in sorted({str(row["config_loss_name"]) for row in val} - {"cross_entropy"}):
        of_it = clusters([row for row in val if is_loss(name)(row)], _log_eigenvalue)
        if of_it and reference:
            families[name] = difference(of_it, reference)
    return verdict_of(
        "every_loss_controls_curvature",
        families,
        "ln of λ_max of cross-entropy's Hessian, minus cross-entropy training's",
        missing="cross-entropy and at least one other loss are needed, with cross-entropy's Hessian",
        form=".2f",
        positive_holds=False,
    )


def _log_eigenvalue(row: Row) -> float | None:
    value = number(row, CROSS_ENTROPY)
    return math.log(value) if value is not None and value > 0 else None


def _per_weight(row: Row) -> float | None:
    value, weight = number(row, TRAINING), number(row, "mean_focal_weight")
    return value / weight if value is not None and weight else None


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
