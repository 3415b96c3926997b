"""The chance of seeds, from the spread of replicates pooled over configurations. No I/O.

Two or three replicates say little about their own spread: Student's t of two has one degree of freedom, and an interval
twelve standard errors wide. Replicates of all configurations together have many. Losses and calibration errors spread
in proportion to their size, so these are pooled as logarithms; accuracies as they are. That configurations share one
spread is the assumption of a one-way analysis of variance (Fisher 1925, Statistical Methods for Research Workers, §36).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sweeper.analysis.statistics.basics import Spread

LEVEL = 0.95


@dataclass(frozen=True)
class SeedNoise:
    """How far one replicate lies from the mean of its configuration.

    Attributes:
        deviation: standard deviation; of the logarithm where `relative`.
        freedom: degrees of freedom behind it.
        relative: whether values spread in proportion to their size.
    """

    deviation: float
    freedom: int
    relative: bool

    def interval(self, found: Spread) -> tuple[float, float] | None:
        """Return the 95 % interval of a configuration's mean; None for a value that has no logarithm."""
        half = self._quantile() * self.deviation / math.sqrt(found.n)
        if not self.relative:
            return found.mean - half, found.mean + half
        return (found.mean * math.exp(-half), found.mean * math.exp(half)) if found.mean > 0 else None

    def apart(self, a: Spread, b: Spread) -> bool:
        """Return whether two configurations differ by more than the chance of seeds, at 95 %."""
        if self.relative and min(a.mean, b.mean) <= 0:
            return False
        gap = math.log(a.mean / b.mean) if self.relative else a.mean - b.mean
        return abs(gap) > self._quantile() * self.deviation * math.sqrt(1 / a.n + 1 / b.n)

    def _quantile(self) -> float:
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, (1 + LEVEL) / 2))


def seed_noise(spreads: Iterable[Spread], *, relative: bool) -> SeedNoise | None:
    """Return the spread of replicates pooled over configurations; None where none has two replicates.

    Args:
        spreads: of each configuration's replicates.
        relative: pool deviations as shares of the mean, for values that must be positive; configurations at zero, where
            a share means nothing, are left out.
    """
    used = [
        s for s in spreads if s.deviation is not None and math.isfinite(s.deviation) and (s.mean > 0 or not relative)
    ]
    freedom = sum(s.n - 1 for s in used)
    if not freedom:
        return None
    shares = ((s.n - 1) * ((s.deviation or 0.0) / (s.mean if relative else 1.0)) ** 2 for s in used)
    return SeedNoise(math.sqrt(sum(shares) / freedom), freedom, relative)
