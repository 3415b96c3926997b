"""Whether one value of a hyperparameter suits all networks, from the verdicts on a line on each."""

from __future__ import annotations

import pytest

from sweeper.judging.question import OPEN, SAME, WORSE
from sweeper.reporting.answering.answers import Question
from sweeper.reporting.answering.questions import shared_values
from sweeper.reporting.sentences import shared_in_words


def line(network: str, best: str, worse: str = "", unknown: str = "", name: str = "γ") -> Question:
    return Question(name, tuple(best), tuple(worse), tuple(unknown), ("focal", network))


@pytest.mark.parametrize(
    ("mlp", "resnet8", "code", "common"),
    [
        (("0", "15"), ("0", "15"), SAME, ["0"]),
        (("0", "15"), ("5", "01"), WORSE, []),
        (("01", "5"), ("5", "01"), WORSE, []),
        (("01", "5"), ("0", "15"), OPEN, ["0"]),
        (("01", "5"), ("05", "1"), OPEN, ["0"]),
        (("0", "", "15"), ("5", "01"), OPEN, ["5"]),  # seeds judge nothing on mlp
        (("2", "015"), ("0", "15"), OPEN, []),  # 2 was tried on mlp only, and all others are worse there
    ],
)
def test_one_value_suits_all_networks_or_none_or_it_is_open(
    mlp: tuple[str, ...], resnet8: tuple[str, ...], code: str, common: list[str]
) -> None:
    (shared,) = shared_values([line("mlp", *mlp), line("resnet8", *resnet8)])
    assert (shared.code, shared.common) == (code, common)
    assert all(network in shared_in_words(shared) for network in ("mlp", "resnet8"))


def test_only_lines_of_one_hyperparameter_on_several_networks_are_compared() -> None:
    loss = Question("loss", ("focal",), (), ())
    assert shared_values([loss, line("mlp", "0"), line("resnet8", "0", name="lr")]) == []
