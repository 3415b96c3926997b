"""Families of losses: what is paired with what, and what p are corrected for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sweeper.judging.question import BETTER, OPEN, WORSE
from sweeper.reporting.figures.loss_families import (
    CONFIGURATIONS,
    REPLICATES,
    SEEDS,
    SETTINGS,
    compare_families,
    reference_of,
    sentence,
)

VARYING = ("config_loss_name", "config_loss_gamma", "config_optimizer_lr")


def row(loss: str, lr: float, judged: float | None, ece: float | None, gamma: float | None = None) -> dict[str, Any]:
    """One finished configuration."""
    return {
        "trial": f"{loss}-{lr}-{gamma}", "loss": loss, "judged": judged, "test_ece": ece,
        "config_loss_name": loss, "config_loss_gamma": gamma,
        "config_optimizer_lr": lr,
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_grid_is_paired_by_settings_with_what_validation_would_choose(mode: str) -> None:
    rng = np.random.default_rng(2)
    rows, chosen, plain = [], [], []
    for lr in (0.01, 0.03, 0.1, 0.3):
        plain.append(float(rng.normal()))
        rows.append(row("cross_entropy", lr, 1.0, plain[-1]))
        judged, ece = rng.normal(size=3), rng.normal(size=3)
        rows += [row("focal", lr, float(j), float(e), g) for j, e, g in zip(judged, ece, (1.0, 2.0, 3.0), strict=True)]
        chosen.append(float(ece[np.argmin(judged) if mode == "min" else np.argmax(judged)]))
    (found,) = compare_families(rows, VARYING, "test_ece", mode, {})
    assert (found.unit, found.family, found.sizes) == (SETTINGS, "focal", (4, 4))
    assert found.verdict.estimate == pytest.approx(np.mean(chosen) - np.mean(plain)) and found.verdict.paired


def test_settings_that_differ_are_not_paired_and_many_families_are_corrected() -> None:
    rng = np.random.default_rng(3)
    rows = [
        row(loss, float(rng.uniform()), 1.0, float(rng.normal(shift, 1)))
        for loss, shift in (("cross_entropy", 0.0), ("focal", 2.0), ("brier", 0.3))
        for _ in range(9)
    ]
    found = compare_families(rows, VARYING, "test_ece", "min", {})
    assert [item.family for item in found] == ["brier", "focal"] and {item.unit for item in found} == {CONFIGURATIONS}
    assert [item.verdict.code for item in found] == [OPEN, WORSE]
    alone = compare_families([each for each in rows if each["loss"] != "brier"], VARYING, "test_ece", "min", {})
    wide, narrow = (item.verdict.high - item.verdict.low for item in (found[1], alone[0]))
    assert wide > 1.05 * narrow, "intervals of two families hold together"


def test_a_lone_configuration_is_compared_by_replicates_with_the_best_of_the_other() -> None:
    rows = [row("cross_entropy", 0.1, 1.0, 0.2), row("focal", 0.1, 0.5, 0.1, 2.0), row("focal", 0.1, 0.9, 0.3, 3.0)]
    plain, best = [0.1, 0.3, 0.2, 0.2], [0.05, 0.15, 0.1, 0.1]
    values = {rows[0]["trial"]: plain, rows[1]["trial"]: [*best, float("nan")], rows[2]["trial"]: [9.0] * 4}
    each = {trial: {hash((trial, at)): value for at, value in enumerate(mine)} for trial, mine in values.items()}
    (found,) = compare_families(rows, VARYING, "test_ece", "min", each)
    assert (found.unit, found.sizes) == (REPLICATES, (4, 4))
    assert found.verdict.estimate == pytest.approx(0.1 - 0.2)
    on_equal_seeds = {trial: dict(enumerate(mine)) for trial, mine in values.items()}
    (paired,) = compare_families(rows, VARYING, "test_ece", "min", on_equal_seeds)
    assert (paired.unit, paired.sizes) == (SEEDS, (4, 4))
    assert paired.verdict.estimate == pytest.approx(np.mean(best) - np.mean(plain)) and paired.verdict.code == BETTER


def test_configurations_that_share_their_seeds_are_clustered_by_seed() -> None:
    """Six settings of two seeds are two pairs, not six."""
    rows = [row(loss, lr, 1.0, 0.1) for loss in ("cross_entropy", "focal") for lr in (1, 2, 3, 4, 5, 6)]
    gain = {7: 0.01, 9: 0.03}
    held = {
        str(each["trial"]): {
            s: each["config_optimizer_lr"] / 100 - d * (each["loss"] == "focal") for s, d in gain.items()
        }
        for each in rows
    }
    (found,) = compare_families(rows, VARYING, "test_ece", "min", held)
    assert len(found.verdict.seeds) == 2 and found.verdict.estimate == pytest.approx(-0.02)
    assert found.unit == "shared seeds" and "n = 2 pairs" in sentence(found)


def test_what_cannot_be_compared_is_left_out() -> None:
    assert compare_families([], VARYING, "test_ece", "min", {}) == []
    assert compare_families([row("focal", 0.1, 1.0, 0.2)] * 3, VARYING, "test_ece", "min", {}) == []
    rows = [row("cross_entropy", 0.1, 1.0, 0.2), row("focal", 0.2, None, 0.1), row("focal", 0.3, 1.0, float("nan"))]
    assert compare_families(rows, VARYING, "test_ece", "min", {}) == []
    assert reference_of([row("focal", 0.1, 1, 1), row("brier", 0.1, 1, 1), row("focal", 0.2, 1, 1)]) == "focal"
