"""Every judge on tables whose answer is known: where the claim is true, where it is false, and where none can tell."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from search_spaces.papers.claims import CLAIMS
from search_spaces.papers.claims.base import FAILS, HOLDS, UNDECIDED
from tests.benchmarks.simulated_claims import MODELS, Draws, table, verdicts
from tests.search_spaces.papers.claims.constructed_tables import Measure, Row, final_rows, rows_of

GAMMAS = [0.5, 1, 2, 3, 4, 5, 7, 10]
FOCAL = [{"loss_name": "cross_entropy"}, *({"loss_name": "focal", "loss_gamma": float(g)} for g in GAMMAS)]


def gamma_of(configuration: Mapping[str, Any]) -> float:
    return float(configuration.get("loss_gamma", 0.0))


def curvature_by_gamma(cross_entropy: float, per_weight: float) -> Measure:
    """λ_max of both Hessians as exp(slope · γ); the training loss's is scaled by the weight 0.5^γ besides."""

    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        gamma, noise = gamma_of(configuration), random.normal(0, 0.1, 2)
        weight = 0.5**gamma
        return {
            "val.hessian_cross_entropy_lambda_max": math.exp(cross_entropy * gamma + noise[0]),
            "val.hessian_training_lambda_max": weight * math.exp(per_weight * gamma + noise[1]),
            "val.mean_focal_weight": weight,
        }

    return measure


TRACES = [{"loss_name": "cross_entropy", "optimizer_lr": lr} for lr in np.logspace(-3, 0, 24)]


def ece_by_trace(shape: Any) -> Measure:
    """ECE as a function of log10 of the trace, which runs from 0 to 3 with the learning rate."""

    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        place = 3 + math.log10(configuration["optimizer_lr"])
        return {"val.hessian_cross_entropy_trace": 10**place, "val.ece": 10 ** (shape(place) + random.normal(0, 0.02))}

    return measure


RATES = (0.01, 0.03, 0.1, 0.3)
"""Losses that are tuned are compared at each of several settings."""


def at_rates(configurations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "optimizer_lr": rate} for rate in RATES for each in configurations]


MISTAKES = [{"loss_name": "cross_entropy"}, {"loss_name": "focal_sample_dependent", "loss_variant": "flsd_53"}]


def mistakes(gap: float) -> Measure:
    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        plain = configuration["loss_name"] == "cross_entropy"
        return {"test.confidence_wrong": 0.5 + gap * plain + random.normal(0, 0.01), "test.accuracy": 0.9}

    return measure


BASELINES = [
    {"loss_name": "focal_sample_dependent", "loss_variant": "flsd_53"},
    *({"loss_name": name} for name in ("cross_entropy", "brier", "mmce")),
    {"loss_name": "label_smoothing", "loss_alpha": 0.05},
]


def baselines(gain: float, after: float) -> Measure:
    """ECE of FLSD-53 lower than the others' by `gain`, and by `after` behind temperature scaling."""

    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        ours, noise = configuration["loss_name"] == "focal_sample_dependent", random.normal(0, 0.001, 2)
        return {
            "test.ece": 0.05 - gain * ours + noise[0],
            "test.posthoc_temperature_ece": 0.03 - after * ours + noise[1],
        }

    return measure


STAGES = [{"loss_name": "cross_entropy"}, {"loss_name": "two_stage"}]


def staged(ece: float, nll: float) -> Measure:
    """ECE of two stages lower by `ece`, and its NLL after temperature scaling by `nll`."""

    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        ours, noise = configuration["loss_name"] == "two_stage", random.normal(0, 0.001, 2)
        return {"test.ece": 0.05 - ece * ours + noise[0], "test.posthoc_temperature_nll": 0.3 - nll * ours + noise[1]}

    return measure


def translations(ece: float, bleu: float) -> Measure:
    """Focal loss's ECE lower by `ece` and its BLEU higher by `bleu`."""

    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        ours, noise = configuration["loss_name"] == "focal", random.normal(0, 0.001, 2)
        return {"test.ece": 0.05 - ece * ours + noise[0], "test.bleu": 26 + bleu * ours + 10 * noise[1]}

    return measure


