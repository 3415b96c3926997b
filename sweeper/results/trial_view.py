"""One trial on one screen of a terminal: configuration, rungs and decisions, metrics with intervals, files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.results import Results
from sweeper.results.trial_facts import Grid, trial_facts

MOST_FILES = 8
"""Files that are named; there is one of predictions for each replicate and evaluation."""


def trial_view(results: Results, asked: str | None) -> RenderableType:
    """Return everything about one trial, in the width of a terminal. Raises as `trial_facts`."""
    with results.snapshot() as frozen:
        found = trial_facts(frozen, asked)
    settings = Table.grid(padding=(0, 2))
    for part, words in found.configuration:
        settings.add_row(Text(part, style="dim"), words)
    parts: list[RenderableType] = [
        Text(f"{found.sweep} · {found.trial} · {found.ended}", style="bold"),
        *map(Text, found.remarks),
        Text(),
        settings,
        Text(),
        drawn(found.decisions, "no decision yet"),
        Text(),
        drawn(found.metrics, "not evaluated yet"),
    ]
    if found.posthoc is not None:
        parts += [Text(), drawn(found.posthoc, "")]
    closing = Text(f"SQL: trial = '{found.trial}' in every table", style="dim")
    return Group(*parts, Text(), *listed(found.files, results.folder), Text(), closing)


def drawn(grid: Grid | None, absent: str) -> RenderableType:
    """Return a table, or a sentence where there is none."""
    if grid is None:
        return Text(absent, style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for at, heading in enumerate(grid.headings):
        # Only a sentence may be broken over lines.
        table.add_column(heading, justify="left" if at in grid.left else "right", no_wrap=heading != "reason")
    for row in grid.rows:
        table.add_row(*row)
    return table


def listed(files: Sequence[Path], folder: Path) -> list[RenderableType]:
    """Return the first files' names."""
    if not files:
        return [
            Text(f"files: {folder}/tables (its rows are in files of all trials; no checkpoint is kept)", style="dim")
        ]
    lines = [Text("files", style="dim"), *(Text(f"  {path}") for path in files[:MOST_FILES])]
    if len(files) > MOST_FILES:
        lines.append(Text(f"  and {len(files) - MOST_FILES} more", style="dim"))
    return [*lines]
