"""What the stored predictions of finished networks give without training: ensembles and conformal sets.

An ensemble's probabilities are the mean of its members'. Greedy selection adds, with replacement, the network that
lowers the ensemble's validation NLL most (Caruana, Niculescu-Mizil, Crew & Ksikes 2004, Ensemble selection from
libraries of models). An ensemble of calibrated networks is underconfident, so where its temperature is fitted matters:
before averaging, one for each member, or after, one for the ensemble (Rahaman & Thiery 2021, Uncertainty quantification
and deep ensembles, arXiv:2007.08792).

Conformal sets are those of a sweep's best configuration: how large they are, and whom they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from trainables.posthoc.base import Calibrator, PosthocUnavailable
from trainables.posthoc.conformal import (
    SCORES,
    FittedApart,
    fit_apart,
    fit_sets,
    promised_coverage,
    samples_needed,
    set_measures,
)

NONE, BEFORE, AFTER = "none", "before", "after"
#: Where a temperature is fitted: nowhere, on each member, on the mean.
TEMPERATURES = (NONE, BEFORE, AFTER)

SHOWN = ("accuracy", "nll", "brier", "ece")

SINGLE, REPLICATES, GREEDY = "best single network", "replicates of the best", "greedy"


@dataclass(frozen=True)
class EnsembleRow:
    """One ensemble's test measurements.

    Attributes:
        ensemble: SINGLE, REPLICATES or GREEDY.
        members: how many networks, each counted as often as it was chosen.
        configurations: how many different configurations are among them.
        temperature: of TEMPERATURES.
        metrics: on test data, by name.
        validation_nll: what was selected by.
    """

    ensemble: str
    members: int
    configurations: int
    temperature: str
    metrics: dict[str, float]
    validation_nll: float


def greedy_members(of_target: Floats, size: int) -> list[int]:
    """Return which of M networks to average, in the order chosen, with replacement.

    Each step adds the network that leaves the smallest mean NLL. All `size` are returned, even where a step raises it.

    Args:
        of_target: [M, N] each network's validation probability of the target.
        size: how many to choose.
    """
    chosen: list[int] = []
    total = np.zeros(of_target.shape[1])
    for step in range(1, size + 1):
        losses = -np.log(np.maximum((total + of_target) / step, SMALLEST_PROBABILITY)).mean(axis=1)
        best = int(losses.argmin())
        chosen.append(best)
        total = total + of_target[best]
    return chosen


def ensembles(results: Results, *, size: int = 10, candidates: int = 50) -> list[EnsembleRow]:
    """Return the single best network, the ensemble of its configuration's replicates, and greedy ensembles of 1 … size.

    Args:
        results: of the sweep.
        size: members of the largest greedy ensemble.
        candidates: configurations to choose from; of more, the best by the sweep's objective.

    Raises:
        SweeperError: as `finished_members`, or a network's logits take no temperature.
    """
    members = finished_members(results, candidates)
    targets = members[0].targets
    plain = [{split: softmax64(logits) for split, logits in member.logits.items()} for member in members]
    scaled = [_scaled(member) for member in members]
    loss = [_nll(each[FITTED_ON], targets[FITTED_ON]) for each in plain]
    best = int(np.argmin(loss))
    same = [at for at, member in enumerate(members) if member.trial == members[0].trial]
    rows = _measured(SINGLE, [best], members, plain, scaled)
    rows += _measured(REPLICATES, same, members, plain, scaled) if len(same) > 1 else []
    every = np.arange(len(targets[FITTED_ON]))
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

    Raises SweeperError where none can be fitted: an ensemble that is called calibrated must not hold others in silence.
    """
    calibrator = _temperature(member.logits[FITTED_ON], member.targets[FITTED_ON], member.trial)
    return {split: calibrator(logits) for split, logits in member.logits.items()}


