"""Terminal output: the summary of a finished sweep (first screen, trials by status), and comparisons of two sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from sweeper.core.cells import int_of, text_of
from sweeper.core.labels import label, plural
from sweeper.judging.question import OPEN
from sweeper.reporting.answering.answers import BEST, STOPPED, WORSE, Answer, Finalist, FirstScreen
from sweeper.reporting.figures.base import MARKS
from sweeper.reporting.first_screen import first_screen
from sweeper.reporting.methods import imported_methods, methods_view
from sweeper.reporting.sentences import (
    between_two,
    cells,
    deployment,
    interval,
    lacking,
    lead,
    legend,
    nll_words,
    objective_words,
    remedy,
    settings,
    signed,
)
from sweeper.reporting.tables import posthoc_tables
from sweeper.results import Results
from sweeper.results.estimators import ESTIMATORS, Judgement
from sweeper.results.leaderboard import leaderboard, searcher
from sweeper.results.listing import count_line, overview
from sweeper.results.verdicts import Estimates
from sweeper.search.base import written_method

#: Largest number of failure reasons listed. `sweeper results --sql` and the report show all.
MOST_REASONS = 3


def summary(results: Results) -> RenderableType:
    """Return the summary of a sweep: the lead, the finalists, trials by status and epochs saved.

    Raises QueryError if the tables cannot be read.
    """
    # All parts use one snapshot, so that the counts and the finalists of a running sweep are consistent.
    with results.snapshot() as snapshot:
        board, counts = leaderboard(snapshot), overview(snapshot)
        answered = first_screen(snapshot, board, counts)
        packed, failed = [*packing_lines(snapshot), *searcher_lines(snapshot)], failure_lines(snapshot)
        judged = imported_methods(snapshot)
        top = terminal(answered) if judged is None else Group(methods_view(judged), *warned(answered))
        methods = posthoc_methods(snapshot)
    parts = [part for mark in results.marks for part in (Text(mark, style="bold red"), Text())]
    after = [] if methods is None or judged is not None else [Text(), methods]
    after += [Text(), Text(count_line(counts)), *(Text(line, style="red") for line in failed)]
    after += [Text(line, style="dim") for line in packed]
    return Group(*parts, top, *after)


def posthoc_methods(results: Results) -> RenderableType | None:
    """Return the metrics of each post-hoc method for a sweep of one configuration; None for any other sweep.

    With several configurations, the question is which of them is the best. With one, it is which method is the best.
    """
    posthoc = posthoc_tables(results)
    if posthoc is None or len(posthoc.tables[0].rows) != 1 or len(posthoc.tables[0].methods) < 3:
        return None
    heads = (Column(label(table.metric), justify="right") for table in posthoc.tables)
    measured = "test" if posthoc.split == "test" else "cross-fitted"
    shown = Table(measured, *heads, box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for at, method in enumerate(posthoc.tables[0].methods):
        cells = [table.rows[0][2][at] for table in posthoc.tables]
        shown.add_row(method, *(Text(cell.text, style="bold" if cell.best else "") for cell in cells))
    reasons = dict.fromkeys(reason for table in posthoc.tables for _, reason in table.notes)
    return Group(shown, *(Text(f"– not fitted: {reason}", style="dim") for reason in reasons))


def failure_lines(results: Results) -> list[str]:
    """Return the reasons of failures, each with its number of trials."""
    # Failures of one kind, such as a lost node, have different texts but the same cause. Exceptions are distinguished
    # by their text.
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
    """Return how replicates shared processes, e.g. `replicates ran as lanes in 30 trials, sequentially in 18 trials`.

    Empty if all ran sequentially, which is the usual case.
    """
    rows = results.rows(
        "SELECT packing, count(*) AS trials FROM (SELECT trial, min(packing) AS packing FROM trials "
        "WHERE packing IS NOT NULL GROUP BY trial HAVING count(*) > 1) GROUP BY packing ORDER BY trials DESC, packing"
    )
    named = {"trials": "in separate processes", "sequential": "sequentially", "lanes": "as lanes"}
    packings = [(text_of(row, "packing"), plural(int_of(row, "trials"), "trial")) for row in rows]
    counted = [f"{named.get(packing, packing)} in {trials}" for packing, trials in packings]
    # Shown only if another packing was used, e.g. to explain a difference in time.
    return [] if {packing for packing, _ in packings} <= {"sequential"} else [f"replicates ran {', '.join(counted)}"]


def searcher_lines(results: Results) -> list[str]:
    """Return which searcher chose the configurations; empty for random and grid search."""
    asked = searcher(results)
    if not asked:
        return []
    counted = results.rows("SELECT count(DISTINCT trial) AS n FROM trials WHERE config_hash IS NOT NULL")[0]
    chosen = plural(int_of(counted, "n"), "configuration")
    return [f"{asked['name']} chose {chosen}: {written_method(asked).course}"]


#: Largest number of finalists in the terminal; the report shows all.
MOST_LINES = 14

#: Columns of the finalists. BOTH stands for the test NLL without and with temperature scaling.
BOTH, ACCURACY = "both", "acc."
CHANGE, INTERVAL, VERDICT = "change", "95 %", "verdict"

#: Columns that a narrow console loses, the first one first. The verdict already contains the change's sign.
DROPPED = (INTERVAL, CHANGE, VERDICT, BOTH, ACCURACY)

STYLES = {BEST: "bold", WORSE: "dim", STOPPED: "dim"}


def marked(values: Sequence[tuple[str, str]]) -> list[str]:
    """Return values, aligned to the right, each with its mark.

    Example:
        >>> marked([("0.0505", "best"), ("0.124", "worse")])
        ['0.0505 best', ' 0.124 worse']
    """
    width = max((len(value) for value, _ in values), default=0)
    return [f"{value:>{width}} {mark}".rstrip() for value, mark in values]


@dataclass(frozen=True)
class FinalistsTable:
    """The finalists by network, with intervals if the console is wide enough, lines of values, and a legend."""

    screen: FirstScreen
    answer: Answer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the widest table that fits."""
        # Rich would cut numbers to fit, so the natural width is measured first, in 10,000 characters.
        for dropped in range(len(DROPPED) + 1):
            table = self._table(DROPPED[:dropped])
            if Measurement.get(console, options.update(width=10_000), table).maximum <= options.max_width:
                break
        yield table
        if len(self.answer.finalists) > MOST_LINES:
            yield Text(f"{len(self.answer.finalists) - MOST_LINES} more: see the report", style="dim")
        # Where the table has lost its verdicts, sentences without any are left out, too; the report has all.
        yield from map(Text, settings(self.answer, brief=VERDICT in DROPPED[:dropped]))
        if (
            self.answer is self.screen.answers[-1]
            and VERDICT not in DROPPED[:dropped]
            and (said := legend(self.screen))
        ):
            yield Text(said, style="dim")

    def _table(self, dropped: Sequence[str]) -> Table:
        """Return the table without some of its columns."""
        answer, table = self.answer, Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        lines, (both, judged) = (
            [(line, cells(line, answer)) for line in answer.finalists[:MOST_LINES]],
            nll_words(answer),
        )
        heads = {
            _first_heading(answer): _names([line for line, _ in lines]),
            objective_words(answer): marked([(cell.value, cell.standing) for _, cell in lines]),
            ACCURACY: [cell.accuracy for _, cell in lines],
            both: marked([(cell.nll, cell.after) for _, cell in lines]),
            judged: marked([(cell.nll.rpartition(" ")[2], cell.after) for _, cell in lines]),
            "ECE → after T": [cell.ece for _, cell in lines],
            CHANGE: [cell.change for _, cell in lines],
            INTERVAL: [cell.around for _, cell in lines],
            VERDICT: [cell.verdict for _, cell in lines],
        }
        hidden = {*dropped, both if BOTH in dropped else judged}
        kept = {head: column for head, column in heads.items() if any(column) and head not in hidden}
        for at, head in enumerate(kept):
            # If even the fewest columns do not fit, names wrap instead of numbers.
            table.add_column("" if head == VERDICT else head, no_wrap=at > 0)
        of_network = Counter(line.network for line, _ in lines)
        before = lines[0][0].network
        for at, (line, _) in enumerate(lines):
            # The network is a separate line where it changes. As a column, it would repeat itself.
            if line.network != before and of_network[line.network] > 1:
                table.add_row(Text(line.network, style="italic"))
            before = line.network
            table.add_row(*(Text(column[at], style=STYLES.get(line.standing, "")) for column in kept.values()))
        return table


