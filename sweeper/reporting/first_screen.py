"""The first screen of a sweep, gathered from its tables, and as a terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sweeper.analysis.recalibration.request import Effect, effects
from sweeper.analysis.statistics.best_set import SURE
from sweeper.reporting.answers import Answers, answers
from sweeper.reporting.figure_parts.posthoc import posthoc_sql
from sweeper.reporting.matrix import Cell, Matrix, Measured, grid, matrix
from sweeper.results import Results
from sweeper.results.leaderboard import Leaderboard
from sweeper.results.overview import Overview
from trainables.registry import entry_label

MOST_METHODS = 3
"""Post-hoc methods that the first screen names; the report's table has all."""


def first_screen(results: Results, board: Leaderboard, counts: Overview) -> Answers:
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
            table.add_row(family, *(shown(cells[network], intervals) for network in networks))
        return table


def shown(cell: Cell | None, intervals: bool) -> Text:
    """Return a cell for the terminal: the best one bold, those that may be as good marked with ≈."""
    if cell is None:
        return Text("–", style="dim")
    text = cell.values if intervals else cell.means
    stopped = "" if cell.state.startswith("best") else " *"
    style = {"best": "bold", "worse": "dim"}.get(cell.mark, "")
    return Text(f"{'≈ ' if cell.mark == 'alike' else ''}{text}{stopped}", style=style)


def terminal(found: Answers) -> RenderableType:
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
