"""What papers' figures show without printing it as a number: ranks, signs and places of minima, from a sweep's tables.

Each has a function in QUANTITIES, of a `Comparison` of the configurations of one network. It is computed on means over
replicates, as the figures draw them.
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

#: The Hessian's columns behind curvature's figures: cross-entropy's, which different γ do not scale.
LAMBDA_MAX, TRACE = "hessian_cross_entropy_lambda_max", "hessian_cross_entropy_trace"

#: From which on inverse focal loss "consistently underperforms" (selective App. Fig. 4a).
HIGH_GAMMA = 4

#: Points below which a minimum has no inside.
FEWEST = 3


@dataclass(frozen=True)
class Comparison:
    """The configurations of one network that a figure compares.

    Attributes:
        number: the published number.
        trials: rows of `final` by trial, of every loss.
        agreeing: the trials with the number's own loss and options, best first.
        rank: a trial's objective, smaller is better.
        values: trial and number → that number's metric of each replicate.
        epochs: trial → its rows of `epochs`.
        reliability: trial → its rows of `reliability`.
    """

    number: PublishedNumber
    trials: Mapping[str, Sequence[Row]]
    agreeing: Sequence[str]
    rank: Callable[[str], float]
    values: Callable[[str, PublishedNumber], list[float]]
    epochs: Callable[[str], Sequence[Row]]
    reliability: Callable[[str], Sequence[Row]]

    def mean(self, trial: str, metric: str, **changes: object) -> float | None:
        """Return a trial's mean of a metric, measured as the number is but for `changes`; `None` without values."""
        found = self.values(trial, replace(self.number, metric=metric, **changes))  # type: ignore[arg-type]
        return fmean(found) if found else None

    def gammas(self) -> dict[str, float]:
        """Return the γ of every trial of the number's paradigm, with the smoothing that it names or without."""
        smoothing = options_of(self.number, "loss").get("smoothing")
        found = {trial: _gamma(rows[0], smoothing) for trial, rows in self.trials.items()}
        return {trial: gamma for trial, gamma in found.items() if gamma is not None}

    def best(self, settings: Mapping[str, object]) -> list[str]:
        """Return of each setting the trial with the best objective.

        Args:
            settings: trial → the setting that is compared.
        """
        return [best for best, *_ in grouped(sorted(settings, key=self.rank), settings.__getitem__).values()]


@dataclass(frozen=True)
class Quantity:
    """What a figure shows.

    Attributes:
        value: computes it; None where what it needs was not measured.
        compares: whether a configuration of a number's network is among those it needs, all of them.
    """

    value: Callable[[Comparison], float | None]
    compares: Callable[[Row, PublishedNumber], bool] = trains


def candidates(number: PublishedNumber, recipe: Recipe) -> list[Row]:
    """Return a recipe's configurations of which a number is selected, or which its figure compares."""
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
    """Return γ of a row: that of a focal loss, 0 of the loss that it is at γ = 0, else `None`."""
    if smoothing is None:
        return plain_gamma(row)
    if row["config_loss_name"] == "label_smoothing":
        alike = row.get("config_loss_form") == "uniform" and written(row.get("config_loss_alpha")) == written(smoothing)
    else:
        alike = written(row.get("config_loss_smoothing")) == written(smoothing)
    return smoothed_gamma(row) if alike else None


def _correlation(found: Comparison, x: Mapping[str, float], metric: str) -> float | None:
    """Return the rank correlation of `x` and a metric, the mean over configurations that differ in the loss alone."""
    points = []
    for trial, value in x.items():
        y = found.mean(trial, metric)
        row = found.trials[trial][0]
        if y is not None:
            points.append(Point(other_settings(row, ("config_loss_",)), value, y))
    return mean_correlation(points).value


def with_gamma(found: Comparison, metric: str) -> float | None:
    """Return Spearman's correlation of γ and the mean of a metric."""
    return _correlation(found, found.gammas(), metric)


