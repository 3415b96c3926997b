"""Trends along the values of a hyperparameter, on values with a known direction."""

import numpy as np
import pytest

from sweeper.judging.question import OPEN
from sweeper.judging.trends import FALLS, RISES, TURNS, trend


def line(*means: float, spread: float = 0.02) -> list[dict[int, float]]:
    draw = np.random.default_rng(0)
    return [{seed: mean * (1 + spread * draw.normal()) for seed in range(4)} for mean in means]


@pytest.mark.parametrize(
    ("means", "code", "by_steps"),
    [
        ((14, 9, 5), FALLS, True), ((5, 9, 14), RISES, True), ((5, 14, 5), TURNS, False), ((14, 14, 5), FALLS, False),
        ((9, 9, 9), OPEN, False), ((14, 5), FALLS, True),
    ],
)  # fmt: skip
def test_the_direction_is_found(means: tuple[float, ...], code: str, by_steps: bool) -> None:
    found = trend("lambda_max", line(*means))
    assert found is not None and (found.code, found.by_steps) == (code, by_steps)
    assert found.means == pytest.approx(means, rel=0.05) and len(found.steps) == len(means) - 1


def test_unknown_values_have_no_trend() -> None:
    assert trend("lambda_max", [{0: 1.0, 1: 1.1}]) is None and trend("lambda_max", [{0: 1.0}, {}]) is None
    single = trend("lambda_max", [{0: 9.0}, {0: 5.0}])
    assert single is not None and single.code == OPEN, "one seed each decides nothing"


def test_noise_is_rarely_called_a_trend() -> None:
    draw = np.random.default_rng(1)
    found = [trend("x", [dict(enumerate(9 + draw.normal(size=4))) for _ in range(3)]) for _ in range(200)]
    assert sum(one is not None and one.code in (FALLS, RISES) for one in found) <= 16
