"""Quantities that papers' figures show without printing a number: ranks, signs and positions of minima.

Each is a function of a `Comparison` of one network's configurations, registered in QUANTITIES. It is computed from
means over replicates, as the figures draw them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np

from search_spaces.papers.claims.numbers import Point, mean_correlation, other_settings
from search_spaces.papers.claims.posthoc import plain_gamma, smoothed_gamma
from search_spaces.papers.published_numbers import PublishedNumber
from search_spaces.papers.recipes import Recipe, of_network, options_of, trains, written
from sweeper.core.cells import Row, float_or_none, grouped, int_of, measured_values
from sweeper.core.statistics.basics import ranks, spearman
from trainables.posthoc.focal_temperature import GAMMAS, TEMPERATURE_AT

#: Hessian columns of the curvature paper's figures: cross-entropy's, because γ scales the training loss's.
LAMBDA_MAX, TRACE = "hessian_cross_entropy_lambda_max", "hessian_cross_entropy_trace"

#: Least γ from which inverse focal loss "consistently underperforms" (selective App. Fig. 4a).
HIGH_GAMMA = 4

#: Fewest points among which a minimum can lie inside.
FEWEST = 3


@dataclass(frozen=True)
class Comparison:
    """The configurations of one network that a figure compares.

    Attributes:
        number: published number.
        trials: trial → rows of `final`, for all losses.
        agreeing: trials with the number's loss and options, best first.
        rank: trial → objective; smaller is better.
        values: trial and number → the number's metric for each replicate.
        epochs: trial → rows of `epochs`.
        reliability: trial → rows of `reliability`.
    """

    number: PublishedNumber
    trials: Mapping[str, Sequence[Row]]
    agreeing: Sequence[str]
    rank: Callable[[str], float]
    values: Callable[[str, PublishedNumber], list[float]]
    epochs: Callable[[str], Sequence[Row]]
    reliability: Callable[[str], Sequence[Row]]

    def mean(self, trial: str, metric: str, **changes: object) -> float | None:
        """Return a trial's mean of a metric, measured like the number except for `changes`; `None` if it has none."""
        values = self.values(trial, replace(self.number, metric=metric, **changes))  # type: ignore[arg-type]
        return fmean(values) if values else None

    def gammas(self) -> dict[str, float]:
        """Return trial → γ for trials with the number's label smoothing (without any if the number names none)."""
        smoothing = options_of(self.number, "loss").get("smoothing")
        by_trial = {trial: _gamma(rows[0], smoothing) for trial, rows in self.trials.items()}
        return {trial: gamma for trial, gamma in by_trial.items() if gamma is not None}

    def best(self, settings: Mapping[str, object]) -> list[str]:
        """Return the trial with the best objective for each setting.

        Args:
            settings: trial → setting to compare.
        """
        return [best for best, *_ in grouped(sorted(settings, key=self.rank), settings.__getitem__).values()]


@dataclass(frozen=True)
class Quantity:
    """A quantity that a figure shows.

    Attributes:
        value: function that computes it; returns None if its inputs were not measured.
        compares: function that returns whether the quantity needs a given configuration of the number's network. All
            such configurations must have been measured.
    """

    value: Callable[[Comparison], float | None]
    compares: Callable[[Row, PublishedNumber], bool] = trains


def candidates(number: PublishedNumber, recipe: Recipe) -> list[Row]:
    """Return a recipe's configurations from which a number is selected, or that its figure compares."""
    quantity = QUANTITIES.get(number.metric)
    if quantity is None:
        return [row for row in recipe.configurations if trains(row, number)]
    return [row for row in recipe.configurations if of_network(row, number) and quantity.compares(row, number)]


def _all_losses(row: Row, number: PublishedNumber) -> bool:
    return True


def _weights(row: Row, number: PublishedNumber) -> bool:
    return row["config_loss_name"] == "cross_entropy" or trains(row, number)


def _of_images(row: Row, number: PublishedNumber) -> bool:
    variant = row.get("config_loss_variant")
    return row["config_loss_name"] in ("cross_entropy", "brier", "mmce") or variant == "flsd_53"


