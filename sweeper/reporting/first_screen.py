"""The first screen of a sweep as data: the recommendation, its possible cost, open questions, and how to decide them.

For each loss and network, the finalist is the best configuration that was trained to the end. If other configurations
differ from it only in the value of one hyperparameter, they form a line and are finalists too. `sentences` puts all of
this into words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sweeper.core.cells import Row, int_of, text_of
from sweeper.core.labels import describe, group, number, short
from sweeper.judging import question as codes
from sweeper.reporting.answering.advice import (
    class_one_line,
    class_shares,
    compare_command,
    majority_warning,
    more_seeds,
    outlier_warning,
    seconds_of,
    shifted_warning,
)
from sweeper.reporting.answering.along import along_lines, ece_by_trace
from sweeper.reporting.answering.answers import (
    ALIKE,
    BEST,
    EQUAL,
    NEARLY_DECIDED,
    NOT_DECIDED,
    NOT_JUDGED,
    STOPPED,
    UNKNOWN,
    WORSE,
    Answer,
    Finalist,
    FirstScreen,
    Use,
)  # fmt: skip
from sweeper.reporting.answering.finalists import Shown, against_cross_entropy, chosen_rows, in_words, labels
from sweeper.reporting.answering.matrix import Key, Matrix, matrix
from sweeper.reporting.answering.questions import cost_of, line_questions, loss_and_network, state_of
from sweeper.reporting.recalibrations import effect_warning
from sweeper.results import Results
from sweeper.results.deployed import Deployed
from sweeper.results.estimators import Judgement
from sweeper.results.leaderboard import FINISHED, Leaderboard, leaderboard
from sweeper.results.listing import Overview, overview
from sweeper.results.posthoc import posthoc_effects
from sweeper.results.verdicts import Calibration, calibration


def first_screen(results: Results, board: Leaderboard, counts: Overview) -> FirstScreen:
    """Return the first screen of a sweep."""
    cells = matrix(results, board)
    if board.rows and (cells is None or not cells.decides.values):
        none = f"Nothing finite was measured: {board.objective.metric} of every trial is NaN or infinite."
        return FirstScreen((), none, ())
    if cells is None or not cells.cells:
        return FirstScreen(
            (), "Every evaluated trial has failed." if board.rows else "No trial has been evaluated yet.", ()
        )
    shares = class_shares(results, board.best)
    warnings = [*majority_warning(results, board, shares), *shifted_warning(results, board.best, shares)]
    warnings += outlier_warning(cells)
    bins = int(results.specification.get("evaluation", {}).get("bins", 15))
    measured = [effect for effect in posthoc_effects(results)[1] if effect.request.bins == bins]
    warnings += [f"{warning}." for effect in measured if (warning := effect_warning(effect))]
    running = counts.count("waiting", "running", "interrupted") > 0
    answers = tuple(answer_of(results, board, cells, place, running=running) for place in cells.slices)
    return FirstScreen(answers, "", tuple(warnings), compare_command(results, answers), class_one_line(results, board))


def screen_changes(results: Results) -> dict[str, Judgement]:
    """Return trial → the first screen's judgement of temperature scaling."""
    with results.snapshot() as frozen:
        lines = first_screen(frozen, leaderboard(frozen), overview(frozen)).finalists
    return {line.trial: line.change for line in lines if line.change is not None}


