"""Conformal sets of a sweep's best configuration: how large they are, and whom they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.analysis.recalibration.predictions import FITTED_ON, MEASURED_ON, Member, finished_members
from sweeper.analysis.statistics.basics import spread
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.text.labels import plural
from trainables.metrics.base import softmax64
from trainables.posthoc.conformal import SCORES, FittedApart, fit_apart, fit_sets, promised_coverage, set_measures

MEASURES = {
    "coverage": "coverage",
    "size": "mean size",
    "worst_class_coverage": "worst class",
    "class_coverage_gap": "class gap",
    "empty": "empty",
}
"""What is shown of sets, and its heading."""


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
        fits = [None if method is None else _fitted(method, member, crosswise) for member in members]
        rows = [
            _row(
                score, by_class, [_measured(*each, score, alpha, by_class) for each in zip(members, fits, strict=True)]
            )
            for by_class in (False, True)
            for score in SCORES
        ]
    except ValueError as error:
        raise SweeperError(str(error)) from error
    promised = promised_coverage(alpha, samples, crosswise=crosswise)
    return Conformal(members[0].trial, len(members), alpha, rows, method, crosswise, samples, promised, candidates)


def _fitted(method: str, member: Member, crosswise: bool) -> FittedApart:
    logits, targets = member.logits[FITTED_ON], member.targets[FITTED_ON]
    return fit_apart(method, logits, targets, crosswise=crosswise, seed=member.replicate)


def _row(score: str, by_class: bool, found: Sequence[dict[str, float]]) -> ConformalRow:
    return ConformalRow(score, by_class, {name: [each[name] for each in found] for name in MEASURES})


def _measured(member: Member, fitted: FittedApart | None, score: str, alpha: float, by_class: bool) -> dict[str, float]:
    logits, targets, seed = member.logits, member.targets, member.replicate
    if fitted is not None:
        sets = fitted.sets(score, logits[MEASURED_ON], alpha=alpha, by_class=by_class, seed=seed)
        return set_measures(sets, targets[MEASURED_ON])
    own = softmax64(logits[FITTED_ON])
    plain = fit_sets(score, own, targets[FITTED_ON], alpha=alpha, by_class=by_class, seed=seed)
    return set_measures(plain(softmax64(logits[MEASURED_ON])), targets[MEASURED_ON])


def view(found: Conformal) -> RenderableType:
    """Return the sets as a table for a terminal: means over replicates with their standard deviations."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("score", "thresholds", *MEASURES.values()):
        table.add_column(heading, justify="left" if heading in ("score", "thresholds") else "right", no_wrap=True)
    for row in found.rows:
        numbers = (spread(row.measures[name]).text() for name in MEASURES)
        table.add_row(row.score, "per class" if row.by_class else "one", *numbers)
    note = (
        f"{found.trial}, {plural(found.replicates, 'replicate')}: sets from {found.samples} validation samples, "
        f"measured on test data. {guarantee(found)} Worst class: lowest coverage of a class; class gap: mean absolute "
        "difference between a class's coverage and the overall coverage."
    )
    return Group(table, Text(), Text(note))


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
