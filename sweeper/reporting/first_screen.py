"""The first screen of a sweep as data: the recommendation, its possible cost, open questions, and how to decide them.

For each loss and network, the finalist is the best configuration that was trained to the end. If other configurations
differ from it only in the value of one hyperparameter, they form a line and are finalists too. `sentences` puts all of
this into words.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sweeper.core.cells import Row, float_or_none, int_of, measured_values, text_of
from sweeper.core.labels import describe, number, short
from sweeper.core.statistics.basics import Spread
from sweeper.judging import question as codes
from sweeper.judging.levels import Levels, levels
from sweeper.judging.means import Mean
from sweeper.judging.question import Verdicts
from sweeper.reporting.matrix import Key, Matrix, matrix
from sweeper.results import Results
from sweeper.results.deployed import Deployed
from sweeper.results.estimators import Judgement
from sweeper.results.leaderboard import FINISHED, Goal, Leaderboard, leaderboard
from sweeper.results.listing import Overview, overview
from sweeper.results.posthoc import posthoc_effects
from sweeper.results.queries import literal
from sweeper.results.verdicts import Calibration, calibration
from trainables.registry import IMPORTED

#: If the best configuration's accuracy exceeds the largest class's share by less than this, the screen shows a warning.
LEAST_ABOVE_MAJORITY = 0.02

#: Largest cost of using the leader that is stated, as a share of the best finalist's value. A larger one only says that
#: nothing is known.
LARGEST_STATED = 1.0

#: Largest cost of using the leader that still counts as "nearly decided", as a share of the best finalist's value.
NEARLY = 0.5

#: Standings: the leader, possibly as good, equal within the margin, worse, not trained to the end, not compared.
BEST, ALIKE, EQUAL, WORSE, STOPPED, UNKNOWN = "best", "alike", codes.SAME, codes.WORSE, "stopped", "unknown"

#: States of an answer: all other finalists are worse; none is better by more than the margin; some are worse; none is
#: worse; no difference can be judged (one seed each, or equal values); there is one finalist only; none has finished.
DECIDED, EQUIVALENT, NEARLY_DECIDED, NOT_DECIDED, NOT_JUDGED, ALONE, UNFINISHED = (
    "decided", "equivalent", "nearly", "open", "not judged", "alone", "unfinished"
)  # fmt: skip


@dataclass(frozen=True)
class Use:
    """A finalist without and with temperature scaling.

    Attributes:
        nll: mean test NLL before and after.
        accuracy: mean test accuracy, which temperature scaling does not change.
        standing: BEST, ALIKE, EQUAL, WORSE or UNKNOWN by the test NLL that `Deployed` judges.
    """

    nll: tuple[float, float]
    accuracy: Mean
    standing: str


@dataclass(frozen=True)
class Line:
    """A finalist. If no configuration of a loss on a network was trained to the end, the best of them.

    Attributes:
        place, loss, network: the cell in which it is the best. `place` is the data set's setting.
        setting: name and value of the only hyperparameter that varies, `γ 3`, or the loss's γ; empty if there is
            neither.
        trial: name of the trial.
        configuration: hyperparameters in words.
        epoch: last epoch trained.
        standing: BEST, ALIKE, EQUAL, WORSE, STOPPED or UNKNOWN.
        value: mean and spread of the objective over seeds.
        change: test ECE after minus before temperature scaling; None if it was not measured.
        used: how the finalist does without and with temperature scaling; None without stored predictions.
    """

    place: str
    loss: str
    network: str
    setting: str
    trial: str
    configuration: str
    epoch: int
    standing: str
    value: Spread
    change: Judgement | None
    used: Use | None = None

    @property
    def words(self) -> str:
        """Loss and setting, e.g. `focal γ 3`."""
        return " ".join(filter(None, [self.loss, self.setting]))


@dataclass(frozen=True)
class Question:
    """A question that a sweep answers: which loss, which network, or which value of a loss's hyperparameter.

    Attributes:
        name: `loss`, `network`, or the hyperparameter's name, `γ`.
        where: loss and network of a hyperparameter; empty for the questions `loss` and `network`.
        best: candidates that may be the best, the leader first.
        worse: candidates that are worse.
        unknown: candidates that are not compared. If seeds cannot decide, these are all but the leader.
    """

    name: str
    where: str
    best: tuple[str, ...]
    worse: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def decided(self) -> bool:
        """Whether exactly one candidate can be the best."""
        return len(self.best) == 1 and not self.unknown


@dataclass(frozen=True)
class Answer:
    """The answer of a sweep for one setting of its data set.

    Attributes:
        place: the setting of the data set; empty if it does not vary.
        state: DECIDED, EQUIVALENT, NEARLY_DECIDED, NOT_DECIDED, NOT_JUDGED, ALONE or UNFINISHED.
        running: whether trials are still to be trained.
        objective: the metric that decides, and whether small or large values are better.
        leader: the best finalist so far.
        most_lost: upper limit of the leader's distance from the best finalist. If `relative`, it is a share of the best
            finalist's value, else it is in the objective's unit. None if seeds cannot decide.
        relative: whether `most_lost` is a share.
        questions: loss and network, then hyperparameters.
        lines: the best configurations of each loss on each network, best network and best loss first.
        between: exactly two finalists, and the first's test ECE minus the second's, before and after temperature
            scaling; None for another number of finalists, or without predictions.
        seeds: smallest number of seeds of a finalist.
        fresh: whether these seeds are fresh, so that they selected nothing.
        trainings: number of further trainings that would probably decide the open questions; 0 if unknown.
        command: command that would decide the open questions; empty if there are none, or if trials are still to be
            trained.
        seconds: mean duration of a training; None if unknown.
        deployed: verdicts on the finalists' test NLL; None without stored predictions.
    """

    place: str
    state: str
    running: bool
    objective: Goal
    leader: Line
    most_lost: float | None
    relative: bool
    questions: tuple[Question, ...]
    lines: tuple[Line, ...]
    between: tuple[Line, Line, Judgement, Judgement] | None
    seeds: int
    fresh: bool
    trainings: int
    command: str
    seconds: float | None
    deployed: Deployed | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether the leader's largest possible cost is small enough to recommend the leader by it."""
        return self.most_lost is not None and (not self.relative or self.most_lost <= LARGEST_STATED)