def _gammas(row: Row, number: PublishedNumber) -> bool:
    return _gamma(row, options_of(number, "loss").get("smoothing")) is not None


def _gamma(row: Row, smoothing: str | None) -> float | None:
    """Return a row's γ; 0 for the loss that focal loss equals at γ = 0, `None` for other losses."""
    if smoothing is None:
        return plain_gamma(row)
    if row["config_loss_name"] == "label_smoothing":
        alike = row.get("config_loss_form") == "uniform" and written(row.get("config_loss_alpha")) == written(smoothing)
    else:
        alike = written(row.get("config_loss_smoothing")) == written(smoothing)
    return smoothed_gamma(row) if alike else None


def _correlation(comparison: Comparison, x: Mapping[str, float], metric: str) -> float | None:
    """Return the rank correlation of `x` and a metric, averaged over strata that differ only in the loss."""
    points = []
    for trial, value in x.items():
        y = comparison.mean(trial, metric)
        row = comparison.trials[trial][0]
        if y is not None:
            points.append(Point(other_settings(row, ("config_loss_",)), value, y))
    return mean_correlation(points).value


def with_gamma(comparison: Comparison, metric: str) -> float | None:
    """Return Spearman's correlation of γ and the mean of a metric."""
    return _correlation(comparison, comparison.gammas(), metric)


def with_weight(comparison: Comparison, metric: str) -> float | None:
    """Return Spearman's correlation of the regulariser's weight (0 for cross-entropy) and the mean of a metric."""
    # Only the number's own loss has this weight; other losses in the sweep are left out.
    weights = {}
    for trial, rows in comparison.trials.items():
        if rows[0]["config_loss_name"] == "cross_entropy":
            weights[trial] = 0.0
        elif trial in comparison.agreeing and (weight := float_or_none(rows[0], "config_loss_weight")) is not None:
            weights[trial] = weight
    return _correlation(comparison, weights, metric)


def gamma_of_smallest_ece(comparison: Comparison) -> float | None:
    """Return the γ with the smallest mean ECE."""
    gammas = comparison.gammas()
    errors = {trial: ece for trial in comparison.best(gammas) if (ece := comparison.mean(trial, "ece")) is not None}
    return gammas[min(errors, key=lambda trial: errors[trial])] if len(errors) > 1 else None


def ece_minimum_inside(comparison: Comparison) -> float | None:
    """Return 1 if the smallest mean ECE lies inside the range of mean traces, 0 if at an end."""
    pairs = [(comparison.mean(trial, TRACE), comparison.mean(trial, "ece")) for trial in comparison.gammas()]
    points = sorted((trace, ece) for trace, ece in pairs if trace is not None and ece is not None)
    if len(points) < FEWEST:
        return None
    place = min(range(len(points)), key=lambda index: points[index][1])
    return float(0 < place < len(points) - 1)


def ece_rank(comparison: Comparison) -> float | None:
    """Return the rank of the mean ECE (1 is smallest) among the values of the option that the number names."""
    (option,) = options_of(comparison.number, "loss")
    same = {
        trial: rows[0].get(f"config_loss_{option}")
        for trial, rows in comparison.trials.items()
        if rows[0]["config_loss_name"] == comparison.number.loss
    }
    return _place(comparison, {trial: comparison.mean(trial, "ece") for trial in comparison.best(same)})


def high_gammas_are_worse(comparison: Comparison) -> float | None:
    """Return 1 if every γ of 4 and above has a worse objective than every γ below, else 0."""
    ranks_of: dict[bool, list[float]] = {}
    for trial, rows in comparison.trials.items():
        if (gamma := float_or_none(rows[0], "config_loss_gamma")) is not None:
            ranks_of.setdefault(gamma >= HIGH_GAMMA, []).append(comparison.rank(trial))
    return float(max(ranks_of[False]) < min(ranks_of[True])) if len(ranks_of) > 1 else None


