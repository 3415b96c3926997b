"""Binned calibration errors without their bias, the bias itself, and exact tests of calibration.

A binned error of a perfectly calibrated network is not 0, because labels are random and the mean of a bin differs from
its expectation. The bias of a squared error can be subtracted per bin. The bias of ECE, a sum of absolute values,
cannot, so `ece_bias` estimates it.

The tests of the hypothesis that top confidences are calibrated have an exact p. Under the hypothesis, outcomes are
independent draws with the confidences as probabilities. They are drawn `repetitions` times, and p = (1 + number of
draws with a statistic at least as large)/(1 + repetitions). At every sample size, p is at most α with probability at
most α (Besag & Clifford 1989, Generalized Monte Carlo significance tests).

- Cutoff calibration error, sup over intervals I of |E[(r − c)·1[c ∈ I]]|: it can be estimated without bins at rate
  n^−1/2. It bounds the loss of a decision by thresholds of c (Rossellini, Soloff, Barber, Ren & Willett 2025, Can a
  calibration metric be both testable and actionable?, arXiv:2502.19851).
- T-Cal: the largest of the debiased squared errors of 2, 4, 8 … bins, each divided by its standard deviation under the
  hypothesis (Lee, Huang, Hassani & Dobriban 2023, T-Cal: An optimal test for the calibration of predictive models,
  arXiv:2203.01850; they instead reject if any exceeds its own critical value, by Bonferroni's rule).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import numpy as np

from trainables.metrics.base import METRICS, Floats, Integers, of_each_class, top_confidence
from trainables.metrics.binning import Bins, Scheme, binning_of

#: A bin's gap has a standard error σ and the mean g. Its absolute value exceeds |g| by σ·E(|Z + μ| − |μ|), with μ = g/σ
#: and Z standard normal: .8σ at μ = 0, hardly anything from μ = 2 on. No function of the measured z has this mean
#: exactly. Those of LEAST and MOST, Σ a·exp(−z²/2s²) with pairs (a, s), have a mean below and above it at every μ; a
#: linear program found the closest ones with Σ|a| ≤ 2.
LEAST, MOST = ((1.47, 0.5), (-0.53, 1.0)), ((1.784, 0.5),)

_BLOCK_ELEMENTS = 4_000_000  # repetitions × samples drawn at once: 32 MB in float64 for any sample size


def debiased_squared_error(
    confidence: Floats, outcome: Floats, bins: Bins = 15, scheme: Scheme = "equal_mass"
) -> float:
    """Return Σ_b n_b/n [(acc_b − conf_b)² − acc_b(1 − acc_b)/(n_b − 1)] of a confidence [N] and outcomes [N], 0 or 1.

    Its expectation is the binned squared error without label noise; estimates can be negative (Kumar, Liang & Ma 2019,
    Verified uncertainty calibration, arXiv:1909.10155, definition 5.1).

    Example:
        >>> debiased_squared_error(np.full(4, 0.5), np.array([1.0, 0.0, 1.0, 1.0]), bins=1)  # 1/4² − (3/4)(1/4)/3
        0.0
    """
    binning = binning_of(confidence, bins, scheme)
    count, squares = binning.counts()
    # samples tied across a bound count in several bins, whose means vary less: by 1/n_b with n_b = (Σ w)²/Σ w²
    effective = np.divide(count**2, squares, out=np.zeros(bins), where=count > 0)
    # the noise of a single sample cannot be estimated: its bin counts 0
    used = effective > 1
    hits = binning.sums(outcome)[used] / count[used]
    gap = hits - binning.sums(confidence)[used] / count[used]
    return float(count[used] @ (gap**2 - hits * (1 - hits) / (effective[used] - 1)) / len(confidence))


def ece_excess(
    confidence: Floats, outcome: Floats, bins: Bins = 15, scheme: Scheme = "equal_width"
) -> tuple[float, float]:
    """Return between which two values the binned ECE of so many samples exceeds that of unlimited ones, in the mean.

    A bin's gap never is 0 by chance, so few samples make a small error look larger, and hardly change a large one.

    Example:
        >>> low, high = ece_excess(np.full(100, 0.5), np.arange(100) % 2)  # no gap at all: about .4·0.05 and .8·0.05
        >>> round(low, 2), round(high, 2)
        (0.05, 0.09)
    """
    binning = binning_of(confidence, bins, scheme)
    (count, _), gap = binning.counts(), binning.sums(confidence - outcome)
    # Of few samples the outcomes may not vary at all. Their variance is then that of a calibrated network.
    residual = binning.sums((confidence - outcome) ** 2) - gap**2 / np.maximum(count, 1)
    error = np.sqrt(np.maximum(residual, binning.sums(confidence * (1 - confidence))))
    z = np.divide(gap, error, out=np.zeros(bins), where=error > 0)
    low, high = (sum(a * np.exp(-((z / s) ** 2) / 2) for a, s in terms) for terms in (LEAST, MOST))
    return float(error @ low) / len(confidence), float(error @ high) / len(confidence)


@METRICS.add("debiased_l2", label="debiased L2 error", mode="min", range=(0, 1))
def debiased_l2(probabilities: Floats, targets: Integers, bins: Bins = 15, scheme: Scheme = "equal_mass") -> float:
    """Root of the binned squared error minus label noise.

    Return √max(0, `debiased_squared_error`) of the top confidence, for probabilities [N, K] and targets [N].

    Source: Kumar, Liang & Ma 2019, arXiv:1909.10155, definition 5.1.

    Args:
        scheme: [Kumar, Liang & Ma 2019].

    Example:
        >>> probabilities = np.array([[0.9, 0.1]] * 4)
        >>> round(debiased_l2(probabilities, np.array([0, 0, 1, 1]), bins=1), 4)  # √(0.4² − 1/12)
        0.2769
    """
    return float(np.sqrt(max(0.0, debiased_squared_error(*top_confidence(probabilities, targets), bins, scheme))))


@METRICS.add("cw_debiased_l2", label="class-wise debiased L2 error", mode="min", range=(0, 1))
def classwise_debiased_l2(
    probabilities: Floats, targets: Integers, bins: Bins = 15, scheme: Scheme = "equal_mass"
) -> float:
    """Root of the binned squared error minus label noise, averaged over classes.

    Return √max(0, mean over k of `debiased_squared_error` of p_k against 1[y = k]), for probabilities [N, K] and
    targets [N]: the marginal calibration error.

    Source: Kumar, Liang & Ma 2019, arXiv:1909.10155, definition 5.1.

    Args:
        scheme: [Kumar, Liang & Ma 2019].

    Example:
        >>> probabilities = np.array([[0.9, 0.1]] * 4)
        >>> round(classwise_debiased_l2(probabilities, np.array([0, 0, 1, 1]), bins=1), 4)
        0.2769
    """
    errors = of_each_class(partial(debiased_squared_error, bins=bins, scheme=scheme), probabilities, targets)
    return float(np.sqrt(max(0.0, float(np.mean(errors)))))


@METRICS.add("ece_bias", label="ECE if calibrated", mode=None, range=(0, 1))
def ece_bias(
    probabilities: Floats,
    targets: Integers,
    bins: Bins = 15,
    scheme: Scheme = "equal_width",
    repetitions: Annotated[int, "[1, inf)"] = 200,
    seed: Annotated[int, "[0, inf)"] = 0,
) -> float:
    """The ECE that these confidences would have if they were calibrated: compare `ece` with it.

    Return the mean ECE over `repetitions` draws of correctness, with the confidences as probabilities. An ECE near this
    number is no evidence of miscalibration (Bröcker & Smith 2007, Increasing the reliability of reliability diagrams;
    Vaicenavicius et al. 2019, arXiv:1902.06977, §4). `targets` are not used.

    Source: Vaicenavicius et al. 2019, arXiv:1902.06977, §4.

    Args:
        repetitions: [an error of 2 % of the bias].
        seed: [arbitrary].

    Example:
        >>> probabilities, targets = np.full((100, 2), 0.5), np.zeros(100, dtype=np.int64)
        >>> round(ece_bias(probabilities, targets), 2)  # about √(2/π)·0.5/√100
        0.04
    """
    confidence = probabilities.max(axis=1)
    binning = binning_of(confidence, bins, scheme)
    order = np.argsort(binning.cell, kind="stable")
    cells, starts = np.unique(binning.cell[order], return_index=True)
    confidence = confidence[order]
    expected = np.add.reduceat(confidence, starts)
    rng, block, total = np.random.default_rng(seed), max(1, _BLOCK_ELEMENTS // len(order)), 0.0
    for start in range(0, repetitions, block):
        drawn = rng.random((min(block, repetitions - start), len(order))) < confidence
        hits = np.add.reduceat(drawn, starts, axis=1, dtype=np.int64)
        gaps = hits - expected
        if binning.membership is not None:
            gaps = gaps @ binning.membership[cells]
        total += float(np.abs(gaps).sum())
    return total / (repetitions * len(order))


#: Outcomes drawn at once: 16 MB in float64, and the statistics hold a few arrays of this size.
AT_ONCE = 2_000_000

#: log2 of the number of T-Cal's finest bins; 10,000 samples then have ten in each.
FINEST = 10

Repetitions = Annotated[int, "[19, inf): with fewer, p is never at most .05"]
Seed = Annotated[int, "[0, inf)"]


def monte_carlo_p(
    confidence: Floats, outcome: Floats, statistic: Callable[[Floats], Floats], repetitions: int, seed: int
) -> float:
    """Return p of the hypothesis that `outcome` [N] was drawn with the probabilities `confidence` [N].

    Args:
        confidence: probabilities in [0, 1].
        outcome: outcomes, 0 or 1.
        statistic: function from outcomes [R, N] to a number [R] that is large if the hypothesis is false.
        repetitions: number of draws.
        seed: seed of the draws.

    Example:
        >>> confidence, always_wrong = np.full(20, 0.9), np.zeros(20)
        >>> monte_carlo_p(confidence, always_wrong, cutoff_statistic(confidence), repetitions=99, seed=0)
        0.01
    """
    observed, rng, as_large = float(statistic(outcome[None])[0]), np.random.default_rng(seed), 0
    block = max(1, AT_ONCE // len(confidence))
    for start in range(0, repetitions, block):
        drawn = rng.random((min(block, repetitions - start), len(confidence))) < confidence
        # equal statistics differ by the rounding of their sums; counting them as ties keeps p valid
        as_large += int((statistic(drawn.astype(np.float64)) >= observed - 1e-12).sum())
    # + 1: the data are one of the draws under the hypothesis; without it p could be 0
    return (1 + as_large) / (1 + repetitions)


def cutoff_statistic(confidence: Floats) -> Callable[[Floats], Floats]:
    """Return the function from outcomes [R, N] to cutoff errors [R] of ascending confidences [N]."""
    # The sum over an interval is a difference of two cumulative sums; an interval holds all tied samples or none.
    ends = np.flatnonzero(np.diff(confidence, append=np.inf) > 0)

    def errors(outcome: Floats) -> Floats:
        sums = np.cumsum(outcome - confidence, axis=1)[:, ends]
        # 0 is the sum before the first sample
        largest: Floats = np.maximum(sums.max(axis=1), 0.0) - np.minimum(sums.min(axis=1), 0.0)
        return largest / len(confidence)

    return errors


def t_cal_statistic(confidence: Floats) -> Callable[[Floats], Floats]:
    """Return the function from outcomes [R, N] to the largest standardised debiased errors [R], for ascending c [N].

    For m bins, T = Σ_b [(Σ u)² − Σ u²]/n_b with u = r − c; its variance is Σ_b 2[(Σ v)² − Σ v²]/n_b², v = c(1 − c).
    """
    cell = np.minimum((confidence * 2**FINEST).astype(np.int64), 2**FINEST - 1)
    filled = np.unique(cell)
    starts = np.searchsorted(cell, filled)

    def at_scales(values: Floats) -> list[Floats]:
        """Return Σ of values [R, N] in bins [R, m] for m = 2^FINEST … 2."""
        sums = [np.zeros((len(values), 2**FINEST))]
        # only filled cells: `reduceat` returns an element instead of 0 for an empty range
        sums[0][:, filled] = np.add.reduceat(values, starts, axis=1)
        while sums[-1].shape[1] > 2:
            sums.append(sums[-1][:, ::2] + sums[-1][:, 1::2])
        return sums

    counts = [np.maximum(count, 1.0) for count in at_scales(np.ones((1, len(confidence))))]
    noise = (confidence * (1 - confidence))[None]
    pairs = [s**2 - q for s, q in zip(at_scales(noise), at_scales(noise**2), strict=True)]
    spread = [np.sqrt(2 * (pair / n**2).sum()) for pair, n in zip(pairs, counts, strict=True)]

    def largest(outcome: Floats) -> Floats:
        residual = outcome - confidence
        statistic = np.zeros(len(outcome))
        for s, q, n, deviation in zip(at_scales(residual), at_scales(residual**2), counts, spread, strict=True):
            if deviation > 0:  # 0 if no bin holds two uncertain samples
                np.maximum(statistic, ((s**2 - q) / n).sum(axis=1) / deviation, out=statistic)
        return statistic

    return largest


def _ascending(probabilities: Floats, targets: Integers) -> tuple[Floats, Floats]:
    """Return the top confidences [N] in ascending order and the correctness of their predictions [N]."""
    confidence, correct = top_confidence(probabilities, targets)
    order = np.argsort(confidence)
    return confidence[order], correct[order]


@METRICS.add("cutoff_error", label="cutoff error", mode="min", range=(0, 1))
def cutoff_error(probabilities: Floats, targets: Integers) -> float:
    """Largest gap between hits and confidence over any interval of confidences, as a share of all samples.

    Return max over intervals I of |Σ_{c_i ∈ I} (r_i − c_i)|/n, with c the top confidence and r its correctness. There
    are no bins.

    Source: Rossellini, Soloff, Barber, Ren & Willett 2025, arXiv:2502.19851.

    Example:
        >>> probabilities = np.array([[0.75, 0.25], [0.75, 0.25], [1.0, 0.0], [1.0, 0.0]])
        >>> cutoff_error(probabilities, np.array([0, 0, 1, 0]))  # the interval [1, 1]: one error of four samples
        0.25
    """
    confidence, correct = _ascending(probabilities, targets)
    return float(cutoff_statistic(confidence)(correct[None])[0])


@METRICS.add("cutoff_p", label="p of the cutoff error", mode=None, range=(0, 1))
def cutoff_p(probabilities: Floats, targets: Integers, repetitions: Repetitions = 999, seed: Seed = 0) -> float:
    """P-value of the hypothesis that top confidences are calibrated, by cutoff_error.

    Return the share of simulated calibrated outcomes with an equal or larger cutoff error. The p-value is exact at
    every n.

    Source: Rossellini, Soloff, Barber, Ren & Willett 2025, arXiv:2502.19851; Besag & Clifford 1989.

    Args:
        repetitions: [p down to .001].
        seed: [arbitrary].

    Example:
        >>> probabilities = np.array([[0.9, 0.1]] * 20)
        >>> cutoff_p(probabilities, np.ones(20, dtype=np.int64), repetitions=99)  # every prediction is wrong
        0.01
    """
    confidence, correct = _ascending(probabilities, targets)
    return monte_carlo_p(confidence, correct, cutoff_statistic(confidence), repetitions, seed)


@METRICS.add("t_cal_p", label="p of T-Cal", mode=None, range=(0, 1))
def t_cal_p(probabilities: Floats, targets: Integers, repetitions: Repetitions = 999, seed: Seed = 0) -> float:
    """P-value of the hypothesis that top confidences are calibrated, by debiased errors of 2 to 1,024 bins.

    Return the share of simulated calibrated outcomes with an equal or larger statistic: the largest standardised
    debiased error over all numbers of bins. The p-value is exact at every n. The test detects errors that change sign
    quickly, which cutoff_p averages out.

    Source: Lee, Huang, Hassani & Dobriban 2023, arXiv:2203.01850; Besag & Clifford 1989.

    Args:
        repetitions: [p down to .001].
        seed: [arbitrary].

    Example:
        >>> probabilities = np.array([[0.9, 0.1]] * 20)
        >>> t_cal_p(probabilities, np.ones(20, dtype=np.int64), repetitions=99)  # every prediction is wrong
        0.01
    """
    confidence, correct = _ascending(probabilities, targets)
    return monte_carlo_p(confidence, correct, t_cal_statistic(confidence), repetitions, seed)
