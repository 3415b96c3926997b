"""What would decide the open questions of a first screen, and warnings about results that are not reliable."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sweeper.core.cells import Row, float_or_none, int_of, measured_values, text_of
from sweeper.core.labels import label
from sweeper.reporting.answering.answers import ALIKE, EQUAL, UNKNOWN, WORSE, Answer
from sweeper.reporting.answering.matrix import Matrix
from sweeper.reporting.answering.questions import place_of_trial
from sweeper.results import Results
from sweeper.results.leaderboard import Leaderboard
from sweeper.results.queries import literal
from sweeper.results.verdicts import MOST_VALUES
from trainables.metrics.base import Floats, softmax64
from trainables.registry import IMPORTED

#: If NLL is below the base rate's by this share, the network has learned more than how frequent classes are.
LEAST_BELOW_BASE = 0.02

#: Smallest difference of a class's mean probability from its share that is warned of.
LEAST_SHIFT = 0.02

#: If the best configuration's accuracy exceeds the largest class's share by less than this, the screen shows a warning.
LEAST_ABOVE_MAJORITY = 0.02


def compare_command(results: Results, answers: Sequence[Answer]) -> str:
    """Return the command that compares the leader with the best rival on its network by every estimator."""
    for answer in answers:
        first = answer.leader
        rivals = [line for line in answer.finalists if line.network == first.network and line.trial != first.trial]
        rival = next((line for line in rivals if line.standing in (ALIKE, EQUAL, WORSE, UNKNOWN)), None)
        if rival is not None:
            sides = (rival.loss, first.loss) if rival.loss != first.loss else (rival.trial, first.trial)
            return f"sweeper compare {results.paths.in_commands} {' '.join(sides)}"
    return ""


#: Number of further seeds that is proposed if the sufficient number is unknown, as with one seed each. With three more
#: seeds, the spread can be estimated.
FURTHER = 3

#: With so many seeds, the spread is known well enough to say that further seeds would not decide.
ENOUGH = 4


def more_seeds(results: Results, grid: Matrix, best: Row, finished: Sequence[Row]) -> tuple[int, str]:
    """Return the number of trainings that would probably decide the open questions, and their command.

    The number is 0 if it is unknown. The command is empty if no number that the judge tries would decide any of them.
    Both come from the judge of these seeds, and the command trains more seeds than are held. A sweep with a final stage
    continues this stage, which trains only the contenders. Any other sweep trains all of its finished configurations on
    further seeds.
    """
    place = place_of_trial(grid, best)
    known, values = grid.verdicts(place), grid.decides.values
    held = {name: len(values[name][max(values[name])]) for name in known.of}
    open_ones = [name for name in known.in_play or known.of if name in held]
    least, most = min(held[name] for name in open_ones), max(held[name] for name in open_ones)
    numbers = [known.of[name].seeds_needed for name in open_ones if name != known.leader]
    needed = max((number for number in numbers if number is not None), default=None)
    if needed is None and least >= ENOUGH:
        return 0, ""
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


def class_shares(results: Results, best: Row | None) -> Floats | None:
    """Return the share of each class [K] among a configuration's validation samples; None if they are not stored."""
    if best is None:
        return None
    trial = text_of(best, "trial")
    counts = results.sql(_COUNTS.format(trial=literal(trial)), trials=[trial]).to_pylist()
    held = np.zeros(1 + max((int(row["target"]) for row in counts), default=-1))
    for row in counts:
        held[int(row["target"])] = row["n"]
    return held / held.sum() if held.size else None


_COUNTS = "SELECT target, count(*) AS n FROM predictions WHERE trial = {trial} AND split = 'val' GROUP BY target"


def beats_base_rate(best: Row, shares: Floats | None) -> bool:
    """Return whether a configuration's validation NLL is clearly below that of predicting the shares of classes [K]."""
    names = ("val_nll", "val_posthoc_temperature_nll")
    known = [value for name in names if (value := float_or_none(best, name)) is not None]
    if shares is None or not known:
        return False
    present = shares[shares > 0]
    return min(known) < (1 - LEAST_BELOW_BASE) * -float(present @ np.log(present))


def is_weighted(results: Results) -> bool:
    """Return whether a sweep's training weights classes, or draws them equally often."""
    training = results.specification.get("training") or {}
    return bool(training.get("class_weights")) or training.get("sampler") == "balanced"


def shifted_warning(results: Results, best: Row | None, shares: Floats | None) -> list[str]:
    """Return a warning if weighted classes moved the best configuration's mean probabilities from the classes' shares.

    Temperature scaling moves no class against another one, so it cannot repair this.
    """
    if best is None or shares is None or not is_weighted(results):
        return []
    trial = text_of(best, "trial")
    asked = _LOGITS.format(trial=literal(trial), epoch=int_of(best, "epochs"), most=MOST_VALUES // len(shares))
    logits = results.sql(asked, trials=[trial])["logits"].to_numpy()
    if not len(logits):
        return []
    means = softmax64(np.stack(logits).astype(np.float64)).mean(axis=0)[: len(shares)]
    worst = int(np.abs(means - shares).argmax())
    if abs(means[worst] - shares[worst]) < LEAST_SHIFT:
        return []
    return [
        f"class weights shift the probabilities: class {worst} has a mean of {means[worst]:.3f} and is "
        f"{shares[worst]:.3f} of the validation samples. No temperature repairs this; a method with an intercept does: "
        "platt, beta or vector."
    ]


_LOGITS = "SELECT logits FROM predictions WHERE trial = {trial} AND split = 'val' AND epoch = {epoch} LIMIT {most}"


def majority_warning(results: Results, board: Leaderboard, shares: Floats | None = None) -> list[str]:
    """Return a warning if the best configuration is not clearly better than always predicting the largest class.

    With rare classes, a good network's accuracy is near the largest class's share. If the shares of the classes [K] are
    known, NLL is compared with the base rate's, and accuracy only if NLL is not below it.
    """
    best = board.best
    # Weighted classes give accuracy up for the rare ones.
    if best is None or is_weighted(results):
        return []
    accuracy, share = float_or_none(best, "val_accuracy"), float_or_none(best, "val_majority_share")
    balanced = float_or_none(best, "val_balanced_accuracy")
    if accuracy is None or share is None:
        return []
    code = against_largest(accuracy, share, balanced, (results.manifest.get("dataset") or {}).get("classes"))
    if code == ABOVE_LARGEST or (code != ONE_CLASS and beats_base_rate(best, shares)):
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


def class_one_line(results: Results, board: Leaderboard) -> str:
    """Return the leader's calibration of the probability of class 1, if a sweep of two classes measured it."""
    present, scaled = results.columns("evaluations"), "posthoc_temperature_ece_positive"
    if board.best is None or "ece_positive" not in present:
        return ""
    means = ", ".join(f"avg({name}) AS {name}" for name in ("ece_positive", scaled) if name in present)
    trial = literal(board.best["trial"])
    (row,) = results.rows(f"SELECT {means} FROM final WHERE trial = {trial} AND split = 'test'")
    before, after = float_or_none(row, "ece_positive"), float_or_none(row, scaled)
    if before is None:
        return ""
    return f"test {label('ece_positive')} {before:.3f}" + ("" if after is None else f" → {after:.3f} after temperature")
