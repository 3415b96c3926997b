"""The first screen's data, on sweeps with a known truth."""

import functools
import math
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from sweeper.core.cells import Row
from sweeper.core.display import as_text
from sweeper.judging import question as codes
from sweeper.reporting.answering.advice import (
    ABOVE_LARGEST,
    BELOW_CHANCE,
    BELOW_LARGEST,
    NEAR_LARGEST,
    ONE_CLASS,
    against_largest,
    class_shares,
    majority_warning,
    more_seeds,
    shifted_warning,
)  # fmt: skip
from sweeper.reporting.answering.answers import (
    ALONE,
    BEST,
    DECIDED,
    EQUAL,
    EQUIVALENT,
    NEARLY_DECIDED,
    NOT_DECIDED,
    NOT_JUDGED,
    SMALLEST,
    STOPPED,
    UNFINISHED,
    WORSE,
    FirstScreen,
    Question,
)  # fmt: skip
from sweeper.reporting.answering.finalists import chosen_rows, in_words, labels
from sweeper.reporting.answering.matrix import Key, Matrix, Measured, matrix, measure
from sweeper.reporting.answering.questions import line_questions, loss_and_network
from sweeper.reporting.first_screen import first_screen, screen_changes
from sweeper.reporting.page import write_report
from sweeper.reporting.summary import summary
from sweeper.reporting.tables import posthoc_tables
from sweeper.results import Results
from sweeper.results.leaderboard import Goal, Leaderboard, leaderboard
from sweeper.results.listing import overview
from sweeper.results.verdicts import estimates, margin_of, objective_margin
from tests.sweeper.changed_tables import change
from tests.sweeper.held import held
from tests.sweeper.synthetic_sweep import write_sweep
from tests.sweeper.tables_by_pandas import means
from trainables.posthoc import POSTHOC


def screen(results: Results) -> FirstScreen:
    with nullcontext(results) if results.frozen is not None else results.snapshot() as frozen:
        return first_screen(frozen, leaderboard(frozen), overview(frozen))


