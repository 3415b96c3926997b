"""Paired differences on equal seeds: mean, interval, permutation test, Holm's correction. No I/O.

Two configurations trained from the same seeds share their data order and initialisation, so that the seed's own luck
falls out of the difference. Everything takes plain sequences of finite numbers, paired by position.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.analysis.statistics.basics import Values
from sweeper.analysis.statistics.means import mean_of

EXACT_PAIRS = 12
"""Pairs up to which all 2ⁿ sign patterns are counted; beyond, RANDOM_SIGNS of them are drawn."""

SIGNIFICANT = 0.05
"""p below which a difference counts as shown; Fisher's conventional level."""

RANDOM_SIGNS = 9_999

SIGNS_AT_ONCE = 2**20
"""Signs drawn at once: some 16 MB."""
"""Random sign patterns; with the observed one 10,000, so the smallest p is 0.0001 and p = 0.05 has a relative
Monte-Carlo error of 4 % (Phipson & Smyth 2010, arXiv:1603.05766, on counting the observed one in)."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of b − a over pairs.

    Attributes:
        mean: of the differences; NaN of no pairs.
        interval: 95 %, Student's, wider where the differences are skewed; None below two pairs.
        p: two-sided, the larger of the sign-flip permutation test's and the interval's own; 1.0 of no pairs.
        n: how many pairs.
        smallest_p: what p is at least with so few values, whatever they are.
    """

    mean: float
    interval: tuple[float, float] | None
    p: float
    n: int
    smallest_p: float = 0.0

    def text(self, digits: int = 3) -> str:
        """Return e.g. `−0.012 (95 % −0.020 … −0.004, n = 10)`."""

        def number(value: float) -> str:
            return f"{value:+.{digits}g}".replace("-", "−")

        limits = "" if self.interval is None else f"95 % {number(self.interval[0])} … {number(self.interval[1])}, "
        return f"{number(self.mean)} ({limits}n = {self.n})"


def paired_difference(a: Values, b: Values, *, seed: int = 0) -> PairedDifference:
    """Return the mean of b − a with the interval of `means.mean_of` and the p of a sign-flip permutation test.

    Source of the test: Fisher 1935, The Design of Experiments, §21: under no difference each pair's sign is a coin,
    unless differences are skewed; p is therefore never below the interval's own. A percentile bootstrap of 8 to 16
    differences covers .885 to .919 where it says .95. Pairs are independent: of configurations with several replicates,
    give means.
    Raises ValueError when the lengths differ.
    """
    differences = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    n = len(differences)
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values are no pairs")
    if not n:
        return PairedDifference(float("nan"), None, 1.0, 0)
    found = mean_of(differences)
    interval = found.interval()
    p = max(sign_flip_p(differences, seed=seed), found.p)
    if interval is None and n > 1:
        interval = found.value, found.value
    return PairedDifference(float(differences.mean()), interval, p, n, smallest_sign_flip_p(n))


def smallest_sign_flip_p(pairs: int) -> float:
    """Return the least p that `sign_flip_p` can give: two of the 2ⁿ patterns are as far from zero as any."""
    return 2.0 ** min(0, 1 - pairs) if pairs <= EXACT_PAIRS else 1 / (1 + RANDOM_SIGNS)


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
    rng, more, left = np.random.default_rng(seed), 0, RANDOM_SIGNS
    while left:  # in blocks, of the same numbers as at once: for 2,000 pairs those took 320 MB
        count = min(left, max(1, SIGNS_AT_ONCE // len(values)))
        signs = rng.choice((1.0, -1.0), size=(count, len(values)))
        more += int(np.sum(np.abs(signs @ values) >= seen - slack))
        left -= count
    return (1 + more) / (1 + RANDOM_SIGNS)


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


def smallest_holm(smallest: Sequence[float]) -> float:
    """Return the least p that any of several tests can have after `holm`, each with a smallest p of its own."""
    return min(1.0, len(smallest) * min(smallest)) if smallest else 0.0


def p_text(p: float, smallest: float = 0.0) -> str:
    """Return e.g. `p = 0.03`, or `p < 0.001`; of too few values to show anything, `p = 0.33 (at least 0.33 at this n)`.

    Without that, p would seem to contradict an interval that excludes zero: the interval takes differences for normal,
    the permutation test takes nothing for granted.
    """
    text = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    return text if smallest < SIGNIFICANT else f"{text} (at least {smallest:.2g} at this n)"
