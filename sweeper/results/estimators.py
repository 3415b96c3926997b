"""What stored predictions say of a difference in calibration, by several estimators.

A paper's "A is better calibrated than B" may hold for ECE of 15 bins and not for 10, before temperature scaling and not
after, or hang on few seeds. Each estimator is therefore judged by itself, by `equivalence`, over seeds and samples:
a spread over seeds alone takes the test set for the whole truth. What the samples add is the delete-a-group jackknife's
(Kott 2001, "The delete-a-group jackknife", J. Official Statistics 17, Eq. 1). Assumed: seeds are independent, so are
samples, and an estimator's bias shifts both sides alike.
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

#: Of the jackknife: 19 degrees of freedom, and a twentieth of the samples left out at a time keeps the bins filled.
GROUPS = 20

#: Differences up to this count as none unless `objective.margin` says otherwise; in ECE, one point of confidence.
MARGIN = 0.01


@dataclass(frozen=True)
class Scored:
    """One network's predictions on N samples: what the estimators are computed from.

    Attributes:
        confidence: of the predicted class [N].
        correct: whether it is the target's [N].
        nll, brier: of each sample [N].
        targets: [N].
        logits: [N, K] of the network itself; none after a post-hoc method, which refinement does not depend on.
    """

    confidence: Floats
    correct: Floats
    nll: Floats
    brier: Floats
    targets: Integers
    logits: Floats | None

    @staticmethod
    def of(probabilities: Floats, targets: Integers, logits: Floats | None = None) -> Scored:
        """Return what probabilities [N, K] come to."""
        top, own = probabilities.argmax(axis=1), probabilities[np.arange(len(targets)), targets]
        brier = (probabilities**2).sum(axis=1) - 2 * own + 1
        nll = -np.log(np.maximum(own, SMALLEST_PROBABILITY))
        return Scored(probabilities.max(axis=1), (top == targets).astype(float), nll, brier, targets, logits)

    def at(self, rows: Integers) -> Scored:
        """Return the samples of these rows."""
        return replace(self, **{name: values[rows] for name, values in vars(self).items() if values is not None})


def _ece(bins: int) -> Callable[[Scored], float]:
    def measure(of: Scored) -> float:
        index = equal_width_bin(of.confidence, bins)
        gaps = sums_by_bin(index, of.confidence - of.correct, bins)
        return float(norm_of_gaps(gaps, np.bincount(index, minlength=bins), "mean"))

    return measure


#: Smaller is better by each.
ESTIMATORS: Mapping[str, Callable[[Scored], float]] = {
    **{f"ECE, {bins} bins": _ece(bins) for bins in (10, 15, 20)},
    "equal-mass ECE, 15 bins": lambda of: confidence_metrics(of.confidence, of.correct.astype(bool), 15)["ada_ece"],
    "smooth ECE": lambda of: smooth_calibration_error(of.confidence, of.correct),
    "NLL": lambda of: float(of.nll.mean()),
    "Brier": lambda of: float(of.brier.mean()),
    "refinement NLL": lambda of: math.nan if of.logits is None else refinement(of.logits, of.targets).nll,
}

#: The estimator of the first screen.
SHOWN = "ECE, 15 bins"

#: The test predictions of one configuration's networks: seed → predictions.
Networks = Mapping[int, Scored]


@dataclass(frozen=True)
class Judgement:
    """One estimator of two sides.

    Attributes:
        estimator: its name in ESTIMATORS.
        means: of the first and of the second side, over the seeds compared.
        deviations: standard deviations of both over seeds, NaN of one seed.
        verdict: on first minus second, negative where the first is better; None of one seed, which says nothing.
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
    """One estimator on both sides, seed by seed: what `judged_together` judges."""

    estimator: str
    pair: Pair

    def judgement(self, verdict: Verdict | None) -> Judgement:
        """Return the pair's means and its verdict."""
        sides = [np.array([*values.values()]) for values in (self.pair.b, self.pair.a)]
        if verdict is None and len(self.pair.a) > 1 and self.pair.a == self.pair.b:
            verdict = Verdict(NO_DIFFERENCE, 0.0, (0.0, 0.0), 0.0, 0.0, len(self.pair.a))
        first, second = (float(side.std(ddof=1)) if len(side) > 1 else math.nan for side in sides)
        return Judgement(self.estimator, (float(sides[0].mean()), float(sides[1].mean())), (first, second), verdict)


def measured(estimator: str, first: Networks, second: Networks) -> Measured | None:
    """Return one estimator of both sides; None where it has no value.

    Seeds in common are compared with each other, the rest left out; without two of them any two are, in order.
    """
    common = sorted(first.keys() & second.keys())
    if len(common) < 2:
        second = dict(zip(first, second.values(), strict=False))
        common = [seed for seed in first if seed in second]
    measure = ESTIMATORS[estimator]
    a, b = ({seed: measure(side[seed]) for seed in common} for side in (second, first))
    if not common or not np.isfinite([*a.values(), *b.values()]).all():
        return None
    samples = len(first[common[0]].targets)
    group = np.random.default_rng(0).permutation(samples) % min(GROUPS, samples)
    kept = [np.flatnonzero(group != each) for each in range(group.max() + 1)]
    left_out = [[measure(first[s].at(rows)) - measure(second[s].at(rows)) for s in common] for rows in kept]
    return Measured(estimator, Pair(a, b, sample_parts(np.array(left_out)), samples))


def judged(estimator: str, first: Networks, second: Networks, margin: float = MARGIN) -> Judgement | None:
    """Return what one estimator says of `first` against `second`; None where it has no value."""
    found = measured(estimator, first, second)
    return None if found is None else found.judgement(equivalence(found.pair, margin))


def judged_together(rows: Sequence[Measured], margin: float) -> list[Judgement]:
    """Return the same of the rows of one table, which learn from each other how far seeds spread."""
    verdicts = equivalences([row.pair for row in rows], margin)
    return [row.judgement(verdict) for row, verdict in zip(rows, verdicts, strict=True)]
