"""A sweep's headline and counts, and its configurations as a table that fits the terminal.

Used by the summary at the end of a run, by notebooks and by `sweeper results`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING

import pyarrow as pa
import yaml
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sweeper.core.cells import Row, Rows, Value, float_or_none, int_of, text_of
from sweeper.core.errors import SweeperError
from sweeper.core.labels import AFTER_METHODS, STATUS_WORDS, duration, label, plural, short
from sweeper.core.schemas import REHEARSAL
from sweeper.results.leaderboard import Leaderboard, leaderboard
from sweeper.results.queries import VIEWS
from trainables.curvature.statistics.base import measured_loss, statistic_of
from trainables.metrics.base import metric_of
from trainables.registry.names import nearest

if TYPE_CHECKING:
    from sweeper.results.results import Results


#: Number of configurations that `sweeper results` prints by default. With the headings they fill a screen.
TOP = 10

#: Smallest width of a configuration in characters. If less is available, spare columns are dropped; if that does not
#: suffice, the configuration moves to a separate line.
LEAST_WORDS = 30

#: A trial's status in one word.
SHORT_STATUS = {**STATUS_WORDS, "early_stopped": "stopped"}


@dataclass(frozen=True)
class Heading:
    """A column of the table.

    Attributes:
        column: name of the leaderboard's column.
        words: heading.
        scale: factor by which values are multiplied.
        spare: whether the column is dropped in a narrow terminal.
    """

    column: str
    words: str
    scale: float = 1.0
    spare: bool = False


@dataclass(frozen=True)
class TrialsTable:
    """Rows of a leaderboard. Numbers are never cut; a configuration is shortened or moved to a separate line."""

    board: Leaderboard
    rows: Rows
    headings: Sequence[Heading]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for the terminal's width."""

        # Rich would cut numbers to make a table fit, so the natural width is measured first, in 10,000 characters.
        def width(headings: Sequence[Heading], status: bool) -> int:
            table = self._table(headings, status=status, words=False)
            return Measurement.get(console, options.update(width=10_000), table).maximum

        mixed = len({row["status"] for row in self.rows}) > 1
        # Three attempts: all columns, without spare ones, and the configurations below the table.
        kept = [heading for heading in self.headings if not heading.spare]
        for headings in (self.headings, kept):
            if options.max_width - width(headings, mixed) >= LEAST_WORDS:
                yield self._table(headings, status=mixed, words=True)
                break
        else:
            yield self._table(kept, status=mixed and width(kept, mixed) <= options.max_width, words=False)
            for row in self.rows:
                yield Text(f"{row['trial']}: {self.board.describe(row)}", style="dim")

    def _table(self, headings: Sequence[Heading], *, status: bool, words: bool) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", expand=words)
        table.add_column("trial", no_wrap=True)
        for heading in headings:
            table.add_column(heading.words, justify="right", no_wrap=True)
        if status:
            table.add_column("status", no_wrap=True)
        if words:
            table.add_column("configuration", no_wrap=True, overflow="ellipsis", ratio=1)
        for row in self.rows:
            described = [self.board.describe(row)] if words else []
            table.add_row(*self.cells(row, headings, status=status), *described)
        return table

    def cells(self, row: Row, headings: Sequence[Heading], *, status: bool) -> list[str]:
        """Return a row's trial, numbers, and status; raises LookupError or TypeError if others edited the tables."""
        values = [cell(self.board, row, heading) for heading in headings]
        values += [SHORT_STATUS[text_of(row, "status")]] if status else []
        return [text_of(row, "trial"), *values]


def usual_headings(board: Leaderboard) -> list[Heading]:
    """Return the summary's columns, without those that were not measured."""
    headings = (
        Heading("judged", board.objective.label),
        Heading("test_accuracy", "test accuracy %", scale=100.0),
        Heading("test_ece", "test ECE"),
        Heading("test_posthoc_temperature_ece", "ECE after T", spare=True),
    )
    return [heading for heading in headings if any(row.get(heading.column) is not None for row in board.rows)]