def _temperature(logits: Floats | NDArray[np.float32], targets: Integers, whose: str) -> Calibrator:
    try:
        return fit("temperature", logits, targets)
    except PosthocUnavailable as error:
        raise SweeperError(
            f"no temperature can be fitted to {whose}: {error}", "choose from fewer with --candidates"
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
            logits = {split: np.log(np.maximum(each, SMALLEST_PROBABILITY)) for split, each in mean.items()}
            calibrator = _temperature(logits[FITTED_ON], targets[FITTED_ON], f"the ensemble {name!r}")
            mean = {split: calibrator(each) for split, each in logits.items()}
        bins = min(15, len(targets[MEASURED_ON]))
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


#: What is shown of sets, and its heading.
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
        measures: name → one value a replicate.
    """

    score: str
    by_class: bool
    measures: dict[str, list[float]]


@dataclass(frozen=True)
class Conformal:
    """The conformal sets of a configuration.

    Attributes:
        trial, replicates: whose, and of how many networks.
        alpha: the miscoverage rate that was asked for.
        rows: one a score and kind of threshold.
        method: the post-hoc method that was applied first; None for none.
        crosswise: whether it was fitted on the other folds of every sample, not on one half.
        samples: of validation data.
        promised: the coverage of new samples that are exchangeable with these is at least this, for a network that was
            fixed before they were looked at.
        classes: K.
        always: classes that every set holds, with one threshold and with one a class, because fewer than 1/α − 1
            samples give no threshold.
        candidates: finished configurations, of which this one was chosen by these very samples if the objective is a
            validation metric.
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
        results: of the sweep.
        alpha: miscoverage rate, in (0, 1).
        method: a post-hoc method applied first, with its default options; None for the network's own probabilities. It
            is fitted on one half of validation data, thresholds on the other.
        crosswise: instead, fit it to all folds but one in turn, and use all validation data for the sets (CV+).

    Raises:
        SweeperError: as `finished_members`, and where the method or alpha cannot be used.
    """
    members = finished_members(results, most=1)
    candidates = len(leaderboard(results).finished)
    samples = len(members[0].targets[FITTED_ON])
    crosswise = crosswise and method is not None
    try:
        fits = [
            None
            if method is None
            else fit_apart(
                method, member.logits[FITTED_ON], member.targets[FITTED_ON], crosswise=crosswise, seed=member.replicate
            )
            for member in members
        ]
        rows = []
        for by_class, score in product((False, True), SCORES):
            found = [_set_measured(*each, score, alpha, by_class) for each in zip(members, fits, strict=True)]
            rows.append(ConformalRow(score, by_class, {name: [each[name] for each in found] for name in MEASURES}))
    except ValueError as error:
        raise SweeperError(str(error)) from error
    promised = promised_coverage(alpha, samples, crosswise=crosswise)
    scored = members[0].targets[FITTED_ON] if fits[0] is None else fits[0].targets[fits[0].fold >= 0]
    classes = members[0].logits[FITTED_ON].shape[1]
    counts, needed = np.bincount(scored, minlength=classes), samples_needed(alpha)
    always = (classes if len(scored) < needed else 0, int((counts < needed).sum()))
    return Conformal(
        members[0].trial, len(members), alpha, rows, method, crosswise, samples, promised, candidates, classes, always
    )


def _set_measured(
    member: StoredPredictions, fitted: FittedApart | None, score: str, alpha: float, by_class: bool
) -> dict[str, float]:
    logits, targets, seed = member.logits, member.targets, member.replicate
    if fitted is not None:
        sets = fitted.sets(score, logits[MEASURED_ON], alpha=alpha, by_class=by_class, seed=seed)
        return set_measures(sets, targets[MEASURED_ON])
    own = softmax64(logits[FITTED_ON])
    plain = fit_sets(score, own, targets[FITTED_ON], alpha=alpha, by_class=by_class, seed=seed)
    return set_measures(plain(softmax64(logits[MEASURED_ON])), targets[MEASURED_ON])


def conformal_view(found: Conformal) -> RenderableType:
    """Return the sets as a table for a terminal: means over replicates with their standard deviations."""
    cells = [
        (row.score, "per class" if row.by_class else "one", *(spread(row.measures[name]).text() for name in MEASURES))
        for row in found.rows
    ]
    note = (
        f"{found.trial}, {plural(found.replicates, 'replicate')}: sets from {found.samples} validation samples, "
        f"measured on test data. {guarantee(found)} {too_few(found)}Worst class: lowest coverage of a class; class "
        "gap: mean absolute difference between a class's coverage and the overall coverage."
    )
    return plain_table(("score", "thresholds", *MEASURES.values()), cells, left=("score", "thresholds"), note=note)


def too_few(found: Conformal) -> str:
    """Return a warning where sets hold classes for want of validation samples; empty where none do."""
    lacking = [
        f"every set by {kind} holds {count} of {found.classes} classes"
        for kind, count in zip(("one threshold", "thresholds per class"), found.always, strict=True)
        if count
    ]
    if not lacking:
        return ""
    needed = samples_needed(found.alpha)
    return f"Warning: {'; '.join(lacking)}, because fewer than {needed} validation samples set no threshold. "


def guarantee(found: Conformal) -> str:
    """Return what is promised of the sets, on which conditions, and how their method was fitted."""
    promise = f"Coverage is at least {found.promised:.3g} on average over samples exchangeable with these"
    condition = "for a network fixed before they were seen"
    if found.candidates > 1:
        condition += f"; that they chose it among {found.candidates} finished configurations is not covered by this"
    if found.method is None:
        return f"{promise}, {condition}."
    if found.crosswise:
        how = f"{found.method} was fitted to four folds in turn (CV+: 1 − 2α and less; in simulations about 1 − α)"
    else:
        how = f"{found.method} was fitted on one half, the thresholds on the other"
    return f"{how}. {promise}, {condition}."
