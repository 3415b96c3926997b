"""Whether two networks' values differ, differ by no more than a margin, or need more seeds or samples. No I/O.

Values are paired by seed: before and after temperature scaling, or under two losses. The mean difference d̄ of n seeds
has two errors: one from the spread of seeds, σ²/n, and one from the test samples. All seeds are measured on the same
samples, so the common part c of the samples' error does not shrink with more seeds:

    Var d̄ = σ²/n + c,   σ² = spread of the seeds' differences, c = mean covariance of two seeds over test samples.

σ is moderated over all rows of a table (`spreads`), c comes from a jackknife over groups of samples (`sample_parts`).
The variance over seeds already contains the samples' effect on each seed alone.

"No difference larger than x" is two one-sided tests (Schuirmann 1987, A comparison of the two one-sided tests procedure
and the power approach for assessing the equivalence of average bioavailability). Where neither these nor the test of 0
decides, the predictive distribution of the decision (Spiegelhalter, Freedman & Parmar 1994, Bayesian approaches to
randomized trials) predicts how many more seeds or samples would decide.
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

#: A number of seeds is proposed if it decides with this predicted probability. Users are promised 80 %, since the
#: prediction itself has an error.
CHANCE = 0.85

_MORE_SEEDS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_TIMES_SAMPLES = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_DRAWS = 300


@dataclass(frozen=True)
class Samples:
    """Variances of a difference over test samples.

    Attributes:
        common: variance that all seeds share, since they are measured on the same samples.
        own: further variance of each seed, on average over seeds.
    """

    common: float
    own: float


def sample_parts(left_out: Floats) -> Samples:
    """Return the variances of the seeds' differences over test samples, by the delete-a-group jackknife.

    The covariance [n, n] of the seeds' differences is C = (G − 1)/G Σ_g (d₋g − d̄)(d₋g − d̄)ᵀ; `common` is the mean of
    C off its diagonal, and `own` the excess of its diagonal. A single seed's variance counts as common.
    Source: Kott 2001, The delete-a-group jackknife, J. Official Statistics 17, Eq. 1.

    Args:
        left_out: difference of each seed without each group of samples, [G groups, n seeds].

    Example:
        >>> sample_parts(np.array([[0.1, 0.2], [0.3, 0.4]])).own
        0.0
    """
    groups, seeds = left_out.shape
    away = left_out - left_out.mean(axis=0)
    covariance = (groups - 1) / groups * away.T @ away
    diagonal = float(np.trace(covariance)) / seeds
    if seeds == 1:
        return Samples(diagonal, 0.0)
    # An estimated covariance can be negative, a variance component cannot.
    common = max(0.0, (float(covariance.sum()) - seeds * diagonal) / (seeds * (seeds - 1)))
    return Samples(common, max(0.0, diagonal - common))


@dataclass(frozen=True)
class Pair:
    """Two values of each seed, and the variance of their difference over test samples.

    Attributes:
        a, b: seed → value; seeds that only one of them has are ignored.
        samples: variances over test samples; None treats the test set as exact.
        count: number of test samples; the number of further samples is computed from it.
    """

    a: Mapping[int, float]
    b: Mapping[int, float]
    samples: Samples | None = None
    count: int | None = None

    @cached_property
    def differences(self) -> dict[int, float]:
        """Difference b − a of each common seed."""
        return {seed: self.b[seed] - value for seed, value in self.a.items() if seed in self.b}


@dataclass(frozen=True)
class Verdict:
    """The verdict on a mean difference b − a.

    Attributes:
        code: LOWER, HIGHER, NO_DIFFERENCE (`largest` is within the margin) or OPEN.
        estimate: the mean difference.
        interval: confidence interval over seeds and samples, at the requested level.
        largest: largest difference of either sign that is not excluded.
        margin: largest difference that counts as none.
        seeds: number of pairs.
        limited_by: SEEDS or SAMPLES, whichever adds more to the error; empty if decided.
        more_seeds, more_samples: number of further seeds, or of further samples, that alone decides with a probability
            of at least 80 %; None if no number that was tried does.
        both: whether further seeds and samples decide only together.
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
    """Return the verdict on one pair from its own seeds; see `equivalences`.

    Example:
        >>> pair = Pair({0: 0.050, 1: 0.051, 2: 0.052}, {0: 0.051, 1: 0.050, 2: 0.052})
        >>> equivalence(pair, margin=0.01).code
        'no_difference'
    """
    return equivalences([pair], margin, level)[0]


