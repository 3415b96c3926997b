"""Whether one value of a hyperparameter suits all networks, from a line on each, judged together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from sweeper.judging.question import OPEN, SAME, WORSE
from sweeper.reporting.answering.answers import Question
from sweeper.reporting.answering.finalists import chosen_rows
from sweeper.reporting.answering.matrix import Matrix, Measured
from sweeper.reporting.answering.questions import Shared, line_questions, shared_values
from sweeper.reporting.sentences import shared_in_words
from sweeper.results.leaderboard import Goal

GAMMA = "config_loss_gamma"


def line(network: str, suits: str, values: str, name: str = "γ") -> Question:
    return Question(name, tuple(values), (), (), ("focal", network), suits=frozenset(suits))


@pytest.mark.parametrize(
    ("mlp", "resnet8", "code", "common"),
    [
        (("0", "015"), ("0", "015"), SAME, ["0"]),
        (("0", "015"), ("5", "015"), WORSE, []),
        (("01", "015"), ("5", "015"), WORSE, []),
        (("01", "015"), ("0", "015"), OPEN, ["0"]),
        (("01", "015"), ("05", "015"), OPEN, ["0"]),
        (("0", "02"), ("0", "015"), OPEN, ["0"]),  # one value was tried on both: nothing was compared
    ],
)
def test_one_value_suits_all_networks_or_none_or_it_is_open(
    mlp: tuple[str, str], resnet8: tuple[str, str], code: str, common: list[str]
) -> None:
    (shared,) = shared_values([line("mlp", *mlp), line("resnet8", *resnet8)])
    assert (shared.code, shared.common) == (code, common)
    assert all(network in shared_in_words(shared) for network in ("mlp", "resnet8"))


def test_only_lines_on_several_networks_are_compared() -> None:
    assert shared_values([Question("loss", ("focal",), (), ()), line("mlp", "", "01")]) == []
    grid = drawn({"mlp": {0: 0.1, 5: 0.2}}, np.random.default_rng(0))
    assert shared_of(grid) == []


def drawn(truth: Mapping[str, Mapping[float, float]], rng: np.random.Generator, seeds: int = 6) -> Matrix:
    """A line of γ on each network: heavy tails (Student, 3 degrees of freedom), spreads that differ, common seeds."""
    cells, values = {}, dict[str, dict[int, dict[int, float]]]()
    for network, of in truth.items():
        spread, common = rng.choice([0.01, 0.03]), rng.standard_t(3, seeds)
        rows = []
        for gamma, nll in of.items():
            name = f"{network}-{gamma:g}"
            noise = spread * (common + rng.standard_t(3, seeds)) / 2
            values[name] = {27: {seed: nll * float(np.exp(noise[seed])) for seed in range(seeds)}}
            rows.append({"trial": name, "status": "completed", "epochs": 27, GAMMA: gamma})
        cells["", "focal", network] = sorted(rows, key=lambda row: np.mean([*values[str(row["trial"])][27].values()]))
    measured = Measured(Goal("val_nll"), values, dict.fromkeys(values, ""))
    return Matrix(cells, measured, [GAMMA], asked=[GAMMA], on_each=[GAMMA])


def shared_of(grid: Matrix) -> list[Shared]:
    lines = chosen_rows(grid, "")[1]
    return shared_values(line_questions(grid, lines, {}))


#: True NLL by γ on two networks. NEAR: one γ is the best of both, by so little that seeds mislead. APART: the best
#: differ by little on one network. CLEAR, OPPOSITE: one γ suits both, or none does, by a lot.
NEAR = {"mlp": {0: 0.100, 1: 0.1003, 5: 0.101}, "resnet8": {0: 0.05, 1: 0.0501, 5: 0.0504}}
APART = {"mlp": {0: 0.100, 1: 0.101, 5: 0.12}, "resnet8": {0: 0.0504, 1: 0.05, 5: 0.06}}
CLEAR = {"mlp": {0: 0.100, 1: 0.12, 5: 0.15}, "resnet8": {0: 0.05, 1: 0.06, 5: 0.07}}
OPPOSITE = {"mlp": {0: 0.100, 1: 0.12, 5: 0.15}, "resnet8": {0: 0.07, 1: 0.06, 5: 0.05}}


@pytest.mark.parametrize(
    ("truth", "wrong", "right"), [(NEAR, WORSE, ""), (APART, SAME, ""), (CLEAR, WORSE, SAME), (OPPOSITE, SAME, WORSE)]
)
def test_the_sentence_is_wrong_in_at_most_a_tenth_of_sweeps(
    truth: Mapping[str, Mapping[float, float]], wrong: str, right: str
) -> None:
    rng, count = np.random.default_rng(0), 100
    said = Counter(shared.code for _ in range(count) for shared in shared_of(drawn(truth, rng)))
    assert said.total() == count, "every network has its line"
    assert said[wrong] <= 0.1 * count, said
    assert not right or said[right] >= 0.8 * count, said
