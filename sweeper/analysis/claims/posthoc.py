"""Claims about post-hoc calibration: focal temperature against temperature, and the focal map's posterior."""

from __future__ import annotations

import math

import numpy as np

from sweeper.analysis.claims.base import Claim, Verdict
from sweeper.analysis.claims.focal_map import plain_gamma
from sweeper.analysis.claims.networks import by_network, correlations, verdict_of
from sweeper.analysis.claims.numbers import mean_over, number, of_split, trained_to_the_end
from sweeper.text.cells import Row, Rows, by_trial

KL = "kl_to_posterior"

STRAIGHT = 0.95
"""R² from which on a relation counts as close to linear."""


def judge_focal_temperature(rows: Rows) -> Verdict:
    """Judge that focal temperature scaling calibrates better than temperature scaling, on test data.

    Rule: equal-mass ECE (what properness fits and reports) after temperature minus after focal temperature scaling,
    paired within each replicate, both fitted by one objective (networks of which they were not are left out); the mean
    over each network's configurations, of which at least three are needed (of one alone, over its replicates). Holds
    where every network's 95 % interval on test data lies above 0, does not hold where one lies below even at 95 % for
    all together (Bonferroni), else undecided. On validation data, where both were fitted, the richer method can hardly
    lose: reported beside, and no evidence.
    """
    name = "focal_temperature_beats_temperature"
    held = trained_to_the_end(rows)
    found = {
        split: {
            network: estimate
            for network, of_it in by_network(of_split(held, split)).items()
            if (estimate := mean_over(_improvements(of_it))).value is not None
        }
        for split in ("test", "val")
    }
    missing = "evaluation.posthoc must name both temperature and focal_temperature, fitted by one objective"
    what = "equal-mass ECE of temperature scaling minus that of focal temperature scaling, on test data"
    seen = {network: each.value for network, each in found["val"].items()}
    return verdict_of(name, found["test"], what, missing=missing, form=".4f", details={"on_validation": seen})


def judge_falling_temperature(rows: Rows) -> Verdict:
    """Judge that the optimal temperature falls with the training γ.

    Rule: ρ(γ_train, T of temperature scaling) over the configurations of each network, averaged over strata that differ
    in nothing else, all together where no four do; cross-entropy is γ 0. Holds where every network's 95 % interval lies
    below 0, does not hold where one lies above even at 95 % for all together
    (Bonferroni), else undecided; at least six configurations.
    """
    name = "temperature_falls_with_training_gamma"
    held = [row for row in of_split(trained_to_the_end(rows), "val") if plain_gamma(row) is not None]
    found = correlations(held, plain_gamma, "posthoc_temperature_temperature")
    missing = "ρ needs at least four γ of one network and temperature scaling"
    what = "ρ(γ_train, T)"
    return verdict_of(name, found, what, missing=missing, form=".2f", positive_holds=False)


def judge_line(rows: Rows) -> Verdict:
    """Judge that the optimal T is linear in the focal map's γ_ev.

    Rule: of each replicate, R² of the straight line through the best T at the nine γ_ev of the grid; its mean over each
    network's configurations minus .95. Holds where every network's 95 % interval lies above 0, does not hold where one
    lies below even at 95 % for all together (Bonferroni), else undecided; at least three configurations, or one alone.
    """
    name = "temperature_linear_in_gamma_ev"
    found = {}
    for network, held in by_network(of_split(trained_to_the_end(rows), "val")).items():
        groups = [
            [r - STRAIGHT for row in each if (r := _straightness(row)) is not None] for each in by_trial(held).values()
        ]
        if any(groups):
            found[network] = mean_over(groups)
    missing = "evaluation.posthoc must name focal_temperature, which records T at every γ_ev"
    return verdict_of(name, found, "R² minus .95", missing=missing, form=".3f")


