"""Conformal prediction sets: sets of classes that contain the true class with a requested probability.

A score measures how unusual class k is for a sample. The threshold is a quantile of the true classes' scores on
validation data, and a set contains every class whose score does not exceed it (split conformal: Papadopoulos et al.
2002; Vovk, Gammerman & Shafer 2005). If validation and test samples are exchangeable, the set contains the true class
with probability at least 1 − α for any network. With p sorted descending and r the rank of k, the scores are:

- `thr`: 1 − p_k (Sadinle, Lei & Wasserman 2019), the smallest sets on average;
- `aps`: p_(1) + … + p_(r) − u·p_(r), u uniform on [0, 1] (Romano, Sesia & Candès 2020, arXiv:2006.02544); the sizes of
  its sets follow the sample's difficulty;
- `raps`: aps + λ·max(0, r − k_reg) (Angelopoulos, Bates, Jordan & Malik 2021, arXiv:2009.14193), which cuts off the
  long tails of aps sets.

Class-conditional sets use a threshold per class, from that class's validation samples; the guarantee then holds for
each class.

A post-hoc method fits its own fitting samples better than new samples. If the same samples also give the threshold, the
guarantee breaks: with 360 validation samples of ten classes, sets after `matrix` contain .81 of the true classes
instead of .9. There are two remedies. `fit_split` fits the method on one half and the threshold on the other, which
keeps the guarantee. Cross-fitting uses all samples for both purposes; each sample is scored by a fit to the other folds
(CV+: Barber, Candès, Ramdas & Tibshirani 2021, arXiv:1905.02928; for classes Romano, Sesia & Candès 2020).
Cross-fitting guarantees less (`promised_coverage`), but covers about 1 − α in simulations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Booleans, Floats, Integers, require_probabilities, softmax64
from trainables.metrics.refinement import FOLDS, folds_of
from trainables.posthoc.base import Calibrator, PosthocUnavailable, fit

SCORES = ("thr", "aps", "raps")

#: λ and k_reg of RAPS, from the example in its authors' code.
PENALTY, FREE_RANKS = 0.01, 5


def scores(
    name: str, probabilities: Floats, noise: Floats, *, penalty: float = PENALTY, free_ranks: float = FREE_RANKS
) -> Floats:
    """Return the score of every class [N, K] for probabilities [N, K].

    Args:
        name: one of `SCORES`; another name raises ValueError.
        probabilities: probabilities [N, K].
        noise: u [N]; 0 for deterministic scores.
        penalty: λ of `raps`.
        free_ranks: k_reg of `raps`.

    Example:
        >>> scores("aps", np.array([[0.7, 0.1, 0.2]]), noise=np.zeros(1))
        array([[0.7, 1. , 0.9]])
    """
    if name not in SCORES:
        raise ValueError(f"unknown conformal score {name!r}; known: {', '.join(SCORES)}")
    if name == "thr":
        return np.asarray(1.0 - probabilities)
    # A stable sort gives equal probabilities the same order in the fit and in use.
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ordered = np.take_along_axis(probabilities, order, axis=1)
    strange = np.cumsum(ordered, axis=1) - noise[:, None] * ordered
    if name == "raps":
        strange += penalty * np.maximum(0.0, np.arange(1, probabilities.shape[1] + 1) - free_ranks)
    by_class = np.empty_like(strange)
    np.put_along_axis(by_class, order, strange, axis=1)
    return by_class


def samples_needed(alpha: float) -> int:
    """Return the fewest samples with a finite threshold; with fewer, sets contain every class.

    Example:
        >>> samples_needed(0.1)
        9
    """
    return math.ceil((1 - 1e-9) / alpha - 1)


@dataclass(frozen=True)
class SplitFit:
    """Probabilities of validation samples that no fit has seen, with the fits that gave them.

    Attributes:
        calibrators: functions from logits [M, K] to probabilities, one per fold.
        fold: index into `calibrators` per sample [N]; −1 for samples used only for fitting.
        probabilities: held-out probabilities [N, K]; NaN for samples used only for fitting.
        targets: class indices [N].
    """

    calibrators: Sequence[Callable[[ArrayLike], Floats]]
    fold: Integers
    probabilities: Floats
    targets: Integers

    def sets(
        self, score: str, logits: ArrayLike, *, alpha: float = 0.1, by_class: bool = False, seed: int = 0
    ) -> Booleans:
        """Return membership of each class in the sets [M, K] for new logits [M, K].

        A class is excluded if at least (1 − α)(n + 1) of the n held-out samples have a lower score than the new sample
        with that class. A held-out sample and the new sample are compared under the calibrator of the held-out sample's
        fold. With one fold, this is split conformal's threshold, the ⌈(n + 1)(1 − α)⌉-th smallest score. With
        `by_class`, the n samples are those of that class.

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
                # Sums of probabilities differ by rounding: a class exactly at the threshold belongs to the set.
                less_strange[:, k] += np.searchsorted(own, new[:, k] - 1e-12)
                counted[k] += len(own)
        return np.asarray(less_strange < (1 - alpha) * (counted + 1) - 1e-9)


