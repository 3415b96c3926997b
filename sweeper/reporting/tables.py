"""A sweep's tables: data for the report's tables, which the page draws, sorts and filters, and the table for papers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import NamedTuple

from sweeper.core.cells import Row, Rows, Value, grouped, int_of, measured_or_none, measured_values, text_of
from sweeper.core.display import DAGGER, NumberCell, TableText
from sweeper.core.errors import SweeperError
from sweeper.core.labels import STATUS_WORDS, describe, label, number, plural, short, symbols_of
from sweeper.core.schemas import REHEARSAL
from sweeper.core.statistics.basics import decimals, spread, spread_text
from sweeper.journal.reasons import row_text
from sweeper.reporting.answering.matrix import Measured, evaluated, matrix, measure
from sweeper.reporting.figures.configurations import MOST_POINTS, evenly
from sweeper.reporting.sentences import SURE
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Goal, Leaderboard, leaderboard, varying_columns
from sweeper.results.listing import meaning
from sweeper.results.posthoc import Posthoc, Variant, posthoc_measurements
from sweeper.results.recalibration import at_bound
from trainables.curvature.statistics.base import headline_columns
from trainables.metrics.base import larger_is_better

DECISIONS_SQL = "SELECT * FROM decisions ORDER BY decided_at DESC, trial DESC, epoch DESC"

FAILURES_SQL = "SELECT * FROM trials WHERE status = 'failed' OR error IS NOT NULL ORDER BY trial, replicate"


@dataclass(frozen=True)
class DataTable:
    """A table of the report.

    Attributes:
        key: identifier and anchor.
        title: heading.
        caption: description of content and order.
        columns: `{"label": …, "kind": "text" | "number" | "spread" | "percent" | "status" | "time", "meaning": …}`.
        rows: one list per row; a spread is [mean, standard deviation or None].
        status: index of the column that the page's filter uses, or None.
        sql, tables: query of the rows and the tables that it reads.
    """

    key: str
    title: str
    caption: str
    columns: list[dict[str, str]]
    rows: list[list[object]]
    sql: str
    tables: tuple[str, ...]
    status: int | None = None


def column(heading: str, kind: str = "number", meaning: str = "") -> dict[str, str]:
    """Return the description of a column; its meaning is the heading's tooltip."""
    return {"label": heading, "kind": kind, "meaning": meaning}


def trials_table(board: Leaderboard) -> DataTable:
    """Return evaluated configurations with hyperparameters and metrics, best first: at most twice MOST_POINTS."""
    goal, others = board.objective, board.rows[len(board.finished) :]  # finished ones come first
    listed, few = [*board.finished[:MOST_POINTS], *evenly(others, MOST_POINTS)], ""
    if len(listed) < len(board.rows):
        few = (
            f" Listed are the best {MOST_POINTS:,} of {len(board.finished):,} finished configurations and, evenly, "
            f"{MOST_POINTS:,} of {len(others):,} others; `sweeper results --all` prints all."
        )
    measured = [
        ("judged", goal.label, "spread"),
        ("test_ece", "test ECE", "spread"),
        ("test_posthoc_temperature_ece", "test ECE after T", "spread"),
        ("test_accuracy", "test accuracy %", "percent"),
        ("test_nll", "test NLL", "spread"),
        ("test_brier", "test Brier", "spread"),
        ("test_aurc", "test AURC", "spread"),
        *((name, f"val {label(name)}", "spread") for name in headline_columns()),
    ]
    measured = [line for line in measured if board.rows and line[0] in board.rows[0]]
    columns = [column("trial", "text"), column("configuration", "text"), column("status", "status"), column("epoch")]
    columns += [column(heading, kind, meaning(name.removeprefix("test_"))) for name, heading, kind in measured]
    columns += [column("replicates")]
    # A column that contains text is sorted as text, since the page cannot compare names with numbers.
    texts = {name for name in board.varying if any(isinstance(row[name], str) for row in board.rows)}
    columns += [column(short(name, board.symbols), "text" if name in texts else "number") for name in board.varying]
    rows: list[list[object]] = []
    for row in listed:
        values = [[row[name], row[f"{name}_sd"]] for name, _, _ in measured]
        settings = [row[name] for name in board.varying]
        rows.append(
            [row["trial"], board.describe(row), row["status"], row["epochs"], *values, row["replicates"], *settings]
        )
    caption = (
        f"Each configuration at its last evaluation: finished ones first, sorted by {goal.label}. "
        "Mean ± standard deviation over replicates. Test data are not used for sorting."
        f"{few}"
    )
    return DataTable("trials", "Trials", caption, columns, rows, board.sql, ("evaluations", "trials"), status=2)


