"""One trial on a page of its own: what `sweeper show` prints, with its curves and reliability diagrams."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from sweeper.core.errors import writing_to
from sweeper.reporting.figure_parts.figure import Panel, axis, colour, log_axis, plot
from sweeper.reporting.figures.reliability import diagrams
from sweeper.reporting.page import template
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.trial_facts import trial_facts
from sweeper.text.cells import Rows, floats
from sweeper.text.labels import STATUS_WORDS, label
from trainables.files.atomic import write_text

CURVES = ("train_loss", "val_nll", "val_accuracy", "val_ece")
"""Columns of `epochs` that are drawn, a panel each."""

LOGARITHMIC = ("train_loss", "val_nll")


def write_trial_page(results: Results, asked: str | None, file: Path) -> Path:
    """Write a trial's page to `file` and return it.

    Args:
        results: its sweep.
        asked: the trial's name or number; None for the best.
        file: an HTML file; one that exists is replaced.

    Raises:
        SweeperError: there is no such trial; the message has the nearest name. Or the file cannot be written.
    """
    with results.snapshot() as frozen:
        facts = trial_facts(frozen, asked)
        row = next((row for row in leaderboard(frozen).rows if row["trial"] == facts.trial), None)
        reliability = [] if row is None else diagrams(frozen, row, "Test data")[0]
        page = template("trial.html").render(
            facts=facts,
            rehearsed=bool(results.rehearsed),
            panels=[*learning_curves(frozen, facts.trial), *reliability],
            words=STATUS_WORDS,
            style=Markup(resources.files("sweeper.reporting").joinpath("page.css").read_text("utf-8")),
            script=Markup(resources.files("sweeper.reporting").joinpath("page.js").read_text("utf-8")),
            plotly=Markup(get_plotlyjs()),
        )
    with writing_to(file, "give --page another path"):
        write_text(file, page)
    return file


def learning_curves(results: Results, trial: str) -> list[Panel]:
    """Return a panel for each curve that was measured, with a line for each replicate."""
    present = set(results.columns("epochs"))
    rows = results.rows(f"SELECT * FROM epochs WHERE trial = '{trial}' ORDER BY replicate, epoch")
    names = [name for name in CURVES if name in present and any(row[name] is not None for row in rows)]
    return [curve_panel(rows, name) for name in names]


def curve_panel(rows: Rows, column: str) -> Panel:
    """Return one curve over epochs, a line for each replicate."""
    replicates = sorted({int(str(row["replicate"])) for row in rows})
    lines = [
        go.Scatter(
            x=[row["epoch"] for row in rows if row["replicate"] == replicate],
            y=[row[column] for row in rows if row["replicate"] == replicate],
            mode="lines+markers",
            line={"color": colour(at), "width": 1.6},
            marker={"size": 4},
            name=f"replicate {replicate}",
            hovertemplate="epoch %{x}: %{y:.4g}<extra>replicate " + str(replicate) + "</extra>",
        )
        for at, replicate in enumerate(replicates)
    ]
    name = label(column.removeprefix("val_"))
    name = f"validation {name}" if column.startswith("val_") else name
    scale = log_axis(name, floats(rows, column)) if column in LOGARITHMIC else axis(name)
    return Panel(name, [], plot(lines, axis("epoch"), scale))