@functools.cache
def shared_screen(folder: Path) -> FirstScreen:
    """Return the first screen of a folder that no test changes."""
    return screen(held(folder))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A grid of losses and γ with two seeds and few samples."""
    folder = tmp_path_factory.mktemp("small") / "s"
    return held(write_sweep(folder, configurations=4, replicates=2, space="gamma", samples=60, failures=0))


def test_every_question_of_the_quickstart_has_a_state(quickstart_folder: Path) -> None:
    (answer,) = shared_screen(quickstart_folder).answers
    best = leaderboard(held(quickstart_folder)).best
    assert best is not None and answer.leader.trial == best["trial"] and answer.leader.standing == BEST
    assert [question.name for question in answer.questions[:2]] == ["loss", "network"]
    for question, own in zip(answer.questions, (best["loss"], best["architecture"]), strict=False):
        assert question.best[0] == own
        assert len({*question.best, *question.worse, *question.unknown}) == (4 if question.name == "loss" else 2)
    assert answer.state in (DECIDED, NEARLY_DECIDED, NOT_DECIDED) and answer.most_lost is not None
    assert (answer.command == "") == (answer.state == DECIDED)


def test_a_row_for_each_loss_and_network_with_the_test_ece_before_and_after(quickstart_folder: Path) -> None:
    lines = shared_screen(quickstart_folder).finalists
    assert len({(line.loss, line.network) for line in lines}) == len(lines)
    rows = means(quickstart_folder, "test", ["ece"]).reset_index().set_index("trial")
    finished = [line for line in lines if line.standing != STOPPED]
    assert finished and all(line.change is not None for line in finished)
    for line in finished:
        assert line.change is not None and line.change.means[1] == pytest.approx(rows.loc[line.trial, "ece"], rel=1e-5)
    assert all(line.change is None for line in lines if line.standing == STOPPED)


def test_compare_has_the_verdicts_of_the_screen(small: Results) -> None:
    first, second = [line for line in screen(small).finalists if line.change is not None][:2]
    changes = screen_changes(small)
    (each,) = estimates((small, first.trial), (small, second.trial), known=changes)
    for line in (first, second):
        rows = each.changes[f"{line.trial} after temperature"]
        assert line.change in rows and line.change == changes[line.trial]


def test_a_line_of_values_has_a_row_each_and_a_question(gamma_folder: Path) -> None:
    (answer,) = shared_screen(gamma_folder).answers
    settings = {(line.loss, line.setting) for line in answer.finalists if line.setting}
    assert len(settings) >= 2 and len({loss for loss, _ in settings}) >= 1
    (question, *_) = [each for each in answer.questions if each.cell]
    assert question.name == "γ" and len(question.best) + len(question.worse) >= 2
    lowered = [line for line in answer.finalists if line.change is not None and line.change.code == codes.BETTER]
    assert lowered, "temperature scaling lowers the ECE of a sharpened loss"


def test_one_seed_each_is_not_judged_and_says_what_would(tmp_path: Path) -> None:
    (answer,) = screen(Results(write_sweep(tmp_path / "one", configurations=12, replicates=1, failures=0))).answers
    assert answer.state == NOT_JUDGED and answer.most_lost is None and answer.seeds == 1
    assert "--set replicates=" in answer.command
    assert not any(question.decided for question in answer.questions)


def test_no_seeds_are_proposed_that_would_not_decide(tmp_path: Path) -> None:
    """Five seeds give two configurations the same values, in another order."""
    folder = write_sweep(tmp_path / "equal", configurations=2, replicates=5, failures=0)

    def equal(rows):  # type: ignore[no-untyped-def]
        shift = (rows["trial"] == rows["trial"].max()).astype(int)
        rows["nll"] = 0.1 + 0.01 * ((rows["replicate"] + shift) % 5)
        return rows

    change(folder, "evaluations", equal)
    (answer,) = screen(Results(folder)).answers
    assert (answer.state, answer.command) == (NOT_DECIDED, "")


def test_the_proposed_seeds_are_those_that_the_command_trains(small: Results) -> None:
    board = leaderboard(small)
    found = matrix(small, board)
    assert found is not None
    best = found.best("")
    assert best is not None
    trainings, command = more_seeds(small, found, best, board.finished)
    added = int(command.rpartition("=")[2]) - 2
    assert added > 0 and trainings in (0, added * len(board.finished))


def test_fresh_seeds_decide_alone(gamma_folder: Path, tmp_path: Path) -> None:
    """Two configurations are good on the seeds that chose them; on fresh ones, the second of them is."""
    folder = Path(shutil.copytree(gamma_folder, tmp_path / "s", symlinks=True))
    board = leaderboard(Results(folder))
    one, two = (str(row["trial"]) for row in board.finished[:2])

    def stage(rows):  # type: ignore[no-untyped-def]
        rows.loc[rows["trial"].isin([one, two]) & (rows["replicate"] >= 1), "stage"] = "final"
        rows.loc[(rows["stage"] == "final") & (rows["trial"] == one), "nll"] += 1.0
        return rows

    change(folder, "evaluations", stage)
    (answer,) = screen(Results(folder)).answers
    assert answer.fresh and answer.seeds == 2 and answer.leader.trial == two
    assert ".at_most=" in answer.command or not answer.command, "the stage goes on; other seeds would not count"
    assert {line.trial for line in answer.finalists} == {one, two}
    results = Results(folder)
    found, count = matrix(results, leaderboard(results)), results.specification["replicates"]["count"]
    best = None if found is None else found.best("")
    assert found is not None and best is not None
    _, command = more_seeds(results, found, best, [])
    assert int(command.rpartition("=")[2]) > count + 2, "more than the leader has, whatever the fewest are"


def test_a_training_that_ended_far_from_the_others_is_named_and_left_out(gamma_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(gamma_folder, tmp_path / "s", symlinks=True))
    sound = screen(Results(folder)).answers[0]
    trial, value = sound.leader.trial, sound.leader.value.mean

    def diverged(rows):  # type: ignore[no-untyped-def]
        rows.loc[(rows["trial"] == trial) & (rows["replicate"] == 2) & (rows["split"] == "val"), "nll"] = 40.0
        return rows

    change(folder, "evaluations", diverged)
    found = screen(Results(folder))
    (warning,) = [words for words in found.warnings if trial in words]
    assert warning.startswith("1 of ")
    (answer,) = found.answers
    assert answer.leader.trial == trial and answer.leader.value.mean == pytest.approx(value, rel=0.3)


def test_what_was_not_trained_to_the_end_is_not_compared(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", configurations=4, replicates=2, failures=0, samples=60)
    change(folder, "trials", lambda rows: rows.assign(status="early_stopped"))
    (answer,) = screen(Results(folder)).answers
    assert answer.state == UNFINISHED and {line.standing for line in answer.finalists} == {STOPPED}


def test_without_predictions_no_change_is_shown(small: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.results.verdicts.MOST_VALUES", 10)
    assert {line.change for line in screen(small).finalists} == {None}


def test_fits_at_their_bound_are_warned_of(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "bound", configurations=4, replicates=2, failures=0, samples=60)
    change(folder, "evaluations", lambda rows: rows.assign(posthoc_temperature_at_bound=1))
    (warning,) = screen(Results(folder)).warnings
    assert "fits of temperature" in warning and "at bound" in str(posthoc_tables(Results(folder)))


@pytest.mark.parametrize(
    ("accuracy", "share", "balanced", "classes", "code"),
    [
        (0.93, 1.0, 0.93, 2, ONE_CLASS),
        (0.72, 0.7, 0.6, 2, ABOVE_LARGEST),
        (0.7, 0.7, 0.5, 2, NEAR_LARGEST),
        (0.3, 0.7, 0.3, 2, BELOW_CHANCE),  # two classes swapped
        (0.3, 0.7, None, None, BELOW_CHANCE),
        (0.6, 0.7, 0.8, 2, BELOW_LARGEST),  # it gives accuracy up for the rare class
        (0.2, 0.6, 0.4, 10, BELOW_LARGEST),
        (0.1, 0.6, 0.1, 10, BELOW_CHANCE),
    ],
)
def test_an_accuracy_is_compared_with_the_largest_class_and_with_chance(
    accuracy: float, share: float, balanced: float | None, classes: int | None, code: str
) -> None:
    assert against_largest(accuracy, share, balanced, classes) == code


def test_a_majority_class_predictor_is_warned_of(quickstart_folder: Path) -> None:
    results = held(quickstart_folder)
    row: dict[str, object] = {
        "trial": "c00000", "status": "completed", "judged": 0.01, "val_accuracy": 0.667, "val_majority_share": 0.667,
        "val_balanced_accuracy": 0.5,
    }  # fmt: skip

    def warned(*rows: dict[str, object], of: object = results) -> list[str]:
        return majority_warning(of, Leaderboard([*rows], (), "", Goal("val_ece", "min")))  # type: ignore[arg-type,list-item]

    better = {**row, "trial": "c00001", "judged": 0.02, "val_balanced_accuracy": 0.8}

    def sweep(**specification: object) -> object:
        return SimpleNamespace(specification=specification, manifest={"dataset": {"classes": 2}})

    assert "--by val_balanced_accuracy" in warned(row, better)[0]
    assert "train longer" in warned(row)[0]
    assert "train longer" not in warned(row, of=sweep(loop="imported"))[0]
    for training in ({"class_weights": "balanced"}, {"sampler": "balanced"}):  # they give accuracy up
        assert warned(row, of=sweep(training=training)) == []
    # With rare positives, accuracy is near the largest class's share though NLL is half of the base rate's.
    rare, of = np.array([0.95, 0.05]), results
    low = {**row, "val_accuracy": 0.951, "val_majority_share": 0.95, "val_nll": 0.1}
    held_to = Leaderboard([low], (), "", Goal("val_ece", "min"))  # type: ignore[arg-type,list-item]
    assert len(majority_warning(of, held_to)) == 1 and majority_warning(of, held_to, rare) == []
    high = Leaderboard([{**low, "val_nll": 0.2}], (), "", Goal("val_ece", "min"))  # type: ignore[arg-type,list-item]
    assert len(majority_warning(of, high, rare)) == 1, "entropy of the shares is 0.199"
    assert warned({**row, "val_accuracy": 0.9}) == warned({**row, "val_majority_share": None}) == warned() == []


def test_weighted_classes_that_shift_the_mean_probability_are_warned_of(
    small: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = leaderboard(small).best
    shares = class_shares(small, best)
    assert shares is not None and shares.sum() == pytest.approx(1.0)
    far = np.roll(np.eye(len(shares))[0], 1)
    assert shifted_warning(small, best, far) == [], "classes are not weighted"
    monkeypatch.setattr("sweeper.reporting.answering.advice.is_weighted", lambda results: True)
    (warning,) = shifted_warning(small, best, far)
    assert all(name in POSTHOC for name in ("platt", "beta", "vector")) and "platt, beta or vector" in warning
    monkeypatch.setattr("sweeper.reporting.answering.advice.LEAST_SHIFT", 1.0)
    assert shifted_warning(small, best, shares) == [] == shifted_warning(small, None, None)


def test_the_settings_of_a_data_set_are_kept_apart(small: Results) -> None:
    results, board = small, leaderboard(small)
    axis = "config_dataset_label_noise"
    rows = [{**row, axis: (0.0, 0.1)[at % 2]} for at, row in enumerate(board.rows)]
    found = first_screen(results, Leaderboard(rows, (*board.varying, axis), "", board.objective), overview(results))
    assert [answer.place for answer in found.answers] == ["label noise 0", "label noise 0.1"]
    shown = {row["trial"]: row[axis] for row in rows}
    assert [shown[answer.leader.trial] for answer in found.answers] == [0.0, 0.1]


GAMMA, RATE = "config_loss_gamma", "config_optimizer_lr"


def cells_of(trials: list[tuple[str, str, float, float, str, float]], seeds: int = 5) -> Matrix:
    """Configurations of (loss, network, γ, learning rate, status, true validation NLL); seeds spread by 1 %."""
    import numpy as np

    rng = np.random.default_rng(0)
    cells: dict[Key, list[Row]] = {}
    values = {}
    for at, (loss, network, gamma, rate, status, value) in enumerate(sorted(trials, key=lambda each: each[-1])):
        name, epoch = f"c{at:05d}", 27 if status == "completed" else 3
        row = {"trial": name, "status": status, "epochs": epoch, GAMMA: gamma, RATE: rate}
        cells.setdefault(("", loss, network), []).append(row)
        values[name] = {epoch: {100 * at + r: value * (1 + 0.01 * rng.normal()) for r in range(seeds)}}
    measured = Measured(Goal("val_nll"), values, dict.fromkeys(values, ""))
    return Matrix(cells, measured, [GAMMA, RATE], at_zero={"focal": ["gamma", "smoothing"]})


def line(*values: tuple[float, float], rate: float = 0.1, seeds: int = 5) -> Matrix:
    """γ and true NLL on one network."""
    return cells_of([("focal", "mlp", gamma, rate, "completed", value) for gamma, value in values], seeds)


def gammas_of(found: Matrix) -> tuple[set[str], set[str]]:
    """Return the γ that may be the best and the worse ones, of the only line."""
    (question,) = questions_of(found)
    return {*question.best}, {*question.worse}


def questions_of(found: Matrix) -> list[Question]:
    """Return the questions on lines."""
    shown, lines = chosen_rows(found, "")
    told = {trial: columns for key, rows in shown.items() for trial, columns in labels(found, rows, key).items()}
    return line_questions(found, lines, told)


def settings_of(found: Matrix) -> list[str]:
    """Return the settings that the rows of the only cell are called by."""
    (key, rows), *_ = chosen_rows(found, "")[0].items()
    told = labels(found, rows, key)
    return [in_words(row, told[str(row["trial"])], {}) for row in rows]


def test_values_with_all_else_equal_are_compared() -> None:
    assert gammas_of(line((1, 0.2), (2, 0.1), (3, 0.1005), (5, 0.3))) == ({"2", "3"}, {"1", "5"})
    assert gammas_of(line((1, 0.2), (2, 0.1), (3, 0.15), (5, 0.3))) == ({"2"}, {"1", "3", "5"})
    assert gammas_of(line((1, 0.1), (2, 0.1), (3, 0.1), seeds=2)) == ({"1", "2", "3"}, set())
    single = questions_of(line((1, 0.2), (2, 0.1), seeds=1))
    assert [(question.best, question.unknown, question.decided) for question in single] == [(("2",), ("1",), False)]


def test_a_line_stands_beside_a_better_configuration() -> None:
    drawn = [("focal", "mlp", g, r, "completed", v) for g, r, v in ((2, 0.03, 0.1), (1, 0.1, 0.2), (3, 0.1, 0.3))]
    assert settings_of(cells_of(drawn)) == ["γ 2", "γ 1", "γ 3"]


def test_a_value_drawn_with_its_learning_rate_is_no_line() -> None:
    """1.0 to 8.0 did not do as well as each other: the learning rate differs, too."""
    drawn = [("focal", "mlp", g, r, "completed", v) for g, r, v in ((1, 0.03, 0.1), (3.7, 0.14, 0.5), (8, 0.05, 0.11))]
    stopped = [("focal", "mlp", g, 0.1, s, v) for g, s, v in ((1, "completed", 0.1), (2, "early_stopped", 0.9))]
    for found in (cells_of(drawn), cells_of(stopped)):
        shown, _ = chosen_rows(found, "")
        assert [len(rows) for rows in shown.values()] == [1] and questions_of(found) == []


def test_cross_entropy_with_all_else_equal_is_on_the_line_of_gamma() -> None:
    done = [("focal", "mlp", g, 0.1, "completed", v) for g, v in ((1.0, 0.2), (2.0, 0.3))]
    found = cells_of([*done, ("cross_entropy", "mlp", math.nan, 0.1, "completed", 0.1)])
    (question,) = questions_of(found)
    assert question.best == ("0 (cross_entropy)",) and question.worse == ("1", "2") and question.decided


def test_no_two_rows_are_called_alike() -> None:
    """γ 1.32 was drawn with two learning rates, one of them on the line."""
    drawn = [
        ("focal", "mlp", g, r, "completed", v) for g, r, v in ((1.32, 0.05, 0.1), (5, 0.05, 0.2), (1.32, 0.14, 0.3))
    ]
    found = replace(cells_of(drawn), asked=[GAMMA], fresh={"c00000", "c00001", "c00002"})
    assert settings_of(found) == ["γ 1.32 lr 0.05", "γ 5", "γ 1.32 lr 0.14"]
    (question,) = questions_of(found)
    assert (question.best, question.worse, question.at) == (("1.32",), ("5",), "lr 0.05")


def test_several_lines_have_a_question_each_with_the_edge_of_the_line() -> None:
    drawn = [("focal", "mlp", g, r, "completed", v) for g, r, v in
             ((2, 0.1, 0.1), (1, 0.1, 0.2), (4, 0.1, 0.3), (2, 0.2, 0.4), (2, 0.3, 0.5))]  # fmt: skip
    asked = questions_of(replace(cells_of(drawn), asked=[GAMMA, RATE], fresh={f"c{at:05d}" for at in range(5)}))
    assert [(q.name, q.best, q.worse, q.edge) for q in asked] == [
        ("γ", ("2",), ("1", "4"), ""),
        ("lr", ("0.1",), ("0.2", "0.3"), SMALLEST),
    ]


def test_a_value_is_called_worse_only_if_its_row_is() -> None:
    """The leader is not on the line. What the line's own comparison excludes may still be open among all."""
    drawn = [("focal", "mlp", g, 0.1, "completed", v) for g, v in ((1, 0.1), (2, 0.103), (4, 0.3))]
    found = replace(cells_of([*drawn, ("brier", "mlp", 0.0, 0.2, "completed", 0.0995)]), asked=[GAMMA])
    for (question,) in (questions_of(found), questions_of(replace(found, fresh={f"c{at:05d}" for at in range(4)}))):
        marks = {str(row[GAMMA]): found.decides.standing(found.cells["", "brier", "mlp"][0], row)
                 for row in found.cells["", "focal", "mlp"]}  # fmt: skip
        assert {marks[value] for value in question.worse} == {codes.WORSE}


