"""A paper's table as Markdown, LaTeX or CSV: networks and metrics down, losses across; the paper above ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace

from search_spaces.published_numbers import PublishedNumber
from sweeper.analysis.papers.tables import Cell, PaperTable
from sweeper.analysis.statistics.basics import spread_text
from sweeper.core.errors import SweeperError

FORMATS = ("markdown", "latex", "csv")

MISSING = "–"
"""Placeholder for a number that no sweep, or the paper, has."""

MOST_DEPARTURES = 4
"""How many of a recipe's differences a caption names; the CSV names all."""

CSV_COLUMNS = (
    "table", "dataset", "architecture", "loss", "options", "posthoc", "split", "metric", "printed", "published",
    "published_spread", "ours", "ours_sd", "n", "sweep", "trial", "candidates", "source", "recipe", "beside",
    "beside_sd", "beside_n", "beside_sweep", "beside_departures",
)  # fmt: skip


def format_paper_table(table: PaperTable, form: str) -> str:
    """Return the table as text.

    Raises:
        SweeperError: for another format.
    """
    if form == "csv":
        return _csv(table)
    if form not in FORMATS:
        raise SweeperError(f"unknown format {form!r} of a paper's table", f"formats: {', '.join(FORMATS)}")
    header, rows = grid(table)
    return _markdown(table, header, rows) if form == "markdown" else _latex(table, header, rows)


def caption(table: PaperTable) -> str:
    """Return in a sentence what the table holds."""
    filling = [*dict.fromkeys(cell.sweep for cell in table.cells if cell.ours is not None)]
    sentence = f"{table.name}: {table.filled} of {len(table.cells)} cells filled from {_names(filling)}"
    if table.rehearsed:
        sentence += ", rehearsals and no results"
    elif table.rehearsals:
        sentence += f"; rehearsals left out: {', '.join(table.rehearsals)}"
    sentence += ". Ours: mean ± standard deviation (n) over finished replicates."
    if table.departures:
        apart = (f"{sweep} ({', '.join(how[:MOST_DEPARTURES])})" for sweep, how in table.departures.items())
        sentence += f" From other recipes, shown beside the table and never in a cell: {'; '.join(apart)}."
    for reason, count in table.reasons.items():
        sentence += f" {count} empty: {reason}."
    return sentence


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "no sweep"


def grid(table: PaperTable) -> tuple[list[str], list[list[str]]]:
    """Return header and rows for every network, method and metric: the paper's, ours, and another recipe's if any."""
    columns = list(dict.fromkeys(_loss(cell.published) for cell in table.cells))
    keys = list(dict.fromkeys(_row_key(cell.published) for cell in table.cells))
    by_place = {(_row_key(cell.published), _loss(cell.published)): cell for cell in table.cells}
    rows = []
    for key in keys:
        cells = [by_place.get((key, column)) for column in columns]
        rows.append([*key, "paper", *(cell.published.printed if cell else MISSING for cell in cells)])
        rows.append(["", "", "", "ours", *(_ours(cell) for cell in cells)])
        if any(cell and cell.beside for cell in cells):
            rows.append(["", "", "", "other recipe", *(_beside(cell) for cell in cells)])
    return ["data, network", "metric", "calibration", "", *columns], rows


def _row_key(number: PublishedNumber) -> tuple[str, str, str]:
    others = {key: value for key, value in number.options.items() if not key.startswith("posthoc.")}
    part = "".join(f", {key} {value}" for key, value in others.items() if "." in key)
    network = ", ".join(filter(None, (number.dataset, number.architecture))) + part
    options = ", ".join(
        f"{key.removeprefix('posthoc.')} {value}" for key, value in number.options.items() if key.startswith("posthoc.")
    )
    posthoc = f"{number.posthoc} ({options})" if options else number.posthoc
    return network, f"{number.split} {number.metric}".strip(), posthoc or "as trained"


def _loss(number: PublishedNumber) -> str:
    options = ", ".join(f"{key} {value}" for key, value in number.options.items() if "." not in key)
    return " ".join(filter(None, (number.loss, options)))


def _ours(cell: Cell | None) -> str:
    if cell is None or cell.ours is None:
        return MISSING
    mean, scale = cell.ours.mean, scale_in_print(cell.published)
    if printed_as_error(cell.published):
        mean = 1 - mean
    return f"{spread_text(mean, cell.ours.deviation, 4, scale)} ({cell.ours.n})"


def _beside(cell: Cell | None) -> str:
    if cell is None or not cell.beside:
        return MISSING
    return _ours(replace(cell, ours=cell.beside[0].found.ours))


def scale_in_print(number: PublishedNumber) -> float:
    """Return the printed scale of our unit: 100 if the paper prints per cent."""
    value = 1 - number.value if printed_as_error(number) else number.value
    try:
        return 100.0 if value and abs(float(number.printed) / value - 100) < 1 else 1.0
    except ValueError:
        return 1.0


def printed_as_error(number: PublishedNumber) -> bool:
    """Return whether the paper prints an accuracy's complement, in per cent."""
    try:
        return number.metric == "accuracy" and abs(float(number.printed) / 100 - (1 - number.value)) < 1e-6
    except ValueError:
        return False


def _markdown(table: PaperTable, header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows)]
    return "\n".join([*lines, "", caption(table)])


def _latex(table: PaperTable, header: list[str], rows: list[list[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(_escaped, cells)) + r" \\"

    body = [line(row) + (r" \addlinespace" if row[0] == "" else "") for row in rows]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            rf"\caption{{{_escaped(caption(table))}}}",
            rf"\begin{{tabular}}{{llll{'r' * (len(header) - 4)}}}",
            r"\toprule",
            line(header),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _escaped(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return text.replace("±", r"$\pm$").replace("–", "--").replace("~", r"\textasciitilde{}")


def _csv(table: PaperTable) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for cell in table.cells:
        number, ours = cell.published, cell.ours
        options = ";".join(f"{key}={value}" for key, value in number.options.items())
        measured = [ours.mean, ours.deviation, ours.n] if ours else [None, None, 0]
        other = cell.beside[0] if cell.beside else None
        apart: list[object] = (
            [other.found.ours.mean, other.found.ours.deviation, other.found.ours.n] if other else [None, None, 0]
        )
        apart += [other.found.sweep, "; ".join(other.departures)] if other else ["", ""]
        place = [table.name, number.dataset, number.architecture, number.loss, options, number.posthoc]
        printed = [number.split, number.metric, number.printed, number.value, number.spread]
        source = [cell.sweep, cell.trial, cell.candidates, number.source, cell.recipe]
        writer.writerow([*place, *printed, *measured, *source, *apart])
    return text.getvalue().rstrip("\n")