@dataclass(frozen=True)
class FirstScreen:
    """The first screen.

    Attributes:
        answers: one per setting of the data set; empty if nothing was evaluated.
        missing: sentence on why there is no answer.
        warnings: sentences on results that are not reliable.
        compare: command that compares the leader with the next best loss by every estimator; empty without another
            loss.
    """

    answers: tuple[Answer, ...]
    missing: str
    warnings: tuple[str, ...]
    compare: str = ""

    @property
    def lines(self) -> list[Line]:
        """Lines of all settings of the data set."""
        return [line for answer in self.answers for line in answer.lines]


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
    warnings = [*majority_warning(results, board), *outlier_warning(cells)]
    bins = int(results.specification.get("evaluation", {}).get("bins", 15))
    measured = [effect for effect in posthoc_effects(results)[1] if effect.request.bins == bins]
    warnings += [f"{effect.warning}." for effect in measured if effect.warning]
    running = counts.count("waiting", "running", "interrupted") > 0
    answers = tuple(answer_of(results, board, cells, place, running=running) for place in cells.slices)
    return FirstScreen(answers, "", tuple(warnings), compare_command(results, answers))


def screen_changes(results: Results) -> dict[str, Judgement]:
    """Return trial → the first screen's judgement of temperature scaling."""
    with results.snapshot() as frozen:
        lines = first_screen(frozen, leaderboard(frozen), overview(frozen)).lines
    return {line.trial: line.change for line in lines if line.change is not None}


def compare_command(results: Results, answers: Sequence[Answer]) -> str:
    """Return the command that compares the leader with the best rival on its network by every estimator."""
    for answer in answers:
        first = answer.leader
        rivals = [line for line in answer.lines if line.network == first.network and line.trial != first.trial]
        rival = next((line for line in rivals if line.standing in (ALIKE, EQUAL, WORSE, UNKNOWN)), None)
        if rival is not None:
            sides = (rival.loss, first.loss) if rival.loss != first.loss else (rival.trial, first.trial)
            return f"sweeper compare {results.paths.in_commands} {' '.join(sides)}"
    return ""