def fit_split(
    method: str | None, logits: ArrayLike, targets: ArrayLike, *, crosswise: bool = False, seed: int = 0
) -> SplitFit:
    """Fit a post-hoc method on a random half of validation logits [N, K] and targets [N], and calibrate the other half.

    Without a method nothing is fitted, and all samples are held out.

    Args:
        method: method name in POSTHOC, used with its default options; `None` for the softmax alone.
        logits: validation logits [N, K].
        targets: class indices [N].
        crosswise: calibrate every sample by a fit to the other folds (CV+) instead of splitting into halves.
        seed: seed for the halves.

    Raises ValueError like `trainables.posthoc.fit`, and if a part has too few samples.

    Example:
        >>> random = np.random.default_rng(0)
        >>> logits, targets = random.normal(size=(100, 3)), np.arange(100) % 3
        >>> fit_split("temperature", logits, targets).sets("thr", logits[:1], alpha=0.5)
        array([[False, False,  True]])
    """
    values, labels = np.asarray(logits, dtype=np.float64), np.asarray(targets, dtype=np.int64)
    if method is None:
        plain = softmax64(values)
        require_probabilities(plain, labels, bins=1)
        return SplitFit([softmax64], np.zeros(len(labels), np.int64), plain, labels)
    if crosswise:
        fold = folds_of(labels)
    else:
        fold = np.where(np.random.default_rng(seed).permutation(len(labels)) < len(labels) // 2, -1, 0)
    calibrators: list[Calibrator] = []
    probabilities = np.full(values.shape, np.nan)
    for mine in (fold == index for index in range(FOLDS if crosswise else 1)):
        calibrators.append(fit(method, values[~mine], labels[~mine]))
        probabilities[mine] = calibrators[-1](values[mine])
    return SplitFit(calibrators, fold, probabilities, labels)


def promised_coverage(alpha: float, samples: int, *, crosswise: bool = False) -> float:
    """Return the guaranteed coverage of sets from `samples` samples: 1 − α, or just below 1 − 2α if `crosswise`.

    Source: Barber et al. 2021, Theorem 4, for the crosswise bound.

    Example:
        >>> promised_coverage(0.1, 500), round(promised_coverage(0.1, 500, crosswise=True), 3)
        (0.9, 0.784)
    """
    if not crosswise:
        return 1 - alpha
    within = samples / FOLDS
    return 1 - 2 * alpha - min(2 * (1 - 1 / FOLDS) / (within + 1), (1 - FOLDS / samples) / (FOLDS + 1))


def require_alpha(alpha: float) -> None:
    """Raise PosthocUnavailable if α is outside (0, 1)."""
    if not 0 < alpha < 1:
        raise PosthocUnavailable(f"alpha = {alpha:g} is outside (0, 1): the share of sets that may miss the true class")


def set_measures(sets: Booleans, targets: Integers) -> dict[str, float]:
    """Return coverage and size measures for sets [N, K] with targets [N].

    `coverage`: share of sets that contain the true class. `size`: mean number of classes per set.
    `worst_class_coverage`: coverage of the class missed most often. `class_coverage_gap`: mean absolute difference
    between a class's coverage and the overall coverage. `empty`: share of empty sets.

    Example:
        >>> set_measures(np.array([[True, True], [True, False]]), np.array([0, 1]))["coverage"]
        0.5
    """
    held = sets[np.arange(len(targets)), targets]
    # Classes without a sample have no coverage and are left out of the class measures.
    counts = np.bincount(targets, minlength=sets.shape[1])
    by_class = (np.bincount(targets, weights=held, minlength=sets.shape[1]) / np.maximum(counts, 1))[counts > 0]
    sizes = sets.sum(axis=1)
    return {
        "coverage": float(held.mean()),
        "size": float(sizes.mean()),
        "worst_class_coverage": float(by_class.min()),
        "class_coverage_gap": float(np.abs(by_class - held.mean()).mean()),
        "empty": float((sizes == 0).mean()),
    }
