"""Refinement and calibration error: the part of a proper score that a temperature cannot correct, and the rest.

Refinement is the score after temperature scaling, cross-fitted on the same samples; calibration is the rest:

    score = refinement + calibration

Each of K = 5 folds is scaled by the temperature with the smallest NLL on the other folds, and mixed with the uniform
distribution at weight 1/(n + 1), where n is the number of samples used to fit the temperature. Perfectly separated
samples, whose temperature goes to 0, therefore cost at most log((n + 1)·classes) each. The mean is over all samples,
each held out once. Folds depend on the labels alone: the samples of each class are assigned, in order, to the folds in
turn. This is the definition of Berta, Holzmüller, Jordan & Bach 2025 (Rethinking Early Stopping: Refine, Then
Calibrate; arXiv:2501.19195), as their package probmetrics computes `refinement_logloss_ts-mix_cv-5`, except that the
package shuffles the folds.

Calibration can be slightly negative for a calibrated network, because a fitted temperature has an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainables.metrics.base import METRICS, Floats, Integers, finite_logits

#: K: with five folds a temperature is fitted on 80 % of the samples; probmetrics has five, too.
FOLDS = 5

_PARTS = {
    "refinement": ("part of the score that no temperature corrects", 0.0),
    "calibration": ("part of the score that a temperature corrects", -math.inf),
}
_LOSSES = {"nll": "NLL", "brier": "Brier score"}
#: Columns of each split in an evaluation: the scores after cross-fitted temperature scaling, and the differences.
REFINEMENT_COLUMNS = tuple(f"{part}_{score}" for part in _PARTS for score in _LOSSES)

for _name in REFINEMENT_COLUMNS:
    _part, _, _score = _name.partition("_")
    METRICS.add(
        _name,
        _PARTS[_part][0],
        "Berta, Holzmüller, Jordan & Bach 2025, arXiv:2501.19195",
        label=f"{_part} {_LOSSES[_score]}",
        mode="min",
        range=(_PARTS[_part][1], math.inf),
        always=True,
        headline=_name == "refinement_nll",
        needs="logits",
    )(lambda probabilities, targets: math.nan)

#: Inverse temperatures are searched between e^−16 and e^16, as in probmetrics.
LOG_BOUND = 16.0

#: Number of samples on which the search begins; the temperature of a fold is within a few per cent of theirs.
SAMPLED = 1000

#: An expansion is trusted if its last term is at most this share of its first; the neglected terms are far smaller.
TRUSTED = 1e-3

#: An expansion about the mean of the roots is not tried if its expected error exceeds this multiple of `TRUSTED`.
HOPELESS = 1.2

#: Number of logits from which expansions are tried: each set of a small sample is as quickly searched.
WORTH_EXPANDING = 2**13

#: Relative step of β after which Newton's method stops: it squares the error, so the next step would be 1e-12.
SMALL_STEP = 1e-6

#: Relative step of β below which further steps change only rounding.
SETTLED = 1e-15

#: Relative accuracy of β where its bracket is halved.
ROUNDING = 1e-10

#: Number of logits from which float32 is used: the error of each sample, below 1e-6, cancels in the mean.
SINGLE_PRECISION = 2**16

Logits = NDArray[np.floating[Any]]


def folds_of(targets: ArrayLike, folds: int = FOLDS) -> Integers:
    """Return the fold of each sample [N], 0 … `folds` − 1: the samples of each class are dealt out in turn, in order.

    Example:
        >>> folds_of([0, 1, 0, 0, 1], folds=2).tolist()
        [0, 1, 1, 0, 0]
    """
    labels = np.asarray(targets)
    if labels.size and labels.max() < 2**15:
        labels = labels.astype(np.int16)  # numpy sorts 16-bit integers by radix, four times as fast
    fold = np.empty(len(labels), dtype=np.int64)
    fold[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % folds
    return fold


def refinement_columns(refined: Refinement, scores: Mapping[str, float]) -> dict[str, float]:
    """Return the columns of `REFINEMENT_COLUMNS`, all NaN with fewer samples than folds.

    `scores` are `nll` (nats) and `brier` (Σ_k (p_k − 1[k=y])²) of the softmax; each pair of columns adds up to one of
    them.
    """
    values = (refined.nll, refined.brier, scores["nll"] - refined.nll, scores["brier"] - refined.brier)
    return dict(zip(REFINEMENT_COLUMNS, values, strict=True))


@dataclass(frozen=True)
class Refinement:
    """Scores after cross-fitted temperature scaling.

    Attributes:
        nll, brier: means over all samples.
        temperatures: temperature of each fold, fitted on the others.
    """

    nll: float
    brier: float
    temperatures: tuple[float, ...]


def refinement(logits: ArrayLike, targets: ArrayLike) -> Refinement:
    """Return the scores of logits [N, K] after cross-fitted temperature scaling; NaN with fewer samples than folds.

    Example:
        >>> logits = np.array([[4.0, 0.0]] * 40)
        >>> refined = refinement(logits, np.arange(40) % 4 == 0)  # 3/4 are right: p should be 0.75, not 0.98
        >>> round(refined.nll, 2), round(refined.temperatures[0], 1)
        (0.56, 3.6)
    """
    (found,) = refinements(np.asarray(logits)[None], targets)
    return found


def refinements(logits: ArrayLike, targets: ArrayLike) -> list[Refinement]:
    """Return the `refinement` of each network from logits [L, N, K] for the same samples.

    A network's result does not depend on the others, to the last bit.
    """
    given, labels = finite_logits(logits), np.asarray(targets, dtype=np.int64)
    networks, samples, classes = given.shape
    if samples < FOLDS:
        return [Refinement(float("nan"), float("nan"), ())] * networks
    precision = np.float32 if samples * classes >= SINGLE_PRECISION else np.float64
    values: Logits = np.array(given, precision, order="C")
    values -= values.max(axis=-1, keepdims=True)
    own = np.take_along_axis(values, labels[None, :, None], axis=-1)[..., 0].astype(np.float64)
    fold = folds_of(labels)
    kept = (fold != np.arange(FOLDS)[:, None]).astype(np.float64)
    inverse = _inverse_temperatures(values, own, kept)
    beta = np.take(inverse, fold, axis=1)
    scaled = _weights(values, beta.astype(values.dtype)[..., None])
    total = _sums(scaled)
    squares = np.einsum("...k,...k->...", scaled, scaled).astype(np.float64) / total**2
    # the mixture's probability of the target and its Σ p², from sums over rows: no second [L, N, K] array
    fitted_on = samples - np.bincount(fold, minlength=FOLDS)
    uniform = (1.0 / (fitted_on + 1.0))[fold]
    remaining = 1.0 - uniform
    of_target = remaining * np.exp(beta * own) / total + uniform / classes
    second_moment = remaining**2 * squares + (2.0 * remaining + uniform) * uniform / classes
    nll, brier = -np.log(of_target).mean(axis=-1), (second_moment - 2.0 * of_target + 1.0).mean(axis=-1)
    temperatures = (1.0 / inverse).tolist()
    return [Refinement(*row) for row in zip(nll.tolist(), brier.tolist(), map(tuple, temperatures), strict=True)]


def _inverse_temperatures(values: Logits, own: Floats, kept: Floats) -> Floats:
    """Return β = 1/T with the smallest NLL on the samples of each set [L, FOLDS].

    Each network's search begins at the β of a few samples, of all sets together.

    Args:
        values: logits minus the maximum of their row [L, N, K].
        own: values of the target classes [L, N].
        kept: 1 if a sample is in a set, which is all other folds, else 0 [FOLDS, N].
    """
    step = max(1, values.shape[1] // SAMPLED)
    few = np.ascontiguousarray(values[:, ::step].swapaxes(1, 2), dtype=np.float64)
    spread = np.sqrt(np.square(few).mean(axis=(1, 2)))
    start = 1.0 / np.where(spread > 0, spread, 1.0)
    of_few = own[:, ::step]
    common = _search(few, of_few, np.ones((1, of_few.shape[1])), start[:, None], tolerance=1e-3)
    if values[0].size < WORTH_EXPANDING:
        exact = np.ascontiguousarray(values.swapaxes(1, 2), dtype=np.float64)
        return _search(exact, own, kept, np.repeat(common, FOLDS, axis=1))
    networks = zip(values, own, common[:, 0].tolist(), strict=True)
    return np.stack([_from_expansion(scores, of_target, kept, beta) for scores, of_target, beta in networks])


def _from_expansion(values: Logits, own: Floats, kept: Floats, beta: float) -> Floats:
    """Return the result of `_inverse_temperatures` for one network [FOLDS], from a `beta` near it.

    The slope Σ_k p_k z_k of each sample is expanded about `beta` to third order, and the β of a set is the root of the
    sum of its samples' expansions. If a root is too far from `beta`, each set is searched separately.
    """
    rooted = kept @ own < 0  # if all samples are right, the NLL falls for every β and has no root
    moved = np.full(FOLDS, beta)
    for _ in range(3):
        moved, left_out = _expanded(values, own, kept, beta)
        if left_out < TRUSTED and moved.min() > 0:
            return moved
        # a second try about the mean of the roots, unless they are too far away for any expansion
        middle = float(moved.mean())
        if not 0.5 < middle / beta < 2.0:
            break
        # the last term is quadratic in the distance to the farthest root
        expected = left_out * float(np.abs(moved - middle).max() / np.abs(moved - beta).max()) ** 2
        if rooted.all() and expected > HOPELESS * TRUSTED:
            break
        beta = middle
    # a root of a poor expansion is still the better start, if it is close
    near = rooted & (moved > beta / 2) & (moved < beta * 2)
    exact = np.ascontiguousarray(values.T, dtype=np.float64)
    (found,) = _search(exact[None], own[None], kept, np.where(near, moved, beta)[None])
    return np.asarray(found)


def _expanded(values: Logits, own: Floats, kept: Floats, beta: float) -> tuple[Floats, float]:
    """Return the root of each fold's expansion about `beta`, and the ratio of the last to the first term."""
    cumulants = _cumulants(values, beta)
    cumulants[0] -= own
    first, second, third, fourth = cumulants @ kept.T
    shift = np.zeros(FOLDS)
    with np.errstate(all="ignore"):  # a fold without a root diverges to inf or NaN, which the caller rejects
        for _ in range(20):
            slope = first + shift * (second + shift * (third / 2 + shift * fourth / 6))
            step = slope / (second + shift * (third + shift * fourth / 2))
            shift = shift - step
            if np.abs(step).max() < SETTLED * beta:
                break
        left_out = np.abs(shift).max() ** 2 * np.abs(cumulants[3]).sum() / (6 * cumulants[1].sum())
    roots: Floats = beta + shift
    return roots, float(left_out)


