"""Write a sweep's pages: its report, several sweeps side by side, and a single trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sweeper.core.cells import Rows
from sweeper.core.errors import SweeperError
from sweeper.core.labels import STATUS_WORDS, duration, label, plural
from sweeper.reporting.answering.answers import STOPPED, Finalist, FirstScreen
from sweeper.reporting.figures import report_figures
from sweeper.reporting.figures.base import Figure, Panel, colour, fields, folded, mark, points, quantity
from sweeper.reporting.figures.best_runs import diagrams
from sweeper.reporting.figures.drawing import layer_of
from sweeper.reporting.first_screen import first_screen
from sweeper.reporting.html import Sources, write_page
from sweeper.reporting.tables import decisions_table, failures_table, posthoc_tables, trials_table
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.listing import Overview, details, overview
from sweeper.results.queries import literal
from sweeper.results.trial_facts import trial_facts
from trainables.files.atomic import read_text

#: Button of the page's filter → statuses that it shows.
FILTERS = {
    "finished": ("completed",),
    "stopped early": ("early_stopped",),
    "others": ("failed", "running", "waiting", "interrupted"),
}

CAPTION = (
    "Each cell is the best configuration of a loss in a sweep by that sweep’s own objective, over all its networks. "
    "Values of different objectives, data sets or numbers of epochs are not comparable."
)

#: Columns of `epochs` on a trial's page, one panel each.
CURVES = ("train_loss", "val_nll", "val_accuracy", "val_ece")

#: Columns with a logarithmic axis. Losses fall by orders of magnitude, but accuracy and ECE lie in [0, 1] and may be 0.
LOGARITHMIC = ("train_loss", "val_nll")


def write_report(sweep_folder: Path | str, to: Path | None = None) -> Path:
    """Write a sweep's report and return its path; the sweep may be running.

    Args:
        sweep_folder: the sweep's results folder.
        to: the file; by default `report.html` in that folder.

    Raises:
        QueryError: the sweep's tables cannot be read.
        SweeperError: the file cannot be written.
    """
    results = Results(Path(sweep_folder).resolve())
    remedy = "write the page elsewhere with --to FILE" if to is None else "give --to another file"
    with results.snapshot() as snapshot:
        shown = report(snapshot)
        return write_page("page.html", to if to is not None else results.paths.report, remedy, **shown)


def report(results: Results) -> dict[str, object]:
    """Return the variables of `page.html`. `results` should be a snapshot, so that all parts see the same rows."""
    board, counts = leaderboard(results), overview(results)
    drawings = [folded(figure, results) for figure in report_figures()]
    figures = [figure for figure in drawings if isinstance(figure, Figure)]
    first, trials = first_screen(results, board, counts), trials_table(board)
    left_out = {row["trial"] for row in board.rows} - {row[0] for row in trials.rows}
    return {
        "results": results,
        "counts": counts,
        "facts": facts(results, counts),
        "filters": FILTERS,
        "first": first,
        "details": details(board),
        "tiles": tiles(counts),
        "figures": figures,
        "findings": [sentence for figure in figures for sentence in figure.findings],
        "absent": [sentence for sentence in drawings if isinstance(sentence, str)],
        "posthoc": posthoc_tables(results),
        "tables": [trials, decisions_table(results, left_out), failures_table(results)],
        "sources": Sources(results),
        # The layer for a scatter plot of any two columns, with points as in the figures. page.js fills it with rows.
        "any_points": layer_of(points([{"trial": "", "status": "", "says": ""}]), {}),
        "manifest": flat(results.manifest),
        # The space as text, with its comments; empty for a sweep that has only tables.
        "space": read_text(results.paths.sweep_file) if results.specification else "",
    }


def facts(results: Results, counts: Overview) -> list[str]:
    """Return the facts for the line below the sweep's name. An unknown fact is an empty string."""
    space = results.specification
    return [
        f"data set {space['dataset']['name']}" if "dataset" in space else "",
        f"{plural(counts.trials, 'configuration')}, {plural(counts.replicates, 'training')}",
        f"scheduler {space['scheduler']['name']}" if "name" in space.get("scheduler", {}) else "",
        f"started {started(results.manifest['created'])}" if "created" in results.manifest else "",
        f"running, as of {datetime.now(UTC):%H:%M:%S} UTC: reload for a newer page" if counts.count("running") else "",
    ]


def started(created: str) -> str:
    """Return an ISO 8601 time to the minute, in UTC if it has a time zone.

    Example:
        >>> started("2026-11-23T22:57:03+01:00")
        '2026-11-23 21:57 UTC'
    """
    moment = datetime.fromisoformat(created)
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else f"{moment:%Y-%m-%d %H:%M}"