def listed(
    results: Results,
    columns: Sequence[str] = (),
    sort: str | None = None,
    by: str | None = None,
    *,
    everything: bool = False,
) -> TrialsTable:
    """Return the table that `sweeper results` prints.

    Args:
        results: the sweep.
        columns: columns of the leaderboard, such as `test_nll` or `config_loss_gamma`; the summary's by default.
        sort: column to sort by, with a leading `-` for largest first; the leaderboard's order by default.
        by: metric that decides which configuration is best; the sweep's objective by default.
        everything: return all rows, not only the first TOP.

    Raises:
        SweeperError: an unknown column; the message has the nearest names.
        LookupError, TypeError: another program has edited the tables, see `Results.snapshot`.
    """
    most = None if everything else TOP
    board = leaderboard(results, most, by)
    headings = [Heading(name, heading_of(board, name)) for name in chosen(board, columns)] or usual_headings(board)
    rows = board.rows if sort is None else results.sql(sorted_sql(board, sort), most=most).to_pylist()
    table = TrialsTable(board, rows, headings)
    for row in rows:
        # A value that does not fit is named here, in the snapshot; the table is drawn when the files are closed.
        table.cells(row, headings, status=True)
    return table


def count_of_listed(results: Results) -> int:
    """Return the number of configurations that `listed` shows with `everything`."""
    return int_of(results.rows("SELECT count(DISTINCT trial) AS n FROM final")[0], "n")


def chosen(board: Leaderboard, columns: Sequence[str]) -> list[str]:
    """Return the requested columns after checking them; names can be separated by commas and omit `config_`."""
    known = names_of(board)
    names = []
    for name in (part.strip() for text in columns for part in text.split(",") if part.strip()):
        match = next((candidate for candidate in (name, f"config_{name}") if candidate in known), None)
        if match is None and board.rows:  # without rows the columns are not known
            near = nearest(name, known)
            raise SweeperError(f"there is no column {name!r}{near}", f"columns: {', '.join(known)}")
        names.append(match or name)
    return names


def names_of(board: Leaderboard) -> list[str]:
    """Return the columns that can be requested; standard deviations are printed with their means."""
    first = board.rows[0] if board.rows else {}
    return [name for name in first if not name.endswith("_sd") and name not in ("trial",)]


def sorted_sql(board: Leaderboard, sort: str) -> str:
    """Return the board's query sorted by one column, missing values last. Raises SweeperError for an unknown column."""
    # NaN is converted to NULL by comparing text, since `isnan` refuses columns of text.
    (name,) = chosen(board, [sort.removeprefix("-")]) or ("trial",)
    direction = "DESC" if sort.startswith("-") else "ASC"
    return (
        f"SELECT * FROM (\n{board.sql}\n)\n"
        f"ORDER BY CASE WHEN {name}::VARCHAR <> 'nan' THEN {name} END {direction} NULLS LAST, trial"
    )


def missing(value: Value) -> bool:
    """Return whether a value is NULL or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def heading_of(board: Leaderboard, name: str) -> str:
    """Return the heading of a column."""
    if name == "judged":
        return board.objective.label
    if name.startswith("config_"):
        return short(name, board.symbols)
    split, _, metric = name.partition("_")
    return f"{label(split)} {label(metric)}" if split in ("val", "test") else label(name)


def cell(board: Leaderboard, row: Row, heading: Heading) -> str:
    """Return a cell's text: mean ± standard deviation if there is one, else four significant digits."""
    value = row.get(heading.column)
    if row.get(f"{heading.column}_sd") is not None:
        return board.value(row, heading.column, heading.scale)
    if missing(value):
        return "–"
    if isinstance(value, float):
        return f"{value * heading.scale:.4g}"
    return STATUS_WORDS.get(str(value), str(value))


SHOWN = ("trial", "status", "epochs", "replicates", "judged", "judged_sd")
TESTED = ("test_accuracy", "test_nll", "test_ece", "test_posthoc_temperature_ece")


