"""Which value of a loss's hyperparameter is best, where the sweep can tell: on one network, all else being equal.

Values are compared at the same epoch, trained to the end, and with the same other hyperparameters, or averaged over
all settings of these at which every value was tried. Where γ was drawn together with the learning rate, a better γ
cannot be told from a better learning rate, and the answer is that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.analysis.statistics.best_set import SURE, Comparisons
from sweeper.analysis.statistics.spreads import spreads
from sweeper.reporting.matrix import Key, Matrix, Measured
from sweeper.results.leaderboard import FINISHED
from sweeper.text.cells import Row, text_of
from sweeper.text.labels import number, plural, short

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