def test_a_loss_is_alike_worse_or_not_compared() -> None:
    done = [("a", "mlp", 0.0, 0.1, "completed", 0.1), ("b", "mlp", 0.0, 0.1, "completed", 0.1005)]
    done += [("c", "mlp", 0.0, 0.1, "completed", 0.3), ("d", "mlp", 0.0, 0.1, "early_stopped", 0.2)]
    (question,) = loss_and_network(cells_of(done), "")
    assert {*question.best} == {"a", "b"} and (question.worse, question.unknown) == (("c",), ("d",))
    (one,) = loss_and_network(cells_of([done[0], done[2]]), "")
    assert one.best == ("a",) and one.decided
    (single,) = loss_and_network(cells_of(done[:3], seeds=1), "")
    assert single.best == ("a",) and len(single.unknown) == 2 and not single.decided


def test_a_pair_is_judged_by_all_its_common_seeds_whatever_others_have() -> None:
    """A rival that differs by a third of a spread needs nine seeds; a third configuration stopped at three."""
    spread = [0.9, 1.1, 1.0, 0.95, 1.05, 1.02, 0.98, 0.92, 1.08]
    values = {
        "c0": {27: {r: 0.1 * v for r, v in enumerate(spread)}},
        "c1": {27: {r: 0.1 * v * (1.03 + 0.03 * (-1) ** r) for r, v in enumerate(spread)}},
        "c2": {27: {r: 0.3 * v for r, v in enumerate(spread[:3])}},
    }
    rows = [{"trial": name, "status": "completed", "epochs": 27, GAMMA: 0.0, RATE: 0.1} for name in values]
    measured = Measured(Goal("val_nll"), values, dict.fromkeys(values, ""))
    assert [measured.worse(rows[0], row) for row in rows[1:]] == [True, True]
    fewer = {name: {27: {r: v for r, v in by_epoch[27].items() if r < 3}} for name, by_epoch in values.items()}
    few = Measured(Goal("val_nll"), fewer, dict.fromkeys(values, ""))
    assert [few.worse(rows[0], row) for row in rows[1:]] == [False, True]
    seeds = measured.verdicts("c0").of
    assert (len(seeds["c1"].seeds), len(seeds["c2"].seeds)) == (9, 3)


