"""Means of few independent values and their differences: intervals, tests, corrections for multiplicity. No I/O.

The caller decides what is independent: for configurations with several replicates, their means (Ibragimov & Müller
2010, "t-statistic based correlation and heterogeneity robust inference": Student's t on the means of clusters keeps its
level for any spread within clusters).

Limits are the outer limits of two intervals: Student's (Welch's for a difference), and Hall's, which corrects for the
values' skewness. Student's interval alone excludes the true mean of five log-normal values (skewness 1.75) in 8 % of
samples, and the true mean of five very skewed values (6.2) in 18 %. The two together exclude it in 5 and 10 %. The
price is power: with five normal values, a mean of two standard deviations is detected in 70 % of samples instead of 91
% (`docs/how_sure_details.md`).

Differences are paired by seed: two configurations trained from the same seed share data order and initialisation, so
the seed's effect cancels in the difference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from sweeper.core.statistics.basics import Values

Config = TypeVar("Config", bound=Hashable)
Seed = TypeVar("Seed", bound=Hashable)

LEVEL = 0.95

#: Values that differ by less than this share of the largest differ only by rounding.
SAME = 1e-12


@dataclass(frozen=True)
class Mean:
    """A mean, or a difference of two means, with its error.

    Attributes:
        value: the estimate.
        error: standard error of the estimate.
        skewness: skewness of the estimate, from the values' third moments; 0 if a sample has fewer than three values.
        freedom: degrees of freedom; 0 if no value varies or a sample has only one.
        alike: p if no value varies: the probability that chance alone gives these signs, or this split of the samples.
    """

    value: float
    error: float
    skewness: float
    freedom: float
    alike: float = 1.0

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Return the confidence limits at a level; None without degrees of freedom."""
        if not self.freedom:
            return None
        from scipy.special import stdtrit  # `scipy.stats.t` takes half a second to import

        reach = float(stdtrit(self.freedom, (1 + level) / 2))
        low, high = min(-reach, self._corrected(-reach)), max(reach, self._corrected(reach))
        return self.value - high * self.error, self.value - low * self.error

    @property
    def p(self) -> float:
        """Two-sided p for a mean of 0, the larger of both methods; without degrees of freedom, `alike`."""
        if not self.freedom:
            return self.alike
        from scipy.special import stdtr

        student = self.value / self.error
        g = self.skewness
        hall = student + g * student**2 / 3 + g**2 * student**3 / 27 + g / 6
        if hall * student <= 0:  # the correction is as large as the estimate
            return 1.0
        return float(2 * stdtr(self.freedom, -min(abs(student), abs(hall))))

    def _corrected(self, quantile: float) -> float:
        """Return the studentised value that Hall's cubic maps to a quantile.

        Source: Hall 1992, "On the removal of skewness by transformation", Eq. (2.1). The cubic is monotone, so it has
        an inverse, unlike Johnson's (1978) quadratic.
        """
        if abs(self.skewness) < 1e-6:  # the map is nearly the identity, and the division would magnify rounding
            return quantile
        root = math.cbrt(1 + self.skewness * (quantile - self.skewness / 6))
        return 3 / self.skewness * (root - 1)


def mean_of(values: Values) -> Mean:
    """Return the mean of independent values [n], n at least 1.

    Example:
        >>> [round(limit, 3) for limit in mean_of([0.1, 0.2, 0.3]).interval()]
        [-0.048, 0.448]
    """
    data = np.asarray(values, dtype=np.float64)
    error, skewed, freedom = _moments(data)
    if not freedom or error <= SAME * float(np.abs(data).max()):
        mean = float(data.mean())
        return Mean(mean, 0.0, 0.0, 0, 2.0 ** (1 - len(data)) if mean else 1.0)
    return Mean(float(data.mean()), error, skewed / error**3, freedom)


