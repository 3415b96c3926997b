"""Ensembles and conformal sets from the stored predictions of finished networks, without training.

An ensemble's probabilities are the mean of its members'. Greedy selection adds, with replacement, the network that
lowers the ensemble's validation NLL most (Caruana, Niculescu-Mizil, Crew & Ksikes 2004, Ensemble selection from
libraries of models). An ensemble of calibrated networks is underconfident, so it matters where temperatures are fitted:
one per member before averaging, or one for the ensemble after averaging (Rahaman & Thiery 2021, Uncertainty
quantification and deep ensembles, arXiv:2007.08792).

Conformal sets are computed for a sweep's best configuration: their size and their coverage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType

from sweeper.core.display import plain_table
from sweeper.core.errors import SweeperError
from sweeper.core.labels import label, plural
from sweeper.core.statistics.basics import spread
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.predictions import FITTED_ON, MEASURED_ON, StoredPredictions, finished_members
from trainables.metrics import SMALLEST_PROBABILITY, evaluate_probabilities
from trainables.metrics.base import Floats, Integers, softmax64
from trainables.posthoc import fit
from trainables.posthoc.base import PosthocUnavailable
from trainables.posthoc.conformal import SCORES, SplitFit, fit_split, promised_coverage, samples_needed, set_measures

NONE, BEFORE, AFTER = "none", "before", "after"
#: Where a temperature is fitted: nowhere, on each member, or on the mean.
TEMPERATURES = (NONE, BEFORE, AFTER)

SHOWN = ("accuracy", "nll", "brier", "ece")

SINGLE, REPLICATES, GREEDY = "best single network", "replicates of the best", "greedy"


@dataclass(frozen=True)
class EnsembleRow:
    """One ensemble's test measurements.

    Attributes:
        ensemble: SINGLE, REPLICATES or GREEDY.
        members: number of networks. A network that was chosen several times counts each time.
        configurations: number of different configurations among them.
        temperature: one of TEMPERATURES.
        metrics: metric → value on test data.
        validation_nll: NLL on validation data, the criterion of selection.
    """

    ensemble: str
    members: int
    configurations: int
    temperature: str
    metrics: dict[str, float]
    validation_nll: float


def greedy_members(of_target: Floats, size: int) -> list[int]:
    """Return the indices of the networks to average, chosen from M with replacement, in the order of choice.

    Each step adds the network that gives the smallest mean NLL. Exactly `size` networks are chosen, even if a step
    raises the NLL.

    Args:
        of_target: each network's validation probability of the target, [M, N].
        size: number of networks to choose.

    Example:
        >>> import numpy as np
        >>> greedy_members(np.array([[0.9, 0.2], [0.3, 0.8], [0.4, 0.4]]), 3)
        [1, 0, 1]
    """
    chosen: list[int] = []
    total = np.zeros(of_target.shape[1])
    for step in range(1, size + 1):
        # A probability of 0 would make the NLL infinite for every candidate and the choice arbitrary.
        losses = -np.log(np.maximum((total + of_target) / step, SMALLEST_PROBABILITY)).mean(axis=1)
        best = int(losses.argmin())
        chosen.append(best)
        total = total + of_target[best]
    return chosen


def ensembles(results: Results, *, size: int = 10, candidates: int = 50) -> list[EnsembleRow]:
    """Return the best single network, the ensemble of the best configuration's replicates, and greedy ensembles.

    Args:
        results: the sweep.
        size: number of members of the largest greedy ensemble. One ensemble of each size from 1 is returned.
        candidates: largest number of configurations to choose from; the best by the sweep's objective are taken.

    Raises:
        SweeperError: an error of `finished_members`, or no temperature can be fitted to a network.
    """
    members = finished_members(results, candidates)
    targets = members[0].targets
    plain = [{split: softmax64(logits) for split, logits in member.logits.items()} for member in members]
    scaled = [_scaled(member) for member in members]
    loss = [_nll(probabilities[FITTED_ON], targets[FITTED_ON]) for probabilities in plain]
    best = int(np.argmin(loss))
    same = [at for at, member in enumerate(members) if member.trial == members[0].trial]  # the best members come first
    rows = _measured(SINGLE, [best], members, plain, scaled)
    rows += _measured(REPLICATES, same, members, plain, scaled) if len(same) > 1 else []
    every = np.arange(len(targets[FITTED_ON]))
    # Members with temperatures are selected separately, because temperatures change which networks complement each
    # other. An ensemble that is scaled after averaging has the same members as the ensemble without temperatures.
    orders = {
        where: greedy_members(np.stack([part[FITTED_ON][every, targets[FITTED_ON]] for part in parts]), size)
        for where, parts in ((NONE, plain), (BEFORE, scaled))
    }
    for count in range(1, size + 1):
        for where in TEMPERATURES:
            order = orders[BEFORE if where == BEFORE else NONE]
            rows += _measured(GREEDY, order[:count], members, plain, scaled, (where,))
    return rows


def _scaled(member: StoredPredictions) -> dict[str, Floats]:
    """Return a member's probabilities by split with its own temperature.

    Raises SweeperError if no temperature can be fitted, because a calibrated ensemble must not silently contain an
    uncalibrated member.
    """
    return _with_temperature(member.logits, member.targets[FITTED_ON], member.trial)


def _with_temperature(
    logits: Mapping[str, Floats | NDArray[np.float32]], targets: Integers, whose: str
) -> dict[str, Floats]:
    try:
        calibrator = fit("temperature", logits[FITTED_ON], targets)
        return {split: calibrator(values) for split, values in logits.items()}
    except PosthocUnavailable as error:
        raise SweeperError(
            f"no temperature can be fitted to {whose}: {error}", "choose among fewer configurations with --candidates"
        ) from error


def _measured(
    name: str,
    chosen: Sequence[int],
    members: Sequence[StoredPredictions],
    plain: Sequence[dict[str, Floats]],
    scaled: Sequence[dict[str, Floats]],
    wheres: Sequence[str] = TEMPERATURES,
) -> list[EnsembleRow]:
    targets, rows = members[0].targets, []
    for where in wheres:
        parts = scaled if where == BEFORE else plain
        mean = {split: np.mean([parts[at][split] for at in chosen], axis=0) for split in (FITTED_ON, MEASURED_ON)}
        if where == AFTER:
            # A mean of probabilities has no logits, so its logarithm is used. It is unique up to a constant.
            logits = {split: np.log(np.maximum(values, SMALLEST_PROBABILITY)) for split, values in mean.items()}
            mean = _with_temperature(logits, targets[FITTED_ON], f"the ensemble {name!r}")
        bins = min(15, len(targets[MEASURED_ON]))  # each equal-mass bin needs a sample
        measured = evaluate_probabilities(mean[MEASURED_ON], targets[MEASURED_ON], bins)
        configurations = len({members[at].trial for at in chosen})
        shown = {metric: measured[metric] for metric in SHOWN}
        validation = _nll(mean[FITTED_ON], targets[FITTED_ON])
        rows.append(EnsembleRow(name, len(chosen), configurations, where, shown, validation))
    return rows


def _nll(probabilities: Floats, targets: Integers) -> float:
    of_target = probabilities[np.arange(len(targets)), targets]
    return float(-np.log(np.maximum(of_target, SMALLEST_PROBABILITY)).mean())


def ensembles_view(rows: Sequence[EnsembleRow]) -> RenderableType:
    """Return the ensembles as a table for a terminal."""
    headings = ("ensemble", "members", "configurations", "temperature", *map(label, SHOWN))
    cells = [
        [row.ensemble, str(row.members), str(row.configurations), row.temperature]
        + [f"{row.metrics[name]:.4g}" for name in SHOWN]
        for row in rows
    ]
    chosen = min((row for row in rows if row.ensemble == GREEDY), key=lambda row: row.validation_nll)
    note = (
        f"Among the greedy ensembles, validation data select {plural(chosen.members, 'member')} with temperature "
        f"{chosen.temperature}: test NLL {chosen.metrics['nll']:.4g}, ECE {chosen.metrics['ece']:.4g}. Members are "
        "selected and temperatures fitted on validation data; all metrics are measured on test data. A network may be "
        "selected more than once."
    )
    return plain_table(headings, cells, left=("ensemble", "temperature"), note=note)


#: Measure of the sets → heading of its column.
MEASURES = {
    "coverage": "coverage",
    "size": "mean size",
    "worst_class_coverage": "worst class",
    "class_coverage_gap": "class gap",
    "empty": "empty",
}


@dataclass(frozen=True)
class ConformalRow:
    """Conformal sets of one score on test data.

    Attributes:
        score: `thr`, `aps` or `raps`.
        by_class: whether each class has its own threshold.
        measures: name → one value per replicate.
    """

    score: str
    by_class: bool
    measures: dict[str, list[float]]


@dataclass(frozen=True)
class Conformal:
    """The conformal sets of a configuration.

    Attributes:
        trial, replicates: the configuration and its number of networks.
        alpha: requested miscoverage rate.
        rows: one per score and kind of threshold.
        method: post-hoc method applied first; None for none.
        crosswise: whether the method was fitted for each sample on the other folds (CV+), instead of on one half of the
            data.
        samples: number of validation samples.
        promised: lower bound of the coverage on new samples that are exchangeable with the validation samples. It
            assumes that the network was fixed before these samples were seen.
        classes: number of classes K.
        always: number of classes that every set contains because fewer than 1/α − 1 samples give no threshold; two
            numbers, for one common threshold and for one per class.
        candidates: number of finished configurations. If the objective is a validation metric, the validation samples
            also chose this configuration among them.
    """

    trial: str
    replicates: int
    alpha: float
    rows: Sequence[ConformalRow]
    method: str | None
    crosswise: bool
    samples: int
    promised: float
    candidates: int
    classes: int
    always: tuple[int, int]


def conformal_sets(
    results: Results, *, alpha: float = 0.1, method: str | None = None, crosswise: bool = False
) -> Conformal:
    """Return the sets of the best finished configuration, fitted on validation data and measured on test data.

    Args:
        results: the sweep.
        alpha: requested miscoverage rate, in (0, 1).
        method: post-hoc method applied first, with its default options; None for the network's own probabilities. The
            method is fitted on one half of the validation data, and the thresholds on the other half.
        crosswise: instead, fit the method to all folds but one in turn, and use all validation data for the sets (CV+).

    Raises:
        SweeperError: an error of `finished_members`, or the method or alpha cannot be used.
    """
    members = finished_members(results, most=1)
    candidates = len(leaderboard(results).finished)
    samples = len(members[0].targets[FITTED_ON])
    crosswise = crosswise and method is not None  # without a method nothing is fitted to the folds
    try:
        fits = [
            fit_split(
                method, member.logits[FITTED_ON], member.targets[FITTED_ON], crosswise=crosswise, seed=member.replicate
            )
            for member in members
        ]
        rows = []
        for by_class, score in product((False, True), SCORES):
            measured = [_set_measured(*pair, score, alpha, by_class) for pair in zip(members, fits, strict=True)]
            measures = {name: [of_one[name] for of_one in measured] for name in MEASURES}
            rows.append(ConformalRow(score, by_class, measures))
    except ValueError as error:
        raise SweeperError(str(error)) from error
    promised = promised_coverage(alpha, samples, crosswise=crosswise)
    # Fold −1 holds the samples on which the method was fitted. They are not used for thresholds.
    scored = fits[0].targets[fits[0].fold >= 0]
    classes = members[0].logits[FITTED_ON].shape[1]
    counts, needed = np.bincount(scored, minlength=classes), samples_needed(alpha)
    always = (classes if len(scored) < needed else 0, int((counts < needed).sum()))
    return Conformal(
        members[0].trial, len(members), alpha, rows, method, crosswise, samples, promised, candidates, classes, always
    )


def _set_measured(
    member: StoredPredictions, fitted: SplitFit, score: str, alpha: float, by_class: bool
) -> dict[str, float]:
    sets = fitted.sets(score, member.logits[MEASURED_ON], alpha=alpha, by_class=by_class, seed=member.replicate)
    return set_measures(sets, member.targets[MEASURED_ON])


def conformal_view(sets: Conformal) -> RenderableType:
    """Return the sets as a table for a terminal: means over replicates with their standard deviations."""
    cells = [
        (row.score, "per class" if row.by_class else "one", *(spread(row.measures[name]).text() for name in MEASURES))
        for row in sets.rows
    ]
    note = (
        f"{sets.trial}, {plural(sets.replicates, 'replicate')}: sets from {sets.samples} validation samples, "
        f"measured on test data. {guarantee(sets)} {too_few(sets)}Worst class: lowest coverage of a class; class "
        "gap: mean absolute difference between a class's coverage and the overall coverage."
    )
    return plain_table(("score", "thresholds", *MEASURES.values()), cells, left=("score", "thresholds"), note=note)


def too_few(sets: Conformal) -> str:
    """Return a warning if sets contain classes only because validation samples are too few, else an empty string."""
    lacking = [
        f"every set by {kind} holds {count} of {sets.classes} classes"
        for kind, count in zip(("one threshold", "thresholds per class"), sets.always, strict=True)
        if count
    ]
    if not lacking:
        return ""
    needed = samples_needed(sets.alpha)
    return f"Warning: {'; '.join(lacking)}, because fewer than {needed} validation samples set no threshold. "


def guarantee(sets: Conformal) -> str:
    """Return the coverage guarantee, its conditions, and how the post-hoc method was fitted, in words."""
    promise = f"Coverage is at least {sets.promised:.3g} on average over samples exchangeable with these"
    condition = "for a network fixed before they were seen"
    if sets.candidates > 1:
        condition += f"; that they chose it among {sets.candidates} finished configurations is not covered by this"
    if sets.method is None:
        return f"{promise}, {condition}."
    if sets.crosswise:
        how = f"{sets.method} was fitted to four folds in turn (CV+: 1 − 2α and less; in simulations about 1 − α)"
    else:
        how = f"{sets.method} was fitted on one half, the thresholds on the other"
    return f"{how}. {promise}, {condition}."
