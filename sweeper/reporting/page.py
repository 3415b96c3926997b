"""The pages that a sweep has: its report, one of several sweeps side by side, and one of a single trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sweeper.core.cells import Rows
from sweeper.core.errors import SweeperError
from sweeper.core.labels import STATUS_WORDS, duration, label, plural
from sweeper.reporting.figures import report_figures
from sweeper.reporting.figures.base import Figure, Panel, colour, fields, folded, mark, points, quantity
from sweeper.reporting.figures.best_runs import diagrams
from sweeper.reporting.figures.drawing import layer_of
from sweeper.reporting.first_screen import STOPPED, FirstScreen, Line, first_screen
from sweeper.reporting.html import Sources, write_page
from sweeper.reporting.tables import decisions_table, failures_table, posthoc_tables, trials_table
from sweeper.results import Results
from sweeper.results.leaderboard import front, leaderboard
from sweeper.results.listing import Overview, details, overview
from sweeper.results.queries import literal
from sweeper.results.trial_facts import trial_facts
from trainables.files.regular import read_text

#: The statuses behind each button of the filter.
FILTERS = {
    "finished": ("completed",),
    "stopped early": ("early_stopped",),
    "others": ("failed", "running", "waiting", "interrupted"),
}

CAPTION = (
    "Each cell is the best configuration of a loss in a sweep by that sweep’s own objective, over all its networks. "
    "Values of different objectives, data sets or numbers of epochs are not comparable."
)

#: Columns of `epochs` that are drawn, a panel each.
CURVES = ("train_loss", "val_nll", "val_accuracy", "val_ece")

LOGARITHMIC = ("train_loss", "val_nll")


def write_report(sweep_folder: Path | str, to: Path | None = None) -> Path:
    """Write a sweep's report and return its path. May be called while the sweep runs.

    Args:
        sweep_folder: of the sweep.
        to: the file; `report.html` in that folder where none is given.

    Raises:
        QueryError: when the sweep's tables cannot be read.
        SweeperError: when the file cannot be written.
    """
    results = Results(Path(sweep_folder).resolve())
    remedy = "write the page elsewhere with --to FILE" if to is None else "give --to another file"
    with results.snapshot() as snapshot:
        shown = report(snapshot)
        return write_page("page.html", to if to is not None else results.paths.report, remedy, **shown)


def report(results: Results) -> dict[str, object]:
    """Return what `page.html` shows of a sweep. `results` should be a snapshot, so that all parts see the same rows."""
    board, counts, pareto = leaderboard(results), overview(results), front(results)
    drawings = [folded(each.build(results), each.absent) for each in report_figures()]
    figures = [figure for figure in drawings if isinstance(figure, Figure)]
    first = first_screen(results, board, counts)
    return {
        "results": results,
        "counts": counts,
        "facts": facts(results, counts),
        "filters": FILTERS,
        "first": first,
        "details": details(board),
        "tiles": tiles(counts),
        "figures": figures,
        "findings": [*(pareto.lines() if pareto else ()), *(s for figure in figures for s in figure.findings)],
        "absent": [sentence for sentence in drawings if isinstance(sentence, str)],
        "posthoc": posthoc_tables(results),
        "tables": [trials_table(board), decisions_table(results), failures_table(results)],
        "sources": Sources(results),
        "any_points": layer_of(points([{"trial": "", "status": "", "says": ""}]), {}),
        "manifest": flat(results.manifest),
        "space": read_text(results.paths.sweep_file) if results.specification else "",
    }


def facts(results: Results, counts: Overview) -> list[str]:
    """Return what the sweep ran on, for the line below its name; what is not known is empty."""
    space = results.specification
    return [
        f"data set {space['dataset']['name']}" if "dataset" in space else "",
        f"{plural(counts.trials, 'configuration')}, {plural(counts.replicates, 'training')}",
        f"scheduler {space['scheduler']['name']}" if "name" in space.get("scheduler", {}) else "",
        f"started {started(results.manifest['created'])}" if "created" in results.manifest else "",
        f"running, as of {datetime.now(UTC):%H:%M:%S} UTC: reload for a newer page" if counts.count("running") else "",
    ]


def started(created: str) -> str:
    """Return a time of ISO 8601 to the minute, in UTC where it has a zone."""
    moment = datetime.fromisoformat(created)
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else f"{moment:%Y-%m-%d %H:%M}"


def tiles(counts: Overview) -> list[tuple[str, str, str]]:
    """Return the counts, each with label, value and note: trials by status and rung, epochs saved, time."""
    stops = [f"{row['stopped']} of {row['judged']} at rung {row['rung']}" for row in counts.rungs]
    unfinished = ("running", "waiting", "interrupted")
    others = [f"{counts.count(name)} {STATUS_WORDS[name]}" for name in unfinished if counts.count(name)]
    share = f"{counts.trained / counts.full:.0%}" if counts.full else "–"
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
    """What one sweep contributes to the page of several."""

    name: str
    objective: str
    rehearsed: bool
    first: FirstScreen


def write_several(members: Sequence[Results], file: Path) -> Path:
    """Write the page of several sweeps to `file` and return it.

    Raises:
        SweeperError: two of them have the same name, or the file cannot be written.
        QueryError: tables of one of them cannot be read.
    """
    name, times = Counter(each.name for each in members).most_common(1)[0]
    if times > 1:
        raise SweeperError(f"{name!r} was named twice", "name each sweep once")
    parts = [part_of(each) for each in members]
    shown = {"sweeps": parts, "table": side_by_side(parts), "caption": CAPTION}
    return write_page("several.html", file, "write the page elsewhere with --to FILE", **shown)


def part_of(results: Results) -> SweepPart:
    """Return what one sweep contributes."""
    with results.snapshot() as snapshot:
        board, counts = leaderboard(snapshot), overview(snapshot)
        first = first_screen(snapshot, board, counts)
        return SweepPart(results.name, board.objective.label, bool(results.rehearsed), first)


def side_by_side(parts: Sequence[SweepPart]) -> list[tuple[str, list[Line | None]]]:
    """Return each loss with its best cell in each sweep, None where the sweep has none."""
    families = dict.fromkeys(line.loss for part in parts for line in part.first.lines)
    return [(family, [best_line(part.first, family) for part in parts]) for family in families]


def best_line(found: FirstScreen, family: str) -> Line | None:
    """Return the best line of a loss in a sweep: lines come by network, the best one first."""
    mine = [line for line in found.lines if line.loss == family]
    sign = -1 if mine and found.answers[0].objective.mode == "max" else 1
    return min(mine, key=lambda line: (line.standing == STOPPED, sign * line.value.mean), default=None)


def write_trial_page(results: Results, asked: str | None, file: Path) -> Path:
    """Write a trial's page to `file` and return it.

    Args:
        results: its sweep.
        asked: the trial's name or number; None for the best.
        file: an HTML file; one that exists is replaced.

    Raises:
        SweeperError: there is no such trial; the message has the nearest name. Or the file cannot be written.
    """
    return write_page("trial.html", file, "give --to another path", **trial_parts(results, asked))


def trial_parts(results: Results, asked: str | None) -> dict[str, object]:
    """Return what `trial.html` shows of a trial; arguments and errors as of `write_trial_page`."""
    with results.snapshot() as frozen:
        facts = trial_facts(frozen, asked)
        row = next((row for row in leaderboard(frozen).rows if row["trial"] == facts.trial), None)
        reliability = [] if row is None else diagrams(frozen, row, "Test data")[0]
        panels = [*curves_of(frozen, facts.trial), *reliability]
    return {"facts": facts, "rehearsed": bool(results.rehearsed), "panels": panels}


def curves_of(results: Results, trial: str) -> list[Panel]:
    """Return a panel for each curve that was measured, with a line for each replicate."""
    present = set(results.columns("epochs"))
    rows = results.rows(f"SELECT * FROM epochs WHERE trial = {literal(trial)} ORDER BY replicate, epoch")
    names = [name for name in CURVES if name in present and any(row[name] is not None for row in rows)]
    return [curve_panel(rows, name) for name in names]


def curve_panel(rows: Rows, column: str) -> Panel:
    """Return one curve over epochs, a line for each replicate."""
    name = label(column.removeprefix("val_"))
    name = f"validation {name}" if column.startswith("val_") else name
    replicates = [*dict.fromkeys(str(row["replicate"]) for row in rows)]
    held = [{**row, "replicate": str(row["replicate"])} for row in rows]
    said = fields("replicate", epoch="epoch", **{column: name})
    lines = mark("line", held, look={"point": {"size": 12}}, color=colour("replicate", replicates), tooltip=said)
    return Panel(name, [lines], quantity("epoch", "epoch"), quantity(column, name, log=column in LOGARITHMIC))
