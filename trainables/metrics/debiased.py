"""Binned calibration errors without their bias, and the bias itself.

A binned error of a perfectly calibrated network is not 0: labels are drawn, and each bin's mean misses its expectation.
The squared error's bias in a bin can be subtracted; that of ECE, an absolute value, is shown beside it instead.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np

from trainables.metrics.base import METRICS, Floats, Integers, of_each_class, top_confidence
from trainables.metrics.binning import Bins, Scheme, bin_of_each, sums_by_bin

_BLOCK_ELEMENTS = 4_000_000  # repetitions × samples drawn at once: 32 MB in float64


def debiased_squared_error(
    confidence: Floats, outcome: Floats, bins: Bins = 15, scheme: Scheme = "equal_mass"
) -> float:
    """Return Σ_b n_b/n [(acc_b − conf_b)² − acc_b(1 − acc_b)/(n_b − 1)] of a confidence [N] and outcomes [N], 0 or 1.

    The expectation is that of the binned squared error without label noise; estimates may be negative. A bin of one
    sample, whose noise cannot be estimated, counts 0. Source: Kumar, Liang & Ma 2019, Verified uncertainty calibration,
    arXiv:1909.10155, definition 5.1.
    """
    index = bin_of_each(confidence, bins, scheme)
    count = np.bincount(index, minlength=bins)
    used = count > 1
    hits = sums_by_bin(index, outcome, bins)[used] / count[used]
    gap = hits - sums_by_bin(index, confidence, bins)[used] / count[used]
    return float(count[used] @ (gap**2 - hits * (1 - hits) / (count[used] - 1)) / len(confidence))


@METRICS.add("debiased_l2", label="debiased L2 error", range=(0, 1))
def debiased_l2(probabilities: Floats, targets: Integers, bins: Bins = 15, scheme: Scheme = "equal_mass") -> float:
    """Root of the binned squared error less label noise.

    Return the root of the debiased squared error of the top confidence, or 0 where the estimate is negative.

    For probabilities [N, K] and targets [N].

    Source: Kumar, Liang & Ma 2019, arXiv:1909.10155.

    Args:
        scheme: [Kumar, Liang & Ma 2019].
    """
    return float(np.sqrt(max(0.0, debiased_squared_error(*top_confidence(probabilities, targets), bins, scheme))))


@METRICS.add("cw_debiased_l2", label="class-wise debiased L2 error", range=(0, 1))
def classwise_debiased_l2(
    probabilities: Floats, targets: Integers, bins: Bins = 15, scheme: Scheme = "equal_mass"
) -> float:
    """Debiased_l2 over classes.

    Return the root of the mean over classes of the debiased squared error of p_k against 1[y = k], or 0.

    For probabilities [N, K] and targets [N]: the marginal calibration error of Kumar, Liang & Ma 2019.

    Source: Kumar, Liang & Ma 2019, arXiv:1909.10155.

    Args:
        scheme: [Kumar, Liang & Ma 2019].
    """
    each = of_each_class(partial(debiased_squared_error, bins=bins, scheme=scheme), probabilities, targets)
    return float(np.sqrt(max(0.0, float(np.mean(each)))))


@METRICS.add("ece_bias", label="ECE if calibrated", mode=None, range=(0, 1))
def ece_bias(
    probabilities: Floats,
    targets: Integers,
    bins: Bins = 15,
    scheme: Scheme = "equal_width",
    repetitions: Annotated[int, "[1, inf)"] = 200,
    seed: Annotated[int, "[0, inf)"] = 0,
) -> float:
    """The ECE that these confidences would have if they were right: compare `ece` with it.

    Return the mean ECE of a network with these confidences whose every confidence is right.

    What is right is drawn anew with the confidences as probabilities, `repetitions` times; an ECE near this number is
    no evidence of miscalibration (Bröcker & Smith 2007, Increasing the reliability of reliability diagrams;
    Vaicenavicius et al. 2019, arXiv:1902.06977, §4). `targets` do not enter.

    Source: Vaicenavicius et al. 2019, arXiv:1902.06977.

    Args:
        repetitions: [an error of 2 % of the bias].
        seed: [arbitrary].
    """
    confidence = probabilities.max(axis=1)
    index = bin_of_each(confidence, bins, scheme)
    order = np.argsort(index, kind="stable")
    confidence, starts = confidence[order], np.flatnonzero(np.diff(index[order], prepend=-1))
    expected = np.add.reduceat(confidence, starts)
    rng, block, total = np.random.default_rng(seed), max(1, _BLOCK_ELEMENTS // len(order)), 0.0
    for start in range(0, repetitions, block):
        drawn = rng.random((min(block, repetitions - start), len(order))) < confidence
        hits = np.add.reduceat(drawn, starts, axis=1, dtype=np.int64)
        total += float(np.abs(hits - expected).sum())
    return total / (repetitions * len(order))