def test_one_added_seed_each_takes_no_verdict_away(gamma_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(gamma_folder, tmp_path / "s", symlinks=True))
    (before,) = screen(Results(folder)).answers

    def added(rows):  # type: ignore[no-untyped-def]
        rows.loc[rows["replicate"] == 2, "stage"] = "final"
        return rows

    change(folder, "evaluations", added)
    (after,) = screen(Results(folder)).answers
    assert (after.state, after.seeds, after.fresh) == (before.state, before.seeds, False) and after.seeds == 3


def test_a_margin_makes_finalists_equal_and_asks_for_no_more_seeds(small: Results, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small.folder, tmp_path / "s", symlinks=True))
    file = folder / "sweep.yaml"
    space = yaml.safe_load(file.read_text())
    space["objective"]["margin"] = 50.0  # nats: every difference is smaller
    file.write_text(yaml.safe_dump(space))
    (answer,) = screen(Results(folder)).answers
    assert answer.state == EQUIVALENT and answer.command == ""
    assert {line.standing for line in answer.finalists if line.trial != answer.leader.trial} <= {EQUAL, WORSE, STOPPED}
    assert all(question.worse or len(question.best) > 1 for question in answer.questions)


def test_rivals_that_were_stopped_are_not_worse(small: Results, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small.folder, tmp_path / "s", symlinks=True))
    leader = screen(small).answers[0].leader.trial

    def stopped(rows):  # type: ignore[no-untyped-def]
        rows.loc[rows["trial"] != leader, "status"] = "early_stopped"
        return rows

    change(folder, "trials", stopped)
    (answer,) = screen(Results(folder)).answers
    assert answer.leader.trial == leader and answer.state == ALONE