def answer_of(results: Results, board: Leaderboard, grid: Matrix, place: str, *, running: bool) -> Answer:
    """Return the answer for one setting of the data set."""
    shown, series = chosen_rows(grid, place)
    told = {trial: columns for key, rows in shown.items() for trial, columns in labels(grid, rows, key).items()}
    best = grid.best(place)
    assert best is not None  # a setting has configurations
    finalists = [row for rows in shown.values() for row in rows if row["status"] == FINISHED]
    pair = two_of_one_network(finalists)
    # The differences are over seeds and test samples, so they need stored predictions. The pair's order determines the
    # sign.
    between, first = pair is not None, grid.decides.first
    measured = calibration(results, pair or finalists, between=between, first=first) if finalists else Calibration({})
    lines = tuple(finalist_of(grid, key, row, best, told, measured) for key, rows in shown.items() for row in rows)
    leader = next(line for line in lines if line.trial == best["trial"])
    lines_asked = line_questions(grid, series, told)
    beside = along_lines(results, grid, series, measured.deployed)
    asked = (
        *loss_and_network(grid, place),
        *(replace(question, along=along) for question, along in zip(lines_asked, beside, strict=True)),
    )
    lost, relative, seeds = cost_of(grid, best)
    state = state_of(grid, lines, best, lost, relative=relative)
    sides = [next(line for line in lines if line.trial == row["trial"]) for row in pair or ()]
    # The sentence on two finalists names γ even if it does not vary, because readers compare it with papers.
    fixed = {line.trial: against_cross_entropy(grid, grid.losses.get(line.trial, {})) for line in sides}
    sides = [line if line.setting else replace(line, setting=fixed[line.trial]) for line in sides]
    # While a sweep runs, its own trials may decide the question, so no command is proposed.
    fresh, wanted = best["trial"] in grid.fresh, state in (NEARLY_DECIDED, NOT_DECIDED, NOT_JUDGED) and not running
    trainings, command = more_seeds(results, grid, best, board.finished) if wanted else (0, "")
    return Answer(
        place, state, running, board.objective, leader, lost, relative, asked, lines,
        None if measured.between is None else (sides[0], sides[1], *measured.between),
        seeds, fresh, trainings, command, seconds_of(results, finalists), measured.deployed,
        grid.draws.get(place, {}), tuned(grid, shown, leader.network),
        ece_by_trace([row for row in board.finished if grid.decides.places.get(text_of(row, "trial")) == place]),
        measured.selective,
    )  # fmt: skip


def tuned(grid: Matrix, shown: Shown, network: str) -> tuple[str, ...]:
    """Return the settings of other parts than the loss in which the best finalists of a network's losses differ."""
    rows = [rows[0] for key, rows in shown.items() if key[2] == network and rows[0]["status"] == FINISHED]
    columns = [name for name in grid.varying if group(name) not in ("loss", "architecture", "dataset")]
    differs = [name for name in columns if len({number(row.get(name)) for row in rows}) > 1]
    return tuple(short(name, grid.symbols) for name in differs)


def two_of_one_network(finalists: Sequence[Row]) -> list[Row] | None:
    """Return the finalists if there are exactly two, on one network; cross-entropy comes second. Else None."""
    if len(finalists) != 2 or finalists[0]["architecture"] != finalists[1]["architecture"]:
        return None
    return sorted(finalists, key=lambda row: (row["loss"] == "cross_entropy", row is finalists[0]))


def finalist_of(
    grid: Matrix, key: Key, row: Row, best: Row, told: Mapping[str, Sequence[str]], measured: Calibration
) -> Finalist:
    """Return one finalist of the screen."""
    value, trial = grid.decides.last(row), text_of(row, "trial")
    assert value is not None  # cells hold only evaluated configurations
    # Loss, network and data set have separate columns or headings.
    elsewhere = ("config_loss_name", "config_architecture_name")
    data = [name for name in grid.varying if group(name) == "dataset" and name not in grid.asked]
    names = [name for name in grid.varying if name not in (*elsewhere, *data) and row[name] is not None]
    standing = grid.decides.standing(best, row)
    standing = {codes.NOT_COMPARED: UNKNOWN, codes.OPEN: ALIKE, codes.BETTER: ALIKE}.get(standing, standing)
    standing = STOPPED if row["status"] != FINISHED else BEST if row is best else standing
    words = describe(row, names, grid.symbols) if names else ""
    setting = in_words(row, told[trial], grid.symbols)
    change, used = measured.changes.get(trial), use_of(measured.deployed, trial)
    return Finalist(*key, setting, trial, words, int_of(row, "epochs"), standing, value, change, used)


def use_of(deployed: Deployed | None, trial: str) -> Use | None:
    """Return how a finalist does without and with temperature scaling; None if that is unknown."""
    if deployed is None or trial not in deployed.nll:
        return None
    verdicts = deployed.verdicts
    code = verdicts.of[trial].code if trial in verdicts.of else codes.NOT_COMPARED
    standing = {codes.WORSE: WORSE, codes.SAME: EQUAL, codes.NOT_COMPARED: UNKNOWN}.get(code, ALIKE)
    leads = trial == verdicts.leader
    return Use(deployed.nll[trial], deployed.accuracy[trial], BEST if leads else standing)