def decisions_table(results: Results, left_out: Collection[object] = ()) -> DataTable:
    """Return the scheduler's decisions, newest first, without those on some trials."""
    columns = [
        column("trial", "text"), column("decision", "text"), column("epoch"), column("reason", "text"),
        column("metric"), column("cut-off"), column("place"), column("count"), column("quota"),
        column("stratum", "text"), column("rung"), column("time (UTC)", "time"),
    ]  # fmt: skip
    decisions = results.rows(DECISIONS_SQL)
    caption = (
        "Why each trial continued or was stopped, newest first: its metric, the cut-off, and its place among those "
        "that had reached the rung (of its stratum, where trials compete within strata)."
    )
    caption += " Those on trials that the table above leaves out are left out, too." if left_out else ""
    values: list[list[object]] = [
        [row["trial"], row["kind"], row["epoch"], row_text(row), row["metric"], row["cutoff"], row["place"],
         row["count"], row["quota"], row["stratum"], row["rung"], stamp(row["decided_at"])]
        for row in decisions if row["trial"] not in left_out
    ]  # fmt: skip
    return DataTable("decisions", "Scheduler decisions", caption, columns, values, DECISIONS_SQL, ("decisions",))


def failures_table(results: Results) -> DataTable:
    """Return the failed replicates with their configuration and the reason."""
    rows, varying, symbols = results.rows(FAILURES_SQL), varying_columns(results), symbols_of(results.quantities)
    columns = [
        column("trial", "text"), column("replicate"), column("status", "text"), column("epochs"),
        column("configuration", "text"), column("reason", "text"), column("error", "text"),
    ]  # fmt: skip
    values: list[list[object]] = [
        [row["trial"], row["replicate"], STATUS_WORDS[text_of(row, "status")], row["epochs"],
         describe(row, varying, symbols), row["stop_kind"], row["error"]]
        for row in rows
    ]  # fmt: skip
    caption = "Failed replicates and the reasons." if rows else "No replicate failed."
    return DataTable("failures", "Failures", caption, columns, values, FAILURES_SQL, ("trials",))


def stamp(moment: Value) -> str | None:
    """Return a time as `2025-06-01 12:00:03`, UTC."""
    return f"{moment:%Y-%m-%d %H:%M:%S}" if isinstance(moment, datetime) else None


HEADINGS = {
    "ece": "Expected calibration error",
    "ada_ece": "Equal-mass calibration error",
    "nll": "Negative log-likelihood",
}

#: Metrics that depend on the number of bins. Each number of bins has a table.
BINNED = ("ece", "ada_ece")

#: A method counts as indistinguishable from the best if it is within this many standard errors of the paired difference
#: (about 95 %).
INDISTINCT = 2.0

MEASURED = {
    "test": "Test data, last evaluation. Methods are fitted on each replicate’s validation data.",
    "val": "Validation data, last evaluation. Methods are fitted on four fifths and measured on the others, in turn.",
}
CAPTION = (
    " Mean ± standard deviation "
    "over replicates; in parentheses the mean fitted temperature T and, if the method has one, γ. Bold: the smallest "
    "mean of the row. ≈: not distinguishable from it (mean paired difference within two standard errors)."
)
METACAL = " MetaCal predicts the uniform distribution for uncertain samples, which changes the accuracy."


@dataclass(frozen=True)
class MethodCell:
    """One configuration under one method.

    Attributes:
        values: replicate → metric.
        temperature, gamma: mean fitted parameters; None if the method has none.
        reason: why a replicate has no value; None if all have a value.
        at_bound: number of fits that the validation data do not determine.
    """

    values: dict[int, float]
    temperature: float | None
    gamma: float | None
    reason: str | None
    at_bound: int = 0

    @property
    def mean(self) -> float:
        """Mean over replicates; without replicates infinite, so that it is never the smallest."""
        return spread(list(self.values.values())).mean if self.values else float("inf")


class CellText(NamedTuple):
    """A displayed cell: its value, whether it is the row's best, the fitted parameters, and the letter of its note."""

    text: str
    best: bool
    below: str
    letter: str


class MetricTable(NamedTuple):
    """One metric's table: its methods, rows (trial, configuration in words, cells), and lettered notes."""

    metric: str
    heading: str
    methods: list[str]
    rows: list[tuple[str, str, list[CellText]]]
    notes: list[tuple[str, str]]


class PosthocTables(NamedTuple):
    """The report's section on post-hoc calibration."""

    caption: str
    tables: list[MetricTable]
    sql: str
    split: str