def _first_heading(answer: Answer) -> str:
    """Return the heading of the names: the first network if there are several."""
    return "loss" if len({line.network for line in answer.finalists}) == 1 else f"on {answer.finalists[0].network}"


def _names(lines: Sequence[Finalist]) -> list[str]:
    """Return the finalists' names: the loss in the first row of several, the network in its only row."""
    before, named = [None, *lines[:-1]], list[str]()
    count, first = Counter(line.network for line in lines), lines[0].network
    for other, line in zip(before, lines, strict=True):
        again = other is not None and (other.loss, other.network) == (line.loss, line.network)
        words = f"  {line.setting}" if again and line.setting else line.words
        named.append(f"{words} on {line.network}" if count[line.network] == 1 and line.network != first else words)
    return named


def terminal(screen: FirstScreen) -> RenderableType:
    """Return the first screen for a terminal: leads and finalists per data set setting, warnings, next command."""
    parts: list[RenderableType] = []
    for answer in screen.answers:
        parts.append(Text.assemble((lead(answer), "bold"), f" {deployment(answer)}".rstrip()))
        parts.append(FinalistsTable(screen, answer))
        parts += [Text(said)] if (said := remedy(answer)) else []
    parts += [] if screen.answers else [Text(screen.missing, style="bold")]
    parts += [Text(screen.class_one)] if screen.class_one else []
    parts += warned(screen)
    return Group(*parts)


