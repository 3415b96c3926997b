"""Collect all facts about one trial as text and small tables, for the terminal (`trial_view`) and the trial's page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.core.cells import Row, Rows, float_or_none, int_of, text_of
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, configuration_index, trial_name
from sweeper.core.labels import STATUS_WORDS, duration, label, number, plural
from sweeper.core.statistics.basics import spread_text
from sweeper.journal.journal import read_kind
from sweeper.journal.reasons import row_text
from sweeper.journal.records import Added
from sweeper.results.leaderboard import leaderboard, spread_sql
from sweeper.results.queries import literal
from trainables.curvature.statistics.base import headline_columns
from trainables.metrics import HEADLINES
from trainables.registry.names import nearest

if TYPE_CHECKING:
    from sweeper.results.results import Results

SPLITS = ("val", "test")

#: Largest number of metric columns: the last evaluations on validation data, and one on test data. Together with a
#: column of names, more would not fit into 80 characters.
MOST_EVALUATIONS = 3

#: Names of columns that `label` does not know, because they are not metrics.
NAMES = {"posthoc_temperature_temperature": "fitted temperature"}


@dataclass(frozen=True)
class Grid:
    """A small table of text.

    Attributes:
        headings: column headings.
        rows: rows, each with one cell per heading.
        left: numbers of the columns that are aligned to the left.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int] = frozenset({0})


#: The name of the best trial, whichever it is.
BEST = "best"


@dataclass(frozen=True)
class TrialFacts:
    """One trial of a sweep.

    Attributes:
        sweep: name of the sweep.
        trial: name of the trial.
        ended: status, epochs and time, in one line.
        remarks: sentences on seeds and on failed replicates.
        configuration: (component, its hyperparameters) in words.
        decisions: the scheduler's decisions; None before the first.
        metrics: mean ± standard deviation over replicates; None before the first evaluation.
        posthoc: test metrics after each post-hoc method; None if none was measured.
        checkpoints: the folders of its checkpoints; empty if none is kept.
    """

    sweep: str
    trial: str
    ended: str
    remarks: Sequence[str]
    configuration: Sequence[tuple[str, str]]
    decisions: Grid | None
    metrics: Grid | None
    posthoc: Grid | None
    checkpoints: Sequence[Path]


def trial_facts(results: Results, asked: str | None) -> TrialFacts:
    """Gather everything about one trial.

    Args:
        results: the sweep. A snapshot is faster, because there are a dozen queries.
        asked: the trial's name, `c00039`, or its number; None or `best` for the best.

    Raises:
        SweeperError: there is no such trial; the message has the nearest name.
    """
    trial = chosen_name(results, asked)
    replicates = results.rows(f"SELECT * FROM trials WHERE trial = {literal(trial)} ORDER BY replicate")
    ended, remarks = state_of(replicates)
    decisions = results.rows(f"SELECT * FROM decisions WHERE trial = {literal(trial)} ORDER BY epoch, decided_at")
    tables = rungs(decisions), metrics(results, trial), posthoc(results, trial)
    kept = checkpoints_of(results.paths, configuration_index(trial))
    return TrialFacts(results.name, trial, ended, remarks, configuration(replicates[0]), *tables, kept)


def checkpoints_of(paths: SweepPaths, trial: int) -> list[Path]:
    """Return the existing folders of a trial's checkpoints: its own, and those of its added seeds."""
    bodies = (record.body for record in read_kind(paths.journal, Added))
    seeds = [seed for body in bodies if isinstance(body, Added) for seed in body.seeds if seed.trial == trial]
    folders = dict.fromkeys(map(paths.trial_checkpoints, (trial, *(seed.configuration for seed in seeds))))
    return [folder for folder in folders if folder.is_dir()]


def chosen_name(results: Results, asked: str | None) -> str:
    """Return the name of an existing trial, by default the best. Raises SweeperError if there is none."""
    if asked is None or asked == BEST:
        if (best := leaderboard(results).best) is None:
            raise SweeperError(f"{results.name} has no finished trial yet", "name one, e.g. c00000")
        return text_of(best, "trial")
    name = trial_name(int(asked)) if re.fullmatch(r"\d+", asked) else asked
    known = [text_of(row, "trial") for row in results.rows("SELECT DISTINCT trial FROM trials ORDER BY trial")]
    if name not in known:
        among = f"its trials are {known[0]} … {known[-1]}" if known else "it has no trials yet"
        raise SweeperError(f"{results.name} has no trial {asked!r}", f"{among}{nearest(name, known)}")
    return name


def state_of(replicates: Rows) -> tuple[str, list[str]]:
    """Return status, epochs and time in one line, and remarks on seeds and errors."""
    # Replicates of one trial usually have the same status and the same reason of failure, so each is stated once.
    first = replicates[0]
    statuses = list(dict.fromkeys(STATUS_WORDS[text_of(row, "status")] for row in replicates))
    seconds = sum(float_or_none(row, "wall_seconds") or 0.0 for row in replicates)
    seeds = ", ".join(str(row["seed"]) for row in replicates)
    epochs = plural(int_of(first, "epochs"), "epoch") if first["epochs"] is not None else "no epoch"
    reasons = dict.fromkeys(str(row["error"]) for row in replicates if row["error"])
    ended = f"{', '.join(statuses)} after {epochs}, {duration(seconds)}"
    return ended, [f"{plural(len(replicates), 'replicate')}, seeds {seeds}", *reasons]


def configuration(row: Row) -> list[tuple[str, str]]:
    """Return the hyperparameters, one line per component."""
    groups: dict[str, list[str]] = {}
    for column, value in row.items():
        if column.startswith("config_") and column != "config_hash" and value is not None:
            part, _, rest = column.removeprefix("config_").partition("_")
            groups.setdefault(part, []).append(str(value) if rest == "name" else f"{label(rest)} {number(value)}")
    return [(part, " · ".join(words)) for part, words in groups.items()]