def posthoc_tables(results: Results) -> PosthocTables | None:
    """Return one table per metric and number of bins; None if no method was measured."""
    measured = posthoc_measurements(results)
    if measured is None:
        return None
    bins = sorted({int_of(row, "bins") for row in measured.rows})
    wanted = [(metric, count) for metric in BINNED for count in bins] + [("nll", bins[0])]
    caption = (
        MEASURED[measured.split]
        + CAPTION
        + (METACAL if any(v.method.startswith("metacal") for v in measured.variants) else "")
    )
    if measured.left_out:
        caption += (
            f" The best {len(measured.names)} configurations are shown; the tables have {measured.left_out} more."
        )
    return PosthocTables(caption, [table_of(measured, *table) for table in wanted], measured.sql, measured.split)


def table_of(measured: Posthoc, metric: str, bins: int) -> MetricTable:
    """Return one metric's table."""
    rows = [row for row in measured.rows if row["split"] == measured.split and row["bins"] == bins]
    held = grouped(rows, lambda row: (row["trial"], Variant(text_of(row, "method"), text_of(row, "options"))))
    variants = [variant for variant in measured.variants if any(variant == known for _, known in held)]
    replicates = max((int_of(row, "replicate") + 1 for row in rows), default=0)
    cells = {trial: [cell_of(held.get((trial, v), []), metric) for v in variants] for trial in measured.names}
    # The whole table has the same number of decimals, so that its columns can be compared by eye.
    places = decimals([spread([*cell.values.values()]).deviation for line in cells.values() for cell in line])
    notes: list[str] = []
    lines = []
    for trial, line in cells.items():
        texts = [cell_text(*marked, replicates, notes, places) for marked in zip(line, marks_of(line), strict=True)]
        lines.append((trial, measured.names[trial], texts))
    counted = f", {plural(bins, 'bin')}" if metric in BINNED else ""
    heading = f"{HEADINGS[metric]}{counted} · {plural(replicates, 'replicate')}"
    return MetricTable(
        metric, heading, [v.label for v in variants], lines, [(letter(at), n) for at, n in enumerate(notes)]
    )


def cell_of(rows: Rows, metric: str) -> MethodCell:
    """Return the cell of one configuration under one method."""
    values = {int_of(row, "replicate"): v for row in rows if (v := measured_or_none(row, metric)) is not None}
    bounds = sum(map(at_bound, rows))
    reason = next((text_of(row, "unavailable") for row in rows if row["unavailable"]), None)
    fits = (measured_values(rows, name) for name in ("temperature", "gamma"))
    temperature, gamma = (fmean(fitted) if fitted else None for fitted in fits)
    return MethodCell(values, temperature, gamma, reason, bounds)


def marks_of(cells: Sequence[MethodCell]) -> list[str]:
    """Return `best`, `alike` (not distinguishable from the best) or an empty mark for each cell of a row."""
    # A single cell cannot be the best.
    best = min(range(len(cells)), key=lambda at: cells[at].mean, default=0)
    if sum(bool(cell.values) for cell in cells) < 2:
        return [""] * len(cells)
    return ["best" if at == best else "alike" if alike(cell, cells[best]) else "" for at, cell in enumerate(cells)]


def alike(cell: MethodCell, best: MethodCell) -> bool:
    """Return whether the mean difference, paired by replicate, is within INDISTINCT standard errors of 0."""
    shared = sorted(cell.values.keys() & best.values.keys())
    difference = spread([cell.values[r] - best.values[r] for r in shared])
    if difference.deviation is None:
        return False
    # Differences are paired by replicate, because methods applied to one network share its errors.
    return bool(abs(difference.mean) <= INDISTINCT * difference.deviation / difference.n**0.5)


def cell_text(cell: MethodCell, mark: str, replicates: int, notes: list[str], places: int | None) -> CellText:
    """Return a displayed cell; a new reason for missing replicates is appended to `notes`."""
    letters = ""
    if cell.reason is not None and len(cell.values) < replicates:
        if cell.reason not in notes:
            notes.append(cell.reason)
        letters = letter(notes.index(cell.reason))
    if not cell.values:
        return CellText("–", False, "", letters)
    value = spread(list(cell.values.values()))
    text = ("≈ " if mark == "alike" else "") + spread_text(value.mean, value.deviation, places=places)
    fits = [] if cell.temperature is None else [f"{cell.temperature:.2f}"]
    fits += [] if cell.gamma is None else [f"γ {number(cell.gamma)}"]
    fits += [f"{cell.at_bound} at bound"] if cell.at_bound else []
    few = f" n = {value.n}" if value.n < replicates else ""
    return CellText(text, mark == "best", (f"({', '.join(fits)})" if fits else "") + few, letters)


