"""Judge a difference in calibration by several estimators, from stored predictions.

"A is better calibrated than B" may hold for ECE with 15 bins but not with 10, before temperature scaling but not after,
or only for a few seeds. Each estimator is therefore a question of its own. The judgement is over seeds and test samples
(`sweeper.judging`), because a spread over seeds alone would ignore that the test set is a sample. Assumptions: seeds
are independent, and samples are independent.

A binned error of few samples is larger than that of unlimited ones, most where calibration is good: by up to a few
points after temperature scaling, by hardly any before. Verdicts on ECE are about unlimited samples
(`trainables.metrics.debiased.ece_excess`); means and standard deviations are shown as measured. The verdict on smooth
ECE is about its mean over test sets of this size, because how far it exceeds its limit is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from sweeper.judging.judge import judge
from sweeper.judging.question import NOT_COMPARED, OPEN, Data, Question, Verdict
from sweeper.judging.samples import left_out
from trainables.metrics.base import SMALLEST_PROBABILITY, Floats, Integers
from trainables.metrics.binning import Scheme, equal_width_bin, norm_of_gaps, sums_by_bin
from trainables.metrics.debiased import ece_excess
from trainables.metrics.evaluate import confidence_metrics
from trainables.metrics.kernel import smooth_calibration_error
from trainables.metrics.refinement import refinement

T = TypeVar("T")

#: Largest difference that counts as none unless `objective.margin` says otherwise, in each estimator's own unit: 0.01
#: of ECE is one percentage point of confidence.
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


def _excess(of: Scored, *, bins: int, scheme: Scheme) -> tuple[float, float]:
    return ece_excess(of.confidence, of.correct, bins, scheme)


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

#: Binned estimator → between which two values it exceeds that of unlimited samples, in the mean.
EXCESS: Mapping[str, Callable[[Scored], tuple[float, float]]] = {
    **{f"ECE, {bins} bins": partial(_excess, bins=bins, scheme="equal_width") for bins in (10, 15, 20)},
    "equal-mass ECE, 15 bins": partial(_excess, bins=15, scheme="equal_mass"),
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
        verdict: verdict on the first side against the second, BETTER if its estimator is smaller. None for a single
            seed, which decides nothing.
    """

    estimator: str
    means: tuple[float, float]
    deviations: tuple[float, float]
    verdict: Verdict | None

    @property
    def code(self) -> str:
        """BETTER, WORSE, SAME or OPEN."""
        return OPEN if self.verdict is None else self.verdict.code


#: Row → the two sides that are compared.
Pairs = Mapping[str, tuple[Networks, Networks]]


def measured(networks: Mapping[str, Networks], estimator: str | Callable[[Scored], float]) -> Data:
    """Return an estimator of every network, on all test samples and without each group of them.

    Args:
        networks: name → networks by seed.
        estimator: a name in ESTIMATORS, or a function.
    """
    measure = ESTIMATORS[estimator] if isinstance(estimator, str) else estimator
    exceeds = EXCESS.get(estimator) if isinstance(estimator, str) else None

    def each(function: Callable[[Scored], T]) -> dict[str, dict[int, T]]:
        return {name: {seed: function(of) for seed, of in every.items()} for name, every in networks.items()}

    def without(of: Scored) -> Floats:
        return left_out(lambda rows: measure(of.at(rows)), len(of.targets))

    return Data(each(measure), each(without), each(exceeds) if exceeds else {})


def judged(estimator: str, rows: Pairs, margin: float = MARGIN, *, alone: bool = False) -> dict[str, Judgement]:
    """Return the judgements of one estimator on the rows of a table; rows without a value are left out.

    The rows share their estimate of the spread of seeds. Common seeds are compared in pairs.

    Args:
        estimator: its name in ESTIMATORS.
        rows: row → first and second side.
        margin: largest difference that counts as none.
        alone: judge a side with a single network over test samples alone: for this network, not for other seeds.
    """
    data = measured({f"{at} {name}": side for name, sides in rows.items() for at, side in enumerate(sides)}, estimator)
    of = data.values
    known = [
        name for name in rows
        if all(of[f"{at} {name}"] and all(map(math.isfinite, of[f"{at} {name}"].values())) for at in (0, 1))
    ]  # fmt: skip
    first, second = ([f"{place} {name}" for name in known] for place in (0, 1))
    question = Question(
        first, estimator, margin=margin, level=0.95, against=second, samples_only=alone
    )  # differences, because an improvement of the same size counts the same
    verdicts = judge(question, data).of
    return {name: _judgement(estimator, of[f"0 {name}"], of[f"1 {name}"], verdicts[f"0 {name}"]) for name in known}


def _judgement(estimator: str, first: Mapping[int, float], second: Mapping[int, float], verdict: Verdict) -> Judgement:
    # If the sides were compared seed by seed, their means are over the common seeds.
    sides = [
        np.array([v for s, v in side.items() if not verdict.paired or s in verdict.seeds]) for side in (first, second)
    ]
    one, other = (float(side.std(ddof=1)) if len(side) > 1 else math.nan for side in sides)
    means = float(sides[0].mean()), float(sides[1].mean())
    return Judgement(estimator, means, (one, other), None if verdict.code == NOT_COMPARED else verdict)