TRANSLATORS = [{"loss_name": name} for name in ("cross_entropy", "label_smoothing", "focal")]

SCORES = at_rates(
    [
        {"loss_name": "selective_risk", "loss_score": score, "loss_nu": nu}
        for score in ("margin", "msp", "negative_entropy")
        for nu in (0.01, 0.1)
    ]
)


def scores(gain: float) -> Measure:
    """Of ν .1, which has the smaller validation NLL, the margin's ECE is lower by `gain`; of ν .01, it is higher."""

    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        chosen, ours = configuration["loss_nu"] == 0.1, configuration["loss_score"] == "margin"
        sign = -1 if chosen else 1
        return {"val.nll": 0.3 if chosen else 0.6, "test.ece": 0.05 + sign * gain * ours + random.normal(0, 0.001)}

    return measure


PLAIN = [{"loss_name": "cross_entropy"}, *({"loss_name": "focal", "loss_gamma": float(g)} for g in (1, 2, 3, 4, 5))]


def norms(early: float, late: float) -> Measure:
    """The last layer's norm: cross-entropy's over focal loss's before and after the rate drops, at epoch 10 of 20."""

    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        plain = configuration["loss_name"] == "cross_entropy"
        factor = (early if configuration["epoch"] <= 10 else late) if plain else 1.0
        return {
            "lr": 0.1 if configuration["epoch"] <= 10 else 0.01,
            "last_layer_weight_norm": factor + random.normal(0, 0.01),
        }

    return measure


def wrong_samples(wrong: float, correct: float) -> Measure:
    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        epoch, noise = configuration["epoch"], random.normal(0, 0.2, 2)
        return {
            "lr": 0.1 if epoch <= 10 else 0.01,
            "test_nll_wrong": 2 + wrong * epoch + noise[0],
            "test_nll_correct": 1 + correct * epoch + noise[1],
        }

    return measure


SAM = {"optimizer_sharpness": "sam", "optimizer_rho": 0.1}
ARMS = [
    {"loss_name": "cross_entropy", "optimizer_lr": lr, **arm}
    for lr in (0.01, 0.02, 0.05, 0.1, 0.2)
    for arm in ({"optimizer_sharpness": None, "optimizer_rho": None}, SAM)
]


def flattened(trace: float, ece: float) -> Measure:
    """What sharpness-aware steps do: a factor on one layer's trace, and what they add to the ECE."""

    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        at_work = configuration["optimizer_sharpness"] is not None
        noise = random.normal(0, 0.05, 3)
        return {
            "val.trace of 0 first": (trace if at_work else 1.0) * math.exp(noise[0]),
            "val.trace of 1 last": math.exp(noise[1]),
            "test.ece": 0.1 + (ece if at_work else 0.0) + 0.01 * noise[2],
        }

    return measure


