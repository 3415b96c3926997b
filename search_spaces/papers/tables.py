"""A paper's table or figure filled in from the sweeps that have its rows, next to the published numbers.

A cell takes the configurations that its recipe trains for it (`recipes`), and of these the best by the sweep's own
objective on validation data, as papers select; it stays empty until all of them ran to the end. What sweeps of another
recipe have is given beside it, with how they depart. Rehearsals never fill a cell, and a cell that no sweep can fill
stays missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter

from search_spaces.papers.figures import QUANTITIES
from search_spaces.papers.finished import Empty, FinishedSweep, Found
from search_spaces.papers.focal_map_figures import BOUNDS, WHOLE_GAMMAS
from search_spaces.papers.published_numbers import PublishedNumber, published_tables, read_published
from search_spaces.papers.recipes import Recipe, options_of, recipe_of
from sweeper.core.cells import grouped
from sweeper.core.display import TableText
from sweeper.core.errors import SweeperError
from sweeper.core.statistics.basics import Spread, spread_text
from sweeper.results import Results
from trainables.posthoc import confidence_regions as regions
from trainables.registry.names import nearest

#: Placeholder for a number that no sweep, or the paper, has.
MISSING = "–"

#: How many of a recipe's differences a caption names; the CSV names all.
MOST_DEPARTURES = 4

CSV_COLUMNS = (
    "table", "dataset", "architecture", "loss", "options", "posthoc", "split", "metric", "printed", "published",
    "published_spread", "ours", "ours_sd", "n", "sweep", "trial", "candidates", "source", "recipe", "beside",
    "beside_sd", "beside_n", "beside_sweep", "beside_departures", "reason",
)  # fmt: skip

HOW_FILLED = (
    "Ours: mean ± standard deviation (n) over finished replicates of the best candidate by the sweep's objective; of a "
    "figure's rank or sign, over all the configurations that it compares."
)

#: Stands for the sweep where a number is computed and not trained.
FORMULA = "formula"


@dataclass(frozen=True)
class PaperCell:
    """A published number and what ours is.

    Attributes:
        published: the number in the paper.
        recipe: the search space that trains it; empty where it is computed.
        ours: over replicates; None where no sweep of the recipe holds it.
        sweep, trial: where ours comes from.
        candidates: of how many configurations the best was taken, or how many its figure compares.
        beside: what sweeps of other recipes have, and how these depart from the paper's.
        reason: why it is empty although a sweep of its recipe is there.
        stand_in: in a rehearsal, the network in place of the number's, in words.
        repeats: the network of an earlier cell that is filled from the same stand-in.
    """

    published: PublishedNumber
    recipe: str = ""
    ours: Spread | None = None
    sweep: str = ""
    trial: str = ""
    candidates: int = 0
    beside: tuple[Found, ...] = ()
    reason: Empty | None = None
    stand_in: str = ""
    repeats: str = ""

    @property
    def network(self) -> str:
        """The paper's network with its options, in words."""
        options = options_of(self.published, "architecture").items()
        return " ".join([self.published.architecture, *(f"{key} {value}" for key, value in options)])


@dataclass(frozen=True)
class PaperTable:
    """A published table with ours next to it.

    Attributes:
        name: e.g. `mukhoti-1`.
        cells: in the order of the paper.
        sweeps: names of the sweeps that were looked into.
        rehearsals: names of those left out because they are rehearsals, or that alone were looked into.
        rehearsed: whether the cells hold rehearsals' numbers, which are no results.
    """

    name: str
    cells: Sequence[PaperCell]
    sweeps: Sequence[str]
    rehearsals: Sequence[str]
    rehearsed: bool = False

    @property
    def filled(self) -> int:
        """How many cells have a number of ours."""
        return sum(cell.ours is not None for cell in self.cells)

    @property
    def reasons(self) -> dict[str, int]:
        """Why cells are empty whose experiments have been run, in words, and how many are for each."""
        empty = [cell.reason for cell in self.cells if cell.ours is None and cell.reason]
        alike = grouped(empty, lambda reason: reason.kind or reason.text)
        return {first.text: 1 + len(others) for first, *others in alike.values()}

    @property
    def stand_ins(self) -> dict[str, list[str]]:
        """In a rehearsal: each small network, and those of the paper that it stands in for."""
        pairs = dict.fromkeys((cell.stand_in, cell.network) for cell in self.cells if cell.stand_in)
        return {small: [of for _, of in held] for small, held in grouped(pairs, itemgetter(0)).items()}

    @property
    def departures(self) -> dict[str, tuple[str, ...]]:
        """How each sweep whose numbers stand beside departs from the recipe of its first cell."""
        found: dict[str, tuple[str, ...]] = {}
        for cell in self.cells:
            for each in cell.beside:
                found.setdefault(each.sweep, each.departures)
        return found


