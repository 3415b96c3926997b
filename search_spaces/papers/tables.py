"""A paper's table or figure filled in from the sweeps that have its rows, next to the published numbers.

A cell takes the best of the configurations that its recipe trains for it (`recipes`), by the sweep's own objective on
validation data, as papers select. It stays empty until all of them have run to the end, and says why. Rehearsals never
fill a cell, and a cell that no sweep can fill stays missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from search_spaces.papers.computed_figures import BOUNDS, WHOLE_GAMMAS
from search_spaces.papers.figures import QUANTITIES
from search_spaces.papers.finished import FinishedSweep, PaperCell
from search_spaces.papers.published_numbers import PublishedNumber, read_published
from search_spaces.papers.recipes import options_of, recipe_of
from sweeper.core.display import TableText
from sweeper.core.statistics.basics import Spread, spread_text
from trainables.posthoc import confidence_regions as regions

#: Placeholder for a number that neither a sweep nor the paper has.
MISSING = "–"

CSV_COLUMNS = (
    "table", "dataset", "architecture", "loss", "options", "posthoc", "split", "metric", "printed", "published",
    "published_spread", "ours", "ours_sd", "n", "sweep", "trial", "candidates", "source", "recipe", "reason",
)  # fmt: skip

HOW_FILLED = (
    "Ours: mean ± standard deviation (n) over finished replicates of the best candidate by the sweep's objective; of a "
    "figure's rank or sign, over all the configurations that it compares."
)

#: Shown in place of the sweep's name for a number that is computed, not trained.
FORMULA = "formula"


@dataclass(frozen=True)
class PaperTable:
    """A published table with our numbers.

    Attributes:
        name: name of the table, e.g. `mukhoti-1`.
        cells: cells in the paper's order.
        sweeps: names of the sweeps that were read.
        rehearsals: names of the rehearsals; left out, or the only ones read if `rehearsed`.
        rehearsed: whether the cells hold rehearsals' numbers, which are no results.
    """

    name: str
    cells: Sequence[PaperCell]
    sweeps: Sequence[str]
    rehearsals: Sequence[str]
    rehearsed: bool = False

    @property
    def filled(self) -> int:
        """Number of cells with a number of ours."""
        return sum(cell.ours is not None for cell in self.cells)

    @property
    def reasons(self) -> Counter[str]:
        """Reasons for empty cells whose experiments have been run, and the number of cells with each."""
        return Counter(cell.reason for cell in self.cells if cell.ours is None and cell.reason)


def paper_table(name: str, sweeps: Sequence[FinishedSweep], *, rehearsed: bool = False) -> PaperTable:
    """Return a published table filled in from `sweeps`; the first that follows a cell's recipe fills it.

    Args:
        name: name of the table.
        sweeps: sweeps to read.
        rehearsed: fill cells only from rehearsals, by loss and method, to show that each can be filled.

    Raises:
        KeyError: there is no published table of that name.
        QueryError: a sweep's tables cannot be read.
    """
    chosen = [sweep for sweep in sweeps if sweep.rehearsed == rehearsed]
    rehearsals = [sweep.name for sweep in sweeps if sweep.rehearsed]
    cells = [_cell(number, chosen) for number in read_published(name)]
    return PaperTable(name, cells, [sweep.name for sweep in chosen], rehearsals, rehearsed)


def _cell(number: PublishedNumber, sweeps: Sequence[FinishedSweep]) -> PaperCell:
    if not number.dataset:
        return PaperCell(number, ours=Spread(formula_value(number), None, 1), sweep=FORMULA)
    # A number that no shipped search space trains stays missing rather than be filled by a similar one.
    recipe = recipe_of(number)
    if recipe is None:
        return PaperCell(number)
    filled = next(filter(None, (sweep.number(number, recipe) for sweep in sweeps)), None)
    if filled is not None:
        return filled
    reason = next(filter(None, (sweep.reason(number, recipe) for sweep in sweeps)), "")
    return PaperCell(number, recipe.space, reason=reason)


def formula_value(number: PublishedNumber) -> float:
    """Return the value of a published number that belongs to no data set.

    Its options name the number of classes and, if it needs one, the γ or the kind of bounds. NaN if the quantity does
    not exist.

    Raises:
        KeyError: an unknown quantity.
    """
    classes = int(number.options["classes"])
    if number.metric == "largest_overconfident_gamma":
        largest = regions.largest_overconfident_gamma(classes)
        return float("nan") if largest is None else largest
    gamma = float(number.options["gamma"]) if "gamma" in number.options else None
    if gamma is not None and "bounds" in number.options:
        bounds = BOUNDS[number.options["bounds"]](gamma)
        return {"temperature_lower": bounds.lower, "temperature_upper": bounds.upper}[number.metric]
    # Cached: several cells need the same fit, and each fit takes seconds.
    fits = [_fit(classes, value) for value in (WHOLE_GAMMAS if gamma is None else (gamma,))]
    if number.metric == "temperature":
        return fits[0].temperature
    if number.metric == "max_error":
        return max(fit.max_error for fit in fits)
    return dict(zip(("slope", "intercept"), regions.line_through(fits), strict=True))[number.metric]


@cache
def _fit(classes: int, gamma: float) -> regions.ClosestTemperature:
    return regions.closest_temperature(gamma, regions.simplex_logits(classes))


def format_paper_table(table: PaperTable, form: str) -> str:
    """Return the table as `markdown`, `latex` or `csv`: networks and metrics down, losses across; the paper's numbers
    above ours.

    Raises:
        SweeperError: for another format.
    """
    return TableText(*grid(table), 4, caption(table), _records(table)).written(form)


def caption(table: PaperTable) -> str:
    """Return the table's caption: what fills it, and why cells are empty."""
    # The caption names every source, so that a table can be traced back to its sweeps.
    filling = [*dict.fromkeys(cell.sweep for cell in table.cells if cell.ours is not None)] or ["no sweep"]
    sentence = f"{table.name}: {table.filled} of {len(table.cells)} cells filled from {', '.join(filling)}"
    if table.rehearsed:
        sentence += ", rehearsals and no results"
    elif table.rehearsals:
        sentence += f"; rehearsals left out: {', '.join(table.rehearsals)}"
    sentence += f". {HOW_FILLED}"
    for reason, count in table.reasons.items():
        sentence += f" {count} empty: {reason}."
    return sentence