@pytest.mark.parametrize(
    ("metric", "margin"), [("val_nll", 0.01), ("val_ece", 0.5), ("val_posthoc_temperature_ece", 0.5)]
)
def test_a_margin_in_nll_is_not_applied_to_ece(metric: str, margin: float) -> None:
    results = SimpleNamespace(specification={"objective": {"metric": metric, "margin": 0.5}})
    assert margin_of(results) == margin and objective_margin(results) == 0.5  # type: ignore[arg-type]


def test_fresh_seeds_in_one_setting_of_the_data_leave_the_others_compared(small: Results) -> None:
    board = leaderboard(small)
    axis = "config_dataset_label_noise"
    rows = [{**row, axis: (0.0, 0.1)[at % 2]} for at, row in enumerate(board.finished)]
    trials = [str(row["trial"]) for row in rows]
    values = {trial: {27: {0: 0.1 + at, 1: 0.11 + at, 2: 0.1 + at}} for at, trial in enumerate(trials)}
    measured = measure(board.objective, values, Leaderboard(rows, (axis,), "", board.objective), {trials[0], trials[2]})
    assert [*measured.verdicts(trials[1]).of] == trials[1::2] and measured.verdicts(trials[1]).code == codes.BETTER
    assert {*measured.verdicts(trials[0]).of} == {trials[0], trials[2]}


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_nothing_finite_is_said_and_everything_else_is_written(tmp_path: Path, value: float) -> None:
    folder = write_sweep(tmp_path / "s", configurations=4, samples=60)
    numbers = "loss|nll|ece|accuracy|brier|aurc|trace|lambda|temperature$"
    for name in ("evaluations", "epochs"):
        change(folder, name, lambda rows: rows.assign(**dict.fromkeys(rows.filter(regex=numbers), value)))
    missing = screen(Results(folder)).missing
    assert missing in " ".join(as_text(summary(Results(folder))).split())
    assert missing in write_report(folder).read_text("utf-8")
