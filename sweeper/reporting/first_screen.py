"""The first screen of a sweep: a picture of every loss on every network, then the questions that it is run for.

At most five sentences answer them. Of a loss's hyperparameter they say which value is best, where the sweep can tell:
values are compared on one network, at the same epoch, trained to the end, and with the same other hyperparameters, or
averaged over all settings of these at which every value was tried. Where γ was drawn together with the learning rate, a
better γ cannot be told from a better learning rate, and the answer is that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeper.analysis.recalibration import UNCALIBRATED, Change, Effect, changed, effects, signed
from sweeper.analysis.selection import best_set_line
from sweeper.analysis.statistics.best_set import SURE, Comparisons
from sweeper.analysis.statistics.spreads import spreads
from sweeper.figures.posthoc_temperature import own_methods, posthoc_sql
from sweeper.reporting.matrix import Key, Matrix, Measured, best_after, matrix
from sweeper.reporting.picture import STOPPED, Picture, SmallPlot, mean_of, picture, small_plot
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Leaderboard
from sweeper.results.listing import Overview, headline
from sweeper.text.cells import Row, Rows, float_or_none, grouped, measured_or_none, measured_values, text_of
from sweeper.text.labels import describe, number, plural, short
from trainables.registry import IMPORTED

#: Post-hoc methods that the first screen names; the report's table has all.
MOST_METHODS = 3

#: Losses or networks that one sentence names on each side, and lines of "Which γ"; the picture has all.
MOST_NAMED = 6

#: A best configuration whose accuracy exceeds the largest class by less is warned of.
LEAST_ABOVE_MAJORITY = 0.02


class Answer(NamedTuple):
    """A question in a few words, and its answer in a sentence."""

    question: str
    sentence: str


@dataclass(frozen=True)
class FirstScreen:
    """The first screen.

    Attributes:
        matrix: the best of each loss on each network; None where nothing was evaluated.
        picture: the same as it is drawn.
        settings: the hyperparameters of the losses, γ first.
        answers: the best configuration, which loss, which network, which γ, what temperature scaling did.
        scaled: the first post-hoc method and what it did to the best one, `temperature scaling: no clear change`.
    """

    matrix: Matrix | None
    picture: Picture | None
    settings: Sequence[Setting]
    answers: Sequence[Answer]
    scaled: str = ""

    @property
    def verdict(self) -> str:
        """What is undecided, in a line above the picture: there, the best mean looks like a winner."""
        left_open = [each for each in self.answers if each.sentence.startswith(("undecided", "none was trained"))]
        asked = ", ".join(each.question.removeprefix("Which ").lower() for each in left_open)
        scaled = f"Test ECE after {self.scaled}." if self.scaled else ""
        return " ".join(filter(None, [f"Undecided: {asked}." if asked else "", scaled]))

    @property
    def asked(self) -> Sequence[Setting]:
        """The hyperparameter that the first screen draws: γ if there is one."""
        return [each for each in self.settings if each.name == self.settings[0].name]


def first_screen(results: Results, board: Leaderboard, counts: Overview) -> FirstScreen:
    """Return the first screen of a sweep."""
    best = [headline(board), best_set_line(results, board)]
    in_progress = counts.count("waiting", "running", "interrupted") > 0
    said = [Answer("Best so far" if in_progress else "Best", " ".join(filter(None, best)))]
    found = matrix(results, board)
    if board.rows and (found is None or not found.decides.values):
        none = f"nothing finite was measured: {board.objective.metric} of every trial is NaN or infinite."
        return FirstScreen(None, None, [], [Answer("Warning", none)])
    said += majority_warning(results, board)
    if found is None:
        return FirstScreen(None, None, [], said)
    said += loss_and_network(found)
    if settings := settings_of(found):
        said.append(Answer(f"Which {settings[0].name}", setting_sentence(settings)))
    rows, every = posthoc_effects(results, board)
    done = every[:MOST_METHODS]
    said += [Answer("Warning", f"{effect.warning}.") for effect in every if effect.warning]
    if sentence := posthoc_sentence(board, found, rows, done):
        said.append(Answer("Temperature", sentence))
    scaled = ""
    if done and board.best is not None and (own := own_change(rows, board.best, done[0])) is not None:
        method = "temperature scaling" if done[0].words == "temperature" else done[0].words
        scaled = f"{method}: {own.verdict()}"
    return FirstScreen(found, picture(found), settings, said, scaled)


def loss_and_network(found: Matrix) -> list[Answer]:
    """Return which loss and which network is best, in each setting of the data set."""
    said = []
    for question, axis, names in (("Loss", 1, found.families()), ("Network", 2, found.networks())):
        if len(names) > 1:
            each = [(place, comparison(found, place, axis)) for place in found.slices]
            said.append(Answer(question, " ".join(f"At {place}: {text}" if place else text for place, text in each)))
    return said


def comparison(found: Matrix, place: str, axis: int) -> str:
    """Return which losses (axis 1) or networks (2) may be the best of a slice, and which are not.

    One is worse where all of its configurations that were trained as long as the best are out of the best set.
    """
    best, measured = found.best(place), found.decides
    if best is None:
        return "none was evaluated."
    cells: dict[str, list[Row]] = defaultdict(list)
    for key, rows in found.cells.items():
        if key[0] == place:
            cells[key[axis]] += rows
    first = next(name for name, rows in cells.items() if best in rows)
    others = {name: measured.none_may_be_best(best, rows) for name, rows in cells.items() if name != first}
    alike, worse, unknown = ([name for name in others if others[name] is verdict] for verdict in (False, True, None))
    alike = [first, *alike]
    if len(cells) == 1:
        return f"{first}."
    if best["status"] != FINISHED:
        ahead = f"{first} has the best so far, at epoch {best['epochs']}"
        return f"none was trained to the end, so none is compared; {ahead}."
    if not measured.judged:
        return f"{first} has the best mean. {judgement(measured)}"
    parts = [f"undecided between {_named(alike)}" if len(alike) > 1 else first]
    if worse:
        parts.append(f"{_named(worse)} {'is' if len(worse) == 1 else 'are'} worse ({SURE})")
    if unknown:
        parts.append(f"{_named(unknown)} not trained to the end, so not compared")
    return f"{'; '.join(parts)}."


def _named(names: Sequence[str]) -> str:
    """Return names as a list in words, at most MOST_NAMED."""
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def posthoc_sentence(board: Leaderboard, found: Matrix, rows: Rows, done: Sequence[Effect]) -> str:
    """Return what post-hoc methods did to the best configuration's test ECE, and then to that of all finished ones."""
    best = board.best
    if best is None or not done:
        return ""
    name, parts = text_of(best, "trial"), []
    for each in done:
        if (own := own_change(rows, best, each)) is not None:
            method = f" by {each.words}" if len(done) > 1 else ""
            parts.append(f"{own.arrow()}{method}, {own.verdict()}")
    sentence = f"{name}'s test ECE {'; '.join(parts)}. " if parts else ""
    if (change := next((each for each in done[0].changes if each.metric == "ece"), None)) and change.trials > 1:
        counted = plural(change.trials, "finished trial" if board.finished else "trial")
        moved = f"{change.arrow()}, by {signed(change.difference.mean)}{change.limits()}, {change.verdict()}"
        sentence += f"Mean of {counted}: {moved}. "
    return (sentence + after_temperature(found, best)).strip()