CASES = [
    ("lower_layer_curvature_calibrates", ARMS, flattened(0.3, -0.02), HOLDS),
    ("lower_layer_curvature_calibrates", ARMS, flattened(0.3, 0.02), FAILS),
    ("lower_layer_curvature_calibrates", ARMS, flattened(3.0, -0.02), UNDECIDED),
    ("lower_layer_curvature_calibrates", ARMS, flattened(0.3, 0.0), UNDECIDED),
    ("curvature_falls_with_gamma", FOCAL, curvature_by_gamma(-0.2, -0.2), HOLDS),
    ("curvature_falls_with_gamma", FOCAL, curvature_by_gamma(0.2, -0.2), FAILS),
    ("curvature_falls_with_gamma", FOCAL, curvature_by_gamma(-0.2, 0.2), FAILS),
    ("curvature_falls_with_gamma", FOCAL, curvature_by_gamma(0.0, -0.2), UNDECIDED),
    ("curvature_falls_with_gamma", FOCAL[:5], curvature_by_gamma(-0.2, -0.2), UNDECIDED),
    ("ece_smallest_at_intermediate_trace", TRACES, ece_by_trace(lambda t: -2 + 0.5 * (t - 1.5) ** 2), HOLDS),
    ("ece_smallest_at_intermediate_trace", TRACES, ece_by_trace(lambda t: -2 + 0.4 * t), FAILS),
    ("ece_smallest_at_intermediate_trace", TRACES, ece_by_trace(lambda t: -1 - 0.4 * t), FAILS),
    ("ece_smallest_at_intermediate_trace", TRACES[:6], ece_by_trace(lambda t: -2 + 0.5 * (t - 1.5) ** 2), UNDECIDED),
    ("flsd_beats_baselines", BASELINES, baselines(0.02, 0.02), HOLDS),
    ("flsd_beats_baselines", BASELINES, baselines(0.02, -0.02), FAILS),
    ("flsd_beats_baselines", BASELINES, baselines(0.02, 0.0), UNDECIDED),
    ("focal_in_stage_one_helps", STAGES, staged(0.02, 0.02), HOLDS),
    ("focal_in_stage_one_helps", STAGES, staged(0.02, -0.02), FAILS),
    ("focal_in_stage_one_helps", STAGES, staged(0.02, 0.0), UNDECIDED),
    ("focal_translates_best", TRANSLATORS, translations(0.02, 0.2), HOLDS),
    ("focal_translates_best", TRANSLATORS, translations(0.02, -0.2), FAILS),
    ("focal_translates_best", TRANSLATORS, translations(0.02, 0.0), UNDECIDED),
    ("focal_translates_best", TRANSLATORS[:2], translations(0.02, 0.2), UNDECIDED),
    ("margin_is_the_best_score", SCORES, scores(0.02), HOLDS),
    ("margin_is_the_best_score", SCORES, scores(-0.02), FAILS),
    ("margin_is_the_best_score", SCORES, scores(0.0), UNDECIDED),
    ("weight_norm_order_reverses", PLAIN, norms(0.8, 1.25), HOLDS),
    ("weight_norm_order_reverses", PLAIN, norms(1.25, 1.25), FAILS),
    ("weight_norm_order_reverses", PLAIN[:1], norms(0.8, 1.25), UNDECIDED),
    ("nll_rises_through_wrong_samples_only", PLAIN[:1], wrong_samples(0.1, -0.1), HOLDS),
    ("nll_rises_through_wrong_samples_only", PLAIN[:1], wrong_samples(0.1, 0.1), FAILS),
    ("nll_rises_through_wrong_samples_only", PLAIN[1:], wrong_samples(0.1, -0.1), UNDECIDED),
]  # fmt: skip


@pytest.mark.parametrize(("claim", "configurations", "measure", "verdict"), CASES)
def test_the_verdict_is_the_tables(claim: str, configurations: Any, measure: Measure, verdict: str) -> None:
    found = CLAIMS[claim].judge(rows_of(claim, configurations, measure))
    assert found.verdict == verdict, found.sentence
    assert found.claim == claim and found.sentence
    if found.interval is not None:
        assert found.interval[0] <= found.statistic <= found.interval[1]


CLEAR = Draws("normal", 8, 3, within=0.5)


@pytest.mark.parametrize("claim", sorted({*CLAIMS} - {"ece_smallest_at_intermediate_trace"}))
def test_a_large_effect_is_found_in_either_direction(claim: str) -> None:
    for effect, right, wrong in ((8.0, HOLDS, FAILS), (-8.0, FAILS, HOLDS)):
        found = verdicts(claim, CLEAR, effect, 4)
        assert found.count(right) >= 2 and wrong not in found


@pytest.mark.parametrize("claim", sorted(CLAIMS))
def test_a_table_without_what_a_claim_is_about_leaves_it_undecided(claim: str) -> None:
    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        return {"ece": math.nan}

    for rows in ([], rows_of(claim, [{"loss_name": "brier"}], measure)):
        found = CLAIMS[claim].judge(rows)
        assert found.verdict == UNDECIDED and found.interval is None and found.sentence


@pytest.mark.parametrize("claim", sorted(CLAIMS))
def test_neither_the_order_of_rows_nor_trials_that_were_stopped_early_say_anything(claim: str) -> None:
    rows: list[Row] = table(claim, CLEAR, 8.0, np.random.default_rng(0))
    shuffled = [rows[place] for place in np.random.default_rng(1).permutation(len(rows))]
    assert CLAIMS[claim].judge(shuffled).to_dict() == CLAIMS[claim].judge(rows).to_dict()
    assert CLAIMS[claim].judge([{**row, "stage": "rung"} for row in rows]).verdict == UNDECIDED


