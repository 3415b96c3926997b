"""Two candidates and the error of their difference. No I/O.

Each pair uses all seeds that it has in common, whatever seeds others have. Two candidates trained from the same seed
share data order and initialisation, so the seed's effect cancels in their difference. Without common seeds, the means
of both are compared (Welch 1947).

Losses and calibration errors spread in proportion to their size. As ratios, values v are compared on the scale
log m + v/m − 1, with m their mean: it keeps the order of means, which logarithms do not. Their variance is the larger
one of this scale's and the logarithms', because v/m − 1 is never below −1: where most seeds are in a bad optimum, the
good ones are farther away than that.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from sweeper.judging.moderation import Prior
from sweeper.judging.question import Data, Floats, Question
from sweeper.judging.samples import GROUPS, shared_variance

Config = TypeVar("Config", bound=Hashable)
Seed = TypeVar("Seed", bound=Hashable)

#: A pair is compared seed by seed if at least this share of the smaller side's seeds is common.
SHARE = 0.5


@dataclass(frozen=True)
class Pair:
    """A candidate and its rival.

    Attributes:
        candidate, rival: their names.
        seeds: the seeds used.
        paired: whether they are compared seed by seed.
        means: mean value of the candidate and of the rival over these seeds.
        estimate: candidate minus rival on the scale of comparison; above 0, the candidate is worse.
        variance: variance of the difference of one seed of each side; for equal predictions 0.
        freedom: degrees of freedom of `variance`; 0 for a single seed.
        count: number of seeds of the side that has fewer.
        samples: variance over test samples and its degrees of freedom.
        relative: whether the scale is logarithmic.
        excess: between which two values `estimate` exceeds the difference over unlimited test samples, in the mean.
        third: third central moment of the estimate over seeds; 0 unless the question allows for skewed values.
    """

    candidate: str
    rival: str
    seeds: tuple[Hashable, ...]
    paired: bool
    means: tuple[float, float]
    estimate: float
    variance: float
    freedom: float
    count: int
    samples: tuple[float, int]
    relative: bool
    excess: tuple[float, float] = (0.0, 0.0)
    third: float = 0.0

    def error(self, prior: Prior) -> Error:
        """Return the error of the estimate, with the variance over seeds moderated."""
        if not self.freedom:  # a single seed is judged over test samples alone
            return Error.of((0.0, 0.0), self.samples)
        variance, freedom = prior.moderated(self.variance, self.freedom)
        error = Error.of((variance / self.count, freedom), self.samples)
        return replace(error, skewness=self.third / error.variance**1.5) if self.third else error


@dataclass(frozen=True)
class Error:
    """The error of an estimate.

    Attributes:
        seeds: variance from the seeds.
        samples: variance from the test samples.
        freedom: degrees of freedom of their sum (Satterthwaite 1946, An approximate distribution of estimates of
            variance components).
        seed_freedom: degrees of freedom of `seeds`.
        skewness: skewness of the estimate.
    """

    seeds: float
    samples: float
    freedom: float
    seed_freedom: float
    skewness: float = 0.0

    @classmethod
    def of(cls, seeds: tuple[float, float], samples: tuple[float, int]) -> Error:
        """Return the error from the variances over seeds and over samples with their degrees of freedom."""
        return cls(seeds[0], samples[0], satterthwaite(seeds, samples), seeds[1])

    @property
    def variance(self) -> float:
        """Variance of the estimate."""
        return self.seeds + self.samples

    def reach(self, error: float) -> float:
        """Return the distance that the estimate exceeds with this probability, on one side."""
        from scipy.special import stdtrit  # scipy.stats takes half a second to import

        return float(stdtrit(self.freedom, 1 - error)) * math.sqrt(self.variance)

    def reaches(self, error: float) -> tuple[float, float]:
        """Return how far the truth can lie below and above the estimate, each with this probability of error.

        The farther of Student's limit and Hall's, which corrects for skewness (Hall 1992, On the removal of skewness by
        transformation, Eq. 2.1). Student's alone excludes the mean of five log-normal values (skewness 1.75) in 8 % of
        samples at a stated 5 %.
        """
        reach = self.reach(error)
        if abs(self.skewness) < 1e-6 or not reach:  # Hall's map is nearly the identity, and would magnify rounding
            return reach, reach
        scale, g = math.sqrt(self.variance), self.skewness
        ends = [3 / g * (math.cbrt(1 + g * (end / scale - g / 6)) - 1) * scale for end in (reach, -reach)]
        return max(reach, ends[0]), max(reach, -ends[1])

    def p(self, estimate: float) -> float:
        """Return the two-sided p of no difference: the error at which `reaches` ends at 0."""
        from scipy.special import stdtr  # scipy.stats takes half a second to import

        if not estimate or not self.variance:
            return float(not estimate)
        t, g = estimate / math.sqrt(self.variance), self.skewness
        hall = t + g * t**2 / 3 + g**2 * t**3 / 27 + g / 6
        if hall * t <= 0:  # the correction is as large as the estimate
            return 1.0
        return float(2 * stdtr(self.freedom, -min(abs(t), abs(hall))))


def satterthwaite(*terms: tuple[float, float]) -> float:
    """Return the degrees of freedom of a sum of independent variances with theirs."""
    total = sum(variance for variance, _ in terms)
    below = sum(variance**2 / freedom for variance, freedom in terms if freedom > 0)
    return total**2 / below if below > 0 else max((freedom for _, freedom in terms), default=0.0)


def independent_units(keys: Iterable[tuple[Config, Seed]]) -> dict[tuple[Config, Seed], Config | Seed]:
    """Map each (configuration, seed) to its independent unit: its seed if any seed is shared, else its configuration.

    Configurations trained on the same seeds share these seeds' effects, so only seeds are independent. Without shared
    seeds, a configuration's mean is one value, whatever its seeds' spread (Ibragimov & Müller 2010, t-statistic based
    correlation and heterogeneity robust inference).
    """
    pairs = set(keys)
    shared = len({seed for _, seed in pairs}) < len(pairs)
    return {pair: pair[1] if shared else pair[0] for pair in pairs}


def pair_of(question: Question, data: Data, candidate: str, rival: str) -> Pair | None:
    """Return the pair; None if a side has fewer than two seeds (one, if test samples alone decide)."""
    one, other = data.values.get(candidate, {}), data.values.get(rival, {})
    common = tuple(seed for seed in one if seed in other) if question.paired else ()
    alone = question.samples_only and len(one) == len(other) == 1
    least = 1 if alone else 2
    paired = len(common) >= max(least, SHARE * min(len(one), len(other)))
    seeds = [common, common] if paired else [tuple(one), tuple(other)]
    if min(len(one), len(other)) < least or (alone and not paired):
        return None
    sides = [np.array([values[seed] for seed in of]) for values, of in zip((one, other), seeds, strict=True)]
    means = float(sides[0].mean()), float(sides[1].mean())
    relative = question.relative and question.mode == "min" and min(means) > 0
    scores = [_scores(side, mean, relative, question) for side, mean in zip(sides, means, strict=True)]
    samples = _over_samples(question, data, (candidate, rival), seeds, means, relative)
    variance, freedom = _over_seeds(scores, sides, paired=paired, relative=relative)
    # Equal without any group of samples, too: the predictions are the same, and rounding and bias are.
    same = paired and samples == (0.0, GROUPS - 1) and np.array_equal(scores[0], scores[1])
    step = data.resolution / (np.array(means) if relative else np.ones(2))
    rounding = 0.0 if same else float((step**2).sum()) / 12  # it adds at least this to a variance (Sheppard 1898)
    biased = not same and not relative and question.mode == "min"
    excess = _excess(data, (candidate, rival), seeds) if biased else (0.0, 0.0)
    count, used = min(map(len, scores)), common if paired else (*seeds[0], *seeds[1])
    estimate, variance = float(scores[0].mean() - scores[1].mean()), variance + rounding
    third = _third(scores, paired=paired) if question.skewed else 0.0
    return Pair(
        candidate, rival, used, paired, means, estimate, variance, freedom, count, samples, relative, excess, third
    )


def _third(scores: Sequence[Floats], *, paired: bool) -> float:
    """Return the third central moment of the difference of two means."""
    if paired:
        return _third_of_mean(scores[0] - scores[1])
    return _third_of_mean(scores[0]) - _third_of_mean(scores[1])


def _third_of_mean(values: Floats) -> float:
    """Return the third central moment of a mean, without bias; 0 below three values."""
    n = len(values)
    return float(((values - values.mean()) ** 3).sum()) / n / (n - 1) / (n - 2) if n > 2 else 0.0


def _over_seeds(
    scores: Sequence[Floats], values: Sequence[Floats], *, paired: bool, relative: bool
) -> tuple[float, float]:
    """Return the variance of the difference of one seed of each side, and its degrees of freedom."""
    of = _of_pairs if paired else _of_sides
    variance, freedom = of(scores[0], scores[1])
    if relative and min(map(min, values)) > 0:  # two large values and a small one spread far more than v/m − 1 says
        variance = max(variance, of(np.log(values[0]), np.log(values[1]))[0])
    return variance, freedom


def _excess(data: Data, names: tuple[str, str], seeds: Sequence[Sequence[Hashable]]) -> tuple[float, float]:
    """Return between which two values the difference of two means exceeds that over unlimited test samples."""
    one, other = (
        np.mean([data.excess.get(name, {}).get(seed, (0.0, 0.0)) for seed in of], axis=0)
        for name, of in zip(names, seeds, strict=True)
    )
    return float(one[0] - other[1]), float(one[1] - other[0])


def _of_pairs(one: Floats, other: Floats) -> tuple[float, float]:
    """Return the variance of paired differences and its degrees of freedom."""
    return float((one - other).var(ddof=1)) if len(one) > 1 else 0.0, len(one) - 1


def _of_sides(one: Floats, other: Floats) -> tuple[float, float]:
    """Return the same for separate seeds, for as many as the smaller side has.

    Degrees of freedom are Welch's (1947), but at most twice the smaller sample's. Without this limit, samples of 3 and
    12 normal values can have up to 13, since the 3 values may hardly vary by chance.
    """
    terms = [(float(side.var(ddof=1)) / len(side), len(side) - 1) for side in (one, other)]
    few = min(len(one), len(other))
    return few * sum(variance for variance, _ in terms), min(satterthwaite(*terms), 2 * (few - 1))


def _scores(values: Floats, mean: float, relative: bool, question: Question) -> Floats:
    """Return values on the scale of comparison, where smaller is better."""
    if relative:
        return np.asarray(np.log(mean) + values / mean - 1)
    return values if question.mode == "min" else -values


def _over_samples(
    question: Question,
    data: Data,
    names: tuple[str, str],
    seeds: Sequence[Sequence[Hashable]],
    means: tuple[float, float],
    relative: bool,
) -> tuple[float, int]:
    """Return the variance of the difference over test samples, and its degrees of freedom; 0 if unknown."""
    if not all(seed in data.left_out.get(name, {}) for name, of in zip(names, seeds, strict=True) for seed in of):
        return 0.0, 0
    tables = [
        np.stack([_scores(data.left_out[name][seed], mean, relative, question) for seed in of], axis=1)
        for name, of, mean in zip(names, seeds, means, strict=True)
    ]
    few = min(table.shape[1] for table in tables)  # without common seeds, sides are matched in order
    return shared_variance(tables[0][:, :few] - tables[1][:, :few])