def answer_of(results: Results, board: Leaderboard, grid: Matrix, place: str, *, running: bool) -> Answer:
    """Return the answer for one setting of the data set."""
    shown = chosen_rows(grid, place)
    best = grid.best(place)
    assert best is not None  # a setting has configurations
    finalists = [row for rows in shown.values() for row, _ in rows if row["status"] == FINISHED]
    pair = two_of_one_network(finalists)
    # The differences are over seeds and test samples, so they need stored predictions. The pair's order determines the
    # sign.
    between, first = pair is not None, grid.decides.first
    measured = calibration(results, pair or finalists, between=between, first=first) if finalists else Calibration({})
    lines = tuple(
        line_of(grid, key, row, best, setting, measured) for key, rows in shown.items() for row, setting in rows
    )
    leader = next(line for line in lines if line.trial == best["trial"])
    asked = (*loss_and_network(grid, place), *settings_of(grid, shown))
    lost, relative, seeds = cost_of(grid, best)
    state = state_of(grid, lines, best, lost, relative=relative)
    sides = [next(line for line in lines if line.trial == row["trial"]) for row in pair or ()]
    # The sentence on two finalists names γ even if it does not vary, because readers compare it with papers.
    sides = [line if line.setting else replace(line, setting=gamma_of(results, line.trial)) for line in sides]
    # While a sweep runs, its own trials may decide the question, so no command is proposed.
    fresh, wanted = best["trial"] in grid.fresh, state in (NEARLY_DECIDED, NOT_DECIDED, NOT_JUDGED) and not running
    trainings, command = more_seeds(results, grid, best, board.finished) if wanted else (0, "")
    return Answer(
        place, state, running, board.objective, leader, lost, relative, asked, lines,
        None if measured.between is None else (sides[0], sides[1], *measured.between),
        seeds, fresh, trainings, command, seconds_of(results, finalists), measured.deployed,
    )  # fmt: skip


def chosen_rows(grid: Matrix, place: str) -> dict[Key, list[tuple[Row, str]]]:
    """Return the configurations shown for each loss on each network, each with its only varying setting.

    After a final stage, only configurations with fresh seeds are shown. The best network comes first, and for each
    network the best loss.
    """
    cells = {key: rows for key, rows in grid.cells.items() if key[0] == place}
    if any(row["trial"] in grid.fresh for rows in cells.values() for row in rows):
        cells = {key: kept for key, rows in cells.items() if (kept := [r for r in rows if r["trial"] in grid.fresh])}
    networks = list(dict.fromkeys(key[2] for key in cells))  # the best cells come first
    order = sorted(cells, key=lambda key: networks.index(key[2]))
    return {key: line_through(grid, cells[key]) for key in order}


