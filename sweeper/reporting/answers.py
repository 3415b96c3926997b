"""The questions that a sweep is run for, each answered in a sentence: for the first screen of report and terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeper.analysis.recalibration.effect import Effect
from sweeper.reporting.matrix import Key, Matrix, Measured, best_after
from sweeper.results.leaderboard import FINISHED, Leaderboard
from sweeper.results.overview import Overview
from sweeper.text.cells import Row, float_or_none
from sweeper.text.labels import describe, number, short

MOST_NAMED = 6
"""Losses or networks that one sentence names on each side; the matrix has all."""

LEAST_ABOVE_MAJORITY = 0.02
"""A best configuration whose accuracy exceeds the largest class by less is warned of."""

CAUTION = "95 % intervals cover variation between seeds, not the selection of the best."


class Answer(NamedTuple):
    """A question in a few words, and its answer in a sentence."""

    question: str
    sentence: str


class Setting(NamedTuple):
    """The best value of one hyperparameter of a loss on a network, and the values that do as well."""

    key: Key
    name: str
    before: str
    after: str
    compared: int


@dataclass(frozen=True)
class Answers:
    """The first screen.

    Attributes:
        matrix: the best of each loss on each network; None where nothing was evaluated.
        settings: the hyperparameters of the losses, γ first.
        answers: which loss, which network, which γ, what temperature did, what early stopping saved.
    """

    matrix: Matrix | None
    settings: Sequence[Setting]
    answers: Sequence[Answer]


def answers(found: Matrix | None, effects: Sequence[Effect], counts: Overview, board: Leaderboard) -> Answers:
    """Return the first screen of a sweep."""
    said = majority_warning(board)
    settings = settings_of(found) if found is not None else []
    if found is not None:
        for place in found.slices:
            said += loss_and_network(found, place)
        said += gamma_answers(settings)
    if effects:
        said.append(Answer("Post-hoc", " ".join(effect.sentence() for effect in effects)))
    if counts.saved:
        share = counts.saved / (counts.saved + counts.trained)
        saved = f"{counts.saved:,} of {counts.saved + counts.trained:,} epochs of full training ({share:.0%})"
        said.append(Answer("Early stopping", f"saved {saved}."))
    return Answers(found, settings, said)


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
        said.append(Answer(f"Loss{tag}", comparison(losses, best, found.decides, where)))
    if len(networks) > 1:
        where = f" with {loss}" if len(losses) > 1 else ""
        said.append(Answer(f"Network{tag}", comparison(networks, best, found.decides, where)))
    if (after := after_temperature(found, place, best)) is not None:
        said.append(Answer(f"After temperature{tag}", after))
    return said


def rank(measured: Measured, row: Row, best: Row) -> tuple[bool, bool, float]:
    """Return what sorts configurations: the best first, finished ones next, by their values."""
    value = measured.last(row)
    assert value is not None
    return row is not best, row["status"] != FINISHED, -value.mean if measured.larger else value.mean


def comparison(each: Mapping[str, Row], best: Row, measured: Measured, where: str) -> str:
    """Return the best by name with its value, and the others by whether they are significantly worse."""
    (name, _), *others = sorted(each.items(), key=lambda item: rank(measured, item[1], best))
    verdicts = [(other, row, measured.worse(best, row)) for other, row in others]
    parts = [f"{name}{where}, {measured.text(best)}"]
    for words, wanted in (("not significantly worse", False), ("worse", True), ("next", None)):
        named = [f"{other} {value_of(measured, row)}" for other, row, verdict in verdicts if verdict is wanted]
        if named:
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
    text = f"{which}, {found.after.label} {found.after.text(chosen)}"
    if chosen is best:
        return f"{text}."
    worse = found.after.worse(chosen, best)
    verdict = {True: "worse", False: "not significantly worse", None: "unknown"}[worse]
    return f"{text}; the best before scaling has {value_of(found.after, best)}: {verdict}."


def settings_of(found: Matrix) -> list[Setting]:
    """Return the numeric hyperparameters of every loss on every network, γ first."""
    own = [name for name in found.varying if name.startswith("config_loss_") and not name.endswith("_name")]
    own.sort(key=lambda name: name != "config_loss_gamma")
    said = []
    for column in own:
        for key, rows in found.cells.items():
            having = [row for row in rows if row.get(column) is not None and not isinstance(row[column], (str, bool))]
            if len({row[column] for row in having}) < 2:
                continue
            after = found.after if found.after is not found.decides else None
            best = best_after(having, after) if after is not None else None
            decided = as_good(having, having[0], column, found.decides)
            afterwards = as_good(having, best, column, after) if after is not None and best is not None else ""
            said.append(Setting(key, short(column), decided, afterwards, len(having)))
    return said


def as_good(rows: Sequence[Row], best: Row, column: str, measured: Measured) -> str:
    """Return the best value of a hyperparameter and the range of those that are not worse, e.g. `1.9 (0.8 … 3)`."""
    verdicts = [(row, measured.worse(best, row)) for row in rows if row is not best]
    text = number(best[column])
    if not verdicts or all(verdict is None for _, verdict in verdicts):
        return text
    kept = [best, *(row for row, verdict in verdicts if verdict is False)]
    values = [value for row in kept if (value := float_or_none(row, column)) is not None]
    low, high = min(values), max(values)
    return f"{text} (only this one)" if low == high else f"{text} ({number(low)} … {number(high)})"


def gamma_answers(settings: Sequence[Setting]) -> list[Answer]:
    """Return which γ is best for each loss and network; which of the losses' other hyperparameters if there is no γ."""
    if not settings:
        return []
    name, parts = settings[0].name, []
    for setting in (each for each in settings if each.name == name):
        where = f"{setting.key[1]} on {setting.key[2]}" + (f" at {setting.key[0]}" if setting.key[0] else "")
        after = f", after temperature {setting.after}" if setting.after else ""
        parts.append(f"{where}: {setting.before}{after}, n = {setting.compared}")
    return [Answer(f"Which {name}", f"{'; '.join(parts)}. In parentheses: values not significantly worse.")]


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
    others = [float_or_none(row, "val_balanced_accuracy") for row in board.finished]
    if balanced is not None and balanced >= max(value for value in others if value is not None):
        remedy = "no finished configuration has a higher one: train longer"
    else:
        remedy = "add a constraint, e.g. constraints: [{metric: val_balanced_accuracy, within: 5 points of the best}]"
    sentence = (
        "the best configuration is hardly better than always predicting the largest class: validation accuracy "
        f"{accuracy:.1%}, largest class {share:.1%}{recall}; {remedy}."
    )
    return [Answer("Warning", sentence)]
