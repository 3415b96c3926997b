"""One trial on one screen: configuration, rungs and decisions, metrics with intervals, files."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.analysis.statistics.basics import spread_text
from sweeper.core.errors import SweeperError
from sweeper.core.ids import trial_name
from sweeper.results import Results
from sweeper.text.cells import Row, Rows, float_or_none, int_of, text_of
from sweeper.text.durations import duration
from sweeper.text.labels import STATUS_WORDS, label, number, plural
from trainables.registry.nearest import nearest

METRICS = ("accuracy", "balanced_accuracy", "nll", "refinement_nll", "brier", "ece", "ada_ece", "aurc")
CURVATURE = ("lambda_max", "trace")
SPLITS = ("val", "test")

MOST_EVALUATIONS = 3
"""Columns of metrics: the last evaluations on validation data, and the one on test data."""

MOST_FILES = 8
"""Files that are named; there is one of predictions for each replicate and evaluation."""


def trial_view(results: Results, asked: str) -> RenderableType:
    """Return everything about one trial, in the width of a terminal.

    Args:
        results: its sweep.
        asked: its name, `c00039`, or its number.

    Raises:
        SweeperError: there is no such trial; the message has the nearest name.
    """
    with results.snapshot() as frozen:
        trial = found_name(frozen, asked)
        replicates = frozen.rows(f"SELECT * FROM trials WHERE trial = '{trial}' ORDER BY replicate")
        decisions = frozen.rows(f"SELECT * FROM decisions WHERE trial = '{trial}' ORDER BY epoch, decided_at")
        parts = [
            Text(f"{results.name} · {trial} · {state_of(replicates)}", style="bold"),
            Text(),
            *configuration(replicates[0]),
            Text(),
            *rungs(decisions),
            *metrics(frozen, trial),
            *posthoc(frozen, trial),
        ]
    return Group(
        *parts,
        Text(),
        *files(results.folder, trial),
        Text(),
        Text(f"SQL: trial = '{trial}' in every table", style="dim"),
    )


def found_name(results: Results, asked: str) -> str:
    """Return the trial's name, checked. Raises SweeperError."""
    name = trial_name(int(asked)) if re.fullmatch(r"\d+", asked) else asked
    known = [text_of(row, "trial") for row in results.rows("SELECT DISTINCT trial FROM trials ORDER BY trial")]
    if name not in known:
        among = f"its trials are {known[0]} … {known[-1]}" if known else "it has no trials yet"
        raise SweeperError(f"{results.name} has no trial {asked!r}", f"{among}{nearest(name, known)}")
    return name


def state_of(replicates: Rows) -> str:
    """Return status, epochs, seeds and time in one line."""
    first = replicates[0]
    statuses = list(dict.fromkeys(STATUS_WORDS[text_of(row, "status")] for row in replicates))
    seconds = sum(float_or_none(row, "wall_seconds") or 0.0 for row in replicates)
    seeds = ", ".join(str(row["seed"]) for row in replicates)
    epochs = plural(int_of(first, "epochs"), "epoch") if first["epochs"] is not None else "no epoch"
    reasons = dict.fromkeys(str(row["error"]) for row in replicates if row["error"])
    ended = f"{', '.join(statuses)} after {epochs}, {duration(seconds)}"
    return "\n".join([ended, f"{plural(len(replicates), 'replicate')}, seeds {seeds}", *reasons])


def configuration(row: Row) -> list[RenderableType]:
    """Return the hyperparameters, those of one component in a line."""
    values = {name: value for name, value in row.items() if name.startswith("config_") and name != "config_hash"}
    groups: dict[str, list[str]] = {}
    for column, value in values.items():
        if value is not None:
            part, _, rest = column.removeprefix("config_").partition("_")
            groups.setdefault(part, []).append(str(value) if rest == "name" else f"{label(rest)} {number(value)}")
    table = Table.grid(padding=(0, 2))
    for part, words in groups.items():
        table.add_row(Text(part, style="dim"), " · ".join(words))
    return [table]


def rungs(decisions: Rows) -> list[RenderableType]:
    """Return the scheduler's decisions in order."""
    if not decisions:
        return [Text("no decision yet", style="dim"), Text()]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("epoch", "decision", "value", "cut-off", "competitors", "reason"):
        table.add_column(
            heading, justify="right" if heading in ("epoch", "value", "cut-off", "competitors") else "left"
        )
    for row in decisions:
        values = [number_of(row, name) for name in ("metric", "cutoff", "competitors")]
        table.add_row(str(row["epoch"]), str(row["kind"]), *values, str(row["reason"] or ""))
    return [table, Text()]


