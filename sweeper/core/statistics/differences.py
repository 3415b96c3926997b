"""Means of few independent values and their differences: intervals, tests, corrections for being many. No I/O.

What is independent is the caller's to say: of configurations with several replicates, their means (Ibragimov & Müller
2010, "t-statistic based correlation and heterogeneity robust inference": Student's t on the means of clusters keeps its
level whatever the spread within each).

Limits are the outer ones of two intervals, Student's (Welch's for a difference) and Hall's, which takes off the
skewness that the values show. Student's alone excludes the mean of five log-normal values (skewness 1.75) in 8 % of
samples and that of five very skewed ones (6.2) in 18 %; the two together in 5 and 10 %. In turn, a mean of two standard
deviations is found among five normal values in 70 % instead of 91 %: `docs/how_sure_details.md`.

Paired differences are those on equal seeds: two configurations trained from the same seeds share their data order and
initialisation, so that the seed's own luck falls out of the difference.
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

#: Values that differ by less than this share of the largest are the same but for rounding.
SAME = 1e-12


@dataclass(frozen=True)
class Mean:
    """A mean, or a difference of two, with what is known of it.

    Attributes:
        value: the estimate.
        error: its standard error.
        skewness: of the estimate, from the values' third moments; 0 where one side has fewer than three.
        freedom: degrees of freedom; 0 where none of the values varies or a side has only one.
        alike: p where none of the values varies: of all signs, or of the split of the samples, being so by chance.
    """

    value: float
    error: float
    skewness: float
    freedom: float
    alike: float = 1.0

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Return the limits at a level; None without degrees of freedom."""
        if not self.freedom:
            return None
        from scipy.special import stdtrit  # scipy.stats, which has it whole, takes half a second to import

        reach = float(stdtrit(self.freedom, (1 + level) / 2))
        low, high = min(-reach, self._corrected(-reach)), max(reach, self._corrected(reach))
        return self.value - high * self.error, self.value - low * self.error

    @property
    def p(self) -> float:
        """Two-sided p of a mean of 0, the larger of both methods'; without degrees of freedom, `alike`."""
        if not self.freedom:
            return self.alike
        from scipy.special import stdtr

        student = self.value / self.error
        g = self.skewness
        hall = student + g * student**2 / 3 + g**2 * student**3 / 27 + g / 6
        if hall * student <= 0:
            return 1.0
        return float(2 * stdtr(self.freedom, -min(abs(student), abs(hall))))

    def _corrected(self, quantile: float) -> float:
        """Return the studentised value that Hall's cubic maps to a quantile.

        Source: Hall 1992, "On the removal of skewness by transformation", Eq. (2.1): monotone, so it can be turned
        round, unlike Johnson's (1978) quadratic.
        """
        if abs(self.skewness) < 1e-6:  # the map is then the identity but for rounding, which the division would magnify
            return quantile
        root = math.cbrt(1 + self.skewness * (quantile - self.skewness / 6))
        return 3 / self.skewness * (root - 1)


def mean_of(values: Values) -> Mean:
    """Return the mean of independent values [n], n at least 1."""
    data = np.asarray(values, dtype=np.float64)
    error, skewed, freedom = _moments(data)
    if not freedom or error <= SAME * float(np.abs(data).max()):
        mean = float(data.mean())
        return Mean(mean, 0.0, 0.0, 0, 2.0 ** (1 - len(data)) if mean else 1.0)
    return Mean(float(data.mean()), error, skewed / error**3, freedom)