def paper_table(name: str, sweeps: Iterable[Results], *, rehearsed: bool = False) -> PaperTable:
    """Return a published table filled in from `sweeps`; of several that follow a cell's recipe, the first fills it.

    Args:
        name: of the table.
        sweeps: to look into.
        rehearsed: fill cells from rehearsals alone, by loss and method, to show that each can be filled.

    Raises:
        SweeperError: there is no published table of that name.
        QueryError: a sweep's tables cannot be read.
    """
    known = [*published_tables()]
    if name not in known:
        raise SweeperError(f"there is no published table {name!r}", f"tables: {', '.join(known)}{nearest(name, known)}")
    return filled_table(name, [FinishedSweep(results) for results in sweeps], rehearsed=rehearsed)


def filled_table(name: str, sweeps: Sequence[FinishedSweep], *, rehearsed: bool = False) -> PaperTable:
    """Return a published table filled in from sweeps that may have been read for another table. Raises QueryError."""
    chosen = [sweep for sweep in sweeps if sweep.rehearsed == rehearsed]
    rehearsals = [sweep.name for sweep in sweeps if sweep.rehearsed]
    cells = [_cell(number, chosen, rehearsed=rehearsed) for number in read_published(name)]
    if rehearsed:
        cells = _said_once(cells)
    return PaperTable(name, cells, [sweep.name for sweep in chosen], rehearsals, rehearsed)


def _said_once(cells: Sequence[PaperCell]) -> list[PaperCell]:
    """Return a rehearsal's cells; of several networks with one stand-in, the first's have the numbers."""
    first: dict[tuple[object, ...], str] = {}
    found = []
    for cell in cells:
        n = cell.published
        others = tuple(item for item in n.options.items() if not item[0].startswith("architecture."))
        key = (cell.sweep, cell.stand_in, n.loss, others, n.posthoc, n.split, n.metric)
        earlier = first.setdefault(key, cell.network) if cell.stand_in else cell.network
        found.append(replace(cell, repeats=earlier) if earlier != cell.network else cell)
    return found


def _cell(number: PublishedNumber, sweeps: Sequence[FinishedSweep], *, rehearsed: bool) -> PaperCell:
    if not number.dataset:
        return PaperCell(number, ours=Spread(formula_value(number), None, 1), sweep=FORMULA)
    recipe = recipe_of(number)
    if recipe is None:
        return PaperCell(number)
    if rehearsed:
        found = next(filter(None, (sweep.rehearsed_number(number, recipe) for sweep in sweeps)), None)
        beside: tuple[Found, ...] = ()
    else:
        found, beside = _own_and_beside(number, recipe, sweeps)
    if found is None:
        reason = next(filter(None, (sweep.reason(number, recipe) for sweep in sweeps)), None)
        return PaperCell(number, recipe.space, beside=beside, reason=reason)
    return PaperCell(
        number, recipe.space, found.ours, found.sweep, found.trial, found.candidates, beside, stand_in=found.stand_in
    )


def _own_and_beside(
    number: PublishedNumber, recipe: Recipe, sweeps: Sequence[FinishedSweep]
) -> tuple[Found | None, tuple[Found, ...]]:
    """Return what the first sweep that follows a recipe has for a number, and what all others have."""
    own, beside = None, []
    for sweep in sweeps:
        departures = sweep.departures(recipe, number.table)
        if not departures and own is None:
            own = sweep.number(number, recipe)
        if departures or own is None or own.sweep != sweep.name:
            other = sweep.number_of_any_recipe(number, recipe)
            if other is not None:
                more = sweep.departures_of(other.trial, recipe)
                lacking = None if departures or more else sweep.lacking(number, recipe)
                apart = (*departures, *more, *([lacking.text] if lacking else []))
                beside.append(replace(other, departures=tuple(filter(None, apart))))
    return own, tuple(beside)


