"""Small statistics that the summary and the report state: spread, rank correlation, polynomial fit. No I/O.

All take plain sequences of finite numbers; leaving out missing values, and saying how many, is the caller's business.
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

#: Random orders beside the observed one: p = .05 then has a Monte-Carlo error of .005 (Phipson & Smyth 2010).
PERMUTATIONS = 1999

#: Pairs above which p is that of normal values (under no relation, ρ is nearly so) and 200 pairs are left out in turn;
#: otherwise 10,000 trials would take a minute.
MANY_PAIRS = 200

#: Pairs below which a rank correlation is not reported: of three points, one ordering in six is perfectly falling.
MINIMUM_PAIRS = 4

#: Pairs below which no interval is given: of five, all signs agree in one sample in sixteen.
INTERVAL_PAIRS = 6

#: A deviation below this share of the mean is float32's: the seeds reached one optimum of one draw of the data.
ROUNDING = 1e-6

#: Points for each coefficient of a fitted polynomial, below which the curve is not drawn: 12 for a cubic.
POINTS_PER_COEFFICIENT = 3


@dataclass(frozen=True)
class Spread:
    """A mean with its standard deviation.

    Attributes:
        mean: arithmetic mean; NaN of nothing.
        deviation: sample standard deviation (n − 1 in the denominator); None below two values.
        n: how many values.
    """

    mean: float
    deviation: float | None
    n: int

    def text(self, digits: int = 3, scale: float = 1.0) -> str:
        """Return e.g. `0.123 ± 0.004`, or the mean alone where there is no deviation."""
        return spread_text(self.mean, self.deviation, digits, scale)


def decimals(deviations: Sequence[float | None]) -> int | None:
    """Return the decimals of a column: two digits of a small one of its deviations (the lower quartile), or None."""
    found = sorted(each for each in deviations if each and math.isfinite(each))
    return max(0, 1 - math.floor(math.log10(found[len(found) // 4]))) if found else None


def spread_text(
    mean: float, deviation: float | None, digits: int = 3, scale: float = 1.0, places: int | None = None
) -> str:
    """Return `mean ± deviation` with the deviation to two significant digits and the mean to the same place.

    Without a deviation, or with one that is rounding alone, the mean to `digits` significant digits. Both are
    multiplied by `scale` (100 for per cent). In a column all have the same `places`.
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
        rho: the correlation; of pairs in strata, the mean of the strata's.
        interval: 95 %; None below INTERVAL_PAIRS pairs.
        n: how many pairs.
        p: two-sided, the larger of a permutation and a sign test's.
    """

    rho: float
    interval: tuple[float, float] | None
    n: int
    p: float

    def text(self) -> str:
        """Return e.g. `ρ = −0.93 (95 % −0.99 … −0.80, n = 14)`."""
        limits = "" if self.interval is None else f"95 % {signed(self.interval[0])} … {signed(self.interval[1])}, "
        return f"ρ = {signed(self.rho)} ({limits}n = {self.n})"


def signed(value: float) -> str:
    """Return a number with two decimals and a true minus sign."""
    return f"{value:.2f}".replace("-", "−")


def spread(values: Values) -> Spread:
    """Return mean, sample standard deviation and count of `values`."""
    data = np.asarray(values, dtype=np.float64)
    mean = float(data.mean()) if data.size else float("nan")
    return Spread(mean, float(data.std(ddof=1)) if data.size > 1 else None, int(data.size))


def ranks(values: Values) -> NDArray[np.float64]:
    """Return ranks from 1, ties sharing their mean rank."""
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

    That is below `MINIMUM_PAIRS` pairs, or where x or y is constant. With strata, ranks are formed within each, and the
    strata's correlations are averaged; those in which x or y is constant are left out.

    The interval excludes 0 exactly where p < .05. Away from 0 it is the wider of two on Fisher's scale: with Bonett &
    Wright's (2000) variance, (1 + ρ²/2)/(n − 3), and with the jackknife's, which needs no normal values; both with
    Student's quantiles. A percentile bootstrap covers far less of few pairs: resamples of a perfect order are in
    perfect order.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    places = grouped(range(len(a)), lambda at: None if strata is None else strata[at])
    parts = [(a[at], b[at]) for at in places.values() if len(np.unique(a[at])) > 1 and len(np.unique(b[at])) > 1]
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
    """Return the correlation of what the ranks of `given` leave of the ranks of x and y, by least squares in a stratum.

    Close to Kendall's (1942) partial rank correlation, which correlates these residuals themselves; ranking them again
    gives the tests and the interval of `correlation`, as if `given` had cost no degree of freedom.
    """
    labels = [None] * len(x) if strata is None else [*strata]
    left = np.empty((2, len(labels)))
    for stratum in set(labels):
        at = [place for place, each in enumerate(labels) if each == stratum]
        known = ranks([given[place] for place in at])
        known = known - known.mean()
        for row, values in zip(left, (x, y), strict=True):
            own = ranks([values[place] for place in at])
            slope = float(known @ own) / max(float(known @ known), 1e-300)
            row[at] = np.round(own - own.mean() - slope * known, 9)  # so that ties stay ties
    return correlation(left[0].tolist(), left[1].tolist(), labels)


#: The pairs of each stratum.
Parts = Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]


def _chance(parts: Parts, rho: float) -> float:
    """Return how often chance gives a mean correlation at least as far from 0, by the less certain of two tests.

    Random orders of y within strata, exact where spreads are equal; and random signs of the terms of ρ, which keep each
    pair's own spread. Where y spreads three times as wide at large x, orders alone reject in 6 to 8 %, both in 4 to 6.
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
    if p >= 0.05:
        return min(low, 0.0), max(high, 0.0)
    return (max(low, 0.0), high) if middle > 0 else (low, min(high, 0.0))


def _fisher(rho: float, n: int) -> float:
    """Return atanh ρ; of perfect order, that of half a step less, one swap of neighbours being 12/(n³ − n)."""
    most = 1 - 6 / (n**3 - n)
    return math.atanh(max(-most, min(most, rho)))


@dataclass(frozen=True)
class LogLogFit:
    """A polynomial in log10 x for log10 y by least squares.

    Attributes:
        polynomial: over the range of log10 x that was fitted.
        r_squared: share of the variance of log10 y explained.
        n: how many points.
    """

    polynomial: Polynomial
    r_squared: float
    n: int

    def curve(self, points: int = 60) -> tuple[list[float], list[float]]:
        """Return x and fitted y at `points` values, evenly spaced in log x over the fitted range."""
        x, y = (10 ** np.asarray(each, dtype=np.float64) for each in self.polynomial.linspace(points))
        return x.tolist(), y.tolist()


def log_log_fit(x: Values, y: Values, degree: int = 3) -> LogLogFit | None:
    """Fit log10 y by a polynomial of `degree` in log10 x; every x and y must be positive.

    Returns None below POINTS_PER_COEFFICIENT points for each coefficient, or at too few distinct x: a cubic goes
    through any four points and bends through any seven. The cubic is that of the curvature paper's figure 3.
    """
    a, b = np.log10(np.asarray(x, dtype=np.float64)), np.log10(np.asarray(y, dtype=np.float64))
    if len(a) < POINTS_PER_COEFFICIENT * (degree + 1) or len(np.unique(a)) <= degree:
        return None
    found = Polynomial.fit(a, b, degree)  # in x scaled to −1 … 1: powers of a distant x are nearly collinear
    total = float(((b - b.mean()) ** 2).sum())
    r_squared = 1 - float(((b - found(a)) ** 2).sum()) / total if total > 0 else float("nan")
    return LogLogFit(found, r_squared, len(a))
