"""The first screen of a sweep: the questions that it is run for, each answered in a sentence, below the best cells.

Of a loss's hyperparameter it says which value is best, where the sweep can tell: values are compared on one network, at
the same epoch, trained to the end, and with the same other hyperparameters, or averaged over all settings of these at
which every value was tried. Where γ was drawn together with the learning rate, a better γ cannot be told from a better
learning rate, and the answer is that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeper.analysis.recalibration.request import Effect, effects
from sweeper.analysis.statistics.best_set import SURE, Comparisons
from sweeper.analysis.statistics.spreads import spreads
from sweeper.figures.posthoc_temperature import posthoc_sql
from sweeper.reporting.matrix import Key, Matrix, Measured, best_after, grid, matrix
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Leaderboard
from sweeper.results.overview import Overview
from sweeper.text.cells import Row, float_or_none, text_of
from sweeper.text.labels import describe, number, plural, short
from trainables.registry import entry_label

MOST_METHODS = 3
"""Post-hoc methods that the first screen names; the report's table has all."""

MOST_NAMED = 6
"""Losses or networks that one sentence names on each side; the matrix has all."""

LEAST_ABOVE_MAJORITY = 0.02
"""A best configuration whose accuracy exceeds the largest class by less is warned of."""


class Answer(NamedTuple):
    """A question in a few words, and its answer in a sentence."""

    question: str
    sentence: str


@dataclass(frozen=True)
class FirstScreen:
    """The first screen.

    Attributes:
        matrix: the best of each loss on each network; None where nothing was evaluated.
        settings: the hyperparameters of the losses, γ first.
        answers: which loss, which network, which γ, what temperature did, what early stopping saved.
    """

    matrix: Matrix | None
    settings: Sequence[Setting]
    answers: Sequence[Answer]


def answers(found: Matrix | None, effects: Sequence[Effect], counts: Overview, board: Leaderboard) -> FirstScreen:
    """Return the first screen of a sweep."""
    said = majority_warning(board)
    settings = settings_of(found) if found is not None else []
    if found is not None:
        for place in found.slices:
            said += loss_and_network(found, place)
        if settings:
            said.append(Answer(QUESTION.format(settings[0].name), setting_sentence(settings)))
    if effects:
        said.append(Answer("Post-hoc", " ".join(effect.sentence() for effect in effects)))
    if counts.saved:
        share = counts.saved / (counts.saved + counts.trained)
        saved = f"{counts.saved:,} of {counts.saved + counts.trained:,} epochs of full training ({share:.0%})"
        said.append(Answer("Early stopping", f"saved {saved}."))
    return FirstScreen(found, settings, said)


def loss_and_network(found: Matrix, place: str) -> list[Answer]:
    """Return which loss and which network is best in one slice, and which others differ significantly."""
    tag, best = f" at {place}" if place else "", found.best(place)
    losses = {name: row for name in found.families() if (row := found.best(place, family=name)) is not None}
    networks = {name: row for name in found.networks() if (row := found.best(place, network=name)) is not None}
    if best is None:
        return []
    loss = next(name for name, row in losses.items() if row is best)
    network = next(name for name, row in networks.items() if row is best)
    said = []
    if len(losses) > 1:
        where = f" on {network}" if len(networks) > 1 else ""
        said.append(Answer(f"Loss{tag}", comparison(found, place, losses, 1, best, where)))
    if len(networks) > 1:
        where = f" with {loss}" if len(losses) > 1 else ""
        said.append(Answer(f"Network{tag}", comparison(found, place, networks, 2, best, where)))
    if (after := after_temperature(found, place, best)) is not None:
        said.append(Answer(f"After temperature{tag}", after))
    return said


def rank(measured: Measured, row: Row, best: Row) -> tuple[bool, bool, float]:
    """Return what sorts configurations: the best first, finished ones next, by their values."""
    value = measured.last(row)
    assert value is not None
    return row is not best, row["status"] != FINISHED, -value.mean if measured.larger else value.mean


def comparison(found: Matrix, place: str, each: Mapping[str, Row], axis: int, best: Row, where: str) -> str:
    """Return the best loss (axis 1) or network (2) with its value, and of the others which may be as good.

    Another one is worse where all its configurations that were trained as long are out of the best set.
    """
    measured = found.decides
    (name, _), *others = sorted(each.items(), key=lambda item: rank(measured, item[1], best))
    said: dict[str, list[str]] = {}
    for other, row in others:
        rows = [row for key, rows in found.cells.items() if (key[0], key[axis]) == (place, other) for row in rows]
        words = {False: "may be as good", True: "worse", None: "not compared"}[measured.none_may_be_best(best, rows)]
        said.setdefault(words, []).append(f"{other} {value_of(measured, row)}")
    parts = [f"{name}{where}, {value_of(measured, best)}"]
    for words in ("may be as good", "worse", "not compared"):
        if named := said.get(words):
            more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
            parts.append(f"{words}: {', '.join(named[:MOST_NAMED])}{more}")
    return f"{'; '.join(parts)}."


