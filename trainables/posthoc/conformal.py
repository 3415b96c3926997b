"""Conformal prediction sets: sets of classes that hold the truth with a probability that is asked for.

A score says how strange class k is for a sample; its quantile on validation data is the threshold, and the set has
every class whose score is not above it (split conformal: Papadopoulos et al. 2002; Vovk, Gammerman & Shafer 2005).
Where validation and test samples are exchangeable, the truth is in the set with a probability of at least 1 − α,
whatever the network. With p sorted descending and r the rank of k:

- `thr`: 1 − p_k (Sadinle, Lei & Wasserman 2019), the smallest sets on average;
- `aps`: p_(1) + … + p_(r) − u·p_(r), u uniform on [0, 1] (Romano, Sesia & Candès 2020, arXiv:2006.02544), whose sizes
  follow a sample's difficulty;
- `raps`: aps + λ·max(0, r − k_reg) (Angelopoulos, Bates, Jordan & Malik 2021, arXiv:2009.14193), without its tails.

Per class, each class has a threshold of its own from its own validation samples, and the promise holds for each.

A post-hoc method that was fitted on the samples that give the threshold fits them better than new ones, and the promise
breaks: from 360 validation samples of ten classes, sets after `matrix` hold .81 of the truths instead of .9. So the
method is fitted on one half and the threshold on the other (`fit_apart`, which keeps the promise), or both on all
samples, each scored by a fit to the other folds (CV+: Barber, Candès, Ramdas & Tibshirani 2021, arXiv:1905.02928; for
classes Romano, Sesia & Candès 2020): that promises less (`promised_coverage`), but is about 1 − α in simulations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Booleans, Floats, Integers, require_probabilities
from trainables.metrics.refinement import FOLDS, folds_of
from trainables.posthoc.base import POSTHOC, Calibrator, PosthocUnavailable

SCORES = ("thr", "aps", "raps")

#: RAPS' λ and k_reg, those of the example in its authors' code.
PENALTY, FREE_RANKS = 0.01, 5


@dataclass(frozen=True)
class ConformalSets:
    """Thresholds fitted on validation data; call it with probabilities for their sets.

    Attributes:
        score: of `SCORES`.
        alpha: the share of samples whose set may miss the truth.
        thresholds: [K], all equal where they are not per class; infinite where α asks for more samples than there are.
        randomised: whether `aps` and `raps` draw u, without which their sets are larger than need be.
        options: `penalty` and `free_ranks` of `raps`.
        seed: of u.
    """

    score: str
    alpha: float
    thresholds: Floats
    randomised: bool = True
    options: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def __call__(self, probabilities: Floats) -> Booleans:
        """Return which classes are in the sets [N, K] of probabilities [N, K]."""
        noise = _noise(len(probabilities), self.randomised, self.seed + 1)
        strange = scores(self.score, probabilities, noise, **self.options)
        return np.asarray(strange <= self.thresholds + 1e-12)


def scores(
    name: str, probabilities: Floats, noise: Floats, *, penalty: float = PENALTY, free_ranks: float = FREE_RANKS
) -> Floats:
    """Return the score of every class [N, K] of probabilities [N, K]; `noise` [N] is u, 0 for none.

    Raises ValueError for an unknown name.
    """
    if name not in SCORES:
        raise ValueError(f"unknown conformal score {name!r}; known: {', '.join(SCORES)}")
    if name == "thr":
        return np.asarray(1.0 - probabilities)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ordered = np.take_along_axis(probabilities, order, axis=1)
    strange = np.cumsum(ordered, axis=1) - noise[:, None] * ordered
    if name == "raps":
        strange += penalty * np.maximum(0.0, np.arange(1, probabilities.shape[1] + 1) - free_ranks)
    found = np.empty_like(strange)
    np.put_along_axis(found, order, strange, axis=1)
    return found


def fit_sets(
    score: str,
    probabilities: ArrayLike,
    targets: ArrayLike,
    *,
    alpha: float = 0.1,
    by_class: bool = False,
    randomised: bool = True,
    seed: int = 0,
    **options: float,
) -> ConformalSets:
    """Return conformal sets fitted on validation probabilities [N, K] and targets [N].

    The threshold is the ⌈(n + 1)(1 − α)⌉-th smallest score of the n true classes; infinite where that is more than n.

    Args:
        score: of `SCORES`.
        probabilities: [N, K]; calibrated ones change `aps` and `raps`, not their coverage.
        targets: [N] class indices.
        alpha: in (0, 1).
        by_class: a threshold for each class, from its own samples.
        randomised: draw u for `aps` and `raps`.
        seed: of u.
        options: `penalty` and `free_ranks` of `raps`.

    Raises:
        PosthocUnavailable: α is outside (0, 1), or the probabilities are unusable.
        ValueError: an unknown score.
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    require_alpha(alpha)
    require_probabilities(values, targets, bins=1)
    labels: Integers = np.asarray(targets, dtype=np.int64)
    strange = scores(score, values, _noise(len(labels), randomised, seed), **options)
    true = strange[np.arange(len(labels)), labels]
    classes = range(values.shape[1])
    thresholds = [quantile(true[labels == k], alpha) for k in classes] if by_class else [quantile(true, alpha)]
    fitted = np.broadcast_to(np.array(thresholds), values.shape[1])
    return ConformalSets(score, alpha, fitted, randomised, options, seed)


