"""The paper's table of a sweep: the best configuration of each loss and network, on test data."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.analysis.statistics.basics import spread_text
from sweeper.analysis.statistics.best_set import SURE
from sweeper.core.errors import SweeperError
from sweeper.reporting.matrix import Measured, evaluated, matrix, measure
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Goal, leaderboard
from sweeper.text.cells import Row, text_of
from sweeper.text.labels import label, plural
from sweeper.text.paper_tables import DAGGER, NumberCell, TableText
from trainables.metrics.base import larger_is_better

COLUMNS = ("accuracy", "nll", "brier", "ece", "posthoc_temperature_ece")
PER_CENT = ("accuracy", "ece", "posthoc_temperature_ece")
"""Printed in per cent, as papers do."""


def paper_table(results: Results, form: str = "latex") -> str:
    """Return the table as text.

    One row for the best configuration, by the sweep's objective, of each loss on each network. The best mean of a
    column is bold; a dagger marks means that differ significantly from it, at 90 % by multiple comparisons with the
    best over the sweep's configurations.

    Raises:
        SweeperError: another format, or nothing was evaluated.
    """
    with results.snapshot() as snapshot:
        board = leaderboard(snapshot)
        found = matrix(snapshot, board)
        if found is None:
            raise SweeperError(
                f"the sweep {results.name!r} has no evaluated trial yet", "wait until one reaches its first rung"
            )
        present = snapshot.columns("evaluations")
        columns = [name for name in COLUMNS if name in present]
        values = evaluated(snapshot, "test", columns)
        columns = [name for name in columns if values.get(name)]
        measured = [
            measure(name, Goal(f"test_{name}", "max" if larger_is_better(name) else "min"), values[name], board)
            for name in columns
        ]
    keys, rows = list(found.cells), [cells[0] for cells in found.cells.values()]
    numbers = [_column(rows, each, name) for name, each in zip(columns, measured, strict=True)]
    places = {head: at for at, head in enumerate(("data", "loss", "network")) if any(key[at] for key in keys)}
    words = [[*(key[at] for at in places.values()), _trial(row)] for key, row in zip(keys, rows, strict=True)]
    lines = [[*said, *(column[at] for column in numbers)] for at, said in enumerate(words)]
    names = [f"{_named(name)}{' (%)' if name in PER_CENT else ''}" for name in columns]
    heads = [*places, "trial"]
    arrows = [f"{head} {'↑' if larger_is_better(name) else '↓'}" for head, name in zip(names, columns, strict=True)]
    records = [[*heads, *(part for name in names for part in (name, f"{name}: verdict"))]]
    records += [
        [*said, *(part for column in numbers for part in (column[at].text, column[at].verdict()))]
        for at, said in enumerate(words)
    ]
    return TableText([*heads, *arrows], lines, len(heads), _caption(results, rows), records).written(form)


def _column(rows: Sequence[Row], measured: Measured, name: str) -> list[NumberCell]:
    """Return a metric's numbers, one for each row."""
    values = [measured.last(row) for row in rows]
    best: int | None = None
    for at, value in enumerate(values):
        so_far = values[best] if best is not None else None
        if value is not None and (so_far is None or measured.better(value, so_far)):
            best = at
    scale = 100.0 if name in PER_CENT else 1.0
    return [
        NumberCell(
            "–" if value is None else spread_text(value.mean, value.deviation, scale=scale),
            at == best,
            False if at == best or best is None or value is None else measured.worse(rows[best], rows[at]),
        )
        for at, value in enumerate(values)
    ]


def _trial(row: Row) -> str:
    """Return a trial's name, and at which epoch it was measured where it did not finish."""
    name = text_of(row, "trial")
    return name if row["status"] == FINISHED else f"{name} (epoch {row['epochs']})"


def _named(name: str) -> str:
    return "ECE after T" if name == "posthoc_temperature_ece" else label(name)


def _caption(results: Results, rows: Sequence[Row]) -> str:
    counts = sorted({int(str(row["replicates"])) for row in rows})
    size = plural(counts[0], "replicate") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} replicates"
    rehearsed = "Rehearsal, no results. " if results.rehearsed else ""
    return (
        f"{rehearsed}{results.name}: the best configuration of each loss on each network by validation data, measured "
        f"on test data; mean ± standard deviation of {size}. Bold: best mean of the column. {DAGGER}: differs "
        f"significantly from it ({SURE}, multiple comparisons with the best; only what was measured at the same epoch)."
    )
