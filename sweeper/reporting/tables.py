"""A sweep's tables: those of the report as data, which the page draws, sorts and filters, and the one for papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import NamedTuple

from sweeper.core.cells import Row, Rows, Value, grouped, int_of, measured_or_none, measured_values, text_of
from sweeper.core.display import DAGGER, NumberCell, TableText
from sweeper.core.errors import SweeperError
from sweeper.core.labels import STATUS_WORDS, describe, label, number, plural, short
from sweeper.core.schemas import REHEARSAL
from sweeper.core.statistics.basics import decimals, spread, spread_text
from sweeper.core.statistics.best_set import SURE
from sweeper.journal.reasons import row_text
from sweeper.reporting.matrix import Measured, evaluated, matrix, measure
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, MARK, Goal, Leaderboard, leaderboard, varying_columns
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
        caption: what it shows and in which order.
        columns: `{"label": …, "kind": "text" | "number" | "spread" | "percent" | "status" | "time"}`.
        rows: one list a row; a spread is [mean, standard deviation or None].
        status: position of the column by which the page's filter shows and hides rows, or None.
        sql, tables: where the rows come from.
    """

    key: str
    title: str
    caption: str
    columns: list[dict[str, str]]
    rows: list[list[object]]
    sql: str
    tables: tuple[str, ...]
    status: int | None = None


def column(heading: str, kind: str = "number") -> dict[str, str]:
    """Return the description of a column."""
    return {"label": heading, "kind": kind}


def trials_table(board: Leaderboard) -> DataTable:
    """Return every evaluated configuration with hyperparameters and metrics, best first."""
    goal = board.objective
    measured = [
        ("judged", goal.label, "spread"),
        ("test_ece", "test ECE", "spread"),
        ("test_posthoc_temperature_ece", "test ECE after T", "spread"),
        ("test_accuracy", "test accuracy %", "percent"),
        ("test_nll", "test NLL", "spread"),
        ("test_brier", "test Brier", "spread"),
        ("test_aurc", "test AURC", "spread"),
        *((name, label(name), "spread") for name in headline_columns()),
    ]
    measured = [line for line in measured if board.rows and line[0] in board.rows[0]]
    columns = [column("trial", "text"), column("configuration", "text"), column("status", "status"), column("epoch")]
    columns += [column(heading, kind) for _, heading, kind in measured]
    columns += [column("replicates")]
    texts = {name for name in board.varying if any(isinstance(row[name], str) for row in board.rows)}
    columns += [column(short(name), "text" if name in texts else "number") for name in board.varying]
    rows: list[list[object]] = []
    for row in board.rows:
        trial = f"{row['trial']} {MARK}" if board.breaks_constraint(row) else row["trial"]
        values = [[row[name], row[f"{name}_sd"]] for name, _, _ in measured]
        settings = [row[name] for name in board.varying]
        rows.append([trial, board.describe(row), row["status"], row["epochs"], *values, row["replicates"], *settings])
    caption = (
        f"Each configuration at its last evaluation: finished ones first, sorted by {goal.label}. "
        "Mean ± standard deviation over replicates. Test data are not used for sorting."
    )
    if (legend := board.legend(board.rows)) is not None:
        caption += f" {legend}; these come after the others that finished."
    return DataTable("trials", "Trials", caption, columns, rows, board.sql, ("evaluations", "trials"), status=2)


def decisions_table(results: Results) -> DataTable:
    """Return every decision of the scheduler, newest first."""
    columns = [
        column("trial", "text"), column("decision", "text"), column("epoch"), column("reason", "text"),
        column("metric"), column("cut-off"), column("place"), column("count"), column("quota"),
        column("stratum", "text"), column("rung"), column("time (UTC)", "time"),
    ]  # fmt: skip
    caption = (
        "Why each trial continued or was stopped, newest first: its metric, the cut-off, and its place among those "
        "that had reached the rung (of its stratum, where trials compete within strata)."
    )
    values: list[list[object]] = [
        [row["trial"], row["kind"], row["epoch"], row_text(row), row["metric"], row["cutoff"], row["place"],
         row["count"], row["quota"], row["stratum"], row["rung"], stamp(row["decided_at"])]
        for row in results.rows(DECISIONS_SQL)
    ]  # fmt: skip
    return DataTable("decisions", "Scheduler decisions", caption, columns, values, DECISIONS_SQL, ("decisions",))