def own_change(rows: Rows, best: Row, effect: Effect) -> Change | None:
    """Return what a method did to the test ECE of one configuration; `None` where it was not measured."""
    mine = [row for row in rows if row["split"] == "test" and row["trial"] == best["trial"]]
    by_method = grouped(mine, lambda row: (row["method"], row["options"], row["bins"]))
    held = [by_method.get(key, []) for key in ((UNCALIBRATED, "{}", effect.bins), effect.key)]
    before, after = (
        {str(row["replicate"]): [ece] for row in each if (ece := measured_or_none(row, "ece")) is not None}
        for each in held
    )
    return changed("ece", before, after)


def after_temperature(found: Matrix, best: Row) -> str:
    """Return what is best after temperature scaling, if that is another configuration; empty where it is not."""
    if found.after is None or found.after is found.decides:
        return ""
    place = next((key[0] for key, rows in found.cells.items() if best in rows), "")
    rows = [row for key, each in found.cells.items() if key[0] == place for row in each]
    chosen = best_after(rows, found.after)
    if chosen is None or chosen is best:
        return ""
    values = [number(mean_of(found.after, row)) for row in (chosen, best)]
    worse = found.after.worse(chosen, best)
    verdict = {True: "is worse", False: "may be as good", None: "is not compared"}[worse]
    who = f"{chosen['trial']} ({describe(chosen, found.varying)})"
    return f"By {found.after.label} the best is {who}, {values[0]}; {best['trial']}, {values[1]}, {verdict}."