def metrics(results: Results, trial: str) -> list[RenderableType]:
    """Return each evaluation's metrics: mean ± standard deviation over replicates, on validation and test data."""
    present = set(results.columns("evaluations"))
    curvature = [f"hessian_{loss}_{name}" for loss in ("cross_entropy", "training") for name in CURVATURE]
    columns = [name for name in (*METRICS, "posthoc_temperature_temperature", *curvature) if name in present]
    selected = ", ".join(f"avg({c}) AS {c}, stddev_samp({c}) AS {c}_sd" for c in columns)
    rows = results.rows(
        f"SELECT split, epoch, {selected} FROM evaluations WHERE trial = '{trial}' GROUP BY split, epoch ORDER BY epoch"
    )
    if not rows:
        return [Text("not evaluated yet", style="dim")]
    last = max(int_of(row, "epoch") for row in rows)
    shown = [(split, epoch) for split in SPLITS for epoch in sorted({int_of(row, "epoch") for row in rows})]
    shown = [key for key in shown if key[0] == "val" or key[1] == last][-MOST_EVALUATIONS:]
    by_key = {(text_of(row, "split"), int_of(row, "epoch")): row for row in rows}
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("mean ± sd", no_wrap=True)
    for split, epoch in shown:
        table.add_column(f"{split}, epoch {epoch}", justify="right", no_wrap=True)
    for column in columns:
        cells = [by_key.get(key, {}) for key in shown]
        if any(float_or_none(cell, column) is not None for cell in cells):
            table.add_row(metric_name(column), *(value(cell, column) for cell in cells))
    return [table]


def posthoc(results: Results, trial: str) -> list[RenderableType]:
    """Return what each post-hoc method did on test data at the last evaluation."""
    present = results.columns("evaluations")
    methods = [re.sub(r"^posthoc_|_nll$", "", name) for name in present if re.fullmatch(r"posthoc_.*_nll", name)]
    methods = [name for name in methods if f"posthoc_{name}_ece" in present]
    if not methods:
        return []
    columns = ["ece", "nll", *(f"posthoc_{name}_{metric}" for name in methods for metric in ("ece", "nll"))]
    selected = ", ".join(f"avg({c}) AS {c}, stddev_samp({c}) AS {c}_sd" for c in columns)
    row = results.rows(f"SELECT {selected} FROM final WHERE trial = '{trial}' AND split = 'test'")[0]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("post-hoc, test data", "ECE", "NLL"):
        table.add_column(heading, justify="left" if heading.startswith("post") else "right")
    table.add_row("uncalibrated", value(row, "ece"), value(row, "nll"))
    for name in methods:
        table.add_row(name.replace("_", " "), value(row, f"posthoc_{name}_ece"), value(row, f"posthoc_{name}_nll"))
    return [Text(), table]


def files(folder: Path, trial: str) -> list[RenderableType]:
    """Return the files that belong to the trial alone."""
    here = [path for part in ("checkpoints", "tables") for path in sorted((folder / part).glob(f"**/*{trial}*"))]
    if not here:
        return [
            Text(f"files: {folder}/tables (its rows are in files of all trials; no checkpoint is kept)", style="dim")
        ]
    lines = [Text("files", style="dim")]
    lines += [Text(f"  {path.relative_to(folder)}") for path in here[:MOST_FILES]]
    if len(here) > MOST_FILES:
        lines.append(Text(f"  and {len(here) - MOST_FILES} more", style="dim"))
    return [*lines]


def metric_name(column: str) -> str:
    """Return a column in words."""
    if column == "posthoc_temperature_temperature":
        return "fitted temperature"
    words = (
        column.removeprefix("hessian_").replace("cross_entropy_", "cross-entropy ").replace("training_", "training ")
    )
    return (
        words.replace("lambda_max", "λ_max").replace("trace", "Tr(H)")
        if column.startswith("hessian_")
        else label(column)
    )


def value(row: Row, column: str) -> str:
    """Return a mean with its deviation, in percent for accuracies."""
    mean, deviation = float_or_none(row, column), float_or_none(row, f"{column}_sd")
    if mean is None:
        return "–"
    percent = column.endswith("accuracy")
    return spread_text(mean, deviation, 4, 100.0 if percent else 1.0) + (" %" if percent else "")


def number_of(row: Row, column: str) -> str:
    """Return a number in four digits; nothing for NULL."""
    found = float_or_none(row, column)
    return "" if found is None else f"{found:.4g}"