def difference_of(first: Values, second: Values) -> Mean:
    """Return mean(first) − mean(second) of independent samples.

    Degrees of freedom are Satterthwaite's (Welch 1947), but at most twice the smaller sample's. Without this limit,
    samples of 3 and 12 normal values can have up to 13, since the 3 values may hardly vary by chance. Then 7 % of the
    intervals exclude the truth; with the limit, 5 % do.
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (first, second))
    parts = [_moments(a), _moments(b)]
    error = math.hypot(parts[0][0], parts[1][0])
    value = float(a.mean() - b.mean())
    if not (parts[0][2] and parts[1][2]) or error <= SAME * float(np.abs(np.concatenate([a, b])).max()):
        by_chance = 1.0 if abs(value) <= SAME * float(np.abs(a).max()) else 2 / math.comb(len(a) + len(b), len(a))
        return Mean(value, 0.0, 0.0, 0, min(1.0, by_chance))
    welch = error**4 / sum(part[0] ** 4 / part[2] for part in parts)
    freedom = min(welch, 2 * min(part[2] for part in parts))
    return Mean(value, error, (parts[0][1] - parts[1][1]) / error**3, freedom)


def _moments(data: np.ndarray) -> tuple[float, float, int]:
    """Return a mean's standard error, its third central moment (0 for fewer than three values) and n − 1."""
    n = len(data)
    if n < 2:
        return 0.0, 0.0, 0
    away = data - data.mean()
    third = float((away**3).sum()) * n / ((n - 1) * (n - 2)) if n > 2 else 0.0
    return math.sqrt(float((away**2).sum()) / (n - 1) / n), third / n**2, n - 1


#: Up to this many pairs all 2ⁿ sign patterns are counted; above, RANDOM_SIGNS of them are drawn.
EXACT_PAIRS = 12

#: A difference with a smaller p counts as shown; Fisher's conventional level.
SIGNIFICANT = 0.05

#: Number of random sign patterns. With the observed pattern there are 10,000, so the smallest p is 0.0001, and p = 0.05
#: has a relative Monte-Carlo error of 4 % (Phipson & Smyth 2010, arXiv:1603.05766, on counting the observed one).
RANDOM_SIGNS = 9_999

#: Signs drawn at once, some 16 MB.
SIGNS_AT_ONCE = 2**20


@dataclass(frozen=True)
class PairedDifference:
    """The mean of b − a over pairs.

    Attributes:
        mean: mean difference; NaN without pairs.
        interval: Student's 95 % interval, wider if the differences are skewed; None below two differing pairs.
        p: two-sided p, the larger of the sign-flip permutation test's and the interval's; 1.0 without pairs.
        n: number of pairs.
        smallest_p: smallest p that so few values can give.
    """

    mean: float
    interval: tuple[float, float] | None
    p: float
    n: int
    smallest_p: float = 0.0

    def text(self, digits: int = 3) -> str:
        """Format as e.g. `−0.012 (95 % −0.020 … −0.004, n = 10)`."""

        def number(value: float) -> str:
            return f"{value:+.{digits}g}".replace("-", "−")

        limits = "" if self.interval is None else f"95 % {number(self.interval[0])} … {number(self.interval[1])}, "
        return f"{number(self.mean)} ({limits}n = {self.n})"


def paired_difference(a: Values, b: Values) -> PairedDifference:
    """Return the mean of b − a with the interval of `mean_of` and the p of a sign-flip permutation test.

    Source of the test: Fisher 1935, The Design of Experiments, §21. If there is no difference, each pair's sign is a
    coin toss. Skewed differences break this rule, so p is never below the interval's p. A percentile bootstrap of 8 to
    16 differences covers .885 to .919 at a nominal .95.

    Pairs must be independent: pass means of configurations with several replicates, and means over configurations that
    share seeds (`independent_units`). Differences that are all equal have no interval. Pairs that are all equal count
    as one, which shows nothing: p = 1.

    Raises:
        ValueError: the lengths differ.

    Example:
        >>> paired_difference([0.30, 0.31, 0.33, 0.32], [0.25, 0.27, 0.28, 0.26]).text()
        '−0.05 (95 % −0.063 … −0.037, n = 4)'
    """
    differences = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    n = len(differences)
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values cannot be paired; both sides need the same number")
    if not n:
        return PairedDifference(float("nan"), None, 1.0, 0)
    estimate = mean_of(differences)
    interval = estimate.interval()
    distinct = len({*zip(map(float, a), map(float, b), strict=True)})
    p = 1.0 if distinct < 2 else max(sign_flip_p(differences), estimate.p)
    return PairedDifference(float(differences.mean()), interval, p, n, smallest_sign_flip_p(n))


