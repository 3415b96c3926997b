"""Ranks compute what one process computes: every loss, batch normalisation, dropout, augmentation and short batches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainables.training.ranks.cases import CASES
from tests.trainables.training.ranks.together import Trained, alone, by_ranks, small_data

TOLERANCE = 1e-7
"""Relative; 1e-6 is promised. Losses add up, and validation metrics are taken, in float32 even here."""


@pytest.fixture(scope="module")
def one() -> dict[str, Trained]:
    data = small_data()
    return {name: alone(configuration, data) for name, configuration in CASES.items()}


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def several(request: pytest.FixtureRequest) -> list[dict[str, Trained]]:
    """What each rank has after training every case."""
    found = by_ranks([*CASES.values()], request.param)
    return [dict(zip(CASES, each, strict=True)) for each in found]


@pytest.mark.parametrize("case", CASES)
def test_ranks_train_as_one_process(case: str, one: dict[str, Trained], several: list[dict[str, Trained]]) -> None:
    expected = one[case]
    for rank in several:
        for row, wanted in zip(rank[case].rows, expected.rows, strict=True):
            assert row == pytest.approx(wanted, rel=TOLERANCE), case
        for name, weight in expected.weights.items():
            np.testing.assert_allclose(rank[case].weights[name], weight.numpy(), rtol=1e-7, atol=1e-9, err_msg=name)
        for name, value in expected.state.items():
            np.testing.assert_allclose(rank[case].state[name], value, rtol=1e-7, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_have_the_same_bits(case: str, several: list[dict[str, Trained]]) -> None:
    first, *others = [rank[case] for rank in several]
    for other in others:
        assert other.rows == first.rows
        assert all((other.weights[name] == weight).all() for name, weight in first.weights.items())


def test_without_common_statistics_each_rank_normalises_by_its_part(one: dict[str, Trained]) -> None:
    first, second = by_ranks([CASES["normalised"]], 2, sync_batch_norm=False)
    assert first[0].rows == second[0].rows, "weights and the statistics for evaluation are the same"
    assert first[0].rows[0]["train_loss"] != pytest.approx(one["normalised"].rows[0]["train_loss"], rel=1e-4)