def rungs(decisions: Rows) -> Grid | None:
    """Return the scheduler's decisions in order."""
    if not decisions:
        return None
    rows = []
    for row in decisions:
        numbers = [number_of(row, name) for name in ("metric", "cutoff", "place", "count")]
        rows.append([str(row["epoch"]), str(row["kind"]), *numbers, row_text(row)])
    return Grid(("epoch", "decision", "value", "cut-off", "place", "count", "reason"), rows, frozenset({1, 6}))


def metrics(results: Results, trial: str) -> Grid | None:
    """Return each evaluation's metrics: mean ± standard deviation over replicates, on validation and test data."""
    present = set(results.columns("evaluations"))
    columns = [name for name in (*HEADLINES, *NAMES, *headline_columns()) if name in present]
    selected = ", ".join(spread_sql(name, name) for name in columns)
    rows = results.rows(
        f"SELECT split, epoch, {selected} FROM evaluations WHERE trial = {literal(trial)} "
        "GROUP BY split, epoch ORDER BY epoch"
    )
    if not rows:
        return None
    # Test data are shown only for the last evaluation, because earlier ones measured unfinished networks.
    last = max(int_of(row, "epoch") for row in rows)
    shown = [(split, epoch) for split in SPLITS for epoch in sorted({int_of(row, "epoch") for row in rows})]
    shown = [key for key in shown if key[0] == "val" or key[1] == last][-MOST_EVALUATIONS:]
    by_key = {(text_of(row, "split"), int_of(row, "epoch")): row for row in rows}
    cells = [by_key.get(key, {}) for key in shown]
    columns = [column for column in columns if any(float_or_none(cell, column) is not None for cell in cells)]
    lines = [[NAMES.get(column) or label(column), *(value(cell, column) for cell in cells)] for column in columns]
    return Grid(["mean ± sd", *(f"{split}, epoch {epoch}" for split, epoch in shown)], lines)


def posthoc(results: Results, trial: str) -> Grid | None:
    """Return ECE and NLL on test data after each post-hoc method, or why there are none, at the last evaluation."""
    present = results.columns("evaluations")
    # Each method has a column for the reason; a weighted metric, `posthoc_temperature_weighted_nll`, has none.
    methods = [match[1] for name in present if (match := re.fullmatch(r"posthoc_(.*)_unavailable", name))]
    methods = [name for name in methods if f"posthoc_{name}_ece" in present]
    if not methods:
        return None
    columns = ["ece", "nll", *(f"posthoc_{name}_{metric}" for name in methods for metric in ("ece", "nll"))]
    selected = ", ".join(
        [*(spread_sql(name, name) for name in columns), *(f"any_value({_reason(n)}) AS {_reason(n)}" for n in methods)]
    )
    row = results.rows(f"SELECT {selected} FROM final WHERE trial = {literal(trial)} AND split = 'test'")[0]
    if row["nll"] is None:
        return None
    named = {"uncalibrated": "", **{name.replace("_", " "): f"posthoc_{name}_" for name in methods}}
    rows = [[words, value(row, f"{start}ece"), value(row, f"{start}nll")] for words, start in named.items()]
    reasons = ["", *(str(row[_reason(name)] or "") for name in methods)]
    if not any(reasons):
        return Grid(("post-hoc, test data", "ECE", "NLL"), rows)
    explained = [[*cells, reason] for cells, reason in zip(rows, reasons, strict=True)]
    return Grid(("post-hoc, test data", "ECE", "NLL", "reason"), explained, frozenset({0, 3}))


def _reason(method: str) -> str:
    return f"posthoc_{method}_unavailable"


def value(row: Row, column: str) -> str:
    """Return mean ± standard deviation, in percent for accuracies."""
    mean, deviation = float_or_none(row, column), float_or_none(row, f"{column}_sd")
    if mean is None:
        return "–"
    percent = column.endswith("accuracy")
    return spread_text(mean, deviation, 4, 100.0 if percent else 1.0) + (" %" if percent else "")


def number_of(row: Row, column: str) -> str:
    """Return a number with four significant digits; an empty string for NULL."""
    value = float_or_none(row, column)
    return "" if value is None else f"{value:.4g}"


def trial_view(facts: TrialFacts) -> RenderableType:
    """Return everything about one trial, for a terminal."""
    settings = Table.grid(padding=(0, 2))
    for part, words in facts.configuration:
        settings.add_row(Text(part, style="dim"), words)
    parts: list[RenderableType] = [settings, drawn(facts.decisions, "no decision yet")]
    parts.append(drawn(facts.metrics, "not evaluated yet"))
    if facts.posthoc is not None:
        parts.append(drawn(facts.posthoc, ""))
    folders = ", ".join(map(str, facts.checkpoints)) or "none kept"
    places = f"SQL: trial = '{facts.trial}' in every table; checkpoints: {folders}"
    parts.append(Text(places, style="dim"))
    heading = Text(f"{facts.sweep} · {facts.trial} · {facts.ended}", style="bold")
    return Group(heading, *map(Text, facts.remarks), *(line for part in parts for line in (Text(), part)))


def drawn(grid: Grid | None, absent: str) -> RenderableType:
    """Return a grid as a table, or the sentence `absent` if there is none."""
    if grid is None:
        return Text(absent, style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for at, heading in enumerate(grid.headings):
        # Only the reason, which is a sentence, may wrap: a wrapped number could be misread.
        table.add_column(heading, justify="left" if at in grid.left else "right", no_wrap=heading != "reason")
    for row in grid.rows:
        table.add_row(*row)
    return table