def independent_units(keys: Iterable[tuple[Config, Seed]]) -> dict[tuple[Config, Seed], Config | Seed]:
    """Map each (configuration, seed) to its independent unit: its seed if any seed is shared, else its configuration.

    Configurations trained on the same seeds share these seeds' effects, so only seeds are independent.
    """
    pairs = set(keys)
    shared = len({seed for _, seed in pairs}) < len(pairs)
    return {pair: pair[1] if shared else pair[0] for pair in pairs}


def smallest_sign_flip_p(pairs: int) -> float:
    """Return the smallest p of `sign_flip_p`: at least two of the 2ⁿ patterns are as far from zero as any."""
    return 2.0 ** min(0, 1 - pairs) if pairs <= EXACT_PAIRS else 1 / (1 + RANDOM_SIGNS)


def sign_flip_p(differences: Values) -> float:
    """Return the share of sign patterns whose mean is at least as far from zero as the observed one.

    Counts all 2ⁿ patterns up to EXACT_PAIRS pairs. Above, counts the observed pattern and RANDOM_SIGNS random patterns.

    Example:
        >>> sign_flip_p([0.1, 0.2, 0.3])
        0.25
    """
    values = np.asarray(differences, dtype=np.float64)
    seen = abs(values.sum())
    # Sums of the same numbers in another order differ in their last bits and still count as equal.
    slack = 1e-12 * float(np.abs(values).sum())
    if len(values) <= EXACT_PAIRS:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(values))))
        return float(np.mean(np.abs(signs @ values) >= seen - slack))
    rng, more, left = np.random.default_rng(0), 0, RANDOM_SIGNS
    while left:  # in blocks, which draw the same numbers: all at once took 320 MB for 2,000 pairs
        count = min(left, max(1, SIGNS_AT_ONCE // len(values)))
        signs = rng.choice((1.0, -1.0), size=(count, len(values)))
        more += int(np.sum(np.abs(signs @ values) >= seen - slack))
        left -= count
    return (1 + more) / (1 + RANDOM_SIGNS)


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p-values for multiplicity, in the order given; each is at most 1 and at least the original p.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure; valid under any dependence.

    Example:
        >>> holm([0.01, 0.04, 0.5])
        [0.03, 0.08, 0.5]
    """
    order = np.argsort(ps, kind="stable")
    corrected = np.empty(len(ps))
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, np.array(ps)[order] * np.arange(len(ps), 0, -1)))
    return [float(p) for p in corrected]


def smallest_holm(smallest: Sequence[float]) -> float:
    """Return the smallest p that any of several tests can have after `holm`, given the smallest p of each."""
    return min(1.0, len(smallest) * min(smallest)) if smallest else 0.0


def p_text(p: float, smallest: float = 0.0) -> str:
    """Format p as `p = 0.03` or `p < 0.001`; with too few values to be significant, `p = 0.33 (at least 0.33 at this
    n)`.

    Without the remark, p would seem to contradict an interval that excludes zero: the interval assumes normal
    differences, the permutation test assumes nothing.
    """
    return f"p {p_value(p, smallest)}" if p < 0.001 else f"p = {p_value(p, smallest)}"


def p_value(p: float, smallest: float = 0.0) -> str:
    """Format p without the letter, for the cells of a table: `0.03`, `< 0.001`."""
    text = "< 0.001" if p < 0.001 else f"{p:.2g}"
    return text if smallest < SIGNIFICANT else f"{text} (at least {smallest:.2g} at this n)"


def unpaired_difference(a: Values, b: Values) -> PairedDifference:
    """Return mean(b) − mean(a) of two independent samples, with the interval and p of `difference_of`.

    There is no interval if neither sample varies. `n` is the length of b. A permutation test, which shuffles values
    between the samples (Fisher 1935), rejects equal means in up to 20 % of samples of 4 and 24 values if the 4 values
    spread more.
    """
    difference = difference_of(b, a)
    return PairedDifference(difference.value, difference.interval(), difference.p, len(b))