@pytest.mark.parametrize("claim", ["temperature_falls_with_training_gamma", "cross_entropy_overconfident_on_mistakes"])
def test_replicates_of_a_configuration_are_no_evidence_beyond_it(claim: str) -> None:
    """Taken for independent, eight replicates of each of six configurations give a verdict in 4 of 10 tables."""
    found = verdicts(claim, Draws("normal", 6, 8), 0.0, 100)
    assert sum(verdict != UNDECIDED for verdict in found) <= 12  # 5 expected


def test_every_claim_is_simulated() -> None:
    assert set(MODELS) == set(CLAIMS)
    for claim in CLAIMS:
        (found,) = verdicts(claim, Draws(configurations=4, replicates=2), 1.0, 1)
        assert found in (HOLDS, FAILS, UNDECIDED)


@pytest.mark.slow
@pytest.mark.parametrize("claim", sorted(CLAIMS))
@pytest.mark.parametrize("kind", ["normal", "t3", "log-normal"])
def test_every_claim_keeps_its_level_and_finds_what_is_there(claim: str, kind: str) -> None:
    count, draws = 200, Draws(kind, 12, 2)
    assert np.mean([found != UNDECIDED for found in verdicts(claim, draws, 0.0, count)]) <= 0.05 + 0.046
    assert np.mean([found == HOLDS for found in verdicts(claim, draws, 3.0, 20)]) >= 0.5


def test_too_few_configurations_are_undecided_and_the_sentence_says_how_many_are_needed() -> None:
    two = table("cross_entropy_overconfident_on_mistakes", Draws(configurations=2), 5.0, np.random.default_rng(0))
    found = CLAIMS["cross_entropy_overconfident_on_mistakes"].judge(two)
    assert found.verdict == UNDECIDED and "2 settings; 3 are needed" in found.sentence
    five = table("temperature_falls_with_training_gamma", Draws(configurations=5), 5.0, np.random.default_rng(0))
    found = CLAIMS["temperature_falls_with_training_gamma"].judge(five)
    assert found.verdict == UNDECIDED and "5 configurations; 6 are needed" in found.sentence


def test_one_configuration_each_at_one_setting_is_judged_by_its_replicates_and_says_so() -> None:
    found = CLAIMS["cross_entropy_overconfident_on_mistakes"].judge(final_rows(MISTAKES, mistakes(0.2)))
    assert found.verdict == HOLDS and "of these settings alone" in found.sentence
    other = [{**each, "optimizer_lr": rate} for each, rate in zip(MISTAKES, (0.1, 0.2), strict=True)]
    found = CLAIMS["cross_entropy_overconfident_on_mistakes"].judge(final_rows(other, mistakes(0.2)))
    assert found.verdict == UNDECIDED and "1 setting; 3 are needed" in found.sentence, "the rate may be what differs"


def test_architectures_are_not_mixed_into_one_correlation() -> None:
    """Within each network λ_max falls with γ; between them it rises, because the larger γ went to the sharper one."""

    def measure(configuration: Mapping[str, Any], random: np.random.Generator) -> Mapping[str, float]:
        gamma, sharp = gamma_of(configuration), configuration["architecture_name"] == "sharp"
        value = math.exp(8 * sharp - 0.3 * gamma + random.normal(0, 0.05))
        return {
            "val.hessian_cross_entropy_lambda_max": value,
            "val.hessian_training_lambda_max": value,
            "val.mean_focal_weight": 1.0,
        }

    def focal(gammas: list[float], network: str) -> list[dict[str, Any]]:
        return [{"loss_name": "focal", "loss_gamma": g, "architecture_name": network} for g in gammas]

    low, high = [0.5, 1, 1.5, 2, 2.5, 3, 4, 5], [6, 6.5, 7, 7.5, 8, 8.5, 9, 10]
    rows = final_rows([*focal(low, "flat"), *focal(high, "sharp")], measure)
    found = CLAIMS["curvature_falls_with_gamma"].judge(rows)
    assert found.verdict == HOLDS and found.statistic is not None and found.statistic < -0.9