def difference_of(first: Values, second: Values) -> Mean:
    """Return mean(first) − mean(second) of independent samples.

    Degrees of freedom are Satterthwaite's (Welch 1947), but at most twice the smaller sample's: from 3 and 12 normal
    values he gets up to 13, since 3 may by chance hardly vary, and 7 % of the intervals exclude the truth; so, 5 %.
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
    """Return the standard error of a mean, its third central moment (0 of fewer than three values), and n − 1."""
    n = len(data)
    if n < 2:
        return 0.0, 0.0, 0
    away = data - data.mean()
    third = float((away**3).sum()) * n / ((n - 1) * (n - 2)) if n > 2 else 0.0
    return math.sqrt(float((away**2).sum()) / (n - 1) / n), third / n**2, n - 1


#: Pairs up to which all 2ⁿ sign patterns are counted; beyond, RANDOM_SIGNS of them are drawn.
EXACT_PAIRS = 12

#: p below which a difference counts as shown; Fisher's conventional level.
SIGNIFICANT = 0.05

RANDOM_SIGNS = 9_999

#: Signs drawn at once: some 16 MB.
SIGNS_AT_ONCE = 2**20
"""Random sign patterns; with the observed one 10,000, so the smallest p is 0.0001 and p = 0.05 has a relative
Monte-Carlo error of 4 % (Phipson & Smyth 2010, arXiv:1603.05766, on counting the observed one in)."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of b − a over pairs.

    Attributes:
        mean: of the differences; NaN of no pairs.
        interval: 95 %, Student's, wider where the differences are skewed; None below two pairs that differ.
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
    """Return the mean of b − a with the interval of `mean_of` and the p of a sign-flip permutation test.

    Source of the test: Fisher 1935, The Design of Experiments, §21: under no difference each pair's sign is a coin,
    unless differences are skewed; p is therefore never below the interval's own. A percentile bootstrap of 8 to 16
    differences covers .885 to .919 where it says .95. Pairs are independent: of configurations with several replicates,
    give means, of seeds that several configurations share, means over these (`independent_units`). Differences that are
    all the same have no interval; pairs that are all the same are one, which shows nothing: p = 1.
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
    distinct = len({*zip(map(float, a), map(float, b), strict=True)})
    p = 1.0 if distinct < 2 else max(sign_flip_p(differences, seed=seed), found.p)
    return PairedDifference(float(differences.mean()), interval, p, n, smallest_sign_flip_p(n))


def independent_units(keys: Iterable[tuple[Config, Seed]]) -> dict[tuple[Config, Seed], Config | Seed]:
    """Return (configuration, seed) → the independent unit that it belongs to: its seed if any is shared.

    Configurations that are trained on the same seeds share these seeds' luck, so that only seeds are independent.
    """
    pairs = set(keys)
    shared = len({seed for _, seed in pairs}) < len(pairs)
    return {pair: pair[1] if shared else pair[0] for pair in pairs}


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
    order = np.argsort(ps, kind="stable")
    corrected = np.empty(len(ps))
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, np.array(ps)[order] * np.arange(len(ps), 0, -1)))
    return [float(p) for p in corrected]


def smallest_holm(smallest: Sequence[float]) -> float:
    """Return the least p that any of several tests can have after `holm`, each with a smallest p of its own."""
    return min(1.0, len(smallest) * min(smallest)) if smallest else 0.0


def p_text(p: float, smallest: float = 0.0) -> str:
    """Return e.g. `p = 0.03`, or `p < 0.001`; of too few values to show anything, `p = 0.33 (at least 0.33 at this n)`.

    Without that, p would seem to contradict an interval that excludes zero: the interval takes differences for normal,
    the permutation test takes nothing for granted.
    """
    return f"p {p_value(p, smallest)}" if p < 0.001 else f"p = {p_value(p, smallest)}"


def p_value(p: float, smallest: float = 0.0) -> str:
    """Return the same without the letter, for the cells of a table: `0.03`, `< 0.001`."""
    text = "< 0.001" if p < 0.001 else f"{p:.2g}"
    return text if smallest < SIGNIFICANT else f"{text} (at least {smallest:.2g} at this n)"


def unpaired_difference(a: Values, b: Values) -> PairedDifference:
    """Return mean(b) − mean(a) of two independent samples, with the interval and p of `difference_of`.

    No interval where neither sample varies. `n` is the length of b. Shuffling which value belongs to which sample
    (Fisher 1935) rejects equal means in up to 20 % of samples of 4 and 24, where the few spread more.
    """
    found = difference_of(b, a)
    return PairedDifference(found.value, found.interval(), found.p, len(b))
