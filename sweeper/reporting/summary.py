"""The summary at the end of a run: the first screen as a terminal shows it, and all trials by status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sweeper.reporting.first_screen import FirstScreen, first_screen, legend
from sweeper.reporting.matrix import Matrix
from sweeper.reporting.picture import ALIKE, BEST, STOPPED, UNKNOWN, WORSE, Dot, Picture
from sweeper.results import Results
from sweeper.results.leaderboard import front, leaderboard, searcher
from sweeper.results.listing import count_line, overview
from sweeper.search.base import written_method
from sweeper.text.cells import int_of, text_of
from sweeper.text.labels import plural

#: Columns of the picture's axis below which it is left out.
LEAST_STRIP = 12

MOST_STRIP = 48

#: Dots that the terminal shows; the report has all.
MOST_LINES = 16

#: Reasons of failures that are named; `sweeper results --sql` and the report have all.
MOST_REASONS = 3


def summary(results: Results) -> RenderableType:
    """Return the summary of a sweep: the picture, the answers, trials by status and epochs saved.

    Raises QueryError where the tables cannot be read.
    """
    with results.snapshot() as snapshot:
        board, counts = leaderboard(snapshot), overview(snapshot)
        answered, pareto = first_screen(snapshot, board, counts), front(snapshot)
        packed, failed = [*packing_lines(snapshot), *searcher_lines(snapshot)], failure_lines(snapshot)
    parts = [part for mark in results.marks for part in (Text(mark, style="bold red"), Text())]
    after = [Text(), Text(count_line(counts)), *(Text(line, style="red") for line in failed)]
    after += map(Text, pareto.lines() if pareto is not None else ())
    after += [Text(line, style="dim") for line in packed]
    return Group(*parts, terminal(answered), *after)


def failure_lines(results: Results) -> list[str]:
    """Return why trials failed: each reason once, with the trials it ended; exceptions count apart by text."""
    rows = results.rows(
        "SELECT arg_min(error, trial) AS reason, count(DISTINCT trial) AS n, min(trial) AS first FROM trials "
        "WHERE status = 'failed' GROUP BY stop_kind, CASE stop_kind WHEN 'error' THEN error END ORDER BY n DESC, first"
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
    """Return which searcher chose the configurations; nothing for random or grid draws."""
    asked = searcher(results)
    if not asked:
        return []
    counted = results.rows("SELECT count(DISTINCT trial) AS n FROM trials WHERE config_hash IS NOT NULL")[0]
    chosen = plural(int_of(counted, "n"), "configuration")
    return [f"{asked['name']} chose {chosen}: {written_method(asked).course}"]


SYMBOLS = {BEST: "●", ALIKE: "●", WORSE: "•", STOPPED: "○", UNKNOWN: "•"}
STYLES = {BEST: "bold", WORSE: "dim", STOPPED: "dim"}


@dataclass(frozen=True)
class PictureTable:
    """The picture as a table: with an axis where the console is wide enough, with fewer columns where it is narrow."""

    matrix: Matrix
    drawn: Picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the widest table that fits."""
        for columns in (5, 4, 3, 2):
            table = self._table(columns, 0)
            width = Measurement.get(console, options.update(width=10_000), table).maximum
            if width <= options.max_width or columns == 2:
                break
        spare = options.max_width - width - 2
        yield self._table(columns, min(spare, MOST_STRIP)) if spare >= LEAST_STRIP else table
        sign = "◇ " if spare >= LEAST_STRIP else ""
        left_out = len(self.drawn.dots) - MOST_LINES
        if left_out > 0:
            yield Text(f"{left_out} more: see the report", style="dim")
        yield Text(legend(self.matrix, self.drawn, beside=columns == 5, sign=sign), style="dim")

    def _table(self, columns: int, strip: int) -> Table:
        """Return the table with the first `columns` after loss and network, and an axis of `strip` characters."""
        drawn, table = self.drawn, Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        first = "" if len({dot.network for dot in drawn.dots}) < 2 else "network"
        heads = [first, "loss", "", "mean", "95 %", "words", "other"][: 2 + columns]
        heads = [head for head in heads if head != "other" or drawn.other]
        for head in heads:
            words = {"other": drawn.other, "words": ""}.get(head, head)
            table.add_column(words, justify="right" if head in ("mean", "other") else "left", no_wrap=columns > 2)
        if strip:
            ticks = [*drawn.scale.ticks().items()]
            table.add_column(_axis_text(ticks, strip), no_wrap=True)
        before = ("", "")
        for dot in drawn.dots[:MOST_LINES]:
            if dot.place and dot.place != before[0]:
                table.add_row(Text(dot.place, style="dim"))
            network = "" if (dot.place, dot.network) == before else dot.network
            before = dot.place, dot.network
            cells = {"": SYMBOLS[dot.mark], "mean": dot.value, "95 %": dot.interval, "words": dot.words}
            cells |= {"other": dot.other, "loss": dot.loss}
            line = [network, *(cells[head] for head in heads[1:])]
            style = STYLES.get(dot.mark, "")
            drawing = [_strip(dot, strip)] if strip else []
            table.add_row(line[0], *(Text(cell, style=style) for cell in (*line[1:], *drawing)))
        return table


def _column(place: float, width: int) -> int:
    return min(width - 1, int(place / 100 * width))


def _strip(dot: Dot, width: int) -> str:
    """Return a dot with its interval on an axis of `width` characters."""
    line = [" "] * width
    if dot.low is not None and dot.high is not None:
        first, last = _column(dot.low, width), _column(dot.high, width)
        line[first : last + 1] = "─" * (last - first + 1)
    if dot.beside is not None:
        line[_column(dot.beside, width)] = dot.diamond
    line[_column(dot.at, width)] = SYMBOLS[dot.mark]
    return "".join(line)


def _axis_text(ticks: Sequence[tuple[float, str]], width: int) -> str:
    """Return the labels of an axis, each where its value lies, those that fit."""
    line = ""
    for place, words in ticks:
        at = _column(place, width)
        if (not line or len(line) < at) and at + len(words) <= width:
            line = line.ljust(at) + words
    return line.ljust(width)


def terminal(found: FirstScreen) -> RenderableType:
    """Return the picture with what its signs mean, and the answers."""
    parts: list[RenderableType] = [Text(found.verdict, style="bold")] if found.verdict else []
    if found.matrix is not None and found.picture is not None:
        parts += [Text(found.picture.caption, style="bold"), PictureTable(found.matrix, found.picture), Text()]
    for question, sentence in found.answers:
        # A γ for each loss and network: each on a line of its own.
        first, *more = sentence.split("\n")
        lines = [first] if not more else ["", *(f"  {line}" for line in (first, *more))]
        parts.append(Text.assemble((f"{question}: ", "bold"), "\n".join(lines)))
    return Group(*parts)