def _cumulants(values: Logits, beta: float) -> Floats:
    """Return the first four cumulants [4, N] of each sample's logits under softmax(β·logits)."""
    weights = _weights(values, values.dtype.type(beta))
    total = _sums(weights)
    mean, second, third, fourth = (_moment(weights, values, total) for _ in range(4))
    square = mean * mean  # numpy computes cubes and fourth powers by logarithms, ten times as slowly
    return np.stack(
        [
            mean,
            second - square,
            third + mean * (2 * square - 3 * second),
            fourth - 4 * mean * third - 3 * second * second + square * (12 * second - 6 * square),
        ]
    )


def _moment(weights: Logits, values: Logits, total: Floats) -> Floats:
    """Multiply `weights` [N, K] by `values` in place. Return the next moment: the row sums divided by `total` [N]."""
    weights *= values
    return _sums(weights) / total


def _search(values: Floats, own: Floats, kept: Floats, start: Floats, tolerance: float = SMALL_STEP) -> Floats:
    """Return the β between e^−16 and e^16 with the smallest mean NLL on each set of samples of each network [L, F].

    The NLL is convex in β, so its slope Σ_k p_k z_k − z_y rises. Newton's method searches its root within a shrinking
    bracket, which is halved on the logarithmic scale if a step would leave it. If the slope does not change sign, the
    bound is returned.

    Args:
        values: logits, classes first [L, K, N].
        own: values of the target classes [L, N].
        kept: 1 if a sample is in a set, else 0 [F, N].
        start: first β of each set [L, F].
        tolerance: relative step of β after which Newton's method stops.
    """
    networks, sets = start.shape
    network = np.repeat(np.arange(networks), sets)
    shares = np.tile(kept / kept.sum(axis=1)[:, None], (networks, 1))
    target = np.einsum("sn,sn->s", shares, own[network])
    low, high = (np.full(len(network), math.exp(side)) for side in (-LOG_BOUND, LOG_BOUND))
    # where all samples are right, the NLL falls for every β, and Newton's steps towards the bound would be tiny
    betas = np.where(target < 0, np.clip(start.ravel(), low, high), high)
    left = np.arange(len(network))  # the sets whose search goes on
    for _ in range(100):
        beta = betas[left]
        slope, curvature = _slopes(values[network[left]], shares[left], beta)
        slope -= target[left]
        low[left], high[left] = np.where(slope > 0, low[left], beta), np.where(slope > 0, beta, high[left])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            following = beta - slope / curvature
        inside = (curvature > 0) & (low[left] < following) & (following < high[left])
        following = np.where(inside, following, np.sqrt(low[left] * high[left]))
        betas[left] = following
        moved = np.abs(following / beta - 1.0)
        done = (moved < np.where(inside, tolerance, ROUNDING)) | (high[left] / low[left] - 1.0 < ROUNDING)
        left = left[~done]
        if not len(left):
            break
    return betas.reshape(start.shape)