def equivalences(pairs: Sequence[Pair], margin: float, level: float = LEVEL) -> list[Verdict | None]:
    """Return a verdict for each pair; None without a common seed, or if no spread of seeds is known.

    Args:
        pairs: rows of one table, whose seeds' spreads are pooled.
        margin: largest difference that counts as none, on the values' scale; 0 if every difference counts.
        level: level of the interval; each of the two one-sided tests has the error 1 − level.

    Example:
        >>> pair = Pair({0: 0.050, 1: 0.054, 2: 0.052}, {0: 0.020, 1: 0.022, 2: 0.025})
        >>> equivalence(pair, margin=0.01).code
        'lower'
    """
    rows = [at for at, pair in enumerate(pairs) if pair.differences]
    seeds_of = [tuple(sorted(pairs[at].differences.items())) for at in rows]
    # Rows are not paired by seed, so their seeds get separate keys; equal rows share keys, and count as one training.
    known = spreads([{(seeds, seed): d for seed, d in seeds} for seeds in seeds_of], "max", relative=False)
    verdicts: list[Verdict | None] = [None] * len(pairs)
    if known is not None:
        for place, at in enumerate(rows):
            verdicts[at] = _Row(known, place, pairs[at], margin, level).verdict()
    for at in rows:
        differences = pairs[at].differences
        if verdicts[at] is None and len(differences) > 1 and not any(differences.values()):  # equal predictions
            verdicts[at] = Verdict(NO_DIFFERENCE, 0.0, (0.0, 0.0), 0.0, margin, len(differences))
    return verdicts


def of_one_network(pair: Pair, groups: int, margin: float, level: float = LEVEL) -> Verdict | None:
    """Return the verdict on one seed's difference over test samples alone; None for several seeds.

    The verdict holds for this network only; another seed's network may differ. It suits predictions whose training
    cannot be repeated.

    Args:
        pair: one seed with its variance over test samples.
        groups: number of the jackknife's groups; Student's t has one degree of freedom less.
        margin, level: as for `equivalences`.

    Example:
        >>> of_one_network(Pair({0: 0.064}, {0: 0.019}, Samples(4e-6, 0.0)), groups=20, margin=0.005).code
        'lower'
    """
    from scipy.special import stdtrit  # `scipy.stats.t` takes half a second to import

    if len(pair.differences) != 1 or pair.samples is None:
        return None
    (mean,) = pair.differences.values()
    reach, nearer = math.sqrt(pair.samples.common) * stdtrit(groups - 1, [(1 + level) / 2, level])
    low, high, largest = float(mean - reach), float(mean + reach), float(abs(mean) + nearer)
    code = NO_DIFFERENCE if largest <= margin else LOWER if high < 0 else HIGHER if low > 0 else OPEN
    return Verdict(code, mean, (low, high), largest, margin, 1, SAMPLES if code == OPEN else "")


@dataclass(frozen=True)
class _Row:
    """One pair, with the spreads of all pairs."""

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
        tails = Tails.of(self.spreads.part([self.place]), (np.array([math.sqrt(self.common * self.seeds)]), np.ones(1)))
        reach, nearer = (tails.quantile(0, share) for share in ((1 - self.level) / 2, 1 - self.level))
        interval, largest = (self.mean - reach, self.mean + reach), abs(self.mean) + nearer
        code = LOWER if interval[1] < 0 else HIGHER if interval[0] > 0 else OPEN
        code = NO_DIFFERENCE if largest <= self.margin else code
        verdict = Verdict(code, self.mean, interval, largest, self.margin, self.seeds)
        return self._needed(verdict) if code == OPEN else verdict

    def _needed(self, open_verdict: Verdict) -> Verdict:
        """Complete an open verdict with its limiting factor and the seeds or samples that would decide it."""
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
        """Return the probability that `more` further seeds and `times` as many test samples decide.

        Draws σ, the true difference (with a flat prior) and the further values; σ is then updated by their squares.
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
        # All numbers of seeds and samples share these draws, so their chances differ by the numbers alone.
        rng, weights = np.random.default_rng(0), self.spreads.weights[self.place].cumsum()
        sigma = self.spreads.deviations[np.searchsorted(weights / weights[-1], rng.random(_DRAWS))]
        return sigma, rng.standard_normal((_MORE_SEEDS[-1], _DRAWS)) ** 2, rng.standard_normal((4, _DRAWS))


def _beyond(distance: Floats, deviations: Floats, weights: Floats) -> NDArray[np.float64]:
    """Return the probability of an error beyond each distance [d]; its standard deviation [g] has weights [d, g]."""
    from scipy.special import ndtr

    return np.asarray((weights * ndtr(-distance[:, None] / deviations)).sum(axis=1))
