"""Lines of values: objective, calibration error and curvature at each value of a hyperparameter, all else being equal.

These are the finalists that differ in one hyperparameter only, with the seeds that the first screen compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweeper.core.labels import label, number, plural, short
from sweeper.judging.means import Mean, means
from sweeper.judging.question import Data, Mode, Question as Asked
from sweeper.reporting.answering.answers import Question
from sweeper.reporting.answering.finalists import Series, chosen_rows, labels
from sweeper.reporting.answering.matrix import Matrix, Replicated, evaluated, matrix
from sweeper.reporting.answering.questions import line_questions
from sweeper.reporting.figures.base import FIGURES, Figure, Json, Panel, bars_to, ends, mark, names, points, quantity
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, leaderboard
from trainables.curvature.statistics.base import headline_columns

#: If the largest value is this many times the smallest, the axis is logarithmic.
LOGARITHMIC = 20


@FIGURES.add(
    "lines", place=5, absent="Lines of values: no two finished configurations differ in one hyperparameter only."
)
def draw(results: Results) -> Figure | None:
    """Return one panel per line and quantity; None without a line."""
    board = leaderboard(results)
    grid = matrix(results, board)
    if grid is None or not grid.cells:
        return None
    present = {*results.columns("evaluations")}
    columns = [name for name in ("ece", *headline_columns()) if name in present]
    values = {board.objective.label: grid.decides.values} | {
        f"validation {label(name)}" if name == "ece" else label(name): of
        for name, of in evaluated(results, "val", columns).items()
    }
    panels = [panel for place in grid.slices for panel in panels_of(grid, place, values)]
    if not panels:
        return None
    return Figure(
        title="Values of one hyperparameter, all else being equal",
        caption=(
            f"Means over the seeds that the first screen compares{', all fresh ones' if grid.fresh else ''}, with 95 % "
            "intervals for other seeds. The values are those that were tried: between them nothing was measured."
        ),
        sql=[board.sql],
        panels=panels,
    )


def panels_of(grid: Matrix, place: str, measured: Mapping[str, Mapping[str, Mapping[int, Replicated]]]) -> list[Panel]:
    """Return the panels of one setting of the data set.

    Args:
        grid: the configurations.
        place: the setting.
        measured: quantity in words → trial → epoch → values by seed.
    """
    shown, lines = chosen_rows(grid, place)
    told = {trial: columns for key, rows in shown.items() for trial, columns in labels(grid, rows, key).items()}
    drawn = []
    for line, question in zip(lines, line_questions(grid, lines, told), strict=True):
        for at, (words, values) in enumerate(measured.items()):
            last = {word: epochs[max(epochs)] for word, trial in zip(line.rows, line.trials, strict=True)
                    if (epochs := values.get(trial))}  # fmt: skip
            if len(last) > 1:
                name = short(line.column, grid.symbols)
                heading, mode = f"{where(line, question)}: {words}", "min" if at else grid.decides.goal.mode
                drawn.append(panel(line, last, name, heading, words, mode, remarks(question, at)))
    return drawn


def where(line: Series, question: Question) -> str:
    """Return what a panel is of, e.g. `focal on mlp at lr 0.1`."""
    loss, network = line.key[1:]
    at = f"at {question.at}" if question.at else ""
    return " ".join(filter(None, [line.key[0], loss, f"on {network}" if network else "", at]))


def remarks(question: Question, at: int) -> list[str]:
    """Return a remark on the edge below a line's first panel, which is the objective's."""
    said = f"The best value tried, {question.best[0]}, is the {question.edge} one: the best may lie beyond it."
    return [said] if question.edge and not at else []


def panel(
    line: Series, values: Mapping[str, Replicated], name: str, heading: str, words: str, mode: Mode, said: Sequence[str]
) -> Panel:
    """Return the panel of one quantity along a line."""
    order = sorted(values, key=lambda word: line.numbers[word]) if line.numbers else [*values]
    trials = dict(zip(line.rows, line.trials, strict=True))
    # Losses and curvature spread in proportion to their size, unless a trace is negative.
    positive = all(value > 0 for of in values.values() for value in of.values())
    known = means(Asked(order, words, mode, relative=positive, level=0.95), Data(values))
    rows = [{**row(word, line.numbers.get(word), known[word]), "trial": trials[word]} for word in order]
    path = [mark("line", rows)] if line.numbers else []
    return Panel(heading, [*path, bars_to(rows), points(rows)], _axis(line, name), quantity("mean", words), said)


def row(word: str, value: float | None, mean: Mean) -> Json:
    """Return one value's mean and interval."""
    interval = None if mean.seeds < 2 else (mean.low, mean.high)
    between = "" if interval is None else f" (95 % {number(mean.low)} … {number(mean.high)})"
    says = f"{word}\n{number(mean.value)}{between}, {plural(mean.seeds, 'seed')}"
    return {
        "value": word if value is None else value,
        "mean": mean.value,
        "status": FINISHED,
        "says": says,
        **ends(interval),
    }


def _axis(line: Series, name: str) -> Json:
    tried = [*line.numbers.values()]
    if not tried:
        return names("value", name)
    axis = quantity("value", name, log=min(tried) > 0 and max(tried) > LOGARITHMIC * min(tried))
    return axis | {"axis": {"values": sorted(tried), "format": ".3~g"}}  # only values that were tried have a label
