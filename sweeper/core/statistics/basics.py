"""Small statistics of the summary and the report: spread, rank correlation, polynomial fit. No I/O.

All functions take plain sequences of finite numbers; the caller drops missing values and reports how many.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from sweeper.core.cells import grouped

Values = Sequence[float] | NDArray[np.float64]

#: Random orders in addition to the observed one: p = .05 then has a Monte-Carlo error of .005 (Phipson & Smyth 2010).
PERMUTATIONS = 1999

#: Above this many pairs, p treats ρ as normal, which it nearly is if x and y are unrelated, and the jackknife leaves
#: out only this many pairs in turn. Otherwise 10,000 trials would take a minute.
MANY_PAIRS = 200

#: Fewer pairs give no rank correlation: one ordering of three points in six is perfectly decreasing.
MINIMUM_PAIRS = 4

#: Fewer pairs give no interval: all signs of five pairs agree in one sample in sixteen.
INTERVAL_PAIRS = 6

#: A deviation below this share of the mean is float32 rounding: the seeds reached the same optimum on the same data.
ROUNDING = 1e-6

#: Fewer points for each coefficient of a polynomial give no curve: a cubic needs 12.
POINTS_PER_COEFFICIENT = 3


@dataclass(frozen=True)
class Spread:
    """A mean with its standard deviation.

    Attributes:
        mean: arithmetic mean; NaN without values.
        deviation: sample standard deviation (n − 1 in the denominator); None below two values.
        n: number of values.
    """

    mean: float
    deviation: float | None
    n: int

    def text(self, digits: int = 3) -> str:
        """Format as e.g. `0.123 ± 0.004`, or the mean alone without a deviation."""
        return spread_text(self.mean, self.deviation, digits)


def decimals(deviations: Sequence[float | None]) -> int | None:
    """Return the decimals of a column, from its standard deviations; None without any.

    The lower quartile of the deviations gets two significant digits.
    """
    known = sorted(deviation for deviation in deviations if deviation and math.isfinite(deviation))
    return max(0, 1 - math.floor(math.log10(known[len(known) // 4]))) if known else None


def spread_text(
    mean: float, deviation: float | None, digits: int = 3, scale: float = 1.0, places: int | None = None
) -> str:
    """Format `mean ± deviation`: the deviation to two significant digits, the mean to the same decimal place.

    Args:
        mean: the mean.
        deviation: the standard deviation. If it is None or only rounding, the mean stands alone.
        digits: significant digits of a mean that stands alone.
        scale: factor of both, 100 for per cent.
        places: decimals, where all rows of a column share them.

    Example:
        >>> spread_text(0.1234, 0.0042)
        '0.1234 ± 0.0042'
    """
    mean = mean * scale
    if deviation is None or not np.isfinite(deviation):
        return f"{mean:.{digits}g}"
    deviation = deviation * scale
    if deviation <= ROUNDING * abs(mean):
        return f"{mean:.{digits}g} (no spread)"
    places = max(0, 1 - int(np.floor(np.log10(deviation)))) if places is None else places
    return f"{mean:.{places}f} ± {deviation:.{places}f}"


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of n pairs.

    Attributes:
        rho: the correlation; with strata, the mean of their correlations.
        interval: 95 % interval; None below INTERVAL_PAIRS pairs.
        n: number of pairs.
        p: two-sided p, the larger of a permutation test's and a sign test's.
    """

    rho: float
    interval: tuple[float, float] | None
    n: int
    p: float

    def text(self) -> str:
        """Format as e.g. `ρ = −0.93 (95 % −0.99 … −0.80, n = 14)`."""
        limits = "" if self.interval is None else f"95 % {' … '.join(map(two_decimals, self.interval))}, "
        return f"ρ = {two_decimals(self.rho)} ({limits}n = {self.n})"


def two_decimals(value: float) -> str:
    """Format a number with two decimals and a true minus sign."""
    return f"{value:.2f}".replace("-", "−")


def spread(values: Values) -> Spread:
    """Return mean, sample standard deviation and count of `values`."""
    data = np.asarray(values, dtype=np.float64)
    mean = float(data.mean()) if data.size else float("nan")
    return Spread(mean, float(data.std(ddof=1)) if data.size > 1 else None, int(data.size))


