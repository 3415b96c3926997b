"""Importance against functions whose shares of variance are known, in spaces with branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sweeper.reporting.figures import hyperparameters
from sweeper.reporting.figures.hyperparameters import MINIMUM_TRIALS, Branch, importances

COLUMNS = ("config_loss_name", "config_loss_gamma", "config_optimizer_lr", "config_optimizer_decay")


def drawn(seed: int, n: int) -> list[dict[str, Any]]:
    """Trials of a conditional space: the objective rises with γ where there is one, and with lr; decay does nothing."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        focal = bool(rng.integers(2))
        gamma, lr = rng.uniform(0, 1), rng.uniform(0, 1)
        value = 0.5 * lr + (gamma if focal else 0.0)
        rows.append(
            {
                "config_loss_name": "focal" if focal else "cross_entropy",
                "config_loss_gamma": gamma if focal else None,
                "config_optimizer_lr": lr, "config_optimizer_decay": rng.uniform(0, 1), "objective": value,
            }
        )  # fmt: skip
    return rows


def shares(branch: Branch) -> dict[str, float]:
    """Mean share by column."""
    return {item.column: item.mean for item in branch.importances}


@pytest.mark.parametrize("seed", range(3))
def test_a_branch_has_its_own_hyperparameters_with_their_shares_of_variance(seed: int) -> None:
    found = {branch.name: branch for branch in importances(drawn(seed, 400), COLUMNS)}
    assert set(found) == {"all", "focal"}
    assert set(shares(found["all"])) == set(COLUMNS) - {"config_loss_gamma"}
    focal = shares(found["focal"])
    assert set(focal) == set(COLUMNS) - {"config_loss_name"}
    # value = γ + lr / 2 of independent uniforms: 4/5 and 1/5 of the variance, of ranks nearly so.
    assert focal["config_loss_gamma"] == pytest.approx(0.8, abs=0.12)
    assert focal["config_optimizer_lr"] == pytest.approx(0.2, abs=0.1)
    assert abs(focal["config_optimizer_decay"]) < 0.03
    assert found["focal"].r_squared > 0.8
    assert found["focal"].importances[0].column == "config_loss_gamma"


def test_noise_is_not_explained() -> None:
    rng = np.random.default_rng(5)
    rows = [row | {"objective": float(rng.normal())} for row in drawn(5, 200)]
    whole = importances(rows, COLUMNS)[0]
    assert whole.r_squared < 0.15
    assert all(item.mean < 0.15 for item in whole.importances)


def test_diverged_trials_do_not_take_it_all() -> None:
    rows = drawn(7, 300)
    rows[0]["objective"], rows[1]["objective"], rows[2]["objective"] = 1e9, float("nan"), None
    whole = importances(rows, COLUMNS)[0]
    assert whole.n == 298 and whole.r_squared > 0.3


def test_few_trials_and_single_hyperparameters_are_left_out() -> None:
    assert importances(drawn(1, MINIMUM_TRIALS - 1), COLUMNS) == []
    assert importances(drawn(1, 60), ("config_optimizer_lr",)) == []
    assert importances([], COLUMNS) == []


def test_of_many_trials_some_are_drawn_and_the_same_seed_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyperparameters, "MOST_TRIALS", 40)
    rows = drawn(3, 90)
    once, twice = (importances(rows, COLUMNS[2:]) for _ in range(2))
    assert once == twice and [branch.n for branch in once] == [40]
