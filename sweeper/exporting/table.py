"""The paper's table of a sweep: the best configuration of each loss and network, on test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.analysis.statistics.basics import spread_text
from sweeper.analysis.statistics.best_set import SURE
from sweeper.core.errors import SweeperError
from sweeper.reporting.matrix import Measured, evaluated, matrix, measure
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Goal, leaderboard
from sweeper.text.cells import Row, text_of
from sweeper.text.labels import label, plural
from trainables.metrics.base import larger_is_better

FORMATS = ("latex", "markdown", "csv")
COLUMNS = ("accuracy", "nll", "brier", "ece", "posthoc_temperature_ece")
PER_CENT = ("accuracy", "ece", "posthoc_temperature_ece")
"""Printed in per cent, as papers do."""
DAGGER = "†"

_ESCAPED = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


@dataclass(frozen=True)
class Entry:
    """One number of the table.

    Attributes:
        text: mean ± standard deviation over replicates.
        best: whether it is the best of its column.
        worse: whether it differs from the best beyond the variation between seeds (90 %); None where that is unknown.
    """

    text: str
    best: bool
    worse: bool | None


def paper_table(results: Results, form: str = "latex") -> str:
    """Return the table as text.

    One row for the best configuration, by the sweep's objective, of each loss on each network. The best mean of a
    column is bold; a dagger marks means that differ significantly from it, at 90 % by multiple comparisons with the
    best over the sweep's configurations.

    Raises:
        SweeperError: another format, or nothing was evaluated.
    """
    if form not in FORMATS:
        raise SweeperError(f"unknown format {form!r} of a table", f"formats: {', '.join(FORMATS)}")
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
    entries = [_column(rows, each, name) for name, each in zip(columns, measured, strict=True)]
    heads = [head for head, at in (("data", 0), ("loss", 1), ("network", 2)) if any(key[at] for key in keys)]
    places = [{"data": 0, "loss": 1, "network": 2}[head] for head in heads]
    lines = [
        ([key[at] for at in places] + [_trial(row)], [column[at] for column in entries])
        for at, (key, row) in enumerate(zip(keys, rows, strict=True))
    ]
    header = [*heads, "trial"]
    names = [f"{_named(name)}{' (%)' if name in PER_CENT else ''}" for name in columns]
    up = [larger_is_better(name) for name in columns]
    return _WRITERS[form](header, names, up, lines, _caption(results, rows))


def _column(rows: Sequence[Row], measured: Measured, name: str) -> list[Entry]:
    """Return a metric's entries, one for each row."""
    values = [measured.last(row) for row in rows]
    best: int | None = None
    for at, value in enumerate(values):
        so_far = values[best] if best is not None else None
        if value is not None and (so_far is None or measured.better(value, so_far)):
            best = at
    scale = 100.0 if name in PER_CENT else 1.0
    return [
        Entry(
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


Lines = Sequence[tuple[Sequence[str], Sequence[Entry]]]


def _latex(header: Sequence[str], names: Sequence[str], up: Sequence[bool], lines: Lines, caption: str) -> str:
    def entry(each: Entry) -> str:
        text = each.text.replace(" ± ", r" \pm ").replace("–", r"\text{--}")
        mark = r"^{\dagger}" if each.worse else ""
        return rf"$\mathbf{{{text}}}$" if each.best else f"${text}{mark}$"

    arrows = [
        rf"{_tex(name)} ${arrow}$" for name, arrow in zip(names, _arrows(up, r"\uparrow", r"\downarrow"), strict=True)
    ]
    body = [" & ".join([*map(_tex, words), *map(entry, entries)]) + r" \\" for words, entries in lines]
    return "\n".join(
        [
            r"% needs \usepackage{amsmath,booktabs}",
            r"\begin{table}",
            rf"\caption{{{_tex(caption)}}}",
            rf"\begin{{tabular}}{{{'l' * len(header)}{'r' * len(names)}}}",
            r"\toprule",
            " & ".join([*header, *arrows]) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _markdown(header: Sequence[str], names: Sequence[str], up: Sequence[bool], lines: Lines, caption: str) -> str:
    def entry(each: Entry) -> str:
        return f"**{each.text}**" if each.best else each.text + (DAGGER if each.worse else "")

    heads = [*header, *(f"{name} {arrow}" for name, arrow in zip(names, _arrows(up, "↑", "↓"), strict=True))]
    rows = [heads, ["---"] * len(heads), *([*words, *map(entry, entries)] for words, entries in lines)]
    return "\n".join([*("| " + " | ".join(row) + " |" for row in rows), "", caption])


def _csv(header: Sequence[str], names: Sequence[str], up: Sequence[bool], lines: Lines, caption: str) -> str:
    import csv
    import io

    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*header, *(part for name in names for part in (name, f"{name}: verdict"))])
    for words, entries in lines:
        cells = (part for each in entries for part in (each.text, _verdict(each)))
        writer.writerow([*words, *cells])
    return written.getvalue().rstrip("\n")


def _verdict(entry: Entry) -> str:
    if entry.best:
        return "best"
    return {True: "worse", False: "alike", None: "unknown"}[entry.worse]


def _arrows(up: Sequence[bool], rising: str, falling: str) -> list[str]:
    return [rising if each else falling for each in up]


def _tex(text: str) -> str:
    return text.translate(_ESCAPED).replace("±", r"$\pm$").replace(DAGGER, r"$\dagger$").replace("…", r"\dots{}")


_WRITERS = {"latex": _latex, "markdown": _markdown, "csv": _csv}