def tiles(counts: Overview) -> list[tuple[str, str, str]]:
    """Return (label, value, note) of each count: trials by status and rung, epochs saved, time."""
    stops = [f"{row['stopped']} of {row['judged']} at rung {row['rung']}" for row in counts.rungs]
    unfinished = ("running", "waiting", "interrupted")
    others = [f"{counts.count(name)} {STATUS_WORDS[name]}" for name in unfinished if counts.count(name)]
    share = f"{counts.trained / counts.full:.0%}" if counts.full else "–"  # 0 if no trial is in the tables yet
    spent = f"{counts.trained:,} of {counts.full:,} epochs (full-training budget)"
    if counts.saved:
        spent += f"; early stopping saved {counts.saved:,}"
    elapsed = f"elapsed {duration(counts.elapsed)}" if counts.elapsed else "sum over trials"
    return [
        ("Trials", f"{counts.trials:,}", ", ".join(others) or f"{counts.replicates:,} training runs"),
        ("Finished", f"{counts.count('completed'):,}", f"trained {counts.limit} epochs"),
        ("Stopped early", f"{counts.count('early_stopped'):,}", ", ".join(stops)),
        ("Failed", f"{counts.count('failed'):,}", "see Failures below" if counts.count("failed") else ""),
        ("Epochs trained", share, spent),
        ("Trial time", duration(counts.worked), elapsed),
    ]


def flat(value: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the manifest as readable pairs: nested groups as `name value, name value`."""
    return [(key.replace("_", " "), words(item)) for key, item in value.items() if item not in (None, {}, [])]


def words(value: object) -> str:
    """Return a nested value as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return str(value)


class SweepPart(NamedTuple):
    """One sweep's part of the page of several sweeps."""

    name: str
    objective: str
    rehearsed: bool
    first: FirstScreen


def write_several(members: Sequence[Results], file: Path) -> Path:
    """Write the page of several sweeps to `file` and return it.

    Raises:
        SweeperError: two sweeps have the same name, or the file cannot be written.
        QueryError: the tables of a sweep cannot be read.
    """
    # Names are the headings of the page's columns, so equal names could not be distinguished.
    name, times = Counter(member.name for member in members).most_common(1)[0]
    if times > 1:
        raise SweeperError(f"{name!r} was named twice", "name each sweep once")
    parts = [part_of(member) for member in members]
    shown = {"sweeps": parts, "table": side_by_side(parts), "caption": CAPTION}
    return write_page("several.html", file, "write the page elsewhere with --to FILE", **shown)


def part_of(results: Results) -> SweepPart:
    """Return one sweep's part of the page."""
    with results.snapshot() as snapshot:
        board, counts = leaderboard(snapshot), overview(snapshot)
        first = first_screen(snapshot, board, counts)
        return SweepPart(results.name, board.objective.label, bool(results.rehearsed), first)


def side_by_side(parts: Sequence[SweepPart]) -> list[tuple[str, list[Finalist | None]]]:
    """Return each loss with its best line in each sweep; None if the sweep does not have the loss."""
    families = dict.fromkeys(line.loss for part in parts for line in part.first.finalists)
    return [(family, [best_line(part.first, family) for part in parts]) for family in families]


def best_line(screen: FirstScreen, family: str) -> Finalist | None:
    """Return the best line of a loss over all networks of a sweep; None if the sweep does not have the loss."""
    # Stopped lines come last, because their objective was measured at an earlier epoch.
    mine = [line for line in screen.finalists if line.loss == family]
    sign = -1 if mine and screen.answers[0].objective.mode == "max" else 1
    return min(mine, key=lambda line: (line.standing == STOPPED, sign * line.value.mean), default=None)


def write_trial_page(results: Results, asked: str | None, file: Path) -> Path:
    """Write a trial's page to `file` and return it.

    Args:
        results: the sweep.
        asked: the trial's name or number; None for the best.
        file: an HTML file; an existing one is replaced.

    Raises:
        SweeperError: there is no such trial (the message has the nearest name), or the file cannot be written.
    """
    return write_page("trial.html", file, "give --to another path", **trial_parts(results, asked))


def trial_parts(results: Results, asked: str | None) -> dict[str, object]:
    """Return the variables of `trial.html`; arguments and errors as in `write_trial_page`."""
    with results.snapshot() as frozen:
        facts = trial_facts(frozen, asked)
        row = next((row for row in leaderboard(frozen).rows if row["trial"] == facts.trial), None)
        reliability = [] if row is None else diagrams(frozen, row, "Test data")[0]
        panels = [*curves_of(frozen, facts.trial), *reliability]
    return {"facts": facts, "rehearsed": bool(results.rehearsed), "panels": panels}


def curves_of(results: Results, trial: str) -> list[Panel]:
    """Return one panel per measured curve, with one line per replicate."""
    present = set(results.columns("epochs"))
    rows = results.rows(f"SELECT * FROM epochs WHERE trial = {literal(trial)} ORDER BY replicate, epoch")
    names = [name for name in CURVES if name in present and any(row[name] is not None for row in rows)]
    return [curve_panel(rows, name) for name in names]


def curve_panel(rows: Rows, column: str) -> Panel:
    """Return the panel of one curve over epochs, one line per replicate."""
    name = label(column.removeprefix("val_"))
    name = f"validation {name}" if column.startswith("val_") else name
    replicates = [*dict.fromkeys(str(row["replicate"]) for row in rows)]
    held = [{**row, "replicate": str(row["replicate"])} for row in rows]  # as text, since colour categories are text
    said = fields("replicate", epoch="epoch", **{column: name})
    lines = mark("line", held, look={"point": {"size": 12}}, color=colour("replicate", replicates), tooltip=said)
    return Panel(name, [lines], quantity("epoch", "epoch"), quantity(column, name, log=column in LOGARITHMIC))
