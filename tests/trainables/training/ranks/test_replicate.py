"""Ranks compute what one process computes: every loss, batch normalisation, dropout, augmentation and short batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.trainables.training.ranks.cases import CASES
from tests.trainables.training.ranks.together import Trained, alone, by_ranks, small_data

TOLERANCE = 1e-7
"""Relative; 1e-6 is promised. Losses add up, and validation metrics are taken, in float32 even here."""


SOME = ("mmce", "fine-tuned", "dropout")
"""A loss that couples a batch; normalisation, clipping and SAM; what draws, and keeps a state."""


@dataclass(frozen=True)
class Case:
    """What one process, and each of several ranks, has after training a configuration."""

    name: str
    one: Trained
    several: list[Trained]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((SOME, 2), id="some cases"),
        pytest.param((tuple(CASES), 2), id="every case", marks=pytest.mark.integration),
        pytest.param((tuple(CASES), 4), id="every case by four", marks=pytest.mark.slow),
    ],
)
def cases(request: pytest.FixtureRequest) -> list[Case]:
    """Cases trained by one process and by some ranks."""
    names, size = request.param
    ranks, data = by_ranks([CASES[name] for name in names], size), small_data()
    return [Case(name, alone(CASES[name], data), [rank[i] for rank in ranks]) for i, name in enumerate(names)]


def test_ranks_train_as_one_process(cases: list[Case]) -> None:
    for case in cases:
        for rank in case.several:
            for row, wanted in zip(rank.rows, case.one.rows, strict=True):
                assert row == pytest.approx(wanted, rel=TOLERANCE), case.name
            for name, weight in case.one.weights.items():
                told = f"{case.name}: {name}"
                np.testing.assert_allclose(rank.weights[name], weight.numpy(), rtol=1e-7, atol=1e-9, err_msg=told)
            for name, value in case.one.state.items():
                np.testing.assert_allclose(rank.state[name], value, rtol=1e-7, err_msg=f"{case.name}: {name}")


def test_all_ranks_have_the_same_bits(cases: list[Case]) -> None:
    for case in cases:
        first, *others = case.several
        for other in others:
            assert other.rows == first.rows, case.name
            assert all((other.weights[name] == weight).all() for name, weight in first.weights.items()), case.name


@pytest.mark.integration
def test_without_common_statistics_each_rank_normalises_by_its_part() -> None:
    one = alone(CASES["normalised"], small_data())
    first, second = by_ranks([CASES["normalised"]], 2, sync_batch_norm=False)
    assert first[0].rows == second[0].rows, "weights and the statistics for evaluation are the same"
    assert first[0].rows[0]["train_loss"] != pytest.approx(one.rows[0]["train_loss"], rel=1e-4)