def grid(table: PaperTable) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: for each network, metric and method the paper's numbers and ours."""
    columns = list(dict.fromkeys(_loss(cell.published) for cell in table.cells))
    keys = list(dict.fromkeys(_row_key(cell.published) for cell in table.cells))
    by_place = {(_row_key(cell.published), _loss(cell.published)): cell for cell in table.cells}
    rows = []
    for key in keys:
        cells = [by_place.get((key, column)) for column in columns]
        rows.append([*key, "paper", *(cell.published.printed if cell else MISSING for cell in cells)])
        rows.append(["", "", "", "ours", *(_ours(cell) for cell in cells)])
    return ["data, network", "metric", "calibration", "", *columns], rows


def _row_key(number: PublishedNumber) -> tuple[str, str, str]:
    others = {key: value for key, value in number.options.items() if not key.startswith("posthoc.")}
    part = "".join(f", {key} {value}" for key, value in others.items() if "." in key)
    network = ", ".join(filter(None, (number.dataset, number.architecture))) + part
    options = ", ".join(f"{key} {value}" for key, value in options_of(number, "posthoc").items())
    posthoc = f"{number.posthoc} ({options})" if options else number.posthoc
    return network, f"{number.split} {number.metric}".strip(), posthoc or "as trained"


def _loss(number: PublishedNumber) -> str:
    options = ", ".join(f"{key} {value}" for key, value in number.options.items() if "." not in key)
    return " ".join(filter(None, (number.loss, options)))


def _ours(cell: PaperCell | None) -> str:
    return MISSING if cell is None or cell.ours is None else _in_print(cell.published, cell.ours, cell.candidates)


def _in_print(number: PublishedNumber, ours: Spread, candidates: int) -> str:
    """Return our value in the paper's unit, with the numbers of replicates and candidates."""
    complement, scale = unit_in_print(number)
    mean = 1 - ours.mean if complement else ours.mean
    one = f"{candidates} configurations" if number.metric in QUANTITIES else f"best of {candidates}"
    many = f"; {one}" if candidates > 1 else ""
    return f"{spread_text(mean, ours.deviation, 4, scale)} ({ours.n}{many})"


def unit_in_print(number: PublishedNumber) -> tuple[bool, float]:
    """Return whether the paper prints an accuracy's complement, and the printed scale of our unit: 100 for per cent.

    Both are inferred from the number itself, because papers mix units within a table.
    """
    try:
        printed = float(number.printed)
    except ValueError:
        return False, 1.0
    complement = number.metric == "accuracy" and abs(printed / 100 - (1 - number.value)) < 1e-6
    value = 1 - number.value if complement else number.value
    return complement, 100.0 if value and abs(printed / value - 100) < 1 else 1.0


def _records(table: PaperTable) -> list[list[object]]:
    """Return the CSV's rows with everything about each cell, header first."""
    records: list[list[object]] = [[*CSV_COLUMNS]]
    for cell in table.cells:
        number, ours = cell.published, cell.ours
        options = ";".join(f"{key}={value}" for key, value in number.options.items())
        place = [table.name, number.dataset, number.architecture, number.loss, options, number.posthoc]
        printed = [number.split, number.metric, number.printed, number.value, number.spread]
        source = [cell.sweep, cell.trial, cell.candidates, number.source, cell.recipe]
        measured = [ours.mean, ours.deviation, ours.n] if ours else [None, None, 0]
        records.append([*place, *printed, *measured, *source, cell.reason])
    return records
