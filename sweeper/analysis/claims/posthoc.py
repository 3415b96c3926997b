"""Claims about post-hoc calibration: focal temperature against temperature, and the focal map's posterior."""

from __future__ import annotations

import math

from sweeper.analysis.claims.base import FAILS, HOLDS, UNDECIDED, Claim, Verdict, decide, undecided
from sweeper.analysis.claims.numbers import Estimate, number, of_split, paired_mean, trained_to_the_end
from sweeper.text.cells import Row, Rows, by_trial

KL = "kl_to_posterior"


def judge_focal_temperature(rows: Rows) -> Verdict:
    """Judge that focal temperature scaling calibrates better than temperature scaling, on test data.

    Rule: equal-mass ECE (what properness fits and reports) after temperature minus after focal temperature scaling,
    paired within each replicate; the mean over configurations with Student's interval over seeds. Holds where the
    interval on test data lies above 0, does not hold where it lies below, else undecided. On validation data, where
    both were fitted, the richer method can hardly lose: reported beside, and no evidence.
    """
    name = "focal_temperature_beats_temperature"
    held = trained_to_the_end(rows)
    found = {split: paired_mean(_improvements(of_split(held, split))) for split in ("test", "val")}
    test, val = found["test"], found["val"]
    if test.value is None:
        return undecided(name, "evaluation.posthoc must name both temperature and focal_temperature", 0, "pairs")
    sentence = (
        f"focal temperature scaling lowers the test equal-mass ECE of temperature scaling by {_percent(test)}, the "
        f"validation one by {_percent(val)}; n = {test.n} pairs of one network each"
    )
    return Verdict(
        name, decide(test.interval), test.value, test.interval, test.n, "pairs", sentence, {"on_validation": val.value}
    )


def judge_posterior(rows: Rows) -> Verdict:
    """Judge that the focal map Ψ^γ recovers the true posterior of networks trained with focal loss.

    Rule: for focal losses of one γ > 0 on data with a known posterior, ln of the Kullback-Leibler divergence from the
    posterior, paired within each replicate: uncalibrated minus after Ψ^γ, and after temperature scaling minus after
    Ψ^γ. Holds where both means' 95 % intervals (over seeds) lie above 0, does not hold where one lies below, else
    undecided.
    """
    name = "focal_map_recovers_posterior"
    trials = by_trial(of_split(trained_to_the_end(rows), "test"))
    raw = paired_mean([_log_ratios(held, KL) for held in trials.values()])
    scaled = paired_mean([_log_ratios(held, f"posthoc_temperature_{KL}") for held in trials.values()])
    if raw.value is None or scaled.value is None:
        return undecided(
            name, "a data set with a known posterior, and both focal_map and temperature, are needed", 0, "pairs"
        )
    verdicts = [decide(raw.interval), decide(scaled.interval)]
    verdict = HOLDS if verdicts == [HOLDS, HOLDS] else FAILS if FAILS in verdicts else UNDECIDED
    sentence = (
        f"Ψ^γ divides the divergence from the true posterior by {_factor(raw)}, and leaves {_factor(scaled)} times "
        f"less of it than temperature scaling; n = {raw.n} networks"
    )
    details = {"log_ratio_to_uncalibrated": raw.value}
    return Verdict(name, verdict, scaled.value, scaled.interval, scaled.n, "networks", sentence, details)


def _improvements(rows: Rows) -> list[list[float]]:
    """Return, by configuration, each replicate's equal-mass ECE after temperature minus after focal temperature."""
    columns = ("posthoc_temperature_ada_ece", "posthoc_focal_temperature_ada_ece")
    groups = []
    for held in by_trial(rows).values():
        pairs = [tuple(number(row, column) for column in columns) for row in held]
        groups.append([a - b for a, b in pairs if a is not None and b is not None])
    return groups


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


def _percent(estimate: Estimate) -> str:
    if estimate.value is None:
        return "an unknown amount"
    scaled = None if estimate.interval is None else (100 * estimate.interval[0], 100 * estimate.interval[1])
    return f"{Estimate(100 * estimate.value, scaled, estimate.n).text('.2f')} points"


def _factor(estimate: Estimate) -> str:
    interval = None if estimate.interval is None else tuple(math.exp(limit) for limit in estimate.interval)
    assert estimate.value is not None
    return Estimate(math.exp(estimate.value), interval, estimate.n).text(".3g")  # type: ignore[arg-type]


CLAIMS = (
    Claim(
        "focal_temperature_beats_temperature",
        "properness",
        "Focal temperature scaling calibrates better than temperature scaling.",
        judge_focal_temperature,
    ),
    Claim(
        "focal_map_recovers_posterior",
        "posterior",
        "The focal calibration map recovers the true posterior of a focal-trained network.",
        judge_posterior,
    ),
)
