"""A paper's table filled in from the sweeps that have its rows, next to the published numbers.

A cell takes the configurations that agree with it in data set, architecture, loss and every printed option, that ran
to the end, and of these the best by the sweep's own objective on validation data, as papers select. Rehearsals never
fill a cell, and a cell that no sweep can fill stays missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from search_spaces.published_numbers import PublishedNumber, published_tables, read_published
from sweeper.analysis.statistics.basics import Spread, spread
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.results.leaderboard import objective
from sweeper.text.cells import Row, by_trial, float_or_none, measured_values, text_of
from trainables.datasets import DATASETS
from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES
from trainables.posthoc import POSTHOC
from trainables.registry.nearest import nearest

REGISTRIES = {"loss": LOSSES, "architecture": ARCHITECTURES, "dataset": DATASETS}


@dataclass(frozen=True)
class Cell:
    """A published number and what ours is.

    Attributes:
        published: the number in the paper.
        ours: over replicates; None where no sweep holds it.
        sweep, trial: where ours comes from.
        candidates: how many configurations agreed with the cell, of which the best was taken.
    """

    published: PublishedNumber
    ours: Spread | None = None
    sweep: str = ""
    trial: str = ""
    candidates: int = 0


@dataclass(frozen=True)
class PaperTable:
    """A published table with ours next to it.

    Attributes:
        name: e.g. `mukhoti-1`.
        cells: in the order of the paper.
        sweeps: names of the sweeps that were looked into.
        rehearsals: names of those left out because they are rehearsals.
    """

    name: str
    cells: Sequence[Cell]
    sweeps: Sequence[str]
    rehearsals: Sequence[str]

    @property
    def filled(self) -> int:
        """How many cells have a number of ours."""
        return sum(cell.ours is not None for cell in self.cells)


def paper_table(name: str, sweeps: Iterable[Results]) -> PaperTable:
    """Return a published table filled in from `sweeps`; the first sweep that holds a cell fills it.

    Raises:
        SweeperError: there is no published table of that name.
        QueryError: a sweep's tables cannot be read.
    """
    known = [*published_tables()]
    if name not in known:
        raise SweeperError(f"there is no published table {name!r}", f"tables: {', '.join(known)}{nearest(name, known)}")
    numbers, found = read_published(name), list(sweeps)
    real = [_Finished(results) for results in found if not results.specification.get("rehearsed")]
    cells = [next(filter(None, (finished.cell(number) for finished in real)), Cell(number)) for number in numbers]
    rehearsals = [results.name for results in found if results.specification.get("rehearsed")]
    return PaperTable(name, cells, [finished.results.name for finished in real], rehearsals)


class _Finished:
    """The configurations of one sweep that ran to the end."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def cell(self, number: PublishedNumber) -> Cell | None:
        """Return the cell of a published number; None where this sweep does not hold it."""
        if not self._same_dataset(number):
            return None
        agreeing = [trial for trial, rows in self._trials.items() if _agrees(rows[0], number)]
        measured = [(trial, values) for trial in agreeing if (values := self._values(trial, number))]
        if not measured:
            return None
        trial, values = min(measured, key=lambda entry: self._rank(entry[0]))
        return Cell(number, spread(values), self.results.name, trial, len(measured))

    @cached_property
    def _trials(self) -> dict[str, list[Row]]:
        rows = self.results.rows("SELECT * FROM final WHERE status = 'completed' ORDER BY trial, replicate, split")
        return by_trial(rows)

    @cached_property
    def _recalibrations(self) -> dict[str, list[Row]]:
        rows = self.results.rows(
            "SELECT recalibrations.* FROM recalibrations JOIN final USING (trial, replicate, epoch, split)"
        )
        return by_trial(rows)

    def _same_dataset(self, number: PublishedNumber) -> bool:
        dataset = self.results.specification.get("dataset", {})
        return dataset.get("name") == number.dataset and _options_agree("dataset", dataset, number)

    def _rank(self, trial: str) -> float:
        found = [float_or_none(row, "objective") for row in self._trials[trial]]
        values = [value for value in found if value is not None]
        mean = sum(values) / len(values) if values else float("inf")
        return -mean if objective(self.results).mode == "max" else mean

    def _values(self, trial: str, number: PublishedNumber) -> list[float]:
        rows = [row for row in self._trials[trial] if row["split"] == number.split]
        column = number.metric
        if number.posthoc:
            if self._measured_at_evaluation(number):
                column = f"posthoc_{number.posthoc}_{number.metric}"
            else:
                rows = [row for row in self._recalibrations.get(trial, []) if _recalibrated(row, number)]
        if number.metric == "error":
            column = column.removesuffix("error") + "accuracy"
        values = measured_values(rows, column)
        return [1 - value for value in values] if number.metric == "error" else values

    def _measured_at_evaluation(self, number: PublishedNumber) -> bool:
        """Return whether the sweep's evaluations fit this method with the options in print."""
        methods = self.results.specification.get("evaluation", {}).get("posthoc", [])
        return any(given["name"] == number.posthoc and _method_agrees(given, number) for given in methods)


def _recalibrated(row: Row, number: PublishedNumber) -> bool:
    if row["method"] != number.posthoc or row["split"] != number.split:
        return False
    return _method_agrees(json.loads(text_of(row, "options")), number)


def _method_agrees(given: Mapping[str, object], number: PublishedNumber) -> bool:
    component = POSTHOC[number.posthoc]
    defaults = {parameter.name: parameter.default for parameter in component.hyperparameters}
    return all(
        _same(given.get(option, defaults.get(option)), value)
        for of, option, value in _options(number)
        if of == "posthoc"
    )


def _agrees(row: Row, number: PublishedNumber) -> bool:
    """Return whether a configuration is the one of a published number."""
    names = {part: row.get(f"config_{part}_name") for part in ("loss", "architecture")}
    if names != {"loss": number.loss, "architecture": number.architecture}:
        return False
    given = {
        part: {key.removeprefix(f"config_{part}_"): value for key, value in row.items() if value is not None}
        for part in names
    }
    return all(_options_agree(part, given[part] | {"name": names[part]}, number) for part in names)


def _options_agree(part: str, given: Mapping[str, object], number: PublishedNumber) -> bool:
    """Return whether a component's hyperparameters are those in print; one that was not set has its default."""
    component = REGISTRIES[part][str(given["name"])]
    defaults = {parameter.name: parameter.default for parameter in component.hyperparameters}
    return all(
        _same(given.get(option, defaults.get(option)), value) for of, option, value in _options(number) if of == part
    )


def _options(number: PublishedNumber) -> list[tuple[str, str, str]]:
    """Return a number's options as (component, hyperparameter, value); one that names no component is the loss's."""
    split = [(*key.rpartition(".")[::2], value) for key, value in number.options.items()]
    return [(of or "loss", option, value) for of, option, value in split]


def _same(ours: object, printed: str) -> bool:
    if isinstance(ours, (int, float)) and not isinstance(ours, bool):
        try:
            return abs(float(printed) - ours) <= 1e-9 * max(1.0, abs(ours))
        except ValueError:
            return False
    return str(ours) == printed