def majority_warning(results: Results, board: Leaderboard) -> list[Answer]:
    """Return a warning where the best configuration is hardly better than always predicting the largest class."""
    best = board.best
    if best is None:
        return []
    accuracy, share = float_or_none(best, "val_accuracy"), float_or_none(best, "val_majority_share")
    if accuracy is None or share is None or accuracy >= share + LEAST_ABOVE_MAJORITY:
        return []
    balanced = float_or_none(best, "val_balanced_accuracy")
    recall = "" if balanced is None else f", balanced accuracy {balanced:.1%}"
    others = measured_values(board.finished, "val_balanced_accuracy")  # none where all others failed
    if balanced is not None and balanced >= max(others, default=balanced):
        longer = "" if results.specification.get("loop") == IMPORTED else ": train longer"
        remedy = f"no finished configuration has a higher one{longer}"
    else:
        remedy = "add a constraint, e.g. constraints: [{metric: val_balanced_accuracy, within: 5 points of the best}]"
    sentence = (
        "the best configuration is hardly better than always predicting the largest class: validation accuracy "
        f"{accuracy:.1%}, largest class {share:.1%}{recall}; {remedy}."
    )
    return [Answer("Warning", sentence)]


def posthoc_effects(results: Results, board: Leaderboard) -> tuple[Rows, list[Effect]]:
    """Return what post-hoc methods did to the finished trials, or to all evaluated ones if none finished.

    Before it the rows of `posthoc_sql` that say so, one for each replicate.
    """
    if not board.rows:
        return [], []
    kept = {row["trial"] for row in (board.finished or board.rows)}
    bins = int(results.specification.get("evaluation", {}).get("bins", 15))
    rows = [row for row in results.rows(posthoc_sql(results)) if row["trial"] in kept and row["bins"] == bins]
    asked = [(name, options, bins) for name, options, _ in own_methods(results)]
    found = sorted(effects(rows), key=lambda each: asked.index(each.key) if each.key in asked else len(asked))
    return rows, found


def legend(found: Matrix, drawn: Picture, *, beside: bool = True, sign: str = "◇ ") -> str:
    """Return how to read the picture; `beside`: values after temperature scaling are shown, with a `sign` if drawn."""
    said = [judgement(found.decides)]
    if any(dot.mark == STOPPED for dot in drawn.dots):
        said.append("○ not trained to the end: not compared.")
    if drawn.other and beside:
        crossed = CROSS_FITTED if found.after is not None and found.after.cross_fitted else ""
        after = ": before temperature scaling" if found.after is found.decides else crossed
        said.append(f"{sign}{drawn.other}{after}.")
    return " ".join(said)


CROSS_FITTED = ": after temperature scaling, fitted on the other folds of validation data"


def judgement(decides: Measured) -> str:
    """Return what the marks and intervals of the matrix say, and what they do not."""
    if decides.judged:
        return (
            f"● may be the best ({SURE}), • worse. Each dot: the best configuration of its loss on its network. 95 %: "
            "an interval for its mean over all seeds, right for 95 % of dots on average."
        )
    if decides.repeated:
        return "All replicates of each configuration have the same value: differences cannot be judged."
    return "One replicate each: differences cannot be judged."


#: Values that one answer lists; of more it gives the number and the range.
MOST_VALUES = 6

#: Where a hyperparameter is undecided because it was never compared with all else equal.
REMEDY = "`sweeper run which_gamma` compares γ alone"


class Setting(NamedTuple):
    """What a sweep says of one hyperparameter of a loss on a network.

    Attributes:
        key: data set's settings, loss, network.
        name: of the hyperparameter, as readers know it.
        answer: which values may be the best, or why that is undecided.
        compared: how many values were compared; 0 where it is undecided because they cannot be.
        plot: the values against the objective.
    """

    key: Key
    name: str
    answer: str
    compared: int
    plot: SmallPlot