def with_weight(found: Comparison, metric: str) -> float | None:
    """Return Spearman's correlation of the regularisation's weight and the mean of a metric; cross-entropy has 0."""
    weights = {}
    for trial, rows in found.trials.items():
        if rows[0]["config_loss_name"] == "cross_entropy":
            weights[trial] = 0.0
        elif trial in found.agreeing and (weight := float_or_none(rows[0], "config_loss_weight")) is not None:
            weights[trial] = weight
    return _correlation(found, weights, metric)


def gamma_of_smallest_ece(found: Comparison) -> float | None:
    """Return the γ with the smallest mean ECE."""
    gammas = found.gammas()
    errors = {trial: ece for trial in found.best(gammas) if (ece := found.mean(trial, "ece")) is not None}
    return gammas[min(errors, key=lambda trial: errors[trial])] if len(errors) > 1 else None


def ece_minimum_inside(found: Comparison) -> float | None:
    """Return 1 where the smallest mean ECE lies at neither end of the range of mean traces, else 0."""
    pairs = [(found.mean(trial, TRACE), found.mean(trial, "ece")) for trial in found.gammas()]
    points = sorted((trace, ece) for trace, ece in pairs if trace is not None and ece is not None)
    if len(points) < FEWEST:
        return None
    place = min(range(len(points)), key=lambda index: points[index][1])
    return float(0 < place < len(points) - 1)


def ece_rank(found: Comparison) -> float | None:
    """Return the place of the mean ECE among the values of the one option that the number names, 1 the smallest."""
    (option,) = options_of(found.number, "loss")
    same = {
        trial: rows[0].get(f"config_loss_{option}")
        for trial, rows in found.trials.items()
        if rows[0]["config_loss_name"] == found.number.loss
    }
    return _place(found, {trial: found.mean(trial, "ece") for trial in found.best(same)})


def high_gammas_are_worse(found: Comparison) -> float | None:
    """Return 1 where every γ of 4 and above has a worse objective than every one below, else 0."""
    ranks_of: dict[bool, list[float]] = {}
    for trial, rows in found.trials.items():
        if (gamma := float_or_none(rows[0], "config_loss_gamma")) is not None:
            ranks_of.setdefault(gamma >= HIGH_GAMMA, []).append(found.rank(trial))
    return float(max(ranks_of[False]) < min(ranks_of[True])) if len(ranks_of) > 1 else None


def rank_among_losses(found: Comparison, metric: str) -> float | None:
    """Return the place of a metric among all losses of the figure, 1 the smallest, at the epoch that it is read at."""
    return _place(found, {trial: _at_epoch(found, trial, metric) for trial in found.trials})


def _place(found: Comparison, values: Mapping[str, float | None]) -> float | None:
    known = {trial: value for trial, value in values.items() if value is not None}
    own = next((trial for trial in found.agreeing if trial in known), None)
    if own is None or len(known) < 2:
        return None
    return float(ranks([*known.values()])[[*known].index(own)])


def _at_epoch(found: Comparison, trial: str, metric: str) -> float | None:
    """Return a metric's mean at the epoch that the number names, else at the last; of `final` if no epoch has it."""
    rows = found.epochs(trial)
    column = _epoch_column(rows, found.number.split, metric)
    if column is None:
        return found.mean(trial, metric)
    measured = [row for row in rows if row[column] is not None]
    last = max((int_of(row, "epoch") for row in measured), default=0)
    wanted = float(found.number.options.get("epoch", last))
    nearest = min((int_of(row, "epoch") for row in measured), key=lambda epoch: abs(epoch - wanted), default=None)
    values = measured_values([row for row in measured if row["epoch"] == nearest], column)
    return fmean(values) if values else None


def _epoch_column(rows: Sequence[Row], split: str, metric: str) -> str | None:
    names = (f"{split}_{metric}", metric, f"{metric}_mean")
    return next((name for name in names if rows and any(row.get(name) is not None for row in rows)), None)


def with_epoch(found: Comparison, metric: str) -> float | None:
    """Return Spearman's correlation of the epoch and a metric's mean, after the epoch that the number names."""
    rows = found.epochs(found.agreeing[0])
    column = _epoch_column(rows, found.number.split, metric)
    if column is None:
        return None
    last = max(int_of(row, "epoch") for row in rows)
    first = min(float(found.number.options.get("after_epoch", 0)), last / 2)  # a rehearsal has few epochs
    late = grouped((row for row in rows if int_of(row, "epoch") > first), lambda row: int_of(row, "epoch"))
    by_epoch = {epoch: measured_values(held, column) for epoch, held in late.items()}
    return _trend({epoch: fmean(values) for epoch, values in by_epoch.items() if values})