def rank_among_losses(comparison: Comparison, metric: str) -> float | None:
    """Return the rank of a metric (1 is smallest) among the figure's losses, at the epoch where the figure is read."""
    return _place(comparison, {trial: _at_epoch(comparison, trial, metric) for trial in comparison.trials})


def _place(comparison: Comparison, values: Mapping[str, float | None]) -> float | None:
    # A loss that was not measured has no rank, and fewer than two values have no order.
    known = {trial: value for trial, value in values.items() if value is not None}
    own = next((trial for trial in comparison.agreeing if trial in known), None)
    if own is None or len(known) < 2:
        return None
    return float(ranks([*known.values()])[[*known].index(own)])


def _at_epoch(comparison: Comparison, trial: str, metric: str) -> float | None:
    """Return a metric's mean at the number's epoch, else at the last one; from `final` if no epoch has it."""
    rows = comparison.epochs(trial)
    column = _epoch_column(rows, comparison.number.split, metric)
    if column is None:
        return comparison.mean(trial, metric)
    measured = [row for row in rows if row[column] is not None]
    last = max((int_of(row, "epoch") for row in measured), default=0)
    wanted = float(comparison.number.options.get("epoch", last))
    # The nearest epoch: a rehearsal or a sparse trajectory may not have the paper's.
    nearest = min((int_of(row, "epoch") for row in measured), key=lambda epoch: abs(epoch - wanted), default=None)
    values = measured_values([row for row in measured if row["epoch"] == nearest], column)
    return fmean(values) if values else None


def _epoch_column(rows: Sequence[Row], split: str, metric: str) -> str | None:
    # Epoch columns carry their split, or are means over training samples.
    names = (f"{split}_{metric}", metric, f"{metric}_mean")
    return next((name for name in names if rows and any(row.get(name) is not None for row in rows)), None)


def with_epoch(comparison: Comparison, metric: str) -> float | None:
    """Return Spearman's correlation of epoch and a metric's mean, after the epoch that the number names."""
    rows = comparison.epochs(comparison.agreeing[0])
    column = _epoch_column(rows, comparison.number.split, metric)
    if column is None:
        return None
    last = max(int_of(row, "epoch") for row in rows)
    first = min(float(comparison.number.options.get("after_epoch", 0)), last / 2)  # a rehearsal has few epochs
    late = grouped((row for row in rows if int_of(row, "epoch") > first), lambda row: int_of(row, "epoch"))
    by_epoch = {epoch: measured_values(held, column) for epoch, held in late.items()}
    return _trend({epoch: fmean(values) for epoch, values in by_epoch.items() if values})


def _trend(by_epoch: Mapping[int, float]) -> float | None:
    """Return Spearman's correlation of epochs and values; `None` for one epoch or equal values."""
    value = spearman([*by_epoch], [*by_epoch.values()]) if len(by_epoch) > 1 else float("nan")
    return None if np.isnan(value) else value


def highest_bin_with_epoch(comparison: Comparison) -> float | None:
    """Return Spearman's correlation of evaluated epochs and the share of samples in the highest confidence bin."""
    rows = [row for row in comparison.reliability(comparison.agreeing[0]) if row["split"] == comparison.number.split]
    last = max((int_of(row, "bin") for row in rows), default=0)
    # Shares and not counts: evaluations may differ in their number of samples.
    shares = {}
    for epoch, held in grouped(rows, lambda row: int_of(row, "epoch")).items():
        counts = [(int_of(row, "n"), row["bin"] == last) for row in held]
        shares[epoch] = sum(n for n, highest in counts if highest) / sum(n for n, _ in counts)
    return _trend(shares)


def gamma_and_temperature(comparison: Comparison) -> float | None:
    """Return Pearson's correlation of the focal map's γ and the best temperature for it."""
    values = [comparison.mean(comparison.agreeing[0], name) for name in TEMPERATURE_AT]
    pairs = [(gamma, value) for gamma, value in zip(GAMMAS, values, strict=True) if value is not None]
    if len({value for _, value in pairs}) < 2:
        return None
    return float(np.corrcoef(np.array(pairs).T)[0, 1])


