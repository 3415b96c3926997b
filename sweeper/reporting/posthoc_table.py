"""The papers' table of post-hoc calibration: configurations × methods, mean ± standard deviation, T in brackets.

Mukhoti Tables 1–2 and properness Table 1 have this form: the error, after it in brackets the fitted parameter, the
row's best in bold. Methods that the replicates cannot distinguish from the best are marked, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeper.analysis.statistics.basics import spread, spread_text
from sweeper.reporting.figure_parts.posthoc import Posthoc, Variant, posthoc_measurements
from sweeper.results import Results
from sweeper.text.cells import Rows, int_of, measured_or_none, measured_values, text_of
from sweeper.text.labels import number, plural

HEADINGS = {"ece": ("Expected calibration error, %", 100.0), "ada_ece": ("Equal-mass calibration error, %", 100.0),
            "nll": ("Negative log-likelihood", 1.0)}  # fmt: skip

BINNED = ("ece", "ada_ece")

INDISTINCT = 2.0
"""Standard errors of the paired difference within which a method is not distinguishable from the best: about 95 %."""

CAPTION = (
    "Test data, last evaluation. Methods are fitted on each replicate’s validation data. Mean ± standard deviation "
    "over replicates; in parentheses the mean fitted temperature T and, if the method has one, γ. Bold: the smallest "
    "mean of the row. ≈: not distinguishable from it (mean paired difference within two standard errors)."
)
METACAL = " MetaCal predicts the uniform distribution for uncertain samples, which changes the accuracy."


@dataclass(frozen=True)
class Cell:
    """One configuration under one method: the metric, T and γ of its replicates, and why some are missing."""

    values: dict[int, float]
    temperature: float | None
    gamma: float | None
    reason: str | None

    @property
    def mean(self) -> float:
        """Mean over replicates; infinite without any, so that it is never the smallest."""
        return spread(list(self.values.values())).mean if self.values else float("inf")


class Shown(NamedTuple):
    """A displayed cell: the value, whether it is the row's best, the fitted parameters, why replicates lack."""

    text: str
    best: bool
    below: str
    letter: str
    reason: str | None


class MetricTable(NamedTuple):
    """One metric's table: its methods, rows of (trial, configuration in words, cells), and lettered notes."""

    heading: str
    methods: list[str]
    rows: list[tuple[str, str, list[Shown]]]
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
    title, scale = HEADINGS[metric]
    rows = [row for row in measured.rows if row["split"] == "test" and row["bins"] == bins]
    variants = [v for v in measured.variants if any((r["method"], r["options"]) == (v.method, v.options) for r in rows)]
    replicates = max((int_of(row, "replicate") + 1 for row in rows), default=0)
    notes: list[str] = []
    lines = []
    for trial, name in measured.names.items():
        cells = [cell_of(rows, trial, variant, metric) for variant in variants]
        marked = zip(cells, marks_of(cells), strict=True)
        lines.append((trial, name, [shown(cell, mark, scale, replicates, notes) for cell, mark in marked]))
    if metric in BINNED:
        title += f", {plural(bins, 'bin')}"
    heading = f"{title} · {plural(replicates, 'replicate')}"
    return MetricTable(heading, [v.label for v in variants], lines, [(letter(at), n) for at, n in enumerate(notes)])


def cell_of(rows: Rows, trial: str, variant: Variant, metric: str) -> Cell:
    """Return what one configuration has under one method."""
    mine = [r for r in rows if r["trial"] == trial and (r["method"], r["options"]) == (variant.method, variant.options)]
    values = {int_of(r, "replicate"): value for r in mine if (value := measured_or_none(r, metric)) is not None}
    reason = next((text_of(r, "unavailable") for r in mine if r["unavailable"]), None)
    return Cell(values, mean_of(mine, "temperature"), mean_of(mine, "gamma"), reason)


def mean_of(rows: Rows, column: str) -> float | None:
    """Return the mean of a column, None where it has no values."""
    values = measured_values(rows, column)
    return spread(values).mean if values else None


def marks_of(cells: Sequence[Cell]) -> list[str]:
    """Return `best`, `alike` (not distinguishable from the best) or an empty mark for each cell of a row."""
    best = min(range(len(cells)), key=lambda at: cells[at].mean, default=0)
    if sum(bool(cell.values) for cell in cells) < 2:
        return [""] * len(cells)
    return ["best" if at == best else "alike" if alike(cell, cells[best]) else "" for at, cell in enumerate(cells)]


def alike(cell: Cell, best: Cell) -> bool:
    """Return whether the mean difference, paired by replicate, lies within INDISTINCT of its standard errors."""
    shared = sorted(cell.values.keys() & best.values.keys())
    found = spread([cell.values[r] - best.values[r] for r in shared])
    if found.deviation is None:
        return False
    return bool(abs(found.mean) <= INDISTINCT * found.deviation / found.n**0.5)


def shown(cell: Cell, mark: str, scale: float, replicates: int, notes: list[str]) -> Shown:
    """Return a displayed cell; a new reason for missing replicates is added to `notes`."""
    letters = ""
    if cell.reason is not None and len(cell.values) < replicates:
        if cell.reason not in notes:
            notes.append(cell.reason)
        letters = letter(notes.index(cell.reason))
    if not cell.values:
        return Shown("–", False, "", letters, cell.reason)
    found = spread(list(cell.values.values()))
    text = ("≈ " if mark == "alike" else "") + spread_text(found.mean, found.deviation, scale=scale)
    fits = [] if cell.temperature is None else [f"{cell.temperature:.2f}"]
    fits += [] if cell.gamma is None else [f"γ {number(cell.gamma)}"]
    few = f" n = {found.n}" if found.n < replicates else ""
    return Shown(text, mark == "best", (f"({', '.join(fits)})" if fits else "") + few, letters, cell.reason)


def letter(place: int) -> str:
    """Return the mark of note number `place`: a, b, c …"""
    return chr(ord("a") + place % 26)
