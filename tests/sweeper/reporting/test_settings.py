"""Which γ: only values that were compared at the same epoch with all else equal, and else that it is undecided."""

from __future__ import annotations

import numpy as np

from sweeper.reporting.matrix import Matrix, Measured
from sweeper.reporting.settings import setting_sentence, settings_of
from sweeper.text.cells import Row

GAMMA, RATE = "config_loss_gamma", "config_optimizer_lr"


def matrix_of(trials: list[tuple[float, float, str, float]], seeds: int = 5) -> Matrix:
    """Configurations of (γ, learning rate, status, true validation NLL), each with seeds that spread by 1 %."""
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    values = {}
    for at, (gamma, rate, status, value) in enumerate(trials):
        name, epoch = f"c{at:05d}", 27 if status == "completed" else 3
        rows.append({"trial": name, "status": status, "epochs": epoch, GAMMA: gamma, RATE: rate})
        values[name] = {epoch: {100 * at + r: value * (1 + 0.01 * rng.normal()) for r in range(seeds)}}
    names = dict.fromkeys(values, "mlp")
    measured = Measured("validation NLL", values, False, names, dict.fromkeys(values, ""), dict.fromkeys(values, 1))
    cells = {("", "focal", "mlp"): rows}
    return Matrix(cells, measured, None, measured, (None, None), [GAMMA, RATE])


def answer_of(found: Matrix) -> tuple[str, int]:
    (setting,) = settings_of(found)
    return setting.answer, setting.compared


def test_values_with_all_else_equal_are_compared() -> None:
    done = [(gamma, 0.1, "completed", value) for gamma, value in ((1.0, 0.2), (2.0, 0.1), (3.0, 0.102), (5.0, 0.3))]
    assert answer_of(matrix_of(done)) == ("2 or 3 may be the best of 4 values (90 %) (best mean: 2)", 4)


def test_one_that_stands_alone_is_the_best() -> None:
    done = [(gamma, 0.1, "completed", value) for gamma, value in ((1.0, 0.2), (2.0, 0.1), (3.0, 0.15), (5.0, 0.3))]
    assert answer_of(matrix_of(done)) == ("2 is the best of 4 values (90 %)", 4)


def test_values_that_cannot_be_told_apart_are_undecided() -> None:
    done = [(gamma, 0.1, "completed", 0.1) for gamma in (1.0, 2.0, 3.0)]
    answer, compared = answer_of(matrix_of(done, seeds=2))
    assert answer == "undecided: any of the 3 values may be the best" and compared == 3


def test_a_value_drawn_with_its_learning_rate_is_undecided() -> None:
    """1.0 to 8.0 did not do as well as each other: the learning rate differs, too."""
    done = [(1.0, 0.03, "completed", 0.1), (3.7, 0.14, "completed", 0.5), (8.0, 0.05, "completed", 0.11)]
    found = settings_of(matrix_of(done))
    assert found[0].answer == "undecided: 3 values were trained to the end, with lr 0.03 to 0.14"
    assert setting_sentence(found).endswith("with lr 0.03 to 0.14 (`sweeper run which_gamma` asks only that).")
    both = setting_sentence([*found, *found])
    assert both.startswith("undecided: no two values of γ were trained to the end with all else equal")


def test_what_was_stopped_is_not_compared() -> None:
    drawn = [(1.0, 0.1, "completed", 0.1), (2.0, 0.1, "early_stopped", 0.9), (3.0, 0.1, "early_stopped", 0.8)]
    assert answer_of(matrix_of(drawn)) == ("undecided: of 3 values 1 was trained to the end", 0)


def test_a_grid_is_averaged_over_the_settings_at_which_all_values_were_tried() -> None:
    grid = [(g, r, "completed", v * f) for g, v in ((1.0, 0.1), (2.0, 0.2)) for r, f in ((0.1, 1.0), (0.2, 2.0))]
    answer, compared = answer_of(matrix_of([*grid, (3.0, 0.1, "early_stopped", 0.5)]))
    assert answer == "1 is the best of 2 values (90 %), on average over 2 settings of the rest" and compared == 2


def test_one_seed_each_decides_nothing() -> None:
    done = [(gamma, 0.1, "completed", value) for gamma, value in ((1.0, 0.2), (2.0, 0.1))]
    assert answer_of(matrix_of(done, seeds=1)) == ("undecided: one seed each", 0)
