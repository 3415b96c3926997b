"""Judge a difference in calibration by several estimators, from stored predictions.

"A is better calibrated than B" may hold for ECE with 15 bins but not with 10, before temperature scaling but not after,
or only for a few seeds. Each estimator is therefore judged separately, with `equivalence`. The judgement is over seeds
and samples, because a spread over seeds alone would ignore that the test set is a sample. The samples' part of the
variance comes from the delete-a-group jackknife (Kott 2001, "The delete-a-group jackknife", J. Official Statistics 17,
Eq. 1). Assumptions: seeds are independent, samples are independent, and an estimator's bias shifts both sides equally.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeper.core.statistics.equivalence import (
    NO_DIFFERENCE,
    OPEN,
    Pair,
    Verdict,
    equivalence,
    equivalences,
    sample_parts,
)
from trainables.metrics.base import SMALLEST_PROBABILITY, Floats, Integers
from trainables.metrics.binning import equal_width_bin, norm_of_gaps, sums_by_bin
from trainables.metrics.evaluate import confidence_metrics
from trainables.metrics.kernel import smooth_calibration_error
from trainables.metrics.refinement import refinement

#: Number of jackknife groups. 20 groups give 19 degrees of freedom, and without one of them the bins are still filled.
GROUPS = 20

#: Default of `objective.margin`, the largest difference that counts as no difference: 0.01 of ECE is one percentage
#: point of confidence.
MARGIN = 0.01


@dataclass(frozen=True)
class Scored:
    """One network's predictions on N samples, in the form that the estimators need.

    Attributes:
        confidence: probability of the predicted class, [N].
        correct: 1 if the predicted class is the target, else 0, [N].
        nll, brier: loss of each sample, [N].
        targets: classes, [N].
        logits: the network's own logits, [N, K]; None after a post-hoc method. Only refinement needs logits, and
            post-hoc methods do not change refinement.
    """

    confidence: Floats
    correct: Floats
    nll: Floats
    brier: Floats
    targets: Integers
    logits: Floats | None

    @staticmethod
    def of(probabilities: Floats, targets: Integers, logits: Floats | None = None) -> Scored:
        """Return the scores of probabilities, [N, K]."""
        top, own = probabilities.argmax(axis=1), probabilities[np.arange(len(targets)), targets]
        brier = (probabilities**2).sum(axis=1) - 2 * own + 1  # ‖p − e_y‖² = ‖p‖² − 2 p_y + 1: no one-hot matrix
        nll = -np.log(np.maximum(own, SMALLEST_PROBABILITY))
        return Scored(probabilities.max(axis=1), (top == targets).astype(float), nll, brier, targets, logits)

    def at(self, rows: Integers) -> Scored:
        """Return the scores of some samples, by their row numbers."""
        return replace(self, **{name: values[rows] for name, values in vars(self).items() if values is not None})


def _ece(bins: int) -> Callable[[Scored], float]:
    def measure(of: Scored) -> float:
        index = equal_width_bin(of.confidence, bins)
        gaps = sums_by_bin(index, of.confidence - of.correct, bins)
        return float(norm_of_gaps(gaps, np.bincount(index, minlength=bins), "mean"))

    return measure


#: Estimator → function of the scores; smaller is better for all.
ESTIMATORS: Mapping[str, Callable[[Scored], float]] = {
    **{f"ECE, {bins} bins": _ece(bins) for bins in (10, 15, 20)},
    "equal-mass ECE, 15 bins": lambda of: float(
        confidence_metrics(of.confidence, of.correct.astype(bool), 15)["ada_ece"]
    ),
    "smooth ECE": lambda of: smooth_calibration_error(of.confidence, of.correct),
    "NLL": lambda of: float(of.nll.mean()),
    "Brier": lambda of: float(of.brier.mean()),
    "refinement NLL": lambda of: math.nan if of.logits is None else refinement(of.logits, of.targets).nll,
}

#: The estimator that the first screen shows.
SHOWN = "ECE, 15 bins"

#: The test predictions of one configuration's networks: seed → predictions.
Networks = Mapping[int, Scored]


@dataclass(frozen=True)
class Judgement:
    """The result of one estimator on two sides.

    Attributes:
        estimator: its name in ESTIMATORS.
        means: mean of the first and of the second side over the compared seeds.
        deviations: standard deviations of both sides over seeds; NaN for one seed.
        verdict: verdict on first minus second, which is negative if the first is better. None for a single seed, which
            decides nothing.
    """

    estimator: str
    means: tuple[float, float]
    deviations: tuple[float, float]
    verdict: Verdict | None

    @property
    def code(self) -> str:
        """LOWER, HIGHER, NO_DIFFERENCE or OPEN."""
        return OPEN if self.verdict is None else self.verdict.code


@dataclass(frozen=True)
class Measured:
    """One estimator on both sides, seed by seed; the input of `judged_together`."""

    estimator: str
    pair: Pair

    def judgement(self, verdict: Verdict | None) -> Judgement:
        """Return the judgement: the pair's means and its verdict."""
        sides = [np.array([*values.values()]) for values in (self.pair.b, self.pair.a)]
        # Equal values have no spread to test, but there is certainly no difference.
        if verdict is None and len(self.pair.a) > 1 and self.pair.a == self.pair.b:
            verdict = Verdict(NO_DIFFERENCE, 0.0, (0.0, 0.0), 0.0, 0.0, len(self.pair.a))
        first, second = (float(side.std(ddof=1)) if len(side) > 1 else math.nan for side in sides)
        return Judgement(self.estimator, (float(sides[0].mean()), float(sides[1].mean())), (first, second), verdict)


def measured(estimator: str, first: Networks, second: Networks) -> Measured | None:
    """Return one estimator of both sides; None if it has no value.

    Only common seeds are compared, in pairs. With fewer than two common seeds, seeds are paired in order.
    """
    common = sorted(first.keys() & second.keys())
    if len(common) < 2:  # unrelated seeds can be paired in any order
        second = dict(zip(first, second.values(), strict=False))
        common = [seed for seed in first if seed in second]
    measure = ESTIMATORS[estimator]
    a, b = ({seed: measure(side[seed]) for seed in common} for side in (second, first))
    if not common or not np.isfinite([*a.values(), *b.values()]).all():
        return None
    samples = len(first[common[0]].targets)
    # A fixed seed, so that a report made twice has the same intervals. All seeds of both sides have the same groups,
    # because they share the samples' difficulty.
    group = np.random.default_rng(0).permutation(samples) % min(GROUPS, samples)
    kept = [np.flatnonzero(group != left_out_group) for left_out_group in range(group.max() + 1)]
    left_out = [[measure(first[s].at(rows)) - measure(second[s].at(rows)) for s in common] for rows in kept]
    return Measured(estimator, Pair(a, b, sample_parts(np.array(left_out)), samples))


def judged(estimator: str, first: Networks, second: Networks, margin: float = MARGIN) -> Judgement | None:
    """Return one estimator's judgement of `first` minus `second`; None if it has no value."""
    values = measured(estimator, first, second)
    return None if values is None else values.judgement(equivalence(values.pair, margin))


def judged_together(rows: Sequence[Measured], margin: float) -> list[Judgement]:
    """Return the judgements of one table's rows, which share their estimate of the spread of seeds."""
    verdicts = equivalences([row.pair for row in rows], margin)
    return [row.judgement(verdict) for row, verdict in zip(rows, verdicts, strict=True)]
