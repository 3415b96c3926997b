"""The first screen of a sweep: the questions that it is run for, each answered in a sentence, below the best cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sweeper.analysis.recalibration.request import Effect, effects
from sweeper.analysis.statistics.best_set import SURE
from sweeper.figures.posthoc_temperature import posthoc_sql
from sweeper.reporting.matrix import Matrix, MatrixCell, Measured, best_after, grid, matrix
from sweeper.reporting.settings import QUESTION, Setting, setting_sentence, settings_of
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Leaderboard
from sweeper.results.overview import Overview
from sweeper.text.cells import Row, float_or_none
from sweeper.text.labels import describe, number
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


@dataclass(frozen=True)
class MatrixTable:
    """One slice of the matrix: with intervals where the console is wide enough, in parts where it is narrow."""

    matrix: Matrix
    place: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the widest table that fits."""
        networks = list(range(len(self.matrix.networks())))
        for intervals in (True, False):
            table = self._table(networks, intervals)
            if Measurement.get(console, options.update(width=10_000), table).maximum <= options.max_width:
                yield table
                return
        for part in self._parts(console, options, networks):
            yield self._table(part, intervals=False)

    def _parts(self, console: Console, options: ConsoleOptions, networks: Sequence[int]) -> Iterator[list[int]]:
        """Yield the networks in parts that fit, one at least in each."""
        part: list[int] = []
        for network in networks:
            wider = self._table([*part, network], intervals=False)
            if part and Measurement.get(console, options.update(width=10_000), wider).maximum > options.max_width:
                yield part
                part = []
            part.append(network)
        yield part

    def _table(self, networks: Sequence[int], intervals: bool) -> Table:
        names = self.matrix.networks()
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
        table.add_column(self.place, no_wrap=True)
        for network in networks:
            table.add_column(names[network], no_wrap=True)
        for family, cells in grid(self.matrix, self.place):
            table.add_row(family, *(cell_text(cells[network], intervals) for network in networks))
        return table


def cell_text(cell: MatrixCell | None, intervals: bool) -> Text:
    """Return a cell for the terminal: the best one bold, those that may be as good marked with ≈."""
    if cell is None:
        return Text("–", style="dim")
    text = cell.values if intervals else cell.means
    stopped = "" if cell.state.startswith("best") else " *"
    style = {"best": "bold", "worse": "dim"}.get(cell.mark, "")
    return Text(f"{'≈ ' if cell.mark == 'alike' else ''}{text}{stopped}", style=style)


def terminal(found: FirstScreen) -> RenderableType:
    """Return the matrix with its legend, and the answers."""
    parts: list[RenderableType] = []
    if found.matrix is not None:
        parts += [Text(heading(found.matrix))]
        parts += [MatrixTable(found.matrix, place) for place in found.matrix.slices]
        parts += [Text(legend(found.matrix), style="dim"), Text()]
    for question, sentence in found.answers:
        # A γ for each loss and network: each on a line of its own.
        lines = sentence.replace("; ", "\n  ") if question.startswith("Which") else sentence
        parts.append(Text.assemble((f"{question}: ", "bold"), lines))
    return Group(*parts)


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