def failures_table(results: Results) -> DataTable:
    """Return the replicates that failed, with their configuration and the reason."""
    rows, varying = results.rows(FAILURES_SQL), varying_columns(results)
    columns = [
        column("trial", "text"), column("replicate"), column("status", "text"), column("epochs"),
        column("configuration", "text"), column("reason", "text"), column("error", "text"),
    ]  # fmt: skip
    values: list[list[object]] = [
        [row["trial"], row["replicate"], STATUS_WORDS[text_of(row, "status")], row["epochs"], describe(row, varying),
         row["stop_kind"], row["error"]]
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

BINNED = ("ece", "ada_ece")

#: Standard errors of the paired difference within which a method is not distinguishable from the best: about 95 %.
INDISTINCT = 2.0

CAPTION = (
    "Test data, last evaluation. Methods are fitted on each replicate’s validation data. Mean ± standard deviation "
    "over replicates; in parentheses the mean fitted temperature T and, if the method has one, γ. Bold: the smallest "
    "mean of the row. ≈: not distinguishable from it (mean paired difference within two standard errors)."
)
METACAL = " MetaCal predicts the uniform distribution for uncertain samples, which changes the accuracy."


@dataclass(frozen=True)
class MethodCell:
    """One configuration under one method: the metric, T and γ of its replicates, and why some are missing.

    `at_bound` is how many of its fits validation data do not determine.
    """

    values: dict[int, float]
    temperature: float | None
    gamma: float | None
    reason: str | None
    at_bound: int = 0

    @property
    def mean(self) -> float:
        """Mean over replicates; infinite without any, so that it is never the smallest."""
        return spread(list(self.values.values())).mean if self.values else float("inf")


class CellText(NamedTuple):
    """A displayed cell: the value, whether it is the row's best, the fitted parameters, the note on what lacks."""

    text: str
    best: bool
    below: str
    letter: str


class MetricTable(NamedTuple):
    """One metric's table: its methods, rows of (trial, configuration in words, cells), and lettered notes."""

    heading: str
    methods: list[str]
    rows: list[tuple[str, str, list[CellText]]]
    notes: list[tuple[str, str]]


class PosthocTables(NamedTuple):
    """The card of post-hoc calibration."""

    caption: str
    tables: list[MetricTable]
    sql: str


def posthoc_tables(results: Results) -> PosthocTables | None:
    """Return one table per metric (and number of bins); None where no method was measured."""
    measured = posthoc_measurements(results)
    if measured is None:
        return None
    bins = sorted({int_of(row, "bins") for row in measured.rows})
    wanted = [(metric, count) for metric in BINNED for count in bins] + [("nll", bins[0])]
    caption = CAPTION + (METACAL if any(v.method.startswith("metacal") for v in measured.variants) else "")
    if measured.left_out:
        caption += (
            f" The best {len(measured.names)} configurations are shown; the tables have {measured.left_out} more."
        )
    return PosthocTables(caption, [table_of(measured, *each) for each in wanted], measured.sql)


def table_of(measured: Posthoc, metric: str, bins: int) -> MetricTable:
    """Return one metric's table."""
    rows = [row for row in measured.rows if row["split"] == "test" and row["bins"] == bins]
    found = grouped(rows, lambda row: (row["trial"], Variant(text_of(row, "method"), text_of(row, "options"))))
    variants = [variant for variant in measured.variants if any(variant == each for _, each in found)]
    replicates = max((int_of(row, "replicate") + 1 for row in rows), default=0)
    cells = {trial: [cell_of(found.get((trial, v), []), metric) for v in variants] for trial in measured.names}
    places = decimals([spread([*each.values.values()]).deviation for line in cells.values() for each in line])
    notes: list[str] = []
    lines = []
    for trial, line in cells.items():
        texts = [cell_text(*each, replicates, notes, places) for each in zip(line, marks_of(line), strict=True)]
        lines.append((trial, measured.names[trial], texts))
    counted = f", {plural(bins, 'bin')}" if metric in BINNED else ""
    heading = f"{HEADINGS[metric]}{counted} · {plural(replicates, 'replicate')}"
    return MetricTable(heading, [v.label for v in variants], lines, [(letter(at), n) for at, n in enumerate(notes)])


def cell_of(rows: Rows, metric: str) -> MethodCell:
    """Return what one configuration has under one method."""
    values = {int_of(row, "replicate"): v for row in rows if (v := measured_or_none(row, metric)) is not None}
    bounds = sum(map(at_bound, rows))
    reason = next((text_of(row, "unavailable") for row in rows if row["unavailable"]), None)
    fits = (measured_values(rows, name) for name in ("temperature", "gamma"))
    temperature, gamma = (fmean(fitted) if fitted else None for fitted in fits)
    return MethodCell(values, temperature, gamma, reason, bounds)


def marks_of(cells: Sequence[MethodCell]) -> list[str]:
    """Return `best`, `alike` (not distinguishable from the best) or an empty mark for each cell of a row."""
    best = min(range(len(cells)), key=lambda at: cells[at].mean, default=0)
    if sum(bool(cell.values) for cell in cells) < 2:
        return [""] * len(cells)
    return ["best" if at == best else "alike" if alike(cell, cells[best]) else "" for at, cell in enumerate(cells)]


def alike(cell: MethodCell, best: MethodCell) -> bool:
    """Return whether the mean difference, paired by replicate, lies within INDISTINCT of its standard errors."""
    shared = sorted(cell.values.keys() & best.values.keys())
    found = spread([cell.values[r] - best.values[r] for r in shared])
    if found.deviation is None:
        return False
    return bool(abs(found.mean) <= INDISTINCT * found.deviation / found.n**0.5)


def cell_text(cell: MethodCell, mark: str, replicates: int, notes: list[str], places: int | None) -> CellText:
    """Return a displayed cell; a new reason for missing replicates is added to `notes`."""
    letters = ""
    if cell.reason is not None and len(cell.values) < replicates:
        if cell.reason not in notes:
            notes.append(cell.reason)
        letters = letter(notes.index(cell.reason))
    if not cell.values:
        return CellText("–", False, "", letters)
    found = spread(list(cell.values.values()))
    text = ("≈ " if mark == "alike" else "") + spread_text(found.mean, found.deviation, places=places)
    fits = [] if cell.temperature is None else [f"{cell.temperature:.2f}"]
    fits += [] if cell.gamma is None else [f"γ {number(cell.gamma)}"]
    fits += [f"{cell.at_bound} at bound"] if cell.at_bound else []
    few = f" n = {found.n}" if found.n < replicates else ""
    return CellText(text, mark == "best", (f"({', '.join(fits)})" if fits else "") + few, letters)


def letter(place: int) -> str:
    """Return the mark of note number `place`: a, b, c …"""
    return chr(ord("a") + place % 26)


COLUMNS = ("accuracy", "nll", "brier", "ece", "posthoc_temperature_ece")
#: Printed in per cent, as papers do.
PER_CENT = ("accuracy", "ece", "posthoc_temperature_ece")


def paper_table(results: Results, form: str = "latex") -> str:
    """Return the table as text.

    One row for the best configuration, by the sweep's objective, of each loss on each network. The best mean of a
    column is bold; a dagger marks means that differ significantly from it, at 90 % by multiple comparisons with the
    best over the sweep's configurations.

    Raises:
        SweeperError: another format, or nothing was evaluated.
    """
    with results.snapshot() as snapshot:
        board = leaderboard(snapshot)
        found = matrix(snapshot, board)
        if found is None:
            raise SweeperError(
                f"the sweep {results.name!r} has no evaluated trial yet", "wait until one reaches its first rung"
            )
        present = snapshot.columns("evaluations")
        columns = [name for name in COLUMNS if name in present]
        values = evaluated(snapshot, "test", columns)
        columns = [name for name in columns if values.get(name)]
        measured = [
            measure(Goal(f"test_{name}", "max" if larger_is_better(name) else "min"), values[name], board)
            for name in columns
        ]
    keys, rows = list(found.cells), [cells[0] for cells in found.cells.values()]
    numbers = [_column(rows, each, name) for name, each in zip(columns, measured, strict=True)]
    places = {head: at for at, head in enumerate(("data", "loss", "network")) if any(key[at] for key in keys)}
    words = [[*(key[at] for at in places.values()), _trial(row)] for key, row in zip(keys, rows, strict=True)]
    lines: list[list[str | NumberCell]] = [[*said, *(n[at] for n in numbers)] for at, said in enumerate(words)]
    names = [f"{_named(name)}{' (%)' if name in PER_CENT else ''}" for name in columns]
    heads = [*places, "trial"]
    arrows = [f"{head} {'↑' if larger_is_better(name) else '↓'}" for head, name in zip(names, columns, strict=True)]
    mark = ["true"] if results.rehearsed else []
    records = [[*heads, *(part for name in names for part in (name, f"{name}: verdict")), *(REHEARSAL for _ in mark)]]
    records += [
        [*said, *(part for column in numbers for part in (column[at].text, column[at].verdict())), *mark]
        for at, said in enumerate(words)
    ]
    return TableText([*heads, *arrows], lines, len(heads), _caption(results, rows), records).written(form)


def _column(rows: Sequence[Row], measured: Measured, name: str) -> list[NumberCell]:
    """Return a metric's numbers, one for each row."""
    values = [measured.last(row) for row in rows]
    best = measured.best_of(values)
    scale = 100.0 if name in PER_CENT else 1.0
    cells = []
    for at, value in enumerate(values):
        text = "–" if value is None else spread_text(value.mean, value.deviation, scale=scale)
        worse = False if at == best or best is None or value is None else measured.worse(rows[best], rows[at])
        cells.append(NumberCell(text, at == best, worse))
    return cells


def _trial(row: Row) -> str:
    """Return a trial's name, and at which epoch it was measured where it did not finish."""
    name = text_of(row, "trial")
    return name if row["status"] == FINISHED else f"{name} (epoch {row['epochs']})"


def _named(name: str) -> str:
    return "ECE after T" if name == "posthoc_temperature_ece" else label(name)


def _caption(results: Results, rows: Sequence[Row]) -> str:
    counts = sorted({int(str(row["replicates"])) for row in rows})
    size = plural(counts[0], "replicate") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} replicates"
    rehearsed = "Rehearsal, no results. " if results.rehearsed else ""
    return (
        f"{rehearsed}{results.name}: the best configuration of each loss on each network by validation data, measured "
        f"on test data; mean ± standard deviation of {size}. Bold: best mean of the column. {DAGGER}: differs "
        f"significantly from it ({SURE}, multiple comparisons with the best; only what was measured at the same epoch)."
    )
