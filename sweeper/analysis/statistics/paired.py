"""Paired differences on equal seeds: mean, interval, permutation test, Holm's correction. No I/O.

Two configurations trained from the same seeds share their data order and initialisation, so that the seed's own luck
falls out of the difference. Everything takes plain sequences of finite numbers, paired by position.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.analysis.statistics.basics import INTERVAL_PAIRS, Values, bootstrap_interval

EXACT_PAIRS = 12
"""Pairs up to which all 2ⁿ sign patterns are counted; beyond, RANDOM_SIGNS of them are drawn."""

RANDOM_SIGNS = 9_999
"""Random sign patterns; with the observed one 10,000, so the smallest p is 0.0001 and p = 0.05 has a relative
Monte-Carlo error of 4 % (Phipson & Smyth 2010, arXiv:1603.05766, on counting the observed one in)."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of b − a over pairs.

    Attributes:
        mean: of the differences; NaN of no pairs.
        interval: 95 %; percentile bootstrap over pairs from INTERVAL_PAIRS pairs on, Student's t below; None below two.
        p: two-sided, of the sign-flip permutation test; 1.0 of no pairs.
        n: how many pairs.
    """

    mean: float
    interval: tuple[float, float] | None
    p: float
    n: int

    def text(self, digits: int = 3) -> str:
        """Return e.g. `−0.012 (95 % −0.020 … −0.004, n = 10)`."""

        def number(value: float) -> str:
            return f"{value:+.{digits}g}".replace("-", "−")

        limits = "" if self.interval is None else f"95 % {number(self.interval[0])} … {number(self.interval[1])}, "
        return f"{number(self.mean)} ({limits}n = {self.n})"


def paired_difference(a: Values, b: Values, *, seed: int = 0) -> PairedDifference:
    """Return the mean of b − a with its interval and the p of a sign-flip permutation test.

    Source of the test: Fisher 1935, The Design of Experiments, §21: under no difference each pair's sign is a coin.
    Raises ValueError when the lengths differ.
    """
    differences = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    n = len(differences)
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values are no pairs")
    if not n:
        return PairedDifference(float("nan"), None, 1.0, 0)
    mean = float(differences.mean())
    interval = None
    if n >= INTERVAL_PAIRS:
        interval = bootstrap_interval(differences[:, None], lambda sample: float(sample.mean()), seed=seed)
    elif n >= 2:
        from scipy.stats import t

        half = float(t.ppf(0.975, n - 1) * differences.std(ddof=1) / np.sqrt(n))
        interval = (mean - half, mean + half)
    return PairedDifference(mean, interval, sign_flip_p(differences, seed=seed), n)


def sign_flip_p(differences: Values, *, seed: int = 0) -> float:
    """Return the share of sign patterns whose mean is at least as far from zero as the one that was seen.

    All 2ⁿ patterns up to EXACT_PAIRS pairs, RANDOM_SIGNS of them and the observed one beyond.
    """
    values = np.asarray(differences, dtype=np.float64)
    seen = abs(values.sum())
    # Sums of the same numbers in another order differ in their last bits and still count as equal.
    slack = 1e-12 * float(np.abs(values).sum())
    if len(values) <= EXACT_PAIRS:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(values))))
        return float(np.mean(np.abs(signs @ values) >= seen - slack))
    signs = np.random.default_rng(seed).choice((1.0, -1.0), size=(RANDOM_SIGNS, len(values)))
    return float((1 + np.sum(np.abs(signs @ values) >= seen - slack)) / (1 + RANDOM_SIGNS))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for being many, in the order given: each at most 1, none below its own p.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure; holds under any dependence.
    """
    order = sorted(range(len(ps)), key=lambda at: ps[at])
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, ps[at] * (len(ps) - rank)))
        corrected[at] = largest
    return corrected


def p_text(p: float) -> str:
    """Return e.g. `p = 0.03`, or `p < 0.001`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