def settings_of(found: Matrix) -> list[Setting]:
    """Return the numeric hyperparameters of every loss on every network, γ first."""
    own = [name for name in found.varying if name.startswith("config_loss_") and not name.endswith("_name")]
    own.sort(key=lambda name: name != "config_loss_gamma")
    said = []
    for column in own:
        for key, rows in found.cells.items():
            having = [row for row in rows if row.get(column) is not None and not isinstance(row[column], (str, bool))]
            drawn = {row[column] for row in having}
            if len(drawn) > 1 and any(mean_of(found.decides, row) is not None for row in having):
                answer, compared, inside = which(having, column, found)
                said.append(Setting(key, short(column), answer, compared, small_plot(having, column, found, inside)))
    return said


def which(rows: Sequence[Row], column: str, found: Matrix) -> tuple[str, int, list[float]]:
    """Return which values of a column may be the best among a cell's rows, how many were compared, and the former."""
    measured = found.decides
    ended = [row for row in rows if row["status"] == FINISHED and text_of(row, "trial") not in measured.left_out]
    values = sorted({float(str(row[column])) for row in ended})
    if len(values) < 2:
        drawn = plural(len({row[column] for row in rows}), "value")
        return f"undecided: {len(values) or 'none'} of {drawn} trained to the end", 0, []
    others = [name for name in found.varying if name != column and len({row[name] for row in ended}) > 1]
    matched = _matched(ended, column, others, len(values))
    if not matched:
        return f"undecided: {len(values):,} values trained to the end, with {_ranges(ended, others)}", 0, []
    each = [_by_seed([by[value] for by in matched], measured) for value in values]
    compared = spreads(each, "max" if measured.larger else "min")
    if compared is None:
        return "undecided: one seed each" if not measured.repeated else "undecided: all values are the same", 0, []
    inside = Comparisons(compared).may_be_best
    members = [values[at] for at in compared.scores.argsort()[::-1] if inside[at]]
    where = f", on average over {len(matched)} settings of the rest" if len(matched) > 1 else ""
    if len(members) == len(values):
        answer = f"undecided: any of the {len(values)} values may be the best{where}"
    elif len(members) == 1:
        answer = f"{number(members[0])} is the best of {len(values)} values ({SURE}){where}"
    else:
        best = number(members[0])
        answer = f"{_listed(members)} may be the best of {len(values)} values ({SURE}){where}; best mean: {best}"
    return answer, len(values), members


def _matched(rows: Sequence[Row], column: str, others: Sequence[str], values: int) -> list[dict[float, Row]]:
    """Return value → row for each setting of `others` at which every value was trained to the end."""
    settings = grouped(rows, lambda row: tuple(row[name] for name in others)).values()
    found = [{float(str(row[column])): row for row in mine} for mine in settings]
    return [by for by in found if len(by) == values]


def _by_seed(rows: Sequence[Row], measured: Measured) -> Mapping[int, float]:
    """Return a value's replicates: the r-th is the mean over rows of their r-th, with the first row's seed."""
    found = [measured.values[text_of(row, "trial")] for row in rows]
    each = [[*epochs[max(epochs)].items()] for epochs in found]
    return {each[0][r][0]: sum(one[r][1] for one in each) / len(each) for r in range(min(map(len, each)))}


def _ranges(rows: Sequence[Row], others: Sequence[str]) -> str:
    """Return how the other hyperparameters varied, e.g. `lr 0.03 to 0.14`."""
    parts = []
    for name in others:
        present = {row[name] for row in rows if row[name] is not None}
        values = sorted(present, key=lambda value: (str(type(value)), value))
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
    """Return what is known of the first hyperparameter, γ if there is one: a line for each loss and network."""
    mine = [each for each in settings if each.name == settings[0].name]
    decided = [each for each in mine if each.compared]
    if decided:
        lines = []
        for (place, loss, network), _, answer, *_ in decided[:MOST_NAMED]:
            lines.append(f"{loss} on {network}{f' at {place}' if place else ''}: {answer}")
        rest = len(mine) - len(lines)
        return "\n".join([*lines, *([f"{rest} more: see the report"] if rest else [])])
    name, remedy = mine[0].name, f" ({REMEDY})" if mine[0].name == "γ" else ""
    if len(mine) == 1:
        return f"{mine[0].answer}{remedy}."
    return f"undecided: no two values of {name} were trained to the end with all else equal{remedy}."
