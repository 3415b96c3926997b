"""Small statistics that the summary and the report state: spread, rank correlation, bootstrap, polynomial fit. No I/O.

All take plain sequences of finite numbers; leaving out missing values, and saying how many, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[np.float64]

RESAMPLES = 1000
"""Bootstrap resamples: the Monte-Carlo error of a 95 % limit is then about half a percentile (Efron & Tibshirani 1993,
An Introduction to the Bootstrap, §13.3, advise 1,000 or more for intervals)."""

MINIMUM_PAIRS = 4
"""Pairs below which a rank correlation is not reported: of three points, one ordering in six is perfectly falling."""

INTERVAL_PAIRS = 8
"""Pairs below which no bootstrap interval is given: resampling few pairs repeats them, and perfect order stays perfect,
so the interval would be far too narrow."""


POINTS_PER_COEFFICIENT = 3
"""Points for each coefficient of a fitted polynomial, below which the curve is not drawn: 12 for a cubic."""


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


def spread_text(mean: float, deviation: float | None, digits: int = 3, scale: float = 1.0) -> str:
    """Return `mean ± deviation` with the deviation to two significant digits and the mean to the same place.

    Without a deviation, the mean to `digits` significant digits. Both are multiplied by `scale` (100 for per cent).
    """
    mean = mean * scale
    if deviation is None or not np.isfinite(deviation):
        return f"{mean:.{digits}g}"
    deviation = deviation * scale
    if deviation == 0:
        return f"{mean:.{digits}g} ± 0"
    places = max(0, 1 - int(np.floor(np.log10(deviation))))
    return f"{mean:.{places}f} ± {deviation:.{places}f}"


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of n pairs with a percentile bootstrap interval.

    The interval is None below INTERVAL_PAIRS pairs, and where every resample is in perfect order.
    """

    rho: float
    interval: tuple[float, float] | None
    n: int

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


def correlation(x: Values, y: Values, *, seed: int = 0) -> Correlation | None:
    """Return Spearman's correlation with its bootstrap interval, or None where the data cannot show one.

    That is below `MINIMUM_PAIRS` pairs, or where x or y is constant.
    """
    pairs = np.column_stack([np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)])
    if len(pairs) < MINIMUM_PAIRS:
        return None
    rho = spearman(pairs[:, 0], pairs[:, 1])
    if np.isnan(rho):
        return None
    interval = None
    if len(pairs) >= INTERVAL_PAIRS:
        interval = bootstrap_interval(pairs, lambda sample: spearman(sample[:, 0], sample[:, 1]), seed=seed)
        if interval[0] == interval[1]:
            interval = None
    return Correlation(rho, interval, len(pairs))


def bootstrap_interval(
    data: NDArray[np.float64],
    statistic: Callable[[NDArray[np.float64]], float],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of `statistic` over rows of `data`, [n] or [n, d].

    Resamples for which the statistic is undefined (NaN) are left out; if all are, both limits are NaN.
    Source: Efron 1979; the percentile method of Efron & Tibshirani 1993, §13.3.
    """
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(data), size=(resamples, len(data)))
    values = np.array([statistic(data[rows]) for rows in draws])
    values = values[~np.isnan(values)]
    if not values.size:
        return float("nan"), float("nan")
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


@dataclass(frozen=True)
class LogLogFit:
    """A polynomial in log10 x for log10 y by least squares.

    Attributes:
        coefficients: highest power first, of (log10 x − centre): centred, because powers of a distant x are nearly
            collinear.
        centre: the mean of log10 x.
        low, high: the range of x that was fitted.
        r_squared: share of the variance of log10 y explained.
        n: how many points.
    """

    coefficients: tuple[float, ...]
    centre: float
    low: float
    high: float
    r_squared: float
    n: int

    def curve(self, points: int = 60) -> tuple[list[float], list[float]]:
        """Return x and fitted y at `points` values, evenly spaced in log x over the fitted range."""
        x = np.linspace(np.log10(self.low), np.log10(self.high), points)
        y = np.polyval(self.coefficients, x - self.centre)
        return (10**x).tolist(), (10**y).tolist()


def log_log_fit(x: Values, y: Values, degree: int = 3) -> LogLogFit | None:
    """Fit log10 y by a polynomial of `degree` in log10 x; every x and y must be positive.

    Returns None below POINTS_PER_COEFFICIENT points for each coefficient, or at too few distinct x: a cubic goes
    through any four points and bends through any seven. The cubic is that of the curvature paper's figure 3.
    """
    a, b = np.log10(np.asarray(x, dtype=np.float64)), np.log10(np.asarray(y, dtype=np.float64))
    if len(a) < POINTS_PER_COEFFICIENT * (degree + 1) or len(np.unique(a)) <= degree:
        return None
    centre = float(a.mean())
    coefficients = np.polyfit(a - centre, b, degree)
    residual = b - np.polyval(coefficients, a - centre)
    total = float(((b - b.mean()) ** 2).sum())
    r_squared = 1 - float((residual**2).sum()) / total if total > 0 else float("nan")
    low, high = float(10 ** a.min()), float(10 ** a.max())
    return LogLogFit(tuple(map(float, coefficients)), centre, low, high, r_squared, len(a))
