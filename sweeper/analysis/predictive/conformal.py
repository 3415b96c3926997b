"""Conformal sets of a sweep's best configuration: how large they are, and whom they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.analysis.predictive.members import FITTED_ON, MEASURED_ON, Member, finished_members
from sweeper.analysis.statistics.basics import spread
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.text.labels import plural
from trainables.metrics.probabilities import softmax64
from trainables.posthoc import fit
from trainables.posthoc.conformal import SCORES, fit_sets, set_measures

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
        alpha: the share of sets that may miss the truth.
        rows: one a score and kind of threshold.
    """

    trial: str
    replicates: int
    alpha: float
    rows: Sequence[ConformalRow]


def conformal_sets(results: Results, *, alpha: float = 0.1, method: str | None = None) -> Conformal:
    """Return the sets of the best finished configuration, fitted on validation data and measured on test data.

    Args:
        results: of the sweep.
        alpha: the share of sets that may miss the truth.
        method: a post-hoc method applied first, with its default options; None for the network's own probabilities.

    Raises:
        SweeperError: as `finished_members`, and where the method or alpha cannot be used.
    """
    members = finished_members(results, most=1)
    rows = []
    for by_class in (False, True):
        for score in SCORES:
            try:
                each = [_measured(member, score, alpha, by_class, method) for member in members]
            except ValueError as error:
                raise SweeperError(str(error)) from error
            measures = {name: [found[name] for found in each] for name in MEASURES}
            rows.append(ConformalRow(score, by_class, measures))
    return Conformal(members[0].trial, len(members), alpha, rows)


def _measured(member: Member, score: str, alpha: float, by_class: bool, method: str | None) -> dict[str, float]:
    calibrator = softmax64
    if method is not None:
        calibrator = fit(method, member.logits[FITTED_ON], member.targets[FITTED_ON])
    probabilities = {split: calibrator(logits) for split, logits in member.logits.items()}
    targets, seed = member.targets, member.replicate
    sets = fit_sets(score, probabilities[FITTED_ON], targets[FITTED_ON], alpha=alpha, by_class=by_class, seed=seed)
    return set_measures(sets(probabilities[MEASURED_ON]), targets[MEASURED_ON])


def view(found: Conformal) -> RenderableType:
    """Return the sets as a table for a terminal: means over replicates with their standard deviations."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("score", "thresholds", *MEASURES.values()):
        table.add_column(heading, justify="left" if heading in ("score", "thresholds") else "right", no_wrap=True)
    for row in found.rows:
        numbers = (spread(row.measures[name]).text() for name in MEASURES)
        table.add_row(row.score, "per class" if row.by_class else "one", *numbers)
    note = (
        f"{found.trial}, {plural(found.replicates, 'replicate')}: sets fitted on validation data and measured on test "
        f"data, for a coverage of at least {1 - found.alpha:.3g}. Worst class: lowest coverage of a class; "
        "class gap: mean absolute difference between a class's coverage and the overall coverage."
    )
    return Group(table, Text(), Text(note))
