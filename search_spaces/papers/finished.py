"""One sweep as papers' tables read it: the configurations that ran to the end, with their measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from search_spaces.papers import recipes
from search_spaces.papers.figures import QUANTITIES, Comparison, candidates
from search_spaces.papers.published_numbers import PublishedNumber
from search_spaces.papers.recipes import Recipe, Settings
from sweeper.core.cells import Row, by_trial, float_or_none, measured_values
from sweeper.core.statistics.basics import Spread, spread
from sweeper.results import Results
from sweeper.results.leaderboard import objective
from sweeper.results.queries import literal
from trainables.losses import LOSSES
from trainables.registry import column_label, entry_label

#: Rows of the view `final` by trial.
Trials = Mapping[str, Sequence[Row]]

#: Most departures from a recipe that a reason names.
MOST_DEPARTURES = 4


@dataclass(frozen=True)
class PaperCell:
    """A published number and ours.

    Attributes:
        published: number in the paper.
        recipe: search space that trains it; empty for a computed number.
        ours: our number over replicates; None if no sweep of the recipe has it.
        sweep, trial: source of our number.
        candidates: number of configurations from which the best was taken, or that the figure compares.
        reason: why the cell is empty although its experiment has been run; empty if it has not.
    """

    published: PublishedNumber
    recipe: str = ""
    ours: Spread | None = None
    sweep: str = ""
    trial: str = ""
    candidates: int = 0
    reason: str = ""


class FinishedSweep:
    """The configurations of one sweep that ran to the end; tables are read when they are first needed."""

    def __init__(self, results: Results) -> None:
        """Read from `results`, which must stay open."""
        self.results, self.name = results, results.name
        self.rehearsed = bool(results.rehearsed)
        # Many cells of a table need the epochs of the same trial.
        self._epochs: dict[str, list[Row]] = {}

    def departures(self, recipe: Recipe, table: str) -> list[str]:
        """Return how the sweep departs from a recipe of a table, a few words each; empty if it does not.

        More seeds than the recipe's are no departure: they only make the number more certain.
        """
        specification, ours = self.results.specification, recipe.fixed
        said: list[str] = []
        for part, settings in ours.items():
            theirs = self._fixed.get(part)
            said += [f"no {part}"] if theirs is None else recipes.differences(part, theirs, settings)
        seeds = specification["replicates"]["count"]
        if seeds < recipe.spec.replicates.count:
            said.append(f"seeds {seeds} for {recipe.spec.replicates.count}")
        if table not in specification["header"].get("tables", ()):
            said.append(f"its header does not name {table}")
        return said

    def number(self, number: PublishedNumber, recipe: Recipe) -> PaperCell | None:
        """Return the cell of a published number, filled from the configurations that follow a recipe.

        `None` if they have no number, or if not all of the paper's candidates have ended: the best of fewer candidates
        is not comparable. A rehearsal fills the cells of its own search space by loss and method.
        """
        if not self.rehearsed:
            whole = not self.departures(recipe, number.table) and not self._lacking(number, recipe)
            return self._best(number, number, self._following(recipe), recipe) if whole else None
        if not recipe.named(self.name):
            return None
        of_network = {t: r for t, r in self._trials.items() if _network_name(r[0]) == number.architecture}
        # A large network has a small stand-in: any of those that the rehearsal trained.
        held = of_network or self._trials
        trials = {trial: [_as_if_on(number, row) for row in rows] for trial, rows in held.items()}
        # A rehearsal trains only the ends of a grid, so the number's own options may be missing.
        of_its_loss = replace(number, options={key: value for key, value in number.options.items() if "." in key})
        return self._best(number, number, trials, recipe) or self._best(number, of_its_loss, trials, recipe)

    def reason(self, number: PublishedNumber, recipe: Recipe) -> str:
        """Return why a sweep of a recipe has no number; empty for a sweep of another recipe."""
        same_data = self._fixed["data set"] == recipe.fixed["data set"]
        if not recipe.named(self.name) and not (same_data and self._following(recipe)):
            return ""
        if not self.rehearsed and (departures := self.departures(recipe, number.table)):
            return f"{self.name} departs from the recipe ({', '.join(departures[:MOST_DEPARTURES])})"
        if not self.rehearsed and (lacking := self._lacking(number, recipe)):
            return lacking
        label = self._labels.get(recipe.method(number)) if number.posthoc else None
        # The first trial's reason stands for all: they differ in their numbers.
        for row in (row for rows in self._trials.values() for row in rows) if label is not None else ():
            if why := row.get(f"posthoc_{label}_unavailable"):
                return str(why)
        return f"{number.metric} of {number.split or 'any'} data was not measured, or is undefined for it"

    def _lacking(self, number: PublishedNumber, recipe: Recipe) -> str:
        """Return how many of a number's candidates have ended with all their seeds; empty if all have."""
        wanted = {recipes.configuration_settings(row) for row in candidates(number, recipe)}
        ended = sum(self._ended.get(settings, 0) >= recipe.spec.replicates.count for settings in wanted)
        noun = "configurations" if number.metric in QUANTITIES else "candidates"
        return "" if ended == len(wanted) else f"{ended} of {len(wanted)} {noun} ran to the end"

    @cached_property
    def _fixed(self) -> dict[str, Settings]:
        return recipes.fixed_by(self.results.specification)

    @cached_property
    def _trials(self) -> dict[str, list[Row]]:
        # Ordered, so that the first of equally good trials fills the cell, whatever the order of the tables.
        sql = "SELECT * FROM final WHERE status = 'completed' ORDER BY trial, replicate, split"
        return by_trial(self.results.rows(sql))

    @cached_property
    def _ended(self) -> Counter[Settings]:
        """Number of replicates of each configuration that completed or diverged: both were tried."""
        # A diverged candidate counts as tried: otherwise a table with one could never be completed.
        rows = self.results.rows("SELECT * FROM trials WHERE status = 'completed' OR stop_kind = 'non_finite'")
        return Counter(recipes.configuration_settings(row) for row in rows)

    def _epoch_rows(self, trial: str) -> Sequence[Row]:
        if trial not in self._epochs:
            sql = f"SELECT * FROM epochs WHERE trial = {literal(trial)} ORDER BY replicate, epoch"
            self._epochs[trial] = self.results.rows(sql)
        return self._epochs[trial]

    def _reliability_rows(self, trial: str) -> Sequence[Row]:
        return self.results.rows(
            f"SELECT * FROM reliability WHERE trial = {literal(trial)} ORDER BY replicate, epoch, bin"
        )

    def _following(self, recipe: Recipe) -> Trials:
        """Return the trials whose configurations equal one of the recipe's in every hyperparameter."""
        return {trial: rows for trial, rows in self._trials.items() if self._settings[trial] in recipe.settings}

    @cached_property
    def _settings(self) -> dict[str, Settings]:
        return {trial: recipes.configuration_settings(rows[0]) for trial, rows in self._trials.items()}

    def _best(
        self, number: PublishedNumber, alike: PublishedNumber, trials: Trials, recipe: Recipe
    ) -> PaperCell | None:
        """Return a number from the trial with the best objective among those of the configuration of `alike`."""
        agreeing = sorted((trial for trial, rows in trials.items() if recipes.trains(rows[0], alike)), key=self._rank)
        if not agreeing:
            return None
        if number.metric in QUANTITIES:
            return self._quantity(number, agreeing, trials, recipe)
        measured = {trial: values for trial in agreeing if (values := self._values(trial, number, recipe))}
        trial = next(iter(measured if self.rehearsed else agreeing), "")
        if trial not in measured:
            return None
        return PaperCell(number, recipe.space, spread(measured[trial]), self.name, trial, len(agreeing))

    def _quantity(
        self, number: PublishedNumber, agreeing: Sequence[str], trials: Trials, recipe: Recipe
    ) -> PaperCell | None:
        """Return a figure's quantity; `None` if a configuration was not measured, except in a rehearsal."""
        quantity = QUANTITIES[number.metric]
        compared = {
            trial: rows
            for trial, rows in trials.items()
            if recipes.of_network(rows[0], number) and quantity.compares(rows[0], number)
        }
        unmeasured = []

        def values(trial: str, measured: PublishedNumber) -> list[float]:
            numbers = self._values(trial, measured, recipe)
            unmeasured.extend([] if numbers else [trial])
            return numbers

        comparison = Comparison(
            number, compared, agreeing, self._rank, values, self._epoch_rows, self._reliability_rows
        )
        value = quantity.value(comparison)
        if value is None or (unmeasured and not self.rehearsed):
            return None
        # A rank or a sign has no spread over replicates, because it is computed from their means.
        ours = Spread(value, None, len({row["replicate"] for row in trials[agreeing[0]]}))
        return PaperCell(number, recipe.space, ours, self.name, agreeing[0], len(compared))

    def _rank(self, trial: str) -> float:
        objectives = [float_or_none(row, "objective") for row in self._trials[trial]]
        values = [value for value in objectives if value is not None]
        # Trials without an objective rank last. The sign makes the smallest value the best in both modes.
        mean = fmean(values) if values else float("inf")
        return -mean if objective(self.results).mode == "max" else mean

    def _values(self, trial: str, number: PublishedNumber, recipe: Recipe) -> list[float]:
        """Return a number's metric for each replicate of a trial; empty if it was not measured."""
        rows: Sequence[Row] = [row for row in self._trials[trial] if row["split"] == number.split]
        column = number.metric
        if not number.posthoc and column in {h.name for h in LOSSES[number.loss].hyperparameters}:
            return measured_values(rows, f"config_loss_{column}")  # a hyperparameter that was selected
        if number.posthoc:
            label = self._labels.get(recipe.method(number))
            return [] if label is None else measured_values(rows, f"posthoc_{label}_{column}")
        return measured_values(rows, column)

    @cached_property
    def _labels(self) -> dict[Settings, str]:
        """Settings of a post-hoc method that the evaluations fit → its label in column names."""
        labels: dict[Settings, str] = {}
        for entry in self.results.posthoc:
            labels.setdefault(recipes.method_settings(entry["name"], entry), entry_label(entry))
        return labels


def _network_name(row: Row) -> str:
    return column_label(str(row[f"{recipes.NETWORK}name"]))


def _as_if_on(number: PublishedNumber, row: Row) -> Row:
    """Return a rehearsal's row with the number's network in place of its stand-in, so that it can be matched."""
    others = {key: value for key, value in row.items() if not key.startswith(recipes.NETWORK)}
    options = {f"{recipes.NETWORK}{key}": value for key, value in recipes.options_of(number, "architecture").items()}
    return {**others, f"{recipes.NETWORK}name": number.architecture, **options}