def ranks(values: Values) -> NDArray[np.float64]:
    """Return ranks from 1; ties share their mean rank."""
    # `scipy.stats.rankdata` does the same, but importing scipy.stats takes half a second.
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank: NDArray[np.float64] = last - (counts - 1) / 2
    return mean_rank[inverse]


def spearman(x: Values, y: Values) -> float:
    """Return Spearman's rank correlation: Pearson's of the ranks. NaN where one side is constant.

    Source: Spearman 1904, with mean ranks for ties.
    """
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else float("nan")


def correlation(x: Values, y: Values, strata: Sequence[Hashable] | None = None) -> Correlation | None:
    """Return Spearman's correlation of independent pairs, or None where the data cannot show one.

    The result is None below `MINIMUM_PAIRS` pairs, or where x or y is constant. With strata, ranks are formed within
    each stratum and the correlations are averaged. Strata in which x or y is constant are left out.

    The interval is the wider of two on Fisher's scale, both with Student's quantiles, but excludes 0 exactly where
    p < .05. One interval uses Bonett & Wright's (2000) variance, (1 + ρ²/2)/(n − 3); the other uses the jackknife's,
    which does not assume normal values. A percentile bootstrap covers far too rarely for few pairs: resamples of a
    perfect order are in perfect order.

    Example:
        >>> correlation([1, 2, 3, 4, 5], [5, 4, 3, 2, 1]).text()
        'ρ = −1.00 (n = 5)'
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    rows = grouped(range(len(a)), lambda row: None if strata is None else strata[row])
    parts = [(a[at], b[at]) for at in rows.values() if len(np.unique(a[at])) > 1 and len(np.unique(b[at])) > 1]
    n = sum(len(first) for first, _ in parts)
    if n < MINIMUM_PAIRS:
        return None
    rhos = [spearman(*part) for part in parts]
    rho = math.fsum(rhos) / len(rhos)
    p = _chance(parts, rho)
    return Correlation(rho, _fisher_interval(parts, rhos, p) if n >= INTERVAL_PAIRS else None, n, p)


def partial_correlation(
    x: Values, y: Values, given: Values, strata: Sequence[Hashable] | None = None
) -> Correlation | None:
    """Return the correlation of x and y after the ranks of `given` are regressed out of both ranks in each stratum.

    Kendall's (1942) partial rank correlation correlates these residuals themselves. Here they are ranked again, so that
    the tests and the interval of `correlation` apply. These ignore that `given` costs a degree of freedom.
    """
    labels = [None] * len(x) if strata is None else [*strata]
    left = np.empty((2, len(labels)))
    for stratum in set(labels):
        at = [place for place, label in enumerate(labels) if label == stratum]
        known = ranks([given[place] for place in at])
        known = known - known.mean()
        for row, values in zip(left, (x, y), strict=True):
            own = ranks([values[place] for place in at])
            slope = float(known @ own) / max(float(known @ known), 1e-300)  # 0 where `given` is constant
            row[at] = np.round(own - own.mean() - slope * known, 9)  # rounding would break ties
    return correlation(left[0].tolist(), left[1].tolist(), labels)


#: The pairs of each stratum.
Parts = Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]


def _chance(parts: Parts, rho: float) -> float:
    """Return the probability that chance gives a mean correlation at least as far from 0: the larger p of two tests.

    One test draws random orders of y within strata, which is exact where spreads are equal. The other draws random
    signs of the terms of ρ, which keeps each pair's own spread. Where y spreads three times as wide at large x, the
    test with orders alone rejects in 6 to 8 % of samples, and both tests together reject in 4 to 6 %.
    """
    if sum(len(x) for x, _ in parts) > MANY_PAIRS:
        error = math.sqrt(sum(1 / (len(x) - 1) for x, _ in parts)) / len(parts)
        return math.erfc(abs(rho) / error / math.sqrt(2))
    random, orders, signs = np.random.default_rng(0), np.zeros(PERMUTATIONS), np.zeros(PERMUTATIONS)
    for x, y in parts:
        a, b = (ranks(values) - (len(values) + 1) / 2 for values in (x, y))
        scale = math.sqrt(float(a @ a) * float(b @ b))
        orders += random.permuted(np.tile(b, (PERMUTATIONS, 1)), axis=1) @ a / scale
        signs += random.choice((-1.0, 1.0), (PERMUTATIONS, len(a))) @ (a * b) / scale
    # Sums in another order differ in their last bits and still count as equal.
    seen = abs(rho) * len(parts) * (1 - 1e-9)
    return max(float((1 + np.sum(np.abs(drawn) >= seen)) / (1 + PERMUTATIONS)) for drawn in (orders, signs))


def _fisher_interval(parts: Parts, rhos: Sequence[float], p: float) -> tuple[float, float]:
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    n = sum(len(x) for x, _ in parts)
    middle = _fisher(math.fsum(rhos) / len(rhos), n)
    sizes = [max(1, len(x) - 3) for x, _ in parts]
    normal = sum((1 + rho**2 / 2) / size for rho, size in zip(rhos, sizes, strict=True)) / len(parts) ** 2
    jackknife = 0.0
    for at, (x, y) in enumerate(parts):
        rest = math.fsum(rhos) - rhos[at]
        left_out = range(0, len(x), -(-len(x) // MANY_PAIRS))
        without = [spearman(np.delete(x, i), np.delete(y, i)) for i in left_out]
        moved = np.array([_fisher((rest + (rhos[at] if math.isnan(r) else r)) / len(parts), n) for r in without])
        jackknife += (len(x) - 1) * float(moved.var())
    reach = float(stdtrit(n - 2, 0.975)) * math.sqrt(max(normal, jackknife))
    rho = math.fsum(rhos) / len(rhos)
    low, high = min(rho, math.tanh(middle - reach)), max(rho, math.tanh(middle + reach))
    # Interval and p come from different methods; a reader must not see them disagree about 0.
    if p >= 0.05:
        return min(low, 0.0), max(high, 0.0)
    return (max(low, 0.0), high) if middle > 0 else (low, min(high, 0.0))


def _fisher(rho: float, n: int) -> float:
    """Return atanh ρ, with ρ limited to half a swap of neighbours below perfect order."""
    # atanh 1 is infinite. One swap of neighbours lowers ρ by 12/(n³ − n).
    most = 1 - 6 / (n**3 - n)
    return math.atanh(max(-most, min(most, rho)))


@dataclass(frozen=True)
class LogLogFit:
    """A least-squares polynomial in log10 x for log10 y.

    Attributes:
        polynomial: the polynomial, on the fitted range of log10 x.
        r_squared: explained share of the variance of log10 y.
        n: number of points.
    """

    polynomial: Polynomial
    r_squared: float
    n: int

    def curve(self, points: int = 60) -> tuple[list[float], list[float]]:
        """Return x and fitted y at `points` values, evenly spaced in log x over the fitted range."""
        x, y = (10 ** np.asarray(logs, dtype=np.float64) for logs in self.polynomial.linspace(points))
        return x.tolist(), y.tolist()


def log_log_fit(x: Values, y: Values, degree: int = 3) -> LogLogFit | None:
    """Fit a polynomial of `degree` in log10 x to log10 y; every x and y must be positive.

    Returns None for fewer than POINTS_PER_COEFFICIENT points for each coefficient, or too few distinct x: a cubic
    passes through any four points and bends through any seven. Figure 3 of the curvature paper shows the cubic.
    """
    a, b = np.log10(np.asarray(x, dtype=np.float64)), np.log10(np.asarray(y, dtype=np.float64))
    if len(a) < POINTS_PER_COEFFICIENT * (degree + 1) or len(np.unique(a)) <= degree:
        return None
    fitted = Polynomial.fit(a, b, degree)  # numpy scales x to −1 … 1; powers of unscaled x are nearly collinear
    total = float(((b - b.mean()) ** 2).sum())
    r_squared = 1 - float(((b - fitted(a)) ** 2).sum()) / total if total > 0 else float("nan")
    return LogLogFit(fitted, r_squared, len(a))