def quantile(values: Floats, alpha: float) -> float:
    """Return the ⌈(n + 1)(1 − α)⌉-th smallest of `values` [n]; infinity where there are too few."""
    rank = math.ceil((len(values) + 1) * (1 - alpha) - 1e-9)
    return float(np.partition(values, rank - 1)[rank - 1]) if rank <= len(values) else math.inf


def samples_needed(alpha: float) -> int:
    """Return the fewest samples that give a threshold: with fewer it is infinite, and sets hold every class."""
    return math.ceil((1 - 1e-9) / alpha - 1)


@dataclass(frozen=True)
class FittedApart:
    """A post-hoc method of which each of some validation samples was calibrated by a fit that has not seen it.

    Attributes:
        calibrators: one a fold.
        fold: of each sample [N], its place in `calibrators`; −1 of those that only the fit has seen.
        probabilities: [N, K], each by the calibrator of its fold; NaN where there is none.
        targets: [N].
    """

    calibrators: Sequence[Calibrator]
    fold: Integers
    probabilities: Floats
    targets: Integers

    def sets(
        self, score: str, logits: ArrayLike, *, alpha: float = 0.1, by_class: bool = False, seed: int = 0
    ) -> Booleans:
        """Return which classes are in the sets [M, K] of new logits [M, K].

        A class is in unless at least (1 − α)(n + 1) of the n samples (by class, of those of that class) are less
        strange than the new one would be under the calibrator of their fold; with one fold, this is `fit_sets`' rule.

        Raises PosthocUnavailable if α is outside (0, 1), and ValueError for an unknown score.
        """
        require_alpha(alpha)
        random = np.random.default_rng(seed)
        noise, new_noise = random.random(len(self.fold)), random.random(len(np.asarray(logits)))
        classes, less_strange = range(self.probabilities.shape[1]), np.zeros(np.shape(logits), dtype=np.int64)
        counted = np.zeros(len(classes), dtype=np.int64)
        for at, calibrator in enumerate(self.calibrators):
            mine = self.fold == at
            seen = scores(score, self.probabilities[mine], noise[mine])
            true = seen[np.arange(len(seen)), self.targets[mine]]
            new = scores(score, calibrator(logits), new_noise)
            for k in classes:
                own = np.sort(true[self.targets[mine] == k] if by_class else true)
                less_strange[:, k] += np.searchsorted(own, new[:, k] - 1e-12)
                counted[k] += len(own)
        return np.asarray(less_strange < (1 - alpha) * (counted + 1) - 1e-9)


def fit_apart(
    method: str, logits: ArrayLike, targets: ArrayLike, *, crosswise: bool = False, seed: int = 0
) -> FittedApart:
    """Fit a post-hoc method on a random half of validation logits [N, K] and targets [N]; thresholds get the other.

    Args:
        method: its name, with its default options.
        logits: [N, K].
        targets: [N] class indices.
        crosswise: instead, calibrate every sample by a fit to the folds that it is not in.
        seed: of the halves.

    Raises ValueError as `trainables.posthoc.fit`, also where a part has too few samples.
    """
    values, labels = np.asarray(logits, dtype=np.float64), np.asarray(targets, dtype=np.int64)
    if crosswise:
        fold = folds_of(labels)
    else:
        fold = np.where(np.random.default_rng(seed).permutation(len(labels)) < len(labels) // 2, -1, 0)
    probabilities, calibrators = np.full(values.shape, np.nan), []
    for each in range(FOLDS if crosswise else 1):
        mine = fold == each
        calibrators.append(POSTHOC.build(method, values[~mine], labels[~mine]))
        probabilities[mine] = calibrators[-1](values[mine])
    return FittedApart(calibrators, fold, probabilities, labels)


def promised_coverage(alpha: float, samples: int, *, crosswise: bool = False) -> float:
    """Return what the coverage of sets from so many samples is at least: 1 − α, or crosswise 1 − 2α less a little.

    Source of the latter: Barber et al. 2021, Theorem 4.
    """
    if not crosswise:
        return 1 - alpha
    within = samples / FOLDS
    return 1 - 2 * alpha - min(2 * (1 - 1 / FOLDS) / (within + 1), (1 - FOLDS / samples) / (FOLDS + 1))


def require_alpha(alpha: float) -> None:
    """Raise PosthocUnavailable if α is outside (0, 1)."""
    if not 0 < alpha < 1:
        raise PosthocUnavailable(f"alpha = {alpha:g} is outside (0, 1): it is the share of sets that miss the truth")


def set_measures(sets: Booleans, targets: Integers) -> dict[str, float]:
    """Return what sets [N, K] are worth against targets [N].

    `coverage`: the share that hold the truth. `size`: mean number of classes. `worst_class_coverage`: of the class that
    is missed most. `class_coverage_gap`: mean distance of the classes' coverages from that of all. `empty`: share of
    sets without a class.
    """
    held = sets[np.arange(len(targets)), targets]
    counts = np.bincount(targets, minlength=sets.shape[1])
    each = (np.bincount(targets, weights=held, minlength=sets.shape[1]) / np.maximum(counts, 1))[counts > 0]
    sizes = sets.sum(axis=1)
    return {
        "coverage": float(held.mean()),
        "size": float(sizes.mean()),
        "worst_class_coverage": float(each.min()),
        "class_coverage_gap": float(np.abs(each - held.mean()).mean()),
        "empty": float((sizes == 0).mean()),
    }


def _noise(samples: int, randomised: bool, seed: int) -> Floats:
    return np.random.default_rng(seed).random(samples) if randomised else np.zeros(samples)
