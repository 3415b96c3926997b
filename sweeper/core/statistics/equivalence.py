"""Whether two networks' values differ, differ by no more than a margin, or need more seeds or samples. No I/O.

Values are paired by seed: before and after temperature scaling, or one loss and another. The mean difference d̄ of n
seeds has two errors. Seeds spread: σ²/n. Test samples are few, and all seeds are measured on the same ones, so that
their common part c does not shrink with more seeds:

    Var d̄ = σ²/n + c,   σ² = spread of the seeds' differences, c = mean covariance of two seeds over test samples.

σ is moderated over all rows of a table (`spreads`), c comes from a jackknife over groups of samples (`sample_parts`).
The variance over seeds already holds what the samples do to each seed alone.

"No difference larger than x" is two one-sided tests (Schuirmann 1987, A comparison of the two one-sided tests procedure
and the power approach for assessing the equivalence of average bioavailability). Where neither these nor the test of 0
decides, the predictive distribution of the decision (Spiegelhalter, Freedman & Parmar 1994, Bayesian approaches to
randomized trials) says how many more seeds or samples would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sweeper.core.statistics.spreads import LEVEL, Floats, Spreads, Tails, spreads

LOWER, HIGHER, NO_DIFFERENCE, OPEN = "lower", "higher", "no_difference", "open"

SEEDS, SAMPLES = "seeds", "samples"

#: The predicted chance to decide at which a number of seeds is named.
CHANCE = 0.85

_MORE_SEEDS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_TIMES_SAMPLES = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_DRAWS = 300


@dataclass(frozen=True)
class Samples:
    """Variances of a difference over test samples.

    Attributes:
        common: what all seeds share, since they are measured on the same samples.
        own: what each seed has besides; on average over seeds.
    """

    common: float
    own: float


def sample_parts(left_out: Floats) -> Samples:
    """Return the variances of seeds' differences over test samples, by the delete-a-group jackknife.

    The covariance [n, n] of the seeds' differences is C = (G − 1)/G Σ_g (d₋g − d̄)(d₋g − d̄)ᵀ; `common` is the mean of
    C off its diagonal, and `own` what its diagonal has more. One seed's variance counts as common.
    Source: Kott 2001, The delete-a-group jackknife, J. Official Statistics 17, Eq. 1.

    Args:
        left_out: difference of each seed without each group of samples, [G groups, n seeds].
    """
    groups, seeds = left_out.shape
    away = left_out - left_out.mean(axis=0)
    covariance = (groups - 1) / groups * away.T @ away
    diagonal = float(np.trace(covariance)) / seeds
    if seeds == 1:
        return Samples(diagonal, 0.0)
    common = max(0.0, (float(covariance.sum()) - seeds * diagonal) / (seeds * (seeds - 1)))
    return Samples(common, max(0.0, diagonal - common))


@dataclass(frozen=True)
class Pair:
    """Two values of each seed, and what the test samples do to their difference.

    Attributes:
        a, b: seed → value; seeds that only one has are left out.
        samples: variances over test samples; None counts them as exact.
        count: how many test samples there are, to say how many more are needed.
    """

    a: Mapping[int, float]
    b: Mapping[int, float]
    samples: Samples | None = None
    count: int | None = None

    @cached_property
    def differences(self) -> dict[int, float]:
        """Return b − a of each common seed."""
        return {seed: self.b[seed] - value for seed, value in self.a.items() if seed in self.b}


@dataclass(frozen=True)
class Verdict:
    """What is known of a mean difference b − a.

    Attributes:
        code: LOWER, HIGHER, NO_DIFFERENCE (`largest` is within the margin) or OPEN.
        estimate: the mean difference.
        interval: at the level asked for, over seeds and samples.
        largest: the largest difference of either sign that is not excluded.
        margin: what counts as no difference.
        seeds: how many pairs.
        limited_by: SEEDS or SAMPLES, whichever adds more to the error; empty where it is decided.
        more_seeds, more_samples: how many more decide with a probability of at least 80 %, each alone; None: no number
            that was tried does.
        both: whether only the two together do.
    """

    code: str
    estimate: float
    interval: tuple[float, float]
    largest: float
    margin: float
    seeds: int
    limited_by: str = ""
    more_seeds: int | None = None
    more_samples: int | None = None
    both: bool = False


def equivalence(pair: Pair, margin: float, level: float = LEVEL) -> Verdict | None:
    """Return the verdict of one pair by its own seeds; see `equivalences`."""
    return equivalences([pair], margin, level)[0]


def equivalences(pairs: Sequence[Pair], margin: float, level: float = LEVEL) -> list[Verdict | None]:
    """Return a verdict for each pair; None without a common seed, or where no spread of seeds is known.

    Args:
        pairs: rows of one table, whose seeds' spreads are pooled.
        margin: the largest difference that counts as none, on the values' scale; 0 for none.
        level: of the interval; each of the two one-sided tests errs with (1 − level).

    Example:
        >>> pair = Pair({0: 0.050, 1: 0.054, 2: 0.052}, {0: 0.020, 1: 0.022, 2: 0.025})
        >>> equivalence(pair, margin=0.01).code
        'lower'
    """
    distinct: dict[tuple[tuple[int, float], ...], int] = {}
    rows = [at for at, pair in enumerate(pairs) if pair.differences]
    numbered = []
    for at in rows:
        seeds = tuple(sorted(pairs[at].differences.items()))
        first = distinct.setdefault(seeds, len(distinct))  # the same differences on the same seeds count once
        numbered.append({(first, seed): value for seed, value in seeds})
    keys = {key: place for place, key in enumerate(dict.fromkeys(key for row in numbered for key in row))}
    known = spreads([{keys[key]: value for key, value in row.items()} for row in numbered], "max", relative=False)
    verdicts: list[Verdict | None] = [None] * len(pairs)
    if known is not None:
        for place, at in enumerate(rows):
            verdicts[at] = _Row(known, place, pairs[at], margin, level).verdict()
    for at in rows:
        differences = pairs[at].differences
        if verdicts[at] is None and len(differences) > 1 and not any(differences.values()):  # the same predictions
            verdicts[at] = Verdict(NO_DIFFERENCE, 0.0, (0.0, 0.0), 0.0, margin, len(differences))
    return verdicts


@dataclass(frozen=True)
class _Row:
    """One pair among the spreads of all."""

    spreads: Spreads
    place: int
    pair: Pair
    margin: float
    level: float

    @property
    def mean(self) -> float:
        return float(self.spreads.scores[self.place])

    @property
    def seeds(self) -> int:
        return int(self.spreads.sizes[self.place])

    @property
    def common(self) -> float:
        return 0.0 if self.pair.samples is None else self.pair.samples.common

    def verdict(self) -> Verdict:
        at = [self.place]
        own = replace(self.spreads, scores=self.spreads.scores[at], sizes=self.spreads.sizes[at])
        own = replace(own, weights=self.spreads.weights[at])
        tails = Tails.of(own, (np.array([math.sqrt(self.common * self.seeds)]), np.ones(1)))
        reach, nearer = (tails.quantile(0, share) for share in ((1 - self.level) / 2, 1 - self.level))
        interval, largest = (self.mean - reach, self.mean + reach), abs(self.mean) + nearer
        code = LOWER if interval[1] < 0 else HIGHER if interval[0] > 0 else OPEN
        code = NO_DIFFERENCE if largest <= self.margin else code
        verdict = Verdict(code, self.mean, interval, largest, self.margin, self.seeds)
        return self._needed(verdict) if code == OPEN else verdict

    def _needed(self, open_verdict: Verdict) -> Verdict:
        """Return an open verdict with what limits it, and what would decide it."""
        deviations, weights = self.spreads.deviations, self.spreads.weights[self.place]
        of_seeds = float(np.exp(2 * weights @ np.log(deviations))) / self.seeds
        limited = SAMPLES if self.common > of_seeds else SEEDS
        alone = next((more for more in _MORE_SEEDS if self._chance(more, 1.0) >= CHANCE), None)
        count = self.pair.count if self.common > 0 else None
        times = _TIMES_SAMPLES if count else ()
        samples = next((f for f in times if self._chance(0, f) >= CHANCE), None)
        both = False
        if alone is None and samples is None:
            tried = ((more, f) for f in times[1::2] for more in _MORE_SEEDS[1::3])
            alone, samples = next((one for one in tried if self._chance(*one) >= CHANCE), (None, None))
            both = alone is not None
        more = None if samples is None or count is None else math.ceil((samples - 1) * count)
        return replace(open_verdict, limited_by=limited, more_seeds=alone, more_samples=more, both=both)

    def _chance(self, more: int, times: float) -> float:
        """Return the probability that `more` seeds and `times` the test samples decide.

        By draws of σ, of the true difference (flat beforehand) and of the further values. After these, σ has the
        probabilities that its present ones and the further squares give.
        """
        n, common, later = self.seeds, self.common, self.common / times
        sigma, chi, normal = self._drawn
        seed_error, sample_error = sigma * normal[0] / math.sqrt(n), math.sqrt(common) * normal[1]
        truth = self.mean - seed_error - sample_error
        seeds = truth + seed_error
        weights = np.broadcast_to(self.spreads.weights[self.place], (_DRAWS, len(self.spreads.deviations)))
        if more:
            fresh = truth + sigma * normal[2] / math.sqrt(more)
            squares = sigma**2 * chi[: more - 1].sum(axis=0) + n * more / (n + more) * (fresh - seeds) ** 2
            log = -more * np.log(self.spreads.deviations) - squares[:, None] / 2 / self.spreads.deviations**2
            weights = weights * np.exp(log - log.max(axis=1, keepdims=True))
            weights = weights / weights.sum(axis=1, keepdims=True)
            seeds = (n * seeds + more * fresh) / (n + more)
        further = math.sqrt(common / (times - 1)) * normal[3] if times > 1 else 0.0
        means = np.abs(seeds + sample_error / times + (1 - 1 / times) * further)
        deviations = np.sqrt(self.spreads.deviations**2 / (n + more) + later)
        differ = _beyond(means, deviations, weights) < (1 - self.level) / 2
        same = _beyond(self.margin - means, deviations, weights) < 1 - self.level
        return float(np.mean(differ | same))

    @cached_property
    def _drawn(self) -> tuple[Floats, Floats, Floats]:
        """Draws of σ [draws], of squares of further seeds [seeds, draws], and of four errors [4, draws]."""
        rng, weights = np.random.default_rng(0), self.spreads.weights[self.place].cumsum()
        sigma = self.spreads.deviations[np.searchsorted(weights / weights[-1], rng.random(_DRAWS))]
        return sigma, rng.standard_normal((_MORE_SEEDS[-1], _DRAWS)) ** 2, rng.standard_normal((4, _DRAWS))


def _beyond(distance: Floats, deviations: Floats, weights: Floats) -> NDArray[np.float64]:
    """Return the probability of an error beyond each distance [d], its deviation [g] having probabilities [d, g]."""
    from scipy.special import ndtr

    return np.asarray((weights * ndtr(-distance[:, None] / deviations)).sum(axis=1))
