"""Variances of few seeds, moderated by those of other pairs. No I/O.

Two or three seeds say little about their own spread: Student's t for two has one degree of freedom, and an interval
twelve standard errors wide. The pairs that share a candidate say more, but candidates may spread unequally. So each
variance is averaged with the typical one, and the typical one counts as d₀ further degrees of freedom (Smyth 2004,
Linear models and empirical Bayes methods for assessing differential expression, §3, Eqs. 3.1 and 6.2):

    s̃² = (d₀ s₀² + d s²) / (d₀ + d),   t = d̄ / √(s̃²/n) with d₀ + d degrees of freedom.

d₀ and s₀² come from the moments of log s². Few pairs often show no variation of σ at all, and d₀ would be infinite,
which treats a single noisy candidate as quiet. Here d₀ is at most `MOST`, so that every pair's own seeds count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Largest number of degrees of freedom that other pairs contribute.
MOST = 4.0


@dataclass(frozen=True)
class Prior:
    """The typical variance of one seed.

    Attributes:
        variance: s₀².
        freedom: degrees of freedom d₀ that it counts for, at most `MOST`; 0 if nothing is known.
    """

    variance: float
    freedom: float

    @classmethod
    def of(cls, variances: Sequence[tuple[float, float]]) -> Prior:
        """Estimate the prior from several variances, each with its degrees of freedom.

        Example:
            >>> Prior.of([(1.0, 4), (1.2, 4), (0.9, 4)]).freedom
            4.0
        """
        from scipy.special import polygamma, psi  # scipy.stats takes half a second to import

        known = [(s, d) for s, d in variances if d > 0 and s > 0]
        if len(known) < 2:  # one pair shows nothing about others
            return cls(known[0][0] if known else 1.0, 0.0)
        half = np.array([d for _, d in known]) / 2
        logs = np.log([s for s, _ in known]) - psi(half) + np.log(half)
        excess = float(logs.var(ddof=1) - polygamma(1, half).mean())
        freedom = MOST if excess <= float(polygamma(1, MOST / 2)) else 2 * _inverse_trigamma(excess)
        variance = float(np.exp(logs.mean() + psi(freedom / 2) - np.log(freedom / 2)))
        return cls(variance, freedom)

    def moderated(self, variance: float, freedom: float) -> tuple[float, float]:
        """Return a variance averaged with the prior, and its degrees of freedom."""
        total = self.freedom + freedom
        return (self.freedom * self.variance + freedom * variance) / total if total else self.variance, total


def _inverse_trigamma(value: float) -> float:
    """Return y with ψ′(y) = value, by Newton's method on 1/ψ′, which is convex (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    y = 0.5 + 1 / value
    for _ in range(20):
        trigamma = float(polygamma(1, y))
        y += trigamma * (1 - trigamma / value) / float(polygamma(2, y))
    return y
