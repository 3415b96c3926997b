"""Selective prediction of finalists: values against a loop over sorted samples, and who is judged against whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sweeper.judging.question import BETTER, SAME, WORSE
from sweeper.results.estimators import Networks, Scored
from sweeper.results.selection import selections, stated_coverage

SAMPLES = 400


def networks(ranked: bool, first: int = 0) -> Networks:
    """Return three networks of accuracy 0.9; the least confident tenth is wrong if `ranked`, else a random one."""
    made = {}
    for seed in range(first, first + 3):
        rng = np.random.default_rng(seed)
        confidence = np.sort(rng.uniform(0.3, 1.0, SAMPLES))
        wrong = np.arange(SAMPLES) < SAMPLES // 10
        wrong = wrong if ranked else rng.permutation(wrong)
        nothing = np.zeros(SAMPLES)
        made[seed] = Scored(confidence, (~wrong).astype(float), nothing, nothing, nothing.astype(int), None)
    return made


def row(trial: str, loss: str, network: str = "mlp") -> dict[str, str]:
    return {"trial": trial, "loss": loss, "architecture": network}


def test_values_are_those_of_a_loop_over_sorted_samples() -> None:
    of = networks(ranked=False)
    (one,) = selections({"a": (of, of)}, [row("a", "aurc")], 0.8)
    surest = [sorted(zip(net.confidence, net.correct, strict=True), reverse=True) for net in of.values()]
    accuracy = np.mean([[hit for _, hit in ranked[: round(0.8 * SAMPLES)]] for ranked in surest])
    assert one.accuracy.means == pytest.approx((accuracy, accuracy))
    assert one.rival == "" and one.accuracy.verdicts == () and one.is_open


def test_the_rival_is_the_best_other_loss_on_the_same_network() -> None:
    good, bad = networks(ranked=True), networks(ranked=False)
    stages = {"plain": (bad, bad), "sharp": (good, bad), "else": (good, good), "worse": (bad, bad)}
    rows = [row("else", "focal", "resnet8"), row("sharp", "selective_risk"), row("plain", "brier"), row("w", "focal")]
    (one,) = selections(stages, rows, 0.8)
    assert (one.trial, one.rival, one.coverage) == ("sharp", "plain", 0.8)
    for quantity in (one.accuracy, one.aurc):
        assert [verdict.code for verdict in quantity.verdicts] == [BETTER, SAME], "the second stages are equal"
    assert not one.is_open
    (turned,) = selections({**stages, "plain": (good, good), "sharp": (bad, bad)}, rows, 0.8)
    assert {verdict.code for verdict in (*turned.accuracy.verdicts, *turned.aurc.verdicts)} == {WORSE}


def test_a_row_without_one_of_its_stages_is_left_out() -> None:
    of = networks(ranked=True)
    assert selections({"a": (of, {})}, [row("a", "aurc")], 0.8) == []
    flat = {seed: replace(net, confidence=np.full(SAMPLES, 0.5)) for seed, net in of.items()}
    (one,) = selections({"a": (flat, flat)}, [row("a", "aurc")], 0.5)
    assert one.accuracy.means[0] == pytest.approx(0.9)  # tied samples share the accepted places


def test_the_coverage_is_the_one_that_the_space_states() -> None:
    assert stated_coverage([{"name": "ks"}, {"name": "risk_at_coverage", "coverage": 0.5}]) == 0.5
    assert stated_coverage([]) == 0.8