def line_through(grid: Matrix, rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Return finished configurations that differ in exactly one hyperparameter of their loss, with its value.

    If there are several such hyperparameters, γ is preferred, then the first. The line contains the best configuration
    that is on any line. The best of all configurations comes first. If no hyperparameter varies alone, only the best is
    returned.
    """
    for column in loss_settings(grid):
        others = [name for name in grid.varying if name != column]
        finished = [row for row in rows if row["status"] == FINISHED and numeric(row[column])]
        for first in finished:
            line = [row for row in finished if all(row[name] == first[name] for name in others)]
            if len({row[column] for row in line}) > 1:
                best = [] if rows[0] in line else [(rows[0], "")]
                return [*best, *((row, f"{short(column)} {number(row[column])}") for row in line)]
    return [(rows[0], "")]


def loss_settings(grid: Matrix) -> list[str]:
    """Return the columns of the losses' varying hyperparameters, γ first."""
    own = [name for name in grid.varying if name.startswith("config_loss_") and not name.endswith("_name")]
    return sorted(own, key=lambda name: name != "config_loss_gamma")


def numeric(value: object) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def two_of_one_network(finalists: Sequence[Row]) -> list[Row] | None:
    """Return the finalists if there are exactly two, on one network; cross-entropy comes second. Else None."""
    if len(finalists) != 2 or finalists[0]["architecture"] != finalists[1]["architecture"]:
        return None
    return sorted(finalists, key=lambda row: (row["loss"] == "cross_entropy", row is finalists[0]))


def gamma_of(results: Results, trial: str) -> str:
    """Return the γ of a trial's loss in words; empty if it has none."""
    # Read from the table, because the leaderboard leaves out a γ that all trials share.
    if "config_loss_gamma" not in results.columns("trials"):
        return ""
    asked = f"SELECT any_value(config_loss_gamma) AS gamma FROM trials WHERE trial = {literal(trial)}"
    gamma = float_or_none(results.rows(asked)[0], "gamma")
    return "" if gamma is None else f"γ {number(gamma)}"


def line_of(grid: Matrix, key: Key, row: Row, best: Row, setting: str, measured: Calibration) -> Line:
    """Return one line of the screen."""
    value, trial = grid.decides.last(row), text_of(row, "trial")
    assert value is not None  # cells hold only evaluated configurations
    # Loss, network and data set have separate columns or headings.
    elsewhere = ("config_loss_name", "config_architecture_name", "config_dataset_")
    names = [n for n in grid.varying if not n.startswith(elsewhere) and row[n] is not None]
    standing = grid.decides.standing(best, row)
    standing = {codes.NOT_COMPARED: UNKNOWN, codes.OPEN: ALIKE, codes.BETTER: ALIKE}.get(standing, standing)
    standing = STOPPED if row["status"] != FINISHED else BEST if row is best else standing
    words, gamma = describe(row, names) if names else "", row.get("config_loss_gamma")
    setting = setting or (f"{short('config_loss_gamma')} {number(gamma)}" if numeric(gamma) else "")
    change, used = measured.changes.get(trial), use_of(measured.deployed, trial)
    return Line(*key, setting, trial, words, int_of(row, "epochs"), standing, value, change, used)


def use_of(deployed: Deployed | None, trial: str) -> Use | None:
    """Return how a finalist does without and with temperature scaling; None if that is unknown."""
    if deployed is None or trial not in deployed.nll:
        return None
    verdicts = deployed.verdicts
    code = verdicts.of[trial].code if trial in verdicts.of else codes.NOT_COMPARED
    standing = {codes.WORSE: WORSE, codes.SAME: EQUAL, codes.NOT_COMPARED: UNKNOWN}.get(code, ALIKE)
    leads = trial == verdicts.leader
    return Use(deployed.nll[trial], deployed.accuracy[trial], BEST if leads else standing)


def loss_and_network(grid: Matrix, place: str) -> list[Question]:
    """Return two questions: which loss, and which network may be the best.

    Their verdicts are derived from those of the configurations, so they cannot contradict the rows' marks.
    """
    best, asked = grid.best(place), list[Question]()
    for name, axis in (("loss", 1), ("network", 2)):
        groups: dict[str, list[str]] = {}
        for key, rows in grid.cells.items():
            if key[0] == place:
                groups.setdefault(key[axis], []).extend(text_of(row, "trial") for row in rows)
        if len(groups) > 1 and best is not None:
            first = next(level for level, trials in groups.items() if best["trial"] in trials)
            asked.append(question_of(name, "", first, groups, levels(grid.verdicts(place), groups)))
    return asked


def question_of(name: str, where: str, first: str, candidates: Collection[str], known: Levels) -> Question:
    """Return a question with the candidates by their codes; without a leader, nothing but `first` is known."""
    if known.leader is None:
        return Question(name, where, (first,), (), tuple(level for level in candidates if level != first))
    best = (known.leader, *(level for level in known.named(codes.OPEN, codes.SAME) if level != known.leader))
    worse = tuple(known.named(codes.WORSE))
    return Question(name, where, best, worse, tuple(level for level in candidates if level not in (*best, *worse)))


def settings_of(grid: Matrix, shown: dict[Key, list[tuple[Row, str]]]) -> list[Question]:
    """Return one question per line of finalists: which value of its hyperparameter may be the best.

    If everything else is equal, a line of γ includes cross-entropy on the same network as γ = 0.
    """
    asked = []
    for (place, loss, network), every in shown.items():
        rows = [(row, setting) for row, setting in every if setting]
        if not rows:
            continue
        name, line = rows[0][1].rpartition(" ")[0], [row for row, _ in rows]
        # Cross-entropy is focal loss at γ = 0, if everything but the loss is equal.
        rest = [n for n in grid.varying if not n.startswith("config_loss_")]
        zero = [row for row, _ in shown.get((place, "cross_entropy", network), ())] if name == "γ" else []
        line += [row for row in zero if row not in line and all(row[n] == line[0][n] for n in rest)]
        words = {text_of(row, "trial"): setting.rpartition(" ")[2] for row, setting in rows}
        groups = {words.get(text_of(row, "trial"), "0 (cross_entropy)"): [text_of(row, "trial")] for row in line}
        known = levels(line_verdicts(grid, place, [trial for trials in groups.values() for trial in trials]), groups)
        asked.append(question_of(name, f"{loss} on {network}", next(iter(groups)), groups, known))
    return asked


def line_verdicts(grid: Matrix, place: str, trials: Sequence[str]) -> Verdicts:
    """Return the verdicts on a line: those of the rows if the leader is on it, else its members' own comparison."""
    every = grid.verdicts(place)
    if every.leader in trials:
        return every
    return grid.decides.among(trials, min(max(grid.decides.values[trial]) for trial in trials))


def cost_of(grid: Matrix, best: Row) -> tuple[float | None, bool, int]:
    """Return the leader's largest possible cost, whether it is a share of the best value, and the fewest seeds."""
    known, last = grid.verdicts(place_of_trial(grid, best)), grid.decides.last(best)
    if known.code == codes.NOT_COMPARED or best["status"] != FINISHED:
        return None, True, 0 if last is None else last.n
    seeds = [len(verdict.seeds) for verdict in known.of.values() if verdict.paired]
    share = known.most_lost_ratio
    return known.most_lost if share is None else share, share is not None, min(seeds, default=last.n if last else 0)


def place_of_trial(grid: Matrix, row: Row) -> str:
    """Return a trial's setting of the data set."""
    return grid.decides.places[text_of(row, "trial")]


def state_of(grid: Matrix, lines: Sequence[Line], best: Row, lost: float | None, *, relative: bool) -> str:
    """Return the state of an answer, which follows from the verdicts on its finalists."""
    if best["status"] != FINISHED:
        return UNFINISHED
    finalists = [line.standing for line in lines if line.trial != best["trial"] and line.standing != STOPPED]
    if not finalists:  # rivals that were stopped at a rung were never compared
        return ALONE
    if lost is None or {*finalists} == {UNKNOWN}:
        return NOT_JUDGED
    if {*finalists} <= {WORSE, EQUAL}:
        return EQUIVALENT if EQUAL in finalists else DECIDED
    return NEARLY_DECIDED if WORSE in finalists and (lost <= NEARLY or not relative) else NOT_DECIDED


#: Number of further seeds that is proposed if the sufficient number is unknown, as with one seed each. With three more
#: seeds, the spread can be estimated.
FURTHER = 3


def more_seeds(results: Results, grid: Matrix, best: Row, finished: Sequence[Row]) -> tuple[int, str]:
    """Return the number of trainings that would probably decide the open questions, and their command.

    The number is 0 if it is unknown. It comes from the judge of these seeds, and the command trains more seeds than are
    held. A sweep with a final stage continues this stage, which trains only the contenders. Any other sweep trains all
    of its finished configurations on further seeds.
    """
    place = place_of_trial(grid, best)
    known, values = grid.verdicts(place), grid.decides.values
    held = {name: len(values[name][max(values[name])]) for name in known.of}
    open_ones = [name for name in known.in_play or known.of if name in held]
    least, most = min(held[name] for name in open_ones), max(held[name] for name in open_ones)
    needed = known.seeds_needed
    # Where nothing says how many seeds decide, some more give a spread.
    total = max(needed, least + 1) if needed is not None else most + FURTHER
    resume = f"sweeper resume {results.paths.in_commands} --set replicates"
    if grid.fresh:
        own = int((results.specification.get("replicates") or {}).get("count", 1))
        trainings = sum(max(0, total - held[name]) for name in open_ones)
        return trainings if needed is not None else 0, f"{resume}.at_most={own + total}"
    trainings = sum(max(0, total - held.get(text_of(row, "trial"), 0)) for row in finished)
    return trainings if needed is not None else 0, f"{resume}={total}"


def seconds_of(results: Results, rows: Sequence[Row]) -> float | None:
    """Return the mean seconds of one training of these configurations; None if unknown."""
    names = {row["trial"] for row in rows}
    times = [row for row in results.rows("SELECT trial, wall_seconds FROM trials") if row["trial"] in names]
    known = measured_values(times, "wall_seconds")
    return math.fsum(known) / len(known) if known else None


#: Comparisons of an accuracy with always predicting the largest class: all samples are of one class; no better than
#: chance, as with swapped labels; worse than it; hardly better; better.
ONE_CLASS, BELOW_CHANCE, BELOW_LARGEST, NEAR_LARGEST, ABOVE_LARGEST = (
    "one class", "below chance", "below largest", "near largest", "above largest"
)  # fmt: skip


def against_largest(accuracy: float, share: float, balanced: float | None, classes: int | None) -> str:
    """Compare an accuracy with the share of the largest class; return a code.

    Args:
        accuracy: accuracy on validation data.
        share: share of the largest class.
        balanced: balanced accuracy; None if unknown. A network that gives accuracy up for rare classes keeps it high.
        classes: number of classes; None if unknown.

    Example:
        >>> against_largest(0.3, 0.7, 0.3, 2), against_largest(0.71, 0.7, 0.5, 2)
        ('below chance', 'near largest')
    """
    if share >= 1:
        return ONE_CLASS
    if accuracy >= share + LEAST_ABOVE_MAJORITY:
        return ABOVE_LARGEST
    if accuracy > share - LEAST_ABOVE_MAJORITY:
        return NEAR_LARGEST
    chance = 1 / (classes or 2)
    return BELOW_CHANCE if balanced is None or balanced <= chance + LEAST_ABOVE_MAJORITY else BELOW_LARGEST


def majority_warning(results: Results, board: Leaderboard) -> list[str]:
    """Return a warning if the best configuration is not clearly better than always predicting the largest class."""
    best, training = board.best, results.specification.get("training") or {}
    # A training that weights classes, or draws them equally often, gives accuracy up for the rare classes.
    if best is None or training.get("class_weights") or training.get("sampler") == "balanced":
        return []

    accuracy, share = float_or_none(best, "val_accuracy"), float_or_none(best, "val_majority_share")
    balanced = float_or_none(best, "val_balanced_accuracy")
    if accuracy is None or share is None:
        return []
    code = against_largest(accuracy, share, balanced, (results.manifest.get("dataset") or {}).get("classes"))
    if code == ABOVE_LARGEST:
        return []
    if code == ONE_CLASS:
        return [
            "every validation sample is of one class: no post-hoc method can be fitted, and calibration says little; "
            "validate on a stratified split."
        ]
    recall = "" if balanced is None else f", balanced accuracy {balanced:.1%}"
    others = measured_values(board.finished, "val_balanced_accuracy")  # may be empty, since the best may be unfinished
    if code == BELOW_CHANCE:
        remedy = "labels may be swapped or belong to other samples: check them before anything else"
    elif balanced is not None and balanced >= max(others, default=balanced):
        longer = "" if results.specification.get("loop") == IMPORTED else ": train longer"
        remedy = f"no finished configuration has a higher one{longer}"
    else:
        remedy = f"others have a higher one: sweeper results {results.name} --by val_balanced_accuracy"
    compared = "hardly better" if code == NEAR_LARGEST else "worse"
    return [
        f"the best configuration is {compared} than always predicting the largest class: validation accuracy "
        f"{accuracy:.1%}, largest class {share:.1%}{recall}; {remedy}."
    ]


def outlier_warning(grid: Matrix) -> list[str]:
    """Return a warning that names the trainings that ended far from the others. Verdicts leave them out."""
    flagged = grid.outliers.flagged
    if not flagged:
        return []
    named = ", ".join(f"{trial} seed {seed}" for trial, seed in flagged[:3]) + (", …" if len(flagged) > 3 else "")
    ended = f"{len(flagged)} of {grid.outliers.trainings} trainings ended far from the others ({named})"
    return [f"{ended}: the verdicts hold for seeds that train."]