def _straightness(row: Row) -> float | None:
    """Return R² of the line through T against γ_ev; `None` where T was not measured at every γ_ev or never changes."""
    from trainables.posthoc.focal_temperature import GAMMAS  # which a process that judges nothing does not need

    names = (f"temperature_at_{gamma:g}".replace("-", "minus_").replace(".", "_") for gamma in GAMMAS)
    found = [number(row, f"posthoc_focal_temperature_{name}") for name in names]
    temperatures = [value for value in found if value is not None]
    if len(temperatures) < len(GAMMAS) or len(set(temperatures)) == 1:
        return None
    return float(np.corrcoef(GAMMAS, temperatures)[0, 1] ** 2)


def judge_posterior(rows: Rows) -> Verdict:
    """Judge that the focal map Ψ^γ recovers the true posterior of networks trained with focal loss.

    Rule: for focal losses of one γ > 0 on data with a known posterior, ln of the Kullback-Leibler divergence from the
    posterior, paired within each replicate: uncalibrated minus after Ψ^γ, and after temperature scaling minus after
    Ψ^γ; means over configurations, of which at least three are needed (of one alone, over its replicates). Holds where
    both 95 % intervals lie above 0, does not hold where one lies below even for both together, else undecided.
    """
    trials = by_trial(of_split(trained_to_the_end(rows), "test")).values()
    columns = {"uncalibrated": KL, "after temperature scaling": f"posthoc_temperature_{KL}"}
    found = {name: mean_over([_log_ratios(held, column) for held in trials]) for name, column in columns.items()}
    return verdict_of(
        "focal_map_recovers_posterior",
        found if all(each.value is not None for each in found.values()) else {},
        "ln of the divergence from the true posterior, minus that after Ψ^γ",
        missing="a data set with a known posterior, and both focal_map and temperature, are needed",
        form=".2f",
    )


def _improvements(rows: Rows) -> list[list[float]]:
    """Return, by configuration, each replicate's equal-mass ECE after temperature minus after focal temperature."""
    columns = ("posthoc_temperature_ada_ece", "posthoc_focal_temperature_ada_ece")
    groups = []
    for held in by_trial([row for row in rows if _equally_fitted(row)]).values():
        pairs = [tuple(number(row, column) for column in columns) for row in held]
        groups.append([a - b for a, b in pairs if a is not None and b is not None])
    return groups


def _equally_fitted(row: Row) -> bool:
    """Return whether both methods were fitted by one objective, so that they differ in γ alone."""
    first, second = (row.get(f"posthoc_{label}_fitted_by") for label in ("temperature", "focal_temperature"))
    return first == second


def _log_ratios(rows: Rows, column: str) -> list[float]:
    """Return ln(divergence in `column` / divergence after the focal map) of each replicate trained with one γ > 0."""
    ratios = []
    for row in rows:
        before, after = number(row, column), number(row, f"posthoc_focal_map_{KL}")
        if _has_gamma(row) and before is not None and after is not None and before > 0 and after > 0:
            ratios.append(math.log(before / after))
    return ratios


def _has_gamma(row: Row) -> bool:
    return row["config_loss_name"] in ("focal", "focal_lambert") and (number(row, "config_loss_gamma") or 1) > 0


CLAIMS = (
    Claim(
        "focal_temperature_beats_temperature",
        "properness",
        "Focal temperature scaling calibrates better than temperature scaling.",
        judge_focal_temperature,
    ),
    Claim(
        "temperature_falls_with_training_gamma",
        "properness",
        "The optimal temperature falls as the training γ grows.",
        judge_falling_temperature,
    ),
    Claim(
        "temperature_linear_in_gamma_ev",
        "properness",
        "The optimal temperature is close to linear in the focal map's γ.",
        judge_line,
    ),
    Claim(
        "focal_map_recovers_posterior",
        "posterior",
        "The focal calibration map recovers the true posterior of a focal-trained network.",
        judge_posterior,
    ),
)