def value_of(measured: Measured, row: Row) -> str:
    """Return a configuration's value, and at which epoch it was stopped where it did not finish."""
    value = measured.last(row)
    text = "–" if value is None else number(value.mean)
    return text if row["status"] == FINISHED else f"{text} at epoch {row['epochs']}"


def after_temperature(found: Matrix, place: str, best: Row) -> str | None:
    """Return what is best in a slice after temperature scaling; None where that is not measured or decides already."""
    if found.after is None or found.after is found.decides:
        return None
    rows = [row for key, rows in found.cells.items() if key[0] == place for row in rows]
    chosen = best_after(rows, found.after)
    if chosen is None:
        return None
    which = "the same configuration is best" if chosen is best else f"best is {describe(chosen, found.varying)}"
    text = f"{which}, {found.after.label} {value_of(found.after, chosen)}"
    if chosen is best:
        return f"{text}."
    worse = found.after.worse(chosen, best)
    verdict = {True: "worse", False: "it may be as good", None: "not compared"}[worse]
    return f"{text}; the best before scaling has {value_of(found.after, best)}: {verdict}."


def majority_warning(board: Leaderboard) -> list[Answer]:
    """Return a warning where the best configuration is hardly better than always predicting the largest class."""
    best = board.best
    if best is None:
        return []
    accuracy, share = float_or_none(best, "val_accuracy"), float_or_none(best, "val_majority_share")
    if accuracy is None or share is None or accuracy >= share + LEAST_ABOVE_MAJORITY:
        return []
    balanced = float_or_none(best, "val_balanced_accuracy")
    recall = "" if balanced is None else f", balanced accuracy {balanced:.1%}"
    others = [float_or_none(row, "val_balanced_accuracy") for row in board.finished]  # none where all others failed
    if balanced is not None and balanced >= max((value for value in others if value is not None), default=balanced):
        remedy = "no finished configuration has a higher one: train longer"
    else:
        remedy = "add a constraint, e.g. constraints: [{metric: val_balanced_accuracy, within: 5 points of the best}]"
    sentence = (
        "the best configuration is hardly better than always predicting the largest class: validation accuracy "
        f"{accuracy:.1%}, largest class {share:.1%}{recall}; {remedy}."
    )
    return [Answer("Warning", sentence)]


def first_screen(results: Results, board: Leaderboard, counts: Overview) -> FirstScreen:
    """Return the matrix and the answers of a sweep."""
    return answers(matrix(results, board), posthoc_effects(results, board), counts, board)


def posthoc_effects(results: Results, board: Leaderboard) -> list[Effect]:
    """Return what the first post-hoc methods did to the finished trials, or to all evaluated ones if none finished."""
    if not board.rows:
        return []
    kept = {row["trial"] for row in (board.finished or board.rows)}
    bins = int(results.specification.get("evaluation", {}).get("bins", 15))
    rows = [row for row in results.rows(posthoc_sql(results)) if row["trial"] in kept and row["bins"] == bins]
    asked = [entry_label(method) for method in _methods(results)]
    found = sorted(effects(rows), key=lambda each: asked.index(each.method) if each.method in asked else len(asked))
    return found[:MOST_METHODS]


def _methods(results: Results) -> list[dict[str, object]]:
    """Return the post-hoc methods of the search space, in its order."""
    given = results.specification.get("evaluation", {}).get("posthoc") or []
    return [{"name": each} if isinstance(each, str) else each for each in given]


def heading(found: Matrix) -> str:
    """Return what the matrix shows, in one line."""
    after = f" → {found.after.label}" if found.after is not None and found.before is not None else ""
    shown = (found.before or found.decides).label
    return f"Best {shown}{after}, by loss and network"


def legend(found: Matrix, *, starred: bool = True) -> str:
    """Return how to read the matrix; with `starred`, what a star behind a value means, too."""
    stopped = any(
        not cell.state.startswith("best")
        for place in found.slices
        for _, line in grid(found, place)
        for cell in line
        if cell
    )
    parts = [judgement(found.decides)]
    parts += ["* not trained to the end, so not compared."] if stopped and starred else []
    return " ".join(parts)


def judgement(decides: Measured) -> str:
    """Return what the marks and intervals of the matrix say, and what they do not."""
    if decides.judged:
        return (
            f"≈ may be the best ({SURE}). "
            "Intervals: for other seeds, 95 % on average over cells, each the best of its cell's configurations."
        )
    if decides.repeated:
        return "All replicates of each configuration have the same value: differences cannot be judged."
    return "One replicate each: differences cannot be judged."


QUESTION = "Which {}"

MOST_VALUES = 6
"""Values that one answer lists; of more it gives the number and the range."""

REMEDY = "`sweeper run which_gamma` asks only that"
"""Where a hyperparameter is undecided because it was never compared with all else equal."""


class Setting(NamedTuple):
    """What a sweep says of one hyperparameter of a loss on a network.

    Attributes:
        key: data set's settings, loss, network.
        name: of the hyperparameter, as readers know it.
        answer: which values may be the best, or why that is undecided.
        compared: how many values were compared; 0 where it is undecided because they cannot be.
    """

    key: Key
    name: str
    answer: str
    compared: int


