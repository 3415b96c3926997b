"""One sweep as papers' tables read it: the configurations that ran to the end, with their measurements."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from search_spaces.papers import recipes
from search_spaces.papers.figures import QUANTITIES, Comparison, candidates
from search_spaces.papers.published_numbers import PublishedNumber
from search_spaces.papers.recipes import Recipe, Settings
from sweeper.core.cells import Row, by_trial, float_or_none, measured_values, text_of
from sweeper.core.domains import Plain
from sweeper.core.statistics.basics import Spread, spread
from sweeper.results import Results
from sweeper.results.leaderboard import objective
from sweeper.results.queries import literal
from trainables.losses import LOSSES
from trainables.posthoc.focal_map import training_gamma
from trainables.registry import entry_label

#: Rows of the view `final` by trial.
Trials = Mapping[str, Sequence[Row]]


@dataclass(frozen=True)
class Empty:
    """Why a cell has no number although a sweep of its recipe exists.

    Attributes:
        text: the reason in words.
        kind: reason that cells share although the numbers in their texts differ; empty if they share the text itself.
        few: finished candidates, e.g. `1 of 10 candidates`, if they are the reason.
    """

    text: str
    kind: str = ""
    few: str = ""


@dataclass(frozen=True)
class Found:
    """A sweep's number for a published one.

    Attributes:
        ours: our number over replicates.
        sweep, trial: its source.
        candidates: number of configurations from which it was selected, or that its figure compares.
        stand_in: network that a rehearsal trained in place of the number's network, in words.
        departures: departures of its recipe from the paper's, a few words each.
    """

    ours: Spread
    sweep: str
    trial: str
    candidates: int
    stand_in: str = ""
    departures: tuple[str, ...] = ()


class FinishedSweep:
    """The configurations of one sweep that ran to the end; tables are read when they are first needed."""

    def __init__(self, results: Results) -> None:
        """Read from `results`, which must stay open."""
        self.results = results
        # Many cells of a table need the epochs of the same trial.
        self._epochs: dict[str, list[Row]] = {}
        self._networks: dict[tuple[object, ...], Mapping[Settings, str]] = {}

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.results.name

    @property
    def rehearsed(self) -> bool:
        """Whether it is a rehearsal."""
        return bool(self.results.rehearsed)

    def departures(self, recipe: Recipe, table: str) -> tuple[str, ...]:
        """Return how the sweep departs from a recipe of a table; empty if it does not."""
        return recipe.departures(self.results.specification, table)

    def departures_of(self, trial: str, recipe: Recipe) -> tuple[str, ...]:
        """Return how one of the sweep's configurations departs from the recipe's configurations."""
        return () if trial in self._following(recipe) else recipe.departures_of(self._trials[trial][0])

    def number(self, number: PublishedNumber, recipe: Recipe) -> Found | None:
        """Return the number of the configurations that follow a recipe.

        `None` if they have no number, or if not all of the paper's candidates have ended: the best of fewer candidates
        is not comparable.
        """
        if self.lacking(number, recipe):
            return None
        trials = self._following(recipe)
        agreeing = sorted((trial for trial, rows in trials.items() if recipes.trains(rows[0], number)), key=self._rank)
        if not agreeing:
            return None
        if number.metric in QUANTITIES:
            return self._quantity(number, agreeing, trials, recipe, whole=True)
        values = self._values(agreeing[0], number, recipe)
        wanted = len(candidates(number, recipe))
        return Found(spread(values), self.name, agreeing[0], wanted) if values else None

    def lacking(self, number: PublishedNumber, recipe: Recipe) -> Empty | None:
        """Return how many of a number's candidates have ended with all their seeds; `None` if all have."""
        wanted = {recipes.configuration_settings(row) for row in candidates(number, recipe)}
        ended = sum(self._ended.get(settings, 0) >= recipe.spec.replicates.count for settings in wanted)
        noun = "configurations" if number.metric in QUANTITIES else "candidates"
        if ended == len(wanted):
            return None
        few = f"{ended} of {len(wanted)} {noun}"
        return Empty(f"{few} ran to the end", f"few {noun}", few)

    def number_of_any_recipe(self, number: PublishedNumber, recipe: Recipe) -> Found | None:
        """Return the number from any configuration on its data set; the recipe names the post-hoc method."""
        if number.metric in QUANTITIES or not recipes.on_dataset(self._dataset, number):
            return None
        return self._found(number, self._trials, recipe)

    def rehearsed_number(self, number: PublishedNumber, recipe: Recipe) -> Found | None:
        """Return the number from a rehearsal of a recipe's search space, on the stand-in network."""
        if not recipe.named(self.name):
            return None
        networks = self._stand_ins(number, recipe)
        trials = {
            trial: [_as_if_on(number, row) for row in rows]
            for trial, rows in self._trials.items()
            if recipes.network_settings(rows[0]) in networks
        }
        # A rehearsal trains only the ends of a grid, so the number's own options may be missing.
        of_its_loss = replace(number, options={key: value for key, value in number.options.items() if "." in key})
        value = self._found(number, trials, recipe) or self._found(number, trials, recipe, of_its_loss)
        words = " or ".join(filter(None, networks.values()))
        return replace(value, stand_in=words) if value is not None else None

    def _stand_ins(self, number: PublishedNumber, recipe: Recipe) -> Mapping[Settings, str]:
        key = (recipe.space, number.architecture, *sorted(recipes.options_of(number, "architecture").items()))
        if key not in self._networks:
            self._networks[key] = recipe.stand_ins(number)
        return self._networks[key]

    def reason(self, number: PublishedNumber, recipe: Recipe) -> Empty | None:
        """Return why a sweep of a recipe has no number; `None` for a sweep of another recipe."""
        if not recipe.named(self.name) and not self._following(recipe):
            return None
        if not self.rehearsed and (lacking := self.lacking(number, recipe)):
            return lacking
        held = [rows for rows in self._trials.values() if rows[0]["config_loss_name"] == number.loss]
        if not held:
            return Empty(f"no configuration with {number.loss} has finished")
        if number.metric in QUANTITIES:
            return Empty(f"{number.metric} needs more values than were measured, or values that are not all equal")
        label = self._labels.get(recipe.method(number)) if number.posthoc else None
        reasons = {str(row.get(f"posthoc_{label}_unavailable") or "") for rows in held for row in rows} - {""}
        if label is not None and reasons:
            return Empty(min(reasons), f"{label} unavailable")
        column = number.metric if label is None else f"posthoc_{label}_{number.metric}"
        values = [row.get(column) for rows in held for row in rows if row["split"] == number.split]
        undefined = any(isinstance(value, float) and math.isnan(value) for value in values)
        how = "undefined: there is no sample of the kind that it counts" if undefined else "not measured"
        return Empty(f"{number.metric} of {number.split or 'any'} data is {how}")

    @property
    def _dataset(self) -> Mapping[str, Plain]:
        dataset: Mapping[str, Plain] = self.results.specification.get("dataset", {})
        return dataset

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

    @cached_property
    def _recalibrations(self) -> dict[str, list[Row]]:
        sql = "SELECT recalibrations.* FROM recalibrations JOIN final USING (trial, replicate, epoch, split)"
        return by_trial(self.results.rows(sql))

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

    def _found(
        self, number: PublishedNumber, trials: Trials, recipe: Recipe, alike: PublishedNumber | None = None
    ) -> Found | None:
        """Return a number from the trials of its own configuration, or of the configuration of the number `alike`."""
        agreeing = [trial for trial, rows in trials.items() if recipes.trains(rows[0], alike or number)]
        if not agreeing:
            return None
        if number.metric in QUANTITIES:
            return self._quantity(number, agreeing, trials, recipe)
        measured = [(trial, values) for trial in agreeing if (values := self._values(trial, number, recipe))]
        if not measured:
            return None
        trial, values = min(measured, key=lambda entry: self._rank(entry[0]))
        return Found(spread(values), self.name, trial, len(measured))

    def _quantity(
        self, number: PublishedNumber, agreeing: Sequence[str], trials: Trials, recipe: Recipe, *, whole: bool = False
    ) -> Found | None:
        """Return a figure's quantity; with `whole`, `None` if a configuration was not measured."""
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

        ranked = sorted(agreeing, key=self._rank)
        comparison = Comparison(number, compared, ranked, self._rank, values, self._epoch_rows, self._reliability_rows)
        value = quantity.value(comparison)
        if value is None or (whole and unmeasured):
            return None
        trial = comparison.agreeing[0]
        # A rank or a sign has no spread over replicates, because it is computed from their means.
        replicates = len({row["replicate"] for row in trials[trial]})
        return Found(Spread(value, None, replicates), self.name, trial, len(compared))

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
            method = recipe.method(number)
            label = self._labels.get(method)
            if label is not None:
                column = f"posthoc_{label}_{column}"
            else:
                rows = [row for row in self._recalibrations.get(trial, ()) if self._recalibrated(row, number, recipe)]
        # Tables hold accuracies; some papers print errors.
        if number.metric == "error":
            column = column.removesuffix("error") + "accuracy"
        values = measured_values(rows, column)
        return [1 - value for value in values] if number.metric == "error" else values

    @cached_property
    def _labels(self) -> dict[Settings, str]:
        """Settings of a post-hoc method that the evaluations fit → its label in column names."""
        labels: dict[Settings, str] = {}
        for entry in self.results.posthoc:
            options = {key: value for key, value in entry.items() if key != "name"}
            labels.setdefault(recipes.method_settings(entry["name"], options), entry_label(entry))
        return labels

    def _recalibrated(self, row: Row, number: PublishedNumber, recipe: Recipe) -> bool:
        """Return whether a row of `recalibrations` has a number's method, options and split, and the recipe's bins."""
        # Cheap comparisons first: parsing options takes longer, and there are many rows.
        if (row["method"], row["split"], row["bins"]) != (number.posthoc, number.split, recipe.spec.evaluation.bins):
            return False
        options = json.loads(text_of(row, "options"))
        if recipes.method_settings(number.posthoc, options) != recipe.method(number):
            return False
        # A temperature fitted by focal loss uses the training γ unless the options give one.
        by_focal_loss = number.posthoc == "temperature" and options.get("objective") == "focal"
        return not by_focal_loss or "gamma" in options or row["gamma"] == self._training_gamma(text_of(row, "trial"))

    def _training_gamma(self, trial: str) -> float | None:
        row, prefix = self._trials[trial][0], "config_loss_"
        return training_gamma({key.removeprefix(prefix): row[key] for key in row if key.startswith(prefix)})


def _as_if_on(number: PublishedNumber, row: Row) -> Row:
    """Return a rehearsal's row with the number's network in place of its stand-in, so that it can be matched."""
    others = {key: value for key, value in row.items() if not key.startswith(recipes.NETWORK)}
    options = {f"{recipes.NETWORK}{key}": value for key, value in recipes.options_of(number, "architecture").items()}
    return {**others, f"{recipes.NETWORK}name": number.architecture, **options}