def formula_value(number: PublishedNumber) -> float:
    """Return the value of a published number that no data set is named for.

    Its options name the classes, and the γ or the kind of bounds where it is of one alone. NaN where the quantity does
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
    fits = [_fit(classes, each) for each in (WHOLE_GAMMAS if gamma is None else (gamma,))]
    if number.metric == "temperature":
        return fits[0].temperature
    if number.metric == "max_error":
        return max(fit.max_error for fit in fits)
    return dict(zip(("slope", "intercept"), regions.line_through(fits), strict=True))[number.metric]


@cache
def _fit(classes: int, gamma: float) -> regions.ClosestTemperature:
    return regions.closest_temperature(gamma, regions.simplex_logits(classes))


def format_paper_table(table: PaperTable, form: str) -> str:
    """Return the table as `markdown`, `latex` or `csv`: networks and metrics down, losses across; the paper above ours.

    Raises:
        SweeperError: for another format.
    """
    return TableText(*grid(table), 4, caption(table), _records(table)).written(form)


def caption(table: PaperTable) -> str:
    """Return in a sentence what the table holds."""
    filling = [*dict.fromkeys(cell.sweep for cell in table.cells if cell.ours is not None)] or ["no sweep"]
    sentence = f"{table.name}: {table.filled} of {len(table.cells)} cells filled from {', '.join(filling)}"
    if table.rehearsed:
        sentence += ", rehearsals and no results"
        small = "; ".join(f"{each} stands in for {', '.join(of)}" for each, of in table.stand_ins.items())
        sentence += f". Networks: {small}" if small else ""
    elif table.rehearsals:
        sentence += f"; rehearsals left out: {', '.join(table.rehearsals)}"
    sentence += f". {HOW_FILLED}"
    if table.departures:
        apart = (f"{sweep} ({', '.join(how[:MOST_DEPARTURES])})" for sweep, how in table.departures.items())
        sentence += f" From other recipes, shown beside the table and never in a cell: {'; '.join(apart)}."
    for reason, count in table.reasons.items():
        sentence += f" {count} empty: {reason}."
    return sentence


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
    options = ", ".join(f"{key} {value}" for key, value in options_of(number, "posthoc").items())
    posthoc = f"{number.posthoc} ({options})" if options else number.posthoc
    return network, f"{number.split} {number.metric}".strip(), posthoc or "as trained"


def _loss(number: PublishedNumber) -> str:
    options = ", ".join(f"{key} {value}" for key, value in number.options.items() if "." not in key)
    return " ".join(filter(None, (number.loss, options)))


def _ours(cell: PaperCell | None) -> str:
    if cell is None or cell.ours is None:
        few = cell.reason.few if cell and cell.reason else ""
        return f"{MISSING} ({few})" if few else MISSING
    return f"as {cell.repeats}" if cell.repeats else _in_print(cell.published, cell.ours, cell.candidates)


def _beside(cell: PaperCell | None) -> str:
    if cell is None or not cell.beside:
        return MISSING
    return _in_print(cell.published, cell.beside[0].ours, cell.beside[0].candidates)


def _in_print(number: PublishedNumber, ours: Spread, candidates: int) -> str:
    """Return a value of ours as the paper prints its own, over how many replicates, and of how many candidates."""
    mean = 1 - ours.mean if printed_as_error(number) else ours.mean
    one = f"{candidates} configurations" if number.metric in QUANTITIES else f"best of {candidates}"
    many = f"; {one}" if candidates > 1 else ""
    return f"{spread_text(mean, ours.deviation, 4, scale_in_print(number))} ({ours.n}{many})"


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


def _records(table: PaperTable) -> list[list[object]]:
    """Return all that is known of every cell, header first."""
    records: list[list[object]] = [[*CSV_COLUMNS]]
    for cell in table.cells:
        number, other = cell.published, cell.beside[0] if cell.beside else None
        options = ";".join(f"{key}={value}" for key, value in number.options.items())
        place = [table.name, number.dataset, number.architecture, number.loss, options, number.posthoc]
        printed = [number.split, number.metric, number.printed, number.value, number.spread]
        source = [cell.sweep, cell.trial, cell.candidates, number.source, cell.recipe]
        apart = [other.sweep, "; ".join(other.departures)] if other else ["", ""]
        beside = _measured(other.ours if other else None)
        records.append(
            [*place, *printed, *_measured(cell.ours), *source, *beside, *apart, cell.reason.text if cell.reason else ""]
        )
    return records


def _measured(found: Spread | None) -> list[object]:
    return [found.mean, found.deviation, found.n] if found else [None, None, 0]