def best_trials(
    results: Results, columns: Sequence[str] = (), sort: str | None = None, by: str | None = None
) -> pa.Table:
    """Return every evaluated configuration, best first, as data for `sweeper results --format csv` and similar formats.

    Args:
        results: the sweep.
        columns: as in `listed`; by default status, objective, varying hyperparameters and metrics on test data.
        sort: as in `listed`.
        by: metric that decides which configuration is best; the sweep's objective by default.

    Raises:
        SweeperError: an unknown column, or a metric that was not measured.
    """
    board = leaderboard(results, 1, by)
    present = set(board.rows[0]) if board.rows else set()
    usual = [name for name in (*SHOWN, *board.varying, *TESTED) if name in present]
    wanted = ["trial", *chosen(board, columns)] if columns else usual
    table = results.sql(board.sql if sort is None or not board.rows else sorted_sql(board, sort))
    table = table.select([*dict.fromkeys(wanted)]) if wanted else table
    if results.rehearsed:  # a file has no notice like the terminal's, so every row is marked
        table = table.append_column(REHEARSAL, pa.array([True] * table.num_rows))
    return table


#: Suffix of a column that describes another column → beginning of its description.
ENDINGS = {"_se": "standard error of ", "_unavailable": "why it could not be measured: "}


def columns_table(results: Results) -> pa.Table:
    """Return one row per column of a sweep's tables and the view `final`: `table column type meaning`."""
    rows = []
    for table in VIEWS:
        schema = results.sql(f"SELECT * FROM {table} LIMIT 0", trials=()).schema
        rows += [
            {"table": table, "column": field.name, "type": str(field.type), "meaning": meaning(field.name)}
            for field in schema
        ]
    return pa.Table.from_pylist(rows)


@functools.cache
def column_words() -> dict[str, str]:
    """Return column → meaning for the columns that are not a metric, method, statistic or hyperparameter."""
    words: dict[str, str] = yaml.safe_load(
        resources.files("sweeper.results").joinpath("columns.yaml").read_text("utf-8")
    )
    return words


def meaning(column: str) -> str:
    """Return the meaning of a column, e.g. `expected calibration error, in [0, 1]; smaller is better`."""
    if (known := column_words().get(column)) is not None:
        return known
    if (statistic := statistic_of(column)) is not None:
        loss, described = statistic
        words = ": ".join(filter(None, (label(column), described.summary)))
        return f"{words}; Hessian of {measured_loss(loss)}"
    for ending, words in ENDINGS.items():
        if column.endswith(ending):
            return f"{words}{label(column.removesuffix(ending))}"
    if column.startswith("config_"):
        part, _, rest = column.removeprefix("config_").partition("_")
        return f"name of the {part}" if rest == "name" else f"hyperparameter {rest} of the {part}"
    metric = metric_of(column)
    if metric is None:
        return label(column)
    better = {"min": "; smaller is better", "max": "; larger is better"}.get(metric.mode or "", "")
    after = f"{label(column)}: " if column.startswith(AFTER_METHODS) else ""
    return f"{after}{metric.summary or metric.words}, in {metric.range_text}{better}"


#: If only some replicates of a trial failed, the trial has the status of the others, so failed rows sort last.
STATUS_SQL = (
    "SELECT status, count(*) AS trials FROM (SELECT DISTINCT ON (trial) trial, status FROM trials ORDER BY trial, "
    "status = 'failed', replicate) GROUP BY status ORDER BY trials DESC"
)

#: `wall_seconds` is each replicate's share of its trial's time, so the sum over rows is the time spent in trials.
SUMS_SQL = (
    "SELECT count(*) AS replicates, coalesce(sum(epochs), 0)::BIGINT AS trained,\n"
    "  coalesce(sum({limit} - epochs) FILTER (status = 'early_stopped'), 0)::BIGINT AS saved,\n"
    "  sum(wall_seconds) AS worked, (SELECT max(decided_at) FROM decisions) AS last FROM trials"
)

RUNGS_SQL = (
    "SELECT rung, count(*) AS judged, count(*) FILTER (kind = 'stop') AS stopped\n"
    "FROM decisions WHERE rung IS NOT NULL AND kind IN ('stop', 'continue') GROUP BY rung ORDER BY rung"
)


