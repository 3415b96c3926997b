"""Calibration errors without bins: squared kernel calibration error (SKCE) with a test, and smooth ECE.

SKCE takes the whole probability vector and has an unbiased estimate:

    SKCE = E[(e_Y − p)ᵀ (e_Y' − p') k(p, p')],   k(p, p') = exp(−‖p − p'‖₂/ν),

over two independent samples, where e_y is the one-hot vector of y (Widmann, Lindsten & Zachariah 2019, Calibration
tests in multi-class classification: a unifying framework, arXiv:1910.11385, §4). It is 0 if and only if the network is
calibrated in the strongest sense, for all classes jointly. An unbiased estimate can be negative. ν is the median
distance between pairs of predictions (their §8).

Smooth calibration error needs no choice of a bandwidth:

    smECE_σ = ∫₀¹ |(1/n) Σ_i (y_i − c_i) K_σ(t, c_i)| dt,   smECE = the σ with smECE_σ = σ,

with K_σ the Gaussian kernel reflected at 0 and 1 (Błasiok & Nakkiran 2023, Smooth ECE: principled reliability diagrams
via kernel smoothing, arXiv:2309.12236, definitions 3 to 5). smECE_σ falls as σ grows, so there is one such σ. smECE is
within constant factors of the distance to the nearest calibrated predictor and, unlike ECE, continuous in the
predictions.

Smoothing with a reflected Gaussian kernel is diffusion on [0, 1] between walls. A cosine transform turns it into a
product, so the search for σ takes a few transforms of a grid of `CELLS` cells for any number of samples.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from trainables.metrics.base import METRICS, Floats, Integers, of_each_class, top_confidence

#: Rows of the kernel matrix computed at a time: 41 MB in float64 for 10,000 samples.
BLOCK_ROWS = 512

#: Number of evenly spaced samples for the median distance, whose cost is quadratic.
MEDIAN_OF = 1000


@METRICS.add("skce", label="SKCE", mode="min", range=(-math.inf, math.inf))
def squared_kernel_calibration_error(probabilities: Floats, targets: Integers) -> float:
    """Squared kernel calibration error of all probabilities, unbiased: can be below 0.

    Return the mean of (e_y − p)ᵀ(e_y' − p') exp(−‖p − p'‖₂/ν) over all pairs of samples, for probabilities [N, K] and
    targets [N]; NaN for one sample. It takes N²K operations: about two seconds on one core for 10,000 samples of 100
    classes.

    Source: Widmann, Lindsten & Zachariah 2019, arXiv:1910.11385, §4.

    Example:
        >>> probabilities = np.array([[0.75, 0.25]] * 4)
        >>> squared_kernel_calibration_error(probabilities, np.array([0, 0, 0, 0]))  # residuals (1/4, −1/4), k = 1
        0.125
    """
    samples = len(targets)
    if samples < 2:
        return float("nan")
    residual, width = _residuals(probabilities, targets), bandwidth(probabilities)
    squares = np.einsum("nk,nk->n", probabilities, probabilities)
    total = 0.0
    for start in range(0, samples, BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, samples))
        later = slice(start, samples)
        kernel = _kernel(probabilities[rows], squares[rows], probabilities[later], squares[later], width)
        kernel *= residual[rows] @ residual[later].T
        size = kernel.shape[0]
        # within the block each pair occurs twice, and a sample is not paired with itself, which would bias the estimate
        own = kernel[:, :size]
        total += float(kernel[:, size:].sum()) + float((own.sum() - np.trace(own)) / 2)
    return 2 * total / (samples * (samples - 1))


@METRICS.add("skce_p", label="p of the SKCE test", mode=None, range=(0, 1))
def kernel_calibration_p(
    probabilities: Floats,
    targets: Integers,
    block: Annotated[int, "[2, inf)"] = 10,
    seed: Annotated[int, "[0, inf)"] = 0,
) -> float:
    """P-value of the hypothesis of calibration, by SKCE of blocks.

    Return p of the hypothesis that probabilities [N, K] are calibrated; it is small if SKCE exceeds 0 beyond chance.

    The samples, in random order, are divided into blocks. Under the hypothesis, the estimates of SKCE per block are
    independent with mean 0. A one-sided Student's t test compares their mean with its standard error. `block` = 2 is
    the paper's linear estimator (their lemma 4), which has little power. Larger blocks have more power, take block·N·K
    operations, and are conservative: blocks of 10 of 200 samples reject in .028 of cases instead of .05. NaN below two
    blocks.

    Source: Widmann, Lindsten & Zachariah 2019, arXiv:1910.11385, lemma 4.

    Args:
        block: [ours: pairs (Widmann et al., lemma 4) have little power].
        seed: [arbitrary].

    Example:
        >>> probabilities, targets = np.array([[0.9, 0.1]] * 200), np.arange(200) % 2  # half of the samples are right
        >>> kernel_calibration_p(probabilities, targets) < 0.001
        True
    """
    count = len(targets) // block
    if count < 2 or block < 2:
        return float("nan")
    from scipy.special import stdtr

    # shuffled: files are often sorted by class, and blocks must be independent draws
    chosen = np.random.default_rng(seed).permutation(len(targets))[: count * block]
    width = bandwidth(probabilities)
    classes = probabilities.shape[1]
    near = probabilities[chosen].reshape(count, block, classes)
    residual = _residuals(probabilities, targets)[chosen].reshape(count, block, classes)
    squares = np.einsum("bik,bik->bi", near, near)
    distance = squares[:, :, None] + squares[:, None, :] - 2 * (near @ near.transpose(0, 2, 1))
    terms = np.exp(-np.sqrt(np.maximum(distance, 0.0)) / width) * (residual @ residual.transpose(0, 2, 1))
    pairs = terms.sum(axis=(1, 2)) - np.trace(terms, axis1=1, axis2=2)
    error = float(pairs.std(ddof=1)) / math.sqrt(count)
    # all blocks equal: no spread to compare with, so no evidence
    return float(stdtr(count - 1, -float(pairs.mean()) / error)) if error > 0 else 1.0


def bandwidth(probabilities: Floats) -> float:
    """Return ν, the median distance between pairs of `MEDIAN_OF` evenly spaced predictions; 1 if the median is 0."""
    chosen = probabilities[np.linspace(0, len(probabilities) - 1, min(MEDIAN_OF, len(probabilities))).astype(np.int64)]
    squares = np.einsum("nk,nk->n", chosen, chosen)
    distance = squares[:, None] + squares[None, :] - 2 * (chosen @ chosen.T)
    # the root is monotone: the median of the squares needs only one root
    median = float(np.median(distance[np.triu_indices(len(chosen), 1)])) if len(chosen) > 1 else 0.0
    return math.sqrt(median) if median > 1e-12 else 1.0


def _residuals(probabilities: Floats, targets: Integers) -> Floats:
    residual = -probabilities
    residual[np.arange(len(targets)), targets] += 1.0
    return residual


def _kernel(first: Floats, first_squares: Floats, second: Floats, second_squares: Floats, width: float) -> Floats:
    # in place: the block is the largest array here, and every temporary would double the memory
    distance: Floats = first @ second.T
    distance *= -2.0
    distance += first_squares[:, None]
    distance += second_squares[None, :]
    # ‖p‖² + ‖q‖² − 2pᵀq of equal rows can round below 0
    np.maximum(distance, 0.0, out=distance)
    np.sqrt(distance, out=distance)
    distance *= -1.0 / width
    return np.exp(distance, out=distance)


#: Cells of [0, 1]; each residual is divided linearly between the two cells around its confidence. A cell is a twentieth
#: of σ = .005, a typical value of well calibrated networks on 10,000 samples.
CELLS = 4096


def smooth_calibration_error(confidence: Floats, outcome: Floats) -> float:
    """Return smECE of a confidence [N] in [0, 1] against outcomes [N], which are 1 or 0, or probabilities.

    Example:
        >>> round(smooth_calibration_error(np.full(100, 0.7), np.tile([1.0, 0.0], 50)), 4)  # |0.5 − 0.7|
        0.2
    """
    from scipy.fft import dct, idct
    from scipy.optimize import brentq

    place = np.clip(confidence * CELLS - 0.5, 0.0, CELLS - 1.0)
    cell = np.minimum(place.astype(np.int64), CELLS - 2)
    share = place - cell
    residual = (outcome - confidence) / len(confidence)
    spread = np.bincount(cell, weights=(1 - share) * residual, minlength=CELLS)
    spread += np.bincount(cell + 1, weights=share * residual, minlength=CELLS)
    waves = dct(spread, norm="ortho")
    decay = -0.5 * (np.pi * np.arange(CELLS)) ** 2

    def excess(sigma: float) -> float:
        return float(np.abs(idct(waves * np.exp(decay * sigma**2), norm="ortho")).sum()) - sigma

    # Rounding leaves 1e-17 of residuals that cancel. At σ = 2 the smoothed residual is at most 1: the root is below.
    return float(brentq(excess, 0.0, 2.0, xtol=1e-9)) if excess(0.0) > 1e-12 else 0.0


@METRICS.add("smooth_ece", label="smooth ECE", mode="min", range=(0, 1))
def smooth_ece(probabilities: Floats, targets: Integers) -> float:
    """Calibration error without bins, of the top confidence.

    Return smECE, the σ with smECE_σ = σ, of the top confidence of probabilities [N, K] against targets [N].

    Source: Błasiok & Nakkiran 2023, arXiv:2309.12236, definitions 3 to 5.

    Example:
        >>> round(smooth_ece(np.array([[0.7, 0.3]] * 100), np.tile([0, 1], 50)), 4)
        0.2
    """
    return smooth_calibration_error(*top_confidence(probabilities, targets))


@METRICS.add("cw_smooth_ece", label="class-wise smooth ECE", mode="min", range=(0, 1))
def classwise_smooth_ece(probabilities: Floats, targets: Integers) -> float:
    """Smooth ECE of each class, averaged.

    Return the mean over classes k of smECE of p_k against 1[y = k], for probabilities [N, K] and targets [N].

    Source: Błasiok & Nakkiran 2023, arXiv:2309.12236, definitions 3 to 5.

    Example:
        >>> round(classwise_smooth_ece(np.array([[0.7, 0.3]] * 100), np.tile([0, 1], 50)), 4)
        0.2
    """
    return float(np.mean(of_each_class(smooth_calibration_error, probabilities, targets)))
