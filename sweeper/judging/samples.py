"""The uncertainty of values that comes from the test samples. No I/O.

Networks are measured on the same test samples, so a part of their error does not shrink with more seeds. The
delete-a-group jackknife estimates it (Kott 2001, The delete-a-group jackknife, J. Official Statistics 17, Eq. 1): a
value is measured again without each of G groups of samples. Assumption: samples are independent.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sweeper.judging.question import Floats

#: Number of groups. 20 groups give 19 degrees of freedom, and without one of them the bins of an ECE are still filled.
GROUPS = 20


def left_out(measure: Callable[[NDArray[np.int64]], float | Floats], samples: int) -> Floats:
    """Return the values without each group of samples, [groups] or [groups, M] for M values at once.

    The groups depend on the number of samples alone: all networks have the same ones, because they share the samples'
    difficulty, and a report made twice has the same intervals.

    Args:
        measure: returns the value on some samples, by their row numbers.
        samples: number of samples.

    Example:
        >>> left_out(lambda rows: float(len(rows)), 40)[:2].tolist()
        [38.0, 38.0]
    """
    group = np.random.default_rng(0).permutation(samples) % min(GROUPS, samples)
    return np.array([measure(np.flatnonzero(group != number)) for number in range(group.max() + 1)])


def shared_variance(values: Floats) -> tuple[float, int]:
    """Return the variance over test samples that all seeds share, and its degrees of freedom.

    The covariance [n, n] of the seeds' values is C = (G − 1)/G Σ_g (d₋g − d̄)(d₋g − d̄)ᵀ; the shared variance is the mean
    of C off its diagonal. A single seed's whole variance counts as shared.

    Args:
        values: each seed's value without each group of samples, [G groups, n seeds].

    Example:
        >>> round(shared_variance(np.array([[0.1, 0.2], [0.3, 0.4]]))[0], 4)
        0.01
    """
    groups, seeds = values.shape
    away = values - values.mean(axis=0)
    covariance = (groups - 1) / groups * away.T @ away
    if seeds == 1:
        return float(covariance[0, 0]), groups - 1
    off_diagonal = float(covariance.sum() - np.trace(covariance)) / (seeds * (seeds - 1))
    return max(0.0, off_diagonal), groups - 1  # an estimated covariance can be negative, a variance cannot