@dataclass(frozen=True)
class Overview:
    """Counts of a sweep.

    Attributes:
        statuses: status → number of trials.
        trials: number of trials.
        replicates: number of replicates of all trials.
        trained: epochs trained, summed over replicates.
        saved: epochs that early stopping saved, summed over replicates.
        full: number of epochs if every replicate were trained to the maximum.
        rungs: one row per rung, `rung judged stopped`.
        limit: maximum number of epochs of a replicate.
        worked: seconds spent in trials, summed.
        elapsed: seconds from the sweep's start to its last decision; None before the first.
    """

    statuses: Mapping[str, int]
    trials: int
    replicates: int
    trained: int
    saved: int
    full: int
    rungs: Rows
    limit: int
    worked: float
    elapsed: float | None

    def count(self, *names: str) -> int:
        """Return the number of trials with one of these statuses."""
        return sum(self.statuses.get(name, 0) for name in names)


def overview(results: Results) -> Overview:
    """Return the counts of a sweep."""
    statuses = {text_of(row, "status"): int_of(row, "trials") for row in results.rows(STATUS_SQL)}
    limit = epoch_limit(results)
    sums = results.rows(SUMS_SQL.format(limit=limit))[0]
    replicates = int_of(sums, "replicates")
    return Overview(
        statuses=statuses,
        trials=sum(statuses.values()),
        replicates=replicates,
        trained=int_of(sums, "trained"),
        saved=int_of(sums, "saved"),
        full=limit * replicates,
        rungs=results.rows(RUNGS_SQL),
        worked=float_or_none(sums, "worked") or 0.0,
        limit=limit,
        elapsed=elapsed(results.manifest.get("created"), sums["last"]),
    )


def epoch_limit(results: Results) -> int:
    """Return the sweep's maximum number of epochs; without a search space, the largest that any trial trained."""
    longest = int_of(results.rows("SELECT coalesce(max(epochs), 0) AS epochs FROM trials")[0], "epochs")
    return int(results.specification.get("scheduler", {}).get("max_epochs") or longest)


def elapsed(created: object, last: Value) -> float | None:
    """Return the seconds from the manifest's time of creation to the last decision; None if either is unknown."""
    if not isinstance(last, datetime) or not isinstance(created, str):
        return None
    began = datetime.fromisoformat(created)
    # Tables store UTC. A manifest may have a time zone or not, and Python cannot subtract times with and without one.
    both = [moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in (began, last)]
    # Not below 0, because the clocks of two machines may differ by more than a short sweep took.
    return max(0.0, (both[1] - both[0]).total_seconds())


#: Test metrics of the best configuration: column, sentence, factor.
DETAILS = (
    ("test_accuracy", "accuracy {} %", 100),
    ("test_nll", "NLL {}", 1),
    ("test_ece", "ECE {}", 1),
    ("test_posthoc_temperature_ece", "ECE after temperature scaling {}", 1),
)


def headline(board: Leaderboard) -> str:
    """Return the best configuration and its test metrics, in one sentence."""
    best = board.best
    if best is None:
        return "Every evaluated trial has failed." if board.rows else "No trial has been evaluated yet."
    caution = "" if board.finished else f" None has finished; this one was evaluated at epoch {best['epochs']}."
    return " ".join([f"{best['trial']}, {board.describe(best)}.", *details(board)]) + caution


def details(board: Leaderboard) -> list[str]:
    """Return a sentence with the test metrics of the best configuration; nothing without test data."""
    best = board.best
    if best is None:
        return []
    there = ((text, scale, column) for column, text, scale in DETAILS if best.get(column) is not None)
    measured = ", ".join(text.format(board.value(best, column, scale)) for text, scale, column in there)
    return [f"On test data, not used for selection ({best['trial']}): {measured}."] if measured else []


def count_line(counts: Overview) -> str:
    """Return trials by status and the epochs saved, e.g. `48 trials (60 trainings): 8 finished, 40 stopped · …`."""
    named = [f"{counts.count(status)} {words}" for status, words in STATUS_WORDS.items() if counts.count(status)]
    more = f" ({plural(counts.replicates, 'training')})" if counts.replicates > counts.trials else ""
    parts = [f"{plural(counts.trials, 'trial')}{more}: {', '.join(named)}"]
    if counts.saved:
        parts.append(f"early stopping saved {counts.saved:,} of {counts.saved + counts.trained:,} epochs")
    if counts.worked:
        parts.append(f"{duration(counts.worked)} of trial time")
    return " · ".join(parts)
