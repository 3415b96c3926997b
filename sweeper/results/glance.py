"""A sweep at a glance: the best configuration, the best trials, trials by status and rung, epochs spent."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.results.leaderboard import Leaderboard
from sweeper.results.overview import Overview, details, headline
from sweeper.text.cells import text_of
from sweeper.text.durations import duration
from sweeper.text.labels import STATUS_WORDS, plural

BEST = 5
"""Trials listed: with headline, counts and the commands that follow, this fits a terminal of 24 lines."""


def glance(board: Leaderboard, counts: Overview) -> RenderableType:
    """Return headline, best trials, trials by status and rung, and epochs spent."""
    parts: list[RenderableType] = [Text(headline(board, counts), style="bold")]
    parts += [Text(sentence, style="dim") for sentence in details(board)[:1]]
    if board.rows:
        parts += [Text(), best_trials(board)]
    parts += [Text(), Text(count_line(counts)), *(Text(line, style="dim") for line in cost_lines(counts))]
    return Group(*parts)


def best_trials(board: Leaderboard) -> Table:
    """Return the best trials as a table, those that finished first; their status only where it differs."""
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    columns: list[tuple[str, str, float]] = [
        (board.objective.label, "judged", 1),
        ("test accuracy %", "test_accuracy", 100),
        ("test ECE", "test_ece", 1),
    ]
    columns = [entry for entry in columns if entry[1] in board.rows[0]]
    table.add_column("trial", no_wrap=True)
    for heading, _, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    mixed = len({row["status"] for row in board.rows[:BEST]}) > 1
    if mixed:
        table.add_column("status", no_wrap=True)
    table.add_column("configuration", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in board.rows[:BEST]:
        values = [board.value(row, name, scale) for _, name, scale in columns]
        status = [STATUS_WORDS[text_of(row, "status")]] if mixed else []
        table.add_row(str(row["trial"]), *values, *status, board.describe(row))
    return table


def count_line(counts: Overview) -> str:
    """Return trials by status in one line, e.g. `48 trials: 8 finished, 38 stopped early, 2 failed`."""
    named = [f"{counts.count(status)} {words}" for status, words in STATUS_WORDS.items() if counts.count(status)]
    return f"{plural(counts.trials, 'trial')}: {', '.join(named)}"


def cost_lines(counts: Overview) -> list[str]:
    """Return what was stopped at each rung, and what that saved."""
    lines: list[str] = []
    if counts.rungs:
        stops = (f"{row['stopped']} of {row['judged']} at rung {row['rung']}" for row in counts.rungs)
        lines.append(f"stopped {', '.join(stops)}")
    if counts.full:
        spent = f"{counts.trained:,} epochs, {counts.trained / counts.full:.0%} of the full-training budget"
        lines.append(f"{spent}; {duration(counts.worked)} of trial time")
    return lines