def letter(place: int) -> str:
    """Return the mark of note number `place`: a, b, c …

    Example:
        >>> letter(0), letter(2)
        ('a', 'c')
    """
    return chr(ord("a") + place % 26)  # no table has had more than a few reasons


#: Test metrics of the table for papers.
COLUMNS = ("accuracy", "nll", "brier", "ece", "posthoc_temperature_ece")
#: Metrics printed in per cent, as in papers.
PER_CENT = ("accuracy", "ece", "posthoc_temperature_ece")


def paper_table(results: Results, form: str = "latex") -> str:
    """Return the table for papers as text.

    Each row is the best configuration, by the sweep's objective, of a loss on a network. The best mean of a column is
    bold. A dagger marks means that differ significantly from it, at 90 %, by multiple comparisons with the best over
    the sweep's configurations.

    Raises:
        SweeperError: the format is unknown, or nothing was evaluated.
    """
    with results.snapshot() as snapshot:
        board = leaderboard(snapshot)
        grid = matrix(snapshot, board)
        if grid is None:
            raise SweeperError(
                f"the sweep {results.name!r} has no evaluated trial yet", "wait until one reaches its first rung"
            )
        present = snapshot.columns("evaluations")
        columns = [name for name in COLUMNS if name in present]
        # Values are by trial, epoch and seed, so that differences are tested as in the first screen.
        values = evaluated(snapshot, "test", columns)
        columns = [name for name in columns if values.get(name)]
        goals = [Goal(f"test_{name}", "max" if larger_is_better(name) else "min") for name in columns]
        measured = [measure(goal, values[goal.column], board, grid.fresh, asked=grid.asked) for goal in goals]
    keys, rows = list(grid.cells), [cells[0] for cells in grid.cells.values()]
    numbers = [_column(rows, one, name) for name, one in zip(columns, measured, strict=True)]
    # A column in which all names are empty (no varying data set) is left out.
    places = {head: at for at, head in enumerate(("data", "loss", "network")) if any(key[at] for key in keys)}
    words = [[*(key[at] for at in places.values()), _trial(row)] for key, row in zip(keys, rows, strict=True)]
    lines: list[list[str | NumberCell]] = [[*said, *(n[at] for n in numbers)] for at, said in enumerate(words)]
    names = [f"{_named(name)}{' (%)' if name in PER_CENT else ''}" for name in columns]
    heads = [*places, "trial"]
    arrows = [f"{head} {'↑' if larger_is_better(name) else '↓'}" for head, name in zip(names, columns, strict=True)]
    mark = ["true"] if results.rehearsed else []
    # In CSV and JSON, verdicts are columns, since these formats have no bold text or dagger.
    records = [[*heads, *(part for name in names for part in (name, f"{name}: verdict")), *(REHEARSAL for _ in mark)]]
    records += [
        [*said, *(part for column in numbers for part in (column[at].text, column[at].verdict())), *mark]
        for at, said in enumerate(words)
    ]
    return TableText([*heads, *arrows], lines, len(heads), _caption(results, rows, measured), records).written(form)


def _column(rows: Sequence[Row], measured: Measured, name: str) -> list[NumberCell]:
    """Return the cells of a metric, one per row."""
    values = [measured.last(row) for row in rows]
    best = measured.best_of(values)  # of all rows, including those at another epoch, which get no dagger
    scale = 100.0 if name in PER_CENT else 1.0
    cells = []
    for at, value in enumerate(values):
        text = "–" if value is None else spread_text(value.mean, value.deviation, scale=scale)
        worse = False if at == best or best is None or value is None else measured.worse(rows[best], rows[at])
        cells.append(NumberCell(text, at == best, worse))
    return cells


def _trial(row: Row) -> str:
    """Return a trial's name, followed by the epoch of measurement if the trial did not finish."""
    name = text_of(row, "trial")
    return name if row["status"] == FINISHED else f"{name} (epoch {row['epochs']})"


def _named(name: str) -> str:
    return "ECE after T" if name == "posthoc_temperature_ece" else label(name)


def _caption(results: Results, rows: Sequence[Row], measured: Sequence[Measured]) -> str:
    # Of trials with fresh seeds only these are in the cells, so the numbers come from the cells' own values.
    values = [one.last(row) for one in measured for row in rows]
    counts = sorted({value.n for value in values if value is not None}) or [0]
    size = plural(counts[0], "replicate") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} replicates"
    rehearsed = "Rehearsal, no results. " if results.rehearsed else ""
    return (
        f"{rehearsed}{results.name}: the best configuration of each loss on each network by validation data, measured "
        f"on test data; mean ± standard deviation of {size}. Bold: best mean of the column. {DAGGER}: differs "
        f"significantly from it ({SURE}, multiple comparisons with the best; only what was measured at the same epoch)."
    )