def _slopes(values: Floats, shares: Floats, beta: Floats) -> tuple[Floats, Floats]:
    """Return Σ_k p_k z_k under softmax(β·logits) and its derivative in β, summed with weights `shares`, both [S].

    Args:
        values: logits, classes first [S, K, N].
        shares: weights of the samples in each sum [S, N].
        beta: β of each sum [S].
    """
    weights = values * beta[:, None, None]
    np.exp(weights, out=weights)
    total = weights.sum(axis=1)
    weights *= values
    mean = weights.sum(axis=1) / total
    weights *= values
    second = weights.sum(axis=1) / total
    second -= mean * mean
    return np.einsum("sn,sn->s", shares, mean), np.einsum("sn,sn->s", shares, second)


def _weights(values: Logits, beta: Logits | np.floating[Any]) -> Logits:
    """Return exp(β·values), clamped from below at e^−43."""
    # squares of smaller numbers are subnormal in float32, and arithmetic with these is ten times as slow
    scaled: Logits = values * beta
    np.maximum(scaled, values.dtype.type(-43), out=scaled)
    return np.exp(scaled, out=scaled)


def _sums(weights: Logits) -> Floats:
    """Return the sum of each row [..., N] in float64."""
    total: Floats = np.einsum("...k->...", weights).astype(np.float64, copy=False)
    return total