def _trend(by_epoch: Mapping[int, float]) -> float | None:
    """Return Spearman's correlation of epochs and values; `None` of one epoch, or of equal values."""
    value = spearman([*by_epoch], [*by_epoch.values()]) if len(by_epoch) > 1 else float("nan")
    return None if np.isnan(value) else value


def highest_bin_with_epoch(found: Comparison) -> float | None:
    """Return Spearman's correlation of the evaluated epochs and the share of samples in the highest confidence bin."""
    rows = [row for row in found.reliability(found.agreeing[0]) if row["split"] == found.number.split]
    last = max((int_of(row, "bin") for row in rows), default=0)
    shares = {}
    for epoch, held in grouped(rows, lambda row: int_of(row, "epoch")).items():
        counts = [(int_of(row, "n"), row["bin"] == last) for row in held]
        shares[epoch] = sum(n for n, highest in counts if highest) / sum(n for n, _ in counts)
    return _trend(shares)


def gamma_and_temperature(found: Comparison) -> float | None:
    """Return Pearson's correlation of the focal map's γ and the best temperature beside it."""
    values = [found.mean(found.agreeing[0], name) for name in TEMPERATURE_AT]
    pairs = [(gamma, value) for gamma, value in zip(GAMMAS, values, strict=True) if value is not None]
    if len({value for _, value in pairs}) < 2:
        return None
    return float(np.corrcoef(np.array(pairs).T)[0, 1])


def sign_of_change(found: Comparison, without: Mapping[str, str] | None) -> float | None:
    """Return the sign of the mean change of ECE that a post-hoc step makes, over the γ above 0.

    Args:
        found: the networks; the number names the method with the step.
        without: options of the same method without it, or `None` for the network's own probabilities.
    """
    options = found.number.options
    before: dict[str, object] = {"options": {**options, **(without or {})}}
    if without is None:
        plain = {key: value for key, value in options.items() if not key.startswith("posthoc.")}
        before = {"posthoc": "", "options": plain}
    above = [trial for trial, gamma in found.gammas().items() if gamma != 0]
    pairs = [(found.mean(trial, "ece"), found.mean(trial, "ece", **before)) for trial in above]
    changes = [after - plain for after, plain in pairs if after is not None and plain is not None]
    return float(np.sign(fmean(changes))) if changes else None


def focal_map_sign(found: Comparison) -> float | None:
    """Return the sign of the change of ECE by the focal map, of plain networks or after TS_FL."""
    scaled = found.number.posthoc == "temperature"
    return sign_of_change(found, {"posthoc.apply_focal_map": "false"} if scaled else None)


#: Options of focal temperature scaling whose γ and T are both chosen by log-loss.
OWN_LOG_LOSS = {"posthoc.objective": "nll", "posthoc.gamma_objective": "None"}


def gain_by_ece(found: Comparison) -> float | None:
    """Return the mean share by which choosing γ and T by ECE, as the number names, lowers ECE against log-loss."""
    gains = []
    for trial in found.trials:
        by_ece = found.mean(trial, "ada_ece")
        by_nll = found.mean(trial, "ada_ece", options={**found.number.options, **OWN_LOG_LOSS})
        gains += [1 - by_ece / by_nll] if by_ece is not None and by_nll else []
    return fmean(gains) if gains else None


#: Metrics whose ranks among losses figures show.
RANKED = (
    "nll", "nll_correct", "nll_wrong", "entropy_wrong", "confidence_wrong", "last_layer_weight_norm", "logit_norm",
    "gradient_norm", "feature_norm",
)  # fmt: skip

#: Metrics whose rise or fall with the epoch figures show.
BY_EPOCH = ("ece", "nll_correct", "nll_wrong", "entropy_correct", "entropy_wrong")

#: How each figure's quantity is computed.
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
