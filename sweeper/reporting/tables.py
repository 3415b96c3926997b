"""The report's tables as data: the page draws, sorts and filters them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sweeper.results import Results
from sweeper.results.leaderboard import MARK, Leaderboard, varying_columns
from sweeper.results.overview import stratum_column
from sweeper.text.cells import Value, text_of
from sweeper.text.labels import STATUS_WORDS, describe, short

DECISIONS_SQL = (
    "SELECT trial, kind, epoch, rung, metric, cutoff, competitors, reason, {stratum}, decided_at\n"
    "FROM decisions ORDER BY decided_at DESC, trial DESC, epoch DESC"
)

FAILURES_SQL = "SELECT * FROM trials WHERE status = 'failed' OR error IS NOT NULL ORDER BY trial, replicate"


FIRST = 5
"""Measurements that stand before the configuration, so that neither screen nor paper cuts them off."""


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
        ("hessian_training_lambda_max", "λ_max training loss", "spread"),
        ("hessian_cross_entropy_lambda_max", "λ_max cross-entropy", "spread"),
        ("hessian_cross_entropy_trace", "Tr(H) cross-entropy", "spread"),
    ]
    measured = [line for line in measured if board.rows and line[0] in board.rows[0]]
    first = measured[:FIRST]
    columns = [column("trial", "text"), column("status", "status")]
    columns += [column(heading, kind) for _, heading, kind in first]
    columns += [column("configuration", "text")]
    columns += [column(heading, kind) for _, heading, kind in measured[FIRST:]]
    columns += [column("epoch"), column("replicates")]
    columns += [column(short(name), "text" if is_text(board, name) else "number") for name in board.varying]
    rows: list[list[object]] = [
        [
            *(f"{row['trial']} {MARK}" if board.breaks_constraint(row) else row["trial"], row["status"]),
            *([row[name], row[f"{name}_sd"]] for name, _, _ in first),
            board.describe(row),
            *([row[name], row[f"{name}_sd"]] for name, _, _ in measured[FIRST:]),
            *(row["epochs"], row["replicates"]),
            *(row[name] for name in board.varying),
        ]
        for row in board.rows
    ]
    caption = (
        f"Each configuration at its last evaluation: finished ones first, sorted by {goal.label}. "
        "Mean ± standard deviation over replicates. Test data are not used for sorting."
    )
    if (legend := board.legend(board.rows)) is not None:
        caption += f" {legend}; these come after the others that finished."
    return DataTable("trials", "Trials", caption, columns, rows, board.sql, ("evaluations", "trials"), status=1)


def is_text(board: Leaderboard, name: str) -> bool:
    """Return whether a hyperparameter has names for values."""
    return any(isinstance(row[name], str) for row in board.rows)


def decisions_table(results: Results) -> DataTable:
    """Return every decision of the scheduler, newest first."""
    query = DECISIONS_SQL.format(stratum=stratum_column(results))
    rows = results.rows(query)
    columns = [
        column("trial", "text"), column("decision", "text"), column("epoch"), column("rung"), column("metric"),
        column("cut-off"), column("competitors"), column("reason", "text"), column("stratum", "text"),
        column("time (UTC)", "time"),
    ]  # fmt: skip
    caption = (
        "Why each trial continued or was stopped, newest first: its metric, the cut-off, and the number of competitors "
        "(of its stratum, where trials compete within strata)."
    )
    values: list[list[object]] = [[*list(row.values())[:-1], stamp(row["decided_at"])] for row in rows]
    return DataTable("decisions", "Scheduler decisions", caption, columns, values, query, ("decisions",))


def failures_table(results: Results) -> DataTable:
    """Return the replicates that failed, with their configuration and the reason."""
    rows = results.rows(FAILURES_SQL)
    varying = varying_columns(results)
    columns = [
        column("trial", "text"), column("replicate"), column("status", "text"), column("epochs"),
        column("configuration", "text"), column("reason", "text"), column("error", "text"),
    ]  # fmt: skip
    values: list[list[object]] = []
    for row in rows:
        cause = (row["stop_reason"], row["error"])
        where = (row["trial"], row["replicate"], STATUS_WORDS[text_of(row, "status")], row["epochs"])
        values.append([*where, describe(row, varying), *cause])
    caption = "Failed replicates and the reasons." if rows else "No replicate failed."
    return DataTable("failures", "Failures", caption, columns, values, FAILURES_SQL, ("trials",))


def stamp(moment: Value) -> str | None:
    """Return a time as `2025-06-01 12:00:03`, UTC."""
    return f"{moment:%Y-%m-%d %H:%M:%S}" if isinstance(moment, datetime) else None
