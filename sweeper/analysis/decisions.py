"""What decisions cost: loss, hyperparameters, post-hoc method and threshold chosen together by what a user would pay.

A wrong answer costs `error`, no answer `abstention`, and each class beyond the first in a set `size`. Of probabilities
p the best answer is the j most probable classes with the least expected cost error·(1 − P_j) + size·(j − 1), P_j their
sum; it is given where that is at most a threshold. Where p is right, `abstention` is the best threshold (Chow 1970, On
optimum recognition error and reject tradeoff); elsewhere validation data say which. Methods are cross-fitted on these,
configuration, method and threshold chosen by mean cost, and methods then fitted on all of them for the other splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import RenderableType

from sweeper.analysis.predictions import FITTED_ON, StoredPredictions, finished_members
from sweeper.analysis.statistics.basics import spread
from sweeper.analysis.statistics.differences import PairedDifference, paired_difference
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.text.cells import grouped
from sweeper.text.display import plain_table
from trainables.metrics.base import Floats, Integers, softmax64
from trainables.metrics.evaluate import evaluate_probabilities
from trainables.posthoc.base import POSTHOC, PosthocUnavailable, cross_fitted

NONE = "none"

#: What configuration and method are chosen by; the latter two with the threshold that right probabilities ask for.
BY_COST, BY_NLL, BY_ECE = "cost", "nll", "ece"


@dataclass(frozen=True)
class Costs:
    """What is paid for a wrong answer, for none, and for each further class of a set; `None`: no sets."""

    error: float = 1.0
    abstention: float = 0.2
    size: float | None = None

    def require(self) -> None:
        """Raise SweeperError unless the costs are in order."""
        sizes = 0.0 if self.size is None else self.size
        if not 0 < self.abstention < self.error or (self.size is not None and not 0 < sizes < self.error):
            raise SweeperError(
                f"costs of {self.error:g} for an error, {self.abstention:g} for abstention and {sizes:g} a class",
                "give 0 < abstention < error and 0 < size < error: else one of them is never, or always, best",
            )


@dataclass(frozen=True)
class Answers:
    """The best answer for each sample: what it is expected to cost, what it cost, and of how many classes; all [N]."""

    expected: Floats
    paid: Floats
    classes: Integers

    def realised(self, threshold: float, costs: Costs) -> Floats:
        """Return the cost of each sample [N] where answers above the threshold are not given."""
        return np.where(self.expected <= threshold, self.paid, costs.abstention)


def answers(probabilities: Floats, targets: Integers, costs: Costs) -> Answers:
    """Return the best answers of probabilities [N, K] for targets [N]."""
    most = 1 if costs.size is None else probabilities.shape[1]
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :most]
    held = np.cumsum(np.take_along_axis(probabilities, order, axis=1), axis=1)
    price = (costs.size or 0.0) * np.arange(most)
    expected = costs.error * (1 - held) + price
    best = expected.argmin(axis=1)
    right = ((order == targets[:, None]) & (np.arange(most) <= best[:, None])).any(axis=1)
    return Answers(expected.min(axis=1), costs.error * ~right + price[best], best + 1)


def best_threshold(found: Answers, costs: Costs) -> float:
    """Return the threshold with the least total cost; of equal ones that nearest to the cost of abstention."""
    order = np.argsort(found.expected, kind="stable")
    ascending = found.expected[order]
    total = np.concatenate([[0.0], np.cumsum(found.paid[order] - costs.abstention)])
    upper = np.append(ascending, costs.error + ascending[-1])
    ends = np.flatnonzero(np.append(ascending, np.inf) > np.append(-np.inf, ascending))
    middle = (np.append(ascending[0] - costs.error, ascending) + upper)[ends] / 2
    least = total[ends] <= total[ends].min() + 1e-12
    return float(min(middle[least], key=lambda each: abs(each - costs.abstention)))


@dataclass(frozen=True)
class Candidate:
    """A configuration with a post-hoc method, on validation data: one entry a replicate.

    Attributes:
        trial, method: which.
        members: its networks.
        thresholds: tuned.
        scores: means over replicates of what candidates are chosen by.
    """

    trial: str
    method: str
    members: Sequence[StoredPredictions]
    thresholds: Sequence[float]
    scores: Mapping[str, float]


def candidates(members: Sequence[StoredPredictions], methods: Sequence[str], costs: Costs) -> list[Candidate]:
    """Return every configuration with every method that can be fitted to all its networks."""
    found = []
    for trial, held in grouped(members, lambda member: member.trial).items():
        for method in methods:
            try:
                each = [_validated(member, method, costs) for member in held]
            except PosthocUnavailable:
                continue  # one that asks for more samples, or classes that some fold lacks, is no candidate
            scores = {key: float(np.mean([scores[key] for _, scores in each])) for key in (BY_COST, BY_NLL, BY_ECE)}
            found.append(Candidate(trial, method, held, [threshold for threshold, _ in each], scores))
    return found


def _validated(member: StoredPredictions, method: str, costs: Costs) -> tuple[float, dict[str, float]]:
    """Return the tuned threshold of one network under one method, and its scores, cross-fitted."""
    logits, targets = member.logits[FITTED_ON], member.targets[FITTED_ON]
    values, exact = (softmax64(logits), logits) if method == NONE else cross_fitted(method, logits, targets, {})
    given = answers(values, targets, costs)
    threshold = best_threshold(given, costs)
    measured = evaluate_probabilities(values, targets, min(15, len(targets)), (BY_NLL, BY_ECE), exact)
    return threshold, {**measured, BY_COST: float(given.realised(threshold, costs).mean())}


@dataclass(frozen=True)
class Realised:
    """What one choice cost on one split, one value a replicate.

    Attributes:
        split: which.
        chosen_by: BY_COST, BY_NLL or BY_ECE.
        cost: mean over samples.
        abstained: share of samples without an answer.
        wrong: share of answers without the truth.
        classes: mean classes of an answer.
        against: its cost less that of the choice by cost, paired by replicate; `None` of that choice itself.
    """

    split: str
    chosen_by: str
    cost: Sequence[float]
    abstained: Sequence[float]
    wrong: Sequence[float]
    classes: Sequence[float]
    against: PairedDifference | None = None


@dataclass(frozen=True)
class Decided:
    """The choices, by what they were made, and what they cost on each split."""

    costs: Costs
    chosen: Mapping[str, Candidate]
    rows: Sequence[Realised]


def decide_by_costs(results: Results, methods: Sequence[str], costs: Costs) -> Decided:
    """Choose configuration, method and threshold on validation data, and return their costs on all other splits.

    Args:
        results: of the sweep.
        methods: post-hoc methods, with their default options; `none` for the network's own probabilities.
        costs: of errors, abstentions and classes.

    Raises:
        SweeperError: costs out of order, an unknown method, no finished trial with predictions, or no method that fits.
    """
    costs.require()
    unknown = [fault for method in methods if method != NONE and (fault := POSTHOC.fault(method))]
    if unknown:
        raise SweeperError(unknown[0], "see `sweeper spaces --posthoc`")
    found = candidates(finished_members(results, most=10**9, every_split=True), methods, costs)
    if not found:
        raise SweeperError(f"none of the methods {', '.join(methods)} can be fitted", f"name others, or {NONE}")
    chosen = {by: min(found, key=lambda each: each.scores[by]) for by in (BY_COST, BY_NLL, BY_ECE)}
    rows = []
    for split in (split for split in chosen[BY_COST].members[0].logits if split != FITTED_ON):
        of_cost = _realised(split, BY_COST, chosen[BY_COST], costs)
        rows += [of_cost, *(_realised(split, by, chosen[by], costs, of_cost.cost) for by in (BY_NLL, BY_ECE))]
    return Decided(costs, chosen, rows)


def _realised(
    split: str, by: str, candidate: Candidate, costs: Costs, against: Sequence[float] | None = None
) -> Realised:
    measured = []
    for member, tuned in zip(candidate.members, candidate.thresholds, strict=True):
        values = member.probabilities(split, None if candidate.method == NONE else candidate.method)
        given = answers(values, member.targets[split], costs)
        threshold = tuned if by == BY_COST else costs.abstention
        kept = given.expected <= threshold
        wrong = given.paid[kept] >= costs.error
        rates = (wrong.mean(), given.classes[kept].mean()) if kept.any() else (np.nan, np.nan)
        measured.append((given.realised(threshold, costs).mean(), 1 - kept.mean(), *rates))
    cost, abstained, wrong_share, classes = (
        [float(value) for value in column] for column in zip(*measured, strict=True)
    )
    paired = None if against is None or len(against) != len(cost) else paired_difference(against, cost)
    return Realised(split, by, cost, abstained, wrong_share, classes, paired)


def decided_view(found: Decided) -> RenderableType:
    """Return the choices and their costs as a table for a terminal."""
    headings = ("split", "chosen by", "cost", "abstained", "wrong answers", "classes", "more than by cost (95 %)")
    cells = []
    for row in found.rows:
        columns = (row.cost, row.abstained, row.wrong, row.classes)
        given = [[value for value in values if not np.isnan(value)] for values in columns]
        numbers = [spread(values).text() if values else "–" for values in given]
        pair = row.against
        limits = f" ({pair.interval[0]:+.4f} … {pair.interval[1]:+.4f})" if pair and pair.interval else ""
        cells.append((row.split, row.chosen_by, *numbers, f"{pair.mean:+.4f}{limits}" if pair else ""))
    names = {by: f"{each.trial} with {each.method}" for by, each in found.chosen.items()}
    tuned = spread(found.chosen[BY_COST].thresholds).text()
    note = (
        f"By cost: {names[BY_COST]}, answers up to an expected cost of {tuned}; by NLL: {names[BY_NLL]}; by ECE: "
        f"{names[BY_ECE]}, up to {found.costs.abstention:g}. All are chosen on validation data, methods cross-fitted. "
        "Differences are paired by replicate: they hold for these samples, and seeds like these."
    )
    return plain_table(headings, cells, left=("split", "chosen by"), note=note)