def warned(screen: FirstScreen) -> list[RenderableType]:
    """Return the warnings of a screen."""
    return [Text(f"Warning: {warning}", style="yellow") for warning in screen.warnings]


def compared(comparisons: Sequence[Estimates]) -> RenderableType:
    """Return two tables per network, with one row per estimator: first side minus second, and effects of methods."""
    parts: list[RenderableType] = []
    for estimates in comparisons:
        (first, one), (second, other) = estimates.sides
        before, after = estimates.shown("uncalibrated"), estimates.shown("after temperature")
        if before is not None and after is not None:
            parts.append(Text(between_two(first, second, before, after), style="bold"))
        seeds = " and ".join(map(str, dict.fromkeys(estimates.seeds)))
        sides = f"{estimates.network}: {first} ({one}), {second} ({other})"
        parts.append(Text(f"{sides}; {seeds} seeds, {estimates.samples:,} test samples"))
        parts += [_estimators(f"{first} − {second}", estimates.stages)]
        parts += [_estimators("after − before", estimates.changes)]
        parts += [Text(MARKS_LEGEND.format(estimates.margin), style="dim"), Text()]
    return Group(*parts[:-1])


def _estimators(title: str, stages: Mapping[str, Sequence[Judgement]]) -> Table:
    table = Table(title, *stages, box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    # A stage may lack an estimator. For example, refinement has no value after a post-hoc method.
    by_name = [{one.estimator: one for one in every} for every in stages.values()]
    for estimator in ESTIMATORS:
        if any(estimator in stage for stage in by_name):
            table.add_row(estimator, *(_judgement(stage.get(estimator)) for stage in by_name))
    return table


def _judgement(one: Judgement | None) -> str:
    if one is None:
        return ""
    end = f"; {lacking(one)}" if one.code == OPEN else ""
    return f"{MARKS[one.code]} {signed(one.means[0] - one.means[1])} ({interval(one)}{end})"


MARKS_LEGEND = (
    "Smaller is better by every estimator. ✓ lower, ✗ higher: the 95 % interval over seeds and samples excludes 0; "
    "≈ no difference larger than {:g}; ? open, with what it needs."
)
