"""From rows of `final` to the figures that claims are judged by: means, intervals, correlations in strata."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from sweeper.analysis.statistics.basics import INTERVAL_PAIRS, bootstrap_interval, spearman
from sweeper.text.cells import Row, Rows, int_of, text_of

STRATUM_POINTS = 4
"""Different values below which one stratum's rank correlation is left out: of three, one order in six is falling."""

LEVEL = 0.95


@dataclass(frozen=True)
class Point:
    """One configuration: the two numbers to correlate, means over its replicates, and its stratum."""

    stratum: Hashable
    x: float
    y: float
    replicates: int


@dataclass(frozen=True)
class Estimate:
    """A statistic with its 95 % interval (`None` where there is too little for one), and what it counts."""

    value: float | None
    interval: tuple[float, float] | None
    n: int

    def text(self, form: str = ".3g") -> str:
        """Return e.g. `−0.93 (95 % −0.99 … −0.80)`."""
        if self.value is None:
            return "not measurable"
        shown = f"{self.value:{form}}"
        if self.interval is None:
            return f"{shown} (too few for an interval)".replace("-", "−")
        return f"{shown} (95 % {self.interval[0]:{form}} … {self.interval[1]:{form}})".replace("-", "−")


def trained_to_the_end(rows: Rows) -> list[Row]:
    """Return the rows of replicates that were trained to the last epoch; others cannot be compared with them.

    Tables have no order, and a bootstrap's limits depend on it: the rows come by trial, replicate and split.
    """
    held = [row for row in rows if row.get("stage") == "end"]
    return sorted(held, key=lambda row: (text_of(row, "trial"), int_of(row, "replicate"), text_of(row, "split")))


def of_split(rows: Rows, split: str) -> list[Row]:
    """Return the rows of one split."""
    return [row for row in rows if row["split"] == split]


def number(row: Row, column: str) -> float | None:
    """Return a finite number, or `None` where the row has none."""
    value = row.get(column)
    if value is None or isinstance(value, (str, datetime)) or not math.isfinite(value):
        return None
    return float(value)


def trial_mean(rows: Rows, value: str | Callable[[Row], float | None]) -> float | None:
    """Return the mean over replicates of a column, or of a function of a row; `None` where no row has it."""
    read = value if callable(value) else lambda row: number(row, value)
    found = [v for row in rows if (v := read(row)) is not None]
    return math.fsum(found) / len(found) if found else None


def other_settings(row: Row, besides: Sequence[str]) -> Hashable:
    """Return the configuration's values but those of `besides`: configurations that agree in them are one stratum.

    `besides` are columns, or prefixes ending in `_`.
    """
    besides = (*besides, "config_hash")
    prefixes = tuple(name for name in besides if name.endswith("_"))
    return tuple(
        (key, value)
        for key, value in sorted(row.items())
        if key.startswith("config_") and key not in besides and not key.startswith(prefixes or ("\0",))
    )


def mean_correlation(points: Sequence[Point]) -> Estimate:
    """Return Spearman's correlation, averaged over strata, with a bootstrap interval over configurations.

    A stratum with fewer than `STRATUM_POINTS` different x is left out. No interval below 8 configurations.
    """
    used = [p for p in points if len({q.x for q in points if q.stratum == p.stratum}) >= STRATUM_POINTS]
    if not used:
        return Estimate(None, None, 0)
    labels = {stratum: place for place, stratum in enumerate(dict.fromkeys(p.stratum for p in used))}
    data = np.array([[labels[p.stratum], p.x, p.y] for p in used], dtype=np.float64)

    def statistic(sample: np.ndarray) -> float:
        parts = [sample[sample[:, 0] == label] for label in range(len(labels))]
        found = [spearman(part[:, 1], part[:, 2]) for part in parts if len(part) > 1]
        found = [rho for rho in found if not math.isnan(rho)]
        return math.fsum(found) / len(found) if found else math.nan

    value = statistic(data)
    if math.isnan(value):
        return Estimate(None, None, len(used))
    interval = bootstrap_interval(data, statistic) if len(used) >= INTERVAL_PAIRS else None
    return Estimate(value, interval, len(used))


def paired_mean(groups: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of the groups' means of paired differences, with Student's interval of the pooled variance.

    A group is a configuration, its members differences of its replicates: the inference is over seeds, for these
    configurations. No interval below 4 degrees of freedom.
    """
    from scipy.stats import t

    held = [np.asarray(group, dtype=np.float64) for group in groups if len(group)]
    if not held:
        return Estimate(None, None, 0)
    value = float(np.mean([group.mean() for group in held]))
    count = sum(map(len, held))
    freedom = count - len(held)
    if freedom < 4:
        return Estimate(value, None, count)
    variance = sum(((group - group.mean()) ** 2).sum() for group in held) / freedom
    error = math.sqrt(variance * sum(1 / len(group) for group in held)) / len(held)
    reach = float(t.ppf(0.5 + LEVEL / 2, freedom)) * error
    return Estimate(value, (value - reach, value + reach), count)


def difference(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return mean(first) − mean(second) of independent samples with Welch's interval; none below 3 of each.

    Source: Welch 1947; Satterthwaite's degrees of freedom.
    """
    from scipy.stats import ttest_ind

    a, b = (np.asarray(values, dtype=np.float64) for values in (first, second))
    if not len(a) or not len(b):
        return Estimate(None, None, 0)
    value, count = float(a.mean() - b.mean()), len(a) + len(b)
    if min(len(a), len(b)) < 3:
        return Estimate(value, None, count)
    if a.var() == b.var() == 0:
        return Estimate(value, (value, value), count)
    limits = ttest_ind(a, b, equal_var=False).confidence_interval(level)
    return Estimate(value, (float(limits.low), float(limits.high)), count)