def sign_of_change(comparison: Comparison, without: Mapping[str, str] | None) -> float | None:
    """Return the sign of the mean change of ECE that a post-hoc step makes, over the γ above 0.

    Args:
        comparison: networks to compare; its number names the method with the step.
        without: options of the method without the step; `None` for the network's own probabilities.
    """
    options = comparison.number.options
    before: dict[str, object] = {"options": {**options, **(without or {})}}
    if without is None:
        plain = {key: value for key, value in options.items() if not key.startswith("posthoc.")}
        before = {"posthoc": "", "options": plain}
    above = [trial for trial, gamma in comparison.gammas().items() if gamma != 0]
    pairs = [(comparison.mean(trial, "ece"), comparison.mean(trial, "ece", **before)) for trial in above]
    changes = [after - plain for after, plain in pairs if after is not None and plain is not None]
    return float(np.sign(fmean(changes))) if changes else None


def focal_map_sign(comparison: Comparison) -> float | None:
    """Return the sign of the focal map's mean change of ECE, on plain networks or after TS_FL."""
    scaled = comparison.number.posthoc == "temperature"
    return sign_of_change(comparison, {"posthoc.apply_focal_map": "false"} if scaled else None)


#: Options of focal temperature scaling that choose γ and T by log-loss.
OWN_LOG_LOSS = {"posthoc.objective": "nll", "posthoc.gamma_objective": "None"}


def gain_by_ece(comparison: Comparison) -> float | None:
    """Return the mean share of ECE that is saved by choosing γ and T by ECE instead of log-loss."""
    gains = []
    for trial in comparison.trials:
        by_ece = comparison.mean(trial, "ada_ece")
        by_nll = comparison.mean(trial, "ada_ece", options={**comparison.number.options, **OWN_LOG_LOSS})
        gains += [1 - by_ece / by_nll] if by_ece is not None and by_nll else []
    return fmean(gains) if gains else None


#: Metrics for which figures show the order of losses.
RANKED = (
    "nll", "nll_correct", "nll_wrong", "entropy_wrong", "confidence_wrong", "last_layer_weight_norm", "logit_norm",
    "gradient_norm", "feature_norm",
)  # fmt: skip

#: Metrics for which figures show a trend over epochs.
BY_EPOCH = ("ece", "nll_correct", "nll_wrong", "entropy_correct", "entropy_wrong")

#: Metric of a published number → its quantity.
QUANTITIES: dict[str, Quantity] = {
    "gamma_of_smallest_ece": Quantity(gamma_of_smallest_ece, _gammas),
    "ece_minimum_inside": Quantity(ece_minimum_inside, _gammas),
    "ece_rank": Quantity(ece_rank, lambda row, number: bool(row["config_loss_name"] == number.loss)),
    **{f"{metric}_rank": Quantity(partial(rank_among_losses, metric=metric), _all_losses) for metric in RANKED},
    "confidence_wrong_rank_of_four": Quantity(partial(rank_among_losses, metric="confidence_wrong"), _of_images),
    "high_gammas_are_worse": Quantity(high_gammas_are_worse),
    "spearman_gamma_lambda_max": Quantity(partial(with_gamma, metric=LAMBDA_MAX), _gammas),
    "spearman_gamma_ece": Quantity(partial(with_gamma, metric="ece"), _gammas),
    "spearman_weight_ece": Quantity(partial(with_weight, metric="ece"), _weights),
    "spearman_weight_trace": Quantity(partial(with_weight, metric=TRACE), _weights),
    **{f"spearman_epoch_{metric}": Quantity(partial(with_epoch, metric=metric)) for metric in BY_EPOCH},
    "spearman_epoch_highest_bin": Quantity(highest_bin_with_epoch),
    "pearson_gamma_temperature": Quantity(gamma_and_temperature),
    "ece_gain_by_ece": Quantity(gain_by_ece, _all_losses),
    "ece_change_by_focal_map": Quantity(focal_map_sign, _gammas),
    "ece_change_by_temperature": Quantity(partial(sign_of_change, without=None), _gammas),
}
