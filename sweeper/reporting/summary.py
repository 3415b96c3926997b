"""The summary at the end of a run: which loss, network and γ are best, the best trials, all trials by status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sweeper.analysis.judging import judge_claims, named_claims, verdict_lines
from sweeper.analysis.selection import best_set_line, confirmed_value
from sweeper.figures import curvature_against_gamma
from sweeper.reporting.first_screen import FirstScreen, first_screen, heading, legend
from sweeper.reporting.matrix import Matrix, MatrixCell, grid
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard, searcher
from sweeper.results.overview import overview, overview_table
from sweeper.results.pareto import front
from sweeper.search.base import written_method
from sweeper.text.cells import int_of, text_of
from sweeper.text.labels import plural

BEST = 3
"""Trials listed below the matrix; `sweeper results` lists more."""

MOST_REASONS = 3
"""Reasons of failures that are named; `sweeper results --sql` and the report have all."""


def summary(results: Results) -> RenderableType:
    """Return the summary of a sweep: headline, matrix and answers, best trials, trials by status, epochs saved.

    Raises QueryError where the tables cannot be read.
    """
    with results.snapshot() as snapshot:
        board, counts, reused = leaderboard(snapshot), overview(snapshot), reused_lines(snapshot)
        curvature, answered = curvature_against_gamma.draw(snapshot), first_screen(snapshot, board, counts)
        pareto = front(snapshot)
        chosen, confirmed = best_set_line(snapshot, board), confirmed_value(snapshot, board)
        judged, packed = verdicts_of(snapshot), [*packing_lines(snapshot), *searcher_lines(snapshot)]
        failed = failure_lines(snapshot)
    parts: list[RenderableType] = []
    for mark in results.marks:
        parts += [Text(mark, style="bold red"), Text()]
    shown = terminal(answered) if answered.matrix is not None else None
    parts += [overview_table(board, counts, shown, BEST, confirmed), *(Text(line, style="red") for line in failed)]
    parts += [Text(chosen)] if chosen else []
    parts += [Text(line) for line in (pareto.lines() if pareto is not None else ())]
    parts += [Text(line, style="dim") for line in packed]
    parts += [Text(line) for line in reused]
    parts += [Text(sentence) for sentence in judged]
    parts += [Text(finding) for finding in (curvature.findings if curvature is not None else ())]
    return Group(*parts)


def failure_lines(results: Results) -> list[str]:
    """Return why trials failed: each reason once, with the trials it ended; reasons may differ in their numbers."""
    rows = results.rows(
        "SELECT arg_min(reason, trial) AS reason, count(DISTINCT trial) AS n, min(trial) AS first FROM "
        "(SELECT trial, coalesce(error, stop_reason, 'unknown') AS reason FROM trials WHERE status = 'failed') "
        "GROUP BY regexp_replace(reason, '[0-9]+', '', 'g') ORDER BY n DESC, first"
    )
    lines = []
    for row in rows[:MOST_REASONS]:
        also = f" and {plural(int_of(row, 'n') - 1, 'other')}" if int_of(row, "n") > 1 else ""
        lines.append(f"failed: {row['first']}{also}: {row['reason']}")
    if len(rows) > MOST_REASONS:
        lines.append(f"failed: {len(rows) - MOST_REASONS} more reasons, see Failures in the report")
    return lines


def packing_lines(results: Results) -> list[str]:
    """Return how replicates shared processes, e.g. `replicates ran fused in 30 trials, sequentially in 18`.

    Nothing where all ran one after another, as is usual.
    """
    rows = results.rows(
        "SELECT packing, count(*) AS trials FROM (SELECT trial, min(packing) AS packing FROM trials "
        "WHERE packing IS NOT NULL GROUP BY trial HAVING count(*) > 1) GROUP BY packing ORDER BY trials DESC, packing"
    )
    named = {"trials": "in separate processes", "sequential": "sequentially", "fused": "fused", "cohort": "in cohorts"}
    found = [(text_of(row, "packing"), plural(int_of(row, "trials"), "trial")) for row in rows]
    counted = [f"{named.get(packing, packing)} in {trials}" for packing, trials in found]
    return [] if {packing for packing, _ in found} <= {"sequential"} else [f"replicates ran {', '.join(counted)}"]


def searcher_lines(results: Results) -> list[str]:
    """Return which searcher chose the configurations, and its warm start; nothing for random or grid draws."""
    asked = searcher(results)
    if not asked:
        return []
    counted = results.rows("SELECT count(DISTINCT trial) AS n FROM trials WHERE config_hash IS NOT NULL")[0]
    chosen = plural(int_of(counted, "n"), "configuration")
    lines = [f"{asked['name']} chose {chosen}: {written_method(asked).course}"]
    for source in results.manifest.get("warm_start", ()):
        outside = f"; {source['outside']} more were outside this space" if source["outside"] else ""
        trials = plural(source["observations"], "finished trial")
        lines.append(f"it started from {trials} of {source['sweep']}{outside}")
    return lines


def reused_lines(results: Results) -> list[str]:
    """Return one sentence on reused trials for each sweep that they came from."""
    if "reuse" not in results.manifest:
        return []
    rows = results.rows(
        "SELECT reused_from, count(DISTINCT trial) AS n, "
        "count(DISTINCT trial) FILTER (WHERE reused_epochs = epochs) AS whole "
        "FROM trials WHERE reused_from IS NOT NULL GROUP BY ALL ORDER BY ALL"
    )
    lines = []
    for row in rows:
        count = int_of(row, "n")
        further = count - int_of(row, "whole")
        line = f"{plural(count, 'trial')} reused from {row['reused_from']}"
        lines.append(line + (f", {further} of them trained for more epochs" if further > 0 else ""))
    return lines


def verdicts_of(results: Results) -> list[str]:
    """Return one sentence on each claim that the search space names."""
    names = named_claims(results)
    return verdict_lines(judge_claims(results, names), rehearsal=bool(results.rehearsed)) if names else []


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
