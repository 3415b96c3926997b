"""A sweep at a glance: the best configuration, the best trials, trials by status and rung, epochs spent."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from sweeper.results.leaderboard import Leaderboard
from sweeper.results.listing import TrialsTable, usual_headings
from sweeper.results.overview import Overview, details, headline
from sweeper.text.labels import STATUS_WORDS, duration, plural

BEST = 5
"""Trials listed: with headline, counts and the commands that follow, this fits a terminal of 24 lines."""


def overview_table(
    board: Leaderboard, counts: Overview, answers: RenderableType | None = None, most: int = BEST, confirmed: str = ""
) -> RenderableType:
    """Return headline, best trials, trials by status and rung, and epochs spent.

    Args:
        board: the sweep's configurations.
        counts: its trials and epochs.
        answers: shown between the headline and the best trials.
        most: how many of the best trials are listed.
        confirmed: the best one's value on fresh seeds, in words.
    """
    parts: list[RenderableType] = [Text(headline(board, counts, confirmed), style="bold")]
    parts += [Text(sentence, style="dim") for sentence in details(board)[:1]]
    parts += [Text(), answers] if answers is not None else []
    if board.rows:
        parts += [Text(), TrialsTable(board, board.rows[:most], usual_headings(board))]
    parts += [Text(), Text(count_line(counts)), *(Text(line, style="dim") for line in cost_lines(counts))]
    return Group(*parts)


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
