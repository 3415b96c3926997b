"""Binned calibration errors without their bias, and the bias itself.

A binned error of a perfectly calibrated network is not 0: labels are drawn, and each bin's mean misses its expectation.
The squared error's bias in a bin can be subtracted; that of ECE, an absolute value, is shown beside it instead.

Tests of the hypothesis that top confidences are right, each with an exact p, and the cutoff calibration error.

Under the hypothesis outcomes are independent draws with the confidences as probabilities: they are drawn `repetitions`
times, and p = (1 + how many draws have a statistic at least as large)/(1 + repetitions), which is at most α with a
probability of at most α at every sample size (Besag & Clifford 1989, Generalized Monte Carlo significance tests).

- Cutoff calibration error, sup over intervals I of |E[(r − c)·1[c ∈ I]]|: it can be estimated at rate n^−1/2 without
  bins, and bounds what a decision by thresholds of c can lose (Rossellini, Soloff, Barber, Ren & Willett 2025, Can a
  calibration metric be both testable and actionable?, arXiv:2502.19851).
- T-Cal: debiased squared errors of 2, 4, 8 … bins, each over its standard deviation under the hypothesis, the largest
  of which counts (Lee, Huang, Hassani & Dobriban 2023, T-Cal: An optimal test for the calibration of predictive models,
  arXiv:2203.01850; they reject where any exceeds its own critical value, by Bonferroni's rule).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import numpy as np

from trainables.metrics.base import METRICS, Floats, Integers, of_each_class, top_confidence
from trainables.metrics.binning import Bins, Scheme, bin_of_each, sums_by_bin

_BLOCK_ELEMENTS = 4_000_000  # repetitions × samples drawn at once: 32 MB in float64


def debiased_squared_error(
    confidence: Floats, outcome: Floats, bins: Bins = 15, scheme: Scheme = "equal_mass"
) -> float:
    """Return Σ_b n_b/n [(acc_b − conf_b)² − acc_b(1 − acc_b)/(n_b − 1)] of a confidence [N] and outcomes [N], 0 or 1.

    The expectation is that of the binned squared error without label noise; estimates may be negative. A bin of one
    sample, whose noise cannot be estimated, counts 0. Source: Kumar, Liang & Ma 2019, Verified uncertainty calibration,
    arXiv:1909.10155, definition 5.1.
    """
    index = bin_of_each(confidence, bins, scheme)
    count = np.bincount(index, minlength=bins)
    used = count > 1
    hits = sums_by_bin(index, outcome, bins)[used] / count[used]
    gap = hits - sums_by_bin(index, confidence, bins)[used] / count[used]
    return float(count[used] @ (gap**2 - hits * (1 - hits) / (count[used] - 1)) / len(confidence))


@METRICS.add("debiased_l2", label="debiased L2 error", range=(0, 1))
def debiased_l2(probabilities: Floats, targets: Integers, bins: Bins = 15, scheme: Scheme = "equal_mass") -> float:
    """Root of the binned squared error less label noise.

    Return the root of the debiased squared error of the top confidence, or 0 where the estimate is negative.

    For probabilities [N, K] and targets [N].

    Source: Kumar, Liang & Ma 2019, arXiv:1909.10155.

    Args:
        scheme: [Kumar, Liang & Ma 2019].
    """
    return float(np.sqrt(max(0.0, debiased_squared_error(*top_confidence(probabilities, targets), bins, scheme))))


@METRICS.add("cw_debiased_l2", label="class-wise debiased L2 error", range=(0, 1))
def classwise_debiased_l2(
    probabilities: Floats, targets: Integers, bins: Bins = 15, scheme: Scheme = "equal_mass"
) -> float:
    """Debiased_l2 over classes.

    Return the root of the mean over classes of the debiased squared error of p_k against 1[y = k], or 0.

    For probabilities [N, K] and targets [N]: the marginal calibration error of Kumar, Liang & Ma 2019.

    Source: Kumar, Liang & Ma 2019, arXiv:1909.10155.

    Args:
        scheme: [Kumar, Liang & Ma 2019].
    """
    each = of_each_class(partial(debiased_squared_error, bins=bins, scheme=scheme), probabilities, targets)
    return float(np.sqrt(max(0.0, float(np.mean(each)))))


@METRICS.add("ece_bias", label="ECE if calibrated", mode=None, range=(0, 1))
def ece_bias(
    probabilities: Floats,
    targets: Integers,
    bins: Bins = 15,
    scheme: Scheme = "equal_width",
    repetitions: Annotated[int, "[1, inf)"] = 200,
    seed: Annotated[int, "[0, inf)"] = 0,
) -> float:
    """The ECE that these confidences would have if they were right: compare `ece` with it.

    Return the mean ECE of a network with these confidences whose every confidence is right.

    What is right is drawn anew with the confidences as probabilities, `repetitions` times; an ECE near this number is
    no evidence of miscalibration (Bröcker & Smith 2007, Increasing the reliability of reliability diagrams;
    Vaicenavicius et al. 2019, arXiv:1902.06977, §4). `targets` do not enter.

    Source: Vaicenavicius et al. 2019, arXiv:1902.06977.

    Args:
        repetitions: [an error of 2 % of the bias].
        seed: [arbitrary].
    """
    confidence = probabilities.max(axis=1)
    index = bin_of_each(confidence, bins, scheme)
    order = np.argsort(index, kind="stable")
    confidence, starts = confidence[order], np.flatnonzero(np.diff(index[order], prepend=-1))
    expected = np.add.reduceat(confidence, starts)
    rng, block, total = np.random.default_rng(seed), max(1, _BLOCK_ELEMENTS // len(order)), 0.0
    for start in range(0, repetitions, block):
        drawn = rng.random((min(block, repetitions - start), len(order))) < confidence
        hits = np.add.reduceat(drawn, starts, axis=1, dtype=np.int64)
        total += float(np.abs(hits - expected).sum())
    return total / (repetitions * len(order))


#: Outcomes drawn at once: 16 MB in float64.
AT_ONCE = 2_000_000

#: log2 of T-Cal's finest bins; with 10,000 samples, ten in each.
FINEST = 10

Repetitions = Annotated[int, "[19, inf): of fewer p is never below .05"]
Seed = Annotated[int, "[0, inf)"]


def monte_carlo_p(
    confidence: Floats, outcome: Floats, statistic: Callable[[Floats], Floats], repetitions: int, seed: int
) -> float:
    """Return p of the hypothesis that `outcome` [N] was drawn with the probabilities `confidence` [N].

    Args:
        confidence: in [0, 1].
        outcome: 0 or 1.
        statistic: of outcomes [R, N], large against the hypothesis, [R].
        repetitions: of draws.
        seed: of them.
    """
    observed, rng, found = float(statistic(outcome[None])[0]), np.random.default_rng(seed), 0
    block = max(1, AT_ONCE // len(confidence))
    for start in range(0, repetitions, block):
        drawn = rng.random((min(block, repetitions - start), len(confidence))) < confidence
        found += int((statistic(drawn.astype(np.float64)) >= observed - 1e-12).sum())
    return (1 + found) / (1 + repetitions)


def cutoff_statistic(confidence: Floats) -> Callable[[Floats], Floats]:
    """Return the function from outcomes [R, N] to cutoff errors [R] of ascending confidences [N].

    The sum over an interval is a difference of two cumulative sums, between samples that are not tied.
    """
    ends = np.flatnonzero(np.diff(confidence, append=np.inf) > 0)

    def errors(outcome: Floats) -> Floats:
        sums = np.cumsum(outcome - confidence, axis=1)[:, ends]
        found: Floats = np.maximum(sums.max(axis=1), 0.0) - np.minimum(sums.min(axis=1), 0.0)
        return found / len(confidence)

    return errors


def t_cal_statistic(confidence: Floats) -> Callable[[Floats], Floats]:
    """Return the function from outcomes [R, N] to the largest standardised debiased error [R] of ascending [N].

    Of m bins, T = Σ_b [(Σ u)² − Σ u²]/n_b with u = r − c; its variance is Σ_b 2[(Σ v)² − Σ v²]/n_b², v = c(1 − c).
    """
    cell = np.minimum((confidence * 2**FINEST).astype(np.int64), 2**FINEST - 1)
    filled = np.unique(cell)
    starts = np.searchsorted(cell, filled)

    def at_scales(values: Floats) -> list[Floats]:
        """Return Σ of values [R, N] in bins [R, m] for m = 2^FINEST … 2."""
        found = [np.zeros((len(values), 2**FINEST))]
        found[0][:, filled] = np.add.reduceat(values, starts, axis=1)
        while found[-1].shape[1] > 2:
            found.append(found[-1][:, ::2] + found[-1][:, 1::2])
        return found

    counts = [np.maximum(each, 1.0) for each in at_scales(np.ones((1, len(confidence))))]
    noise = (confidence * (1 - confidence))[None]
    pairs = [s**2 - q for s, q in zip(at_scales(noise), at_scales(noise**2), strict=True)]
    spread = [np.sqrt(2 * (each / n**2).sum()) for each, n in zip(pairs, counts, strict=True)]

    def largest(outcome: Floats) -> Floats:
        residual = outcome - confidence
        found = np.zeros(len(outcome))
        for s, q, n, deviation in zip(at_scales(residual), at_scales(residual**2), counts, spread, strict=True):
            if deviation > 0:
                np.maximum(found, ((s**2 - q) / n).sum(axis=1) / deviation, out=found)
        return found

    return largest


def _ascending(probabilities: Floats, targets: Integers) -> tuple[Floats, Floats]:
    """Return top confidences [N] in ascending order and whether they are right [N]."""
    confidence, correct = top_confidence(probabilities, targets)
    order = np.argsort(confidence, kind="stable")
    return confidence[order], correct[order]


@METRICS.add("cutoff_error", label="cutoff error", range=(0, 1))
def cutoff_error(probabilities: Floats, targets: Integers) -> float:
    """Largest gap of hits and confidence over any interval of confidences, as a share of all samples.

    Return max over intervals I of |Σ_{c_i ∈ I} (r_i − c_i)|/n, c the top confidence and r whether it is right. No bins.

    Source: Rossellini, Soloff, Barber, Ren & Willett 2025, arXiv:2502.19851.
    """
    confidence, correct = _ascending(probabilities, targets)
    return float(cutoff_statistic(confidence)(correct[None])[0])


@METRICS.add("cutoff_p", label="p of the cutoff error", mode=None, range=(0, 1))
def cutoff_p(probabilities: Floats, targets: Integers, repetitions: Repetitions = 999, seed: Seed = 0) -> float:
    """P of the hypothesis that top confidences are right, by cutoff_error.

    Return the share of simulated calibrated outcomes whose cutoff error is at least as large; exact at every n.

    Source: Rossellini, Soloff, Barber, Ren & Willett 2025, arXiv:2502.19851; Besag & Clifford 1989.

    Args:
        repetitions: [p down to .001].
        seed: [arbitrary].
    """
    confidence, correct = _ascending(probabilities, targets)
    return monte_carlo_p(confidence, correct, cutoff_statistic(confidence), repetitions, seed)


@METRICS.add("t_cal_p", label="p of T-Cal", mode=None, range=(0, 1))
def t_cal_p(probabilities: Floats, targets: Integers, repetitions: Repetitions = 999, seed: Seed = 0) -> float:
    """P of the hypothesis that top confidences are right, by debiased errors of 2 to 1,024 bins.

    Return the share of simulated calibrated outcomes whose largest standardised debiased error, over numbers of bins,
    is at least as large; exact at every n. It sees errors that change sign quickly, which cutoff_p averages out.

    Source: Lee, Huang, Hassani & Dobriban 2023, arXiv:2203.01850; Besag & Clifford 1989.

    Args:
        repetitions: [p down to .001].
        seed: [arbitrary].
    """
    confidence, correct = _ascending(probabilities, targets)
    return monte_carlo_p(confidence, correct, t_cal_statistic(confidence), repetitions, seed)