def settings_of(found: Matrix) -> list[Setting]:
    """Return the numeric hyperparameters of every loss on every network, γ first."""
    own = [name for name in found.varying if name.startswith("config_loss_") and not name.endswith("_name")]
    own.sort(key=lambda name: name != "config_loss_gamma")
    said = []
    for column in own:
        for key, rows in found.cells.items():
            having = [row for row in rows if row.get(column) is not None and not isinstance(row[column], (str, bool))]
            drawn = {row[column] for row in having}
            if len(drawn) > 1:
                answer, compared = which(having, column, found)
                said.append(Setting(key, short(column), answer, compared))
    return said


def which(rows: Sequence[Row], column: str, found: Matrix) -> tuple[str, int]:
    """Return which values of a column may be the best among a cell's rows, and how many values were compared."""
    measured = found.decides
    ended = [row for row in rows if row["status"] == FINISHED and text_of(row, "trial") not in measured.left_out]
    values = sorted({float(str(row[column])) for row in ended})
    if len(values) < 2:
        drawn = plural(len({row[column] for row in rows}), "value")
        return f"undecided: of {drawn} {len(values) or 'none'} was trained to the end", 0
    others = [name for name in found.varying if name != column and len({row[name] for row in ended}) > 1]
    matched = _matched(ended, column, others, len(values))
    if not matched:
        return f"undecided: {len(values)} values were trained to the end, with {_ranges(ended, others)}", 0
    each = [_by_seed([by[value] for by in matched], measured) for value in values]
    compared = spreads(each, "max" if measured.larger else "min")
    if compared is None:
        return "undecided: one seed each" if not measured.repeated else "undecided: all values are the same", 0
    inside = Comparisons(compared).may_be_best
    members = [values[at] for at in compared.scores.argsort()[::-1] if inside[at]]
    where = f", on average over {len(matched)} settings of the rest" if len(matched) > 1 else ""
    if len(members) == len(values):
        return f"undecided: any of the {len(values)} values may be the best{where}", len(values)
    if len(members) == 1:
        return f"{number(members[0])} is the best of {len(values)} values ({SURE}){where}", len(values)
    best = number(members[0])
    return f"{_listed(members)} may be the best of {len(values)} values ({SURE}){where} (best mean: {best})", len(
        values
    )


def _matched(rows: Sequence[Row], column: str, others: Sequence[str], values: int) -> list[dict[float, Row]]:
    """Return value → row for each setting of `others` at which every value was trained to the end."""
    settings: dict[tuple[object, ...], dict[float, Row]] = {}
    for row in rows:
        settings.setdefault(tuple(row[name] for name in others), {})[float(str(row[column]))] = row
    return [by for by in settings.values() if len(by) == values]


def _by_seed(rows: Sequence[Row], measured: Measured) -> Mapping[int, float]:
    """Return a value's replicates: the r-th is the mean over rows of their r-th, with the first row's seed."""
    found = [measured.values[text_of(row, "trial")] for row in rows]
    each = [[*epochs[max(epochs)].items()] for epochs in found]
    return {each[0][r][0]: sum(one[r][1] for one in each) / len(each) for r in range(min(map(len, each)))}


def _ranges(rows: Sequence[Row], others: Sequence[str]) -> str:
    """Return how the other hyperparameters varied, e.g. `lr 0.03 to 0.14`."""
    parts = []
    for name in others:
        values = sorted(
            {row[name] for row in rows if row[name] is not None}, key=lambda value: (str(type(value)), value)
        )
        if all(isinstance(value, (int, float)) for value in values) and values:
            parts.append(f"{short(name)} {number(values[0])} to {number(values[-1])}")
        else:
            parts.append(f"{short(name)} {', '.join(map(str, values[:MOST_VALUES]))}")
    return "; ".join(parts)


def _listed(members: Sequence[float]) -> str:
    """Return values in order, or their number and range where there are many."""
    ordered = sorted(members)
    if len(ordered) <= MOST_VALUES:
        return f"{', '.join(map(number, ordered[:-1]))} or {number(ordered[-1])}"
    return f"{len(ordered)} values from {number(ordered[0])} to {number(ordered[-1])}"


def setting_sentence(settings: Sequence[Setting]) -> str:
    """Return what is known of the first hyperparameter, γ if there is one, on each network and with each loss."""
    mine = [each for each in settings if each.name == settings[0].name]
    if any(each.compared for each in mine):
        return "; ".join(f"{_where(each)}: {each.answer}" for each in mine) + "."
    if len(mine) == 1:
        return f"{mine[0].answer} ({REMEDY})."
    name = mine[0].name
    return f"undecided: no two values of {name} were trained to the end with all else equal ({REMEDY})."


def _where(setting: Setting) -> str:
    place, loss, network = setting.key
    return f"{loss} on {network}" + (f" at {place}" if place else "")
