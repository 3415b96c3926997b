"""Refinement and calibration error: what of a proper score no temperature can repair, and what one would.

Refinement is the score after temperature scaling, cross-fitted on the same samples; calibration is the rest:

    score = refinement + calibration

Fold f of K = 5 is scaled by the temperature with the least NLL on the other folds, and mixed with the uniform
distribution at weight 1/(n + 1), n the samples that the temperature was fitted on; so samples that are separated
perfectly, whose temperature goes to 0, cost at most log((n + 1)·classes) each. The mean is over all samples, each of
which was held out once. Folds follow from the labels alone: the samples of each class, in their order, are dealt to the
folds in turn. This is the definition of Berta, Holzmüller, Jordan & Bach 2025 (Rethinking Early Stopping: Refine, Then
Calibrate; arXiv:2501.19195), as their package probmetrics computes `refinement_logloss_ts-mix_cv-5`, but for the
folds, which that package shuffles.

Calibration may be slightly negative where nothing is to be repaired: a fitted temperature has an error of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainables.metrics.base import METRICS, Floats, Integers, finite_logits

#: K: of five folds, a temperature is fitted on 80 % of the samples, and probmetrics takes as many.
FOLDS = 5

_PARTS = {
    "refinement": ("what of it no temperature repairs", 0.0),
    "calibration": ("what of it a temperature repairs", -math.inf),
}
_LOSSES = {"nll": "NLL", "brier": "Brier score"}
#: What an evaluation records of each split: the scores after cross-fitted temperature scaling, and the differences.
REFINEMENT_COLUMNS = tuple(f"{part}_{score}" for part in _PARTS for score in _LOSSES)

for _name in REFINEMENT_COLUMNS:
    _part, _, _score = _name.partition("_")
    METRICS.add(
        _name,
        _PARTS[_part][0],
        "Berta, Holzmüller, Jordan & Bach 2025, arXiv:2501.19195",
        label=f"{_part} {_LOSSES[_score]}",
        range=(_PARTS[_part][1], math.inf),
        always=True,
        headline=_name == "refinement_nll",
        needs="logits",
    )(lambda probabilities, targets: math.nan)

#: Inverse temperatures are searched between e^−16 and e^16, as probmetrics does.
LOG_BOUND = 16.0

#: Samples on which the search begins; a fold's temperature is then within some per cent of theirs.
SAMPLED = 1000

#: An expansion is trusted where its last term is at most this share of its first: what it leaves out is far below.
TRUSTED = 1e-3

#: An expansion about the roots' mean is not tried where it would leave out more than this many times `TRUSTED`.
HOPELESS = 1.2

#: A relative step of β after which another would change no digit that counts: Newton's method squares the error.
SMALL_STEP = 1e-6

#: A relative step of β below which another changes rounding alone.
SETTLED = 1e-15

#: What β is known to where its bracket was halved.
ROUNDING = 1e-10

#: Logits from which sums are taken in float32: each sample's error, below 1e-6, cancels in the mean of so many.
SINGLE_PRECISION = 2**16

Logits = NDArray[np.floating[Any]]


def folds_of(targets: ArrayLike, folds: int = FOLDS) -> Integers:
    """Return each sample's fold [N], 0 … `folds` − 1: each class is dealt out in turn, in order."""
    labels = np.asarray(targets)
    if labels.size and labels.max() < 2**15:
        labels = labels.astype(np.int16)  # which numpy sorts by radix, four times as fast
    fold = np.empty(len(labels), dtype=np.int64)
    fold[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % folds
    return fold


def refinement_columns(logits: ArrayLike, targets: ArrayLike, scores: Mapping[str, float]) -> dict[str, float]:
    """Return the columns of `REFINEMENT_COLUMNS`, all NaN where there are fewer samples than folds.

    Args:
        logits: [N, K].
        targets: [N] class indices.
        scores: `nll` (nats) and `brier` (Σ_k (p_k − 1[k=y])²) of the logits' softmax, which each pair adds up to.
    """
    found = refinement(logits, targets)
    values = (found.nll, found.brier, scores["nll"] - found.nll, scores["brier"] - found.brier)
    return dict(zip(REFINEMENT_COLUMNS, values, strict=True))


@dataclass(frozen=True)
class Refinement:
    """Scores after cross-fitted temperature scaling.

    Attributes:
        nll, brier: mean over all samples.
        temperatures: of each fold, fitted on the others.
    """

    nll: float
    brier: float
    temperatures: tuple[float, ...]


def refinement(logits: ArrayLike, targets: ArrayLike) -> Refinement:
    """Return the scores of logits [N, K] after cross-fitted temperature scaling; NaN with fewer samples than folds."""
    given, labels = finite_logits(logits), np.asarray(targets, dtype=np.int64)
    if len(labels) < FOLDS:
        return Refinement(float("nan"), float("nan"), ())
    precision = np.float32 if given.size >= SINGLE_PRECISION else np.float64
    values: Logits = np.array(given, precision, order="C")
    import torch  # numpy's own maximum of rows takes five times as long

    values -= torch.from_numpy(values).amax(1, keepdim=True).numpy()
    own = values[np.arange(len(labels)), labels].astype(np.float64)
    fold = folds_of(labels)
    inverse = _inverse_temperatures(values, own, fold)
    scaled = _weights(values, inverse[fold].astype(values.dtype)[:, None])
    total = _sums(scaled)
    squares = np.einsum("nk,nk->n", scaled, scaled).astype(np.float64) / total**2
    fitted_on = len(labels) - np.bincount(fold, minlength=FOLDS)
    uniform = (1.0 / (fitted_on + 1.0))[fold]
    classes = values.shape[1]
    kept = 1.0 - uniform
    of_target = kept * np.exp(inverse[fold] * own) / total + uniform / classes
    second_moment = kept**2 * squares + (2.0 * kept + uniform) * uniform / classes
    nll, brier = -np.log(of_target).mean(), (second_moment - 2.0 * of_target + 1.0).mean()
    return Refinement(float(nll), float(brier), tuple(float(each) for each in 1.0 / inverse))


def _inverse_temperatures(values: Logits, own: Floats, fold: Integers) -> Floats:
    """Return each fold's β = 1/T with the least NLL on the other folds [FOLDS].

    One β for all is found on few samples; about it each sample's slope Σ_k p_k z_k is expanded to the third order, and
    every fold's β is a root of its own sum of these. Where that leads too far, as with few samples, each is searched.

    Args:
        values: logits [N, K], each row less its largest.
        own: of them the targets' [N].
        fold: of each sample [N].
    """
    step = max(1, len(values) // SAMPLED)
    beta = _search(values[::step], own[::step], tolerance=1e-3)
    kept = (fold != np.arange(FOLDS)[:, None]).astype(np.float64)
    rooted = kept @ own < 0  # where all are right, the NLL falls for ever
    moved = np.full(FOLDS, beta)
    for _ in range(3):
        moved, left_out = _expanded(values, own, kept, beta)
        if left_out < TRUSTED and moved.min() > 0:
            return moved
        middle = float(moved.mean())
        if not 0.5 < middle / beta < 2.0:
            break
        expected = left_out * float(np.abs(moved - middle).max() / np.abs(moved - beta).max()) ** 2
        if rooted.all() and expected > HOPELESS * TRUSTED:
            break
        beta = middle
    near = rooted & (moved > beta / 2) & (moved < beta * 2)
    exact = np.ascontiguousarray(values.T, dtype=np.float64)
    return _search_each(exact, own, kept, np.where(near, moved, beta))


def _expanded(values: Logits, own: Floats, kept: Floats, beta: float) -> tuple[Floats, float]:
    """Return each fold's root by Newton's method on the expansion about `beta`, and its last term over its first."""
    cumulants = _cumulants(values, beta)
    cumulants[0] -= own
    first, second, third, fourth = cumulants @ kept.T
    shift = np.zeros(FOLDS)
    with np.errstate(all="ignore"):
        for _ in range(20):
            slope = first + shift * (second + shift * (third / 2 + shift * fourth / 6))
            step = slope / (second + shift * (third + shift * fourth / 2))
            shift = shift - step
            if np.abs(step).max() < SETTLED * beta:
                break
        left_out = np.abs(shift).max() ** 2 * np.abs(cumulants[3]).sum() / (6 * cumulants[1].sum())
    found: Floats = beta + shift
    return found, float(left_out)


def _cumulants(values: Logits, beta: float) -> Floats:
    """Return the first four cumulants [4, N] of each sample's logits under softmax(β·logits)."""
    weights = _weights(values, values.dtype.type(beta))
    total = _sums(weights)
    mean, second, third, fourth = (_moment(weights, values, total) for _ in range(4))
    square = mean * mean  # numpy takes cubes and fourth powers by logarithms, ten times as slowly
    return np.stack(
        [
            mean,
            second - square,
            third + mean * (2 * square - 3 * second),
            fourth - 4 * mean * third - 3 * second * second + square * (12 * second - 6 * square),
        ]
    )


def _moment(weights: Logits, values: Logits, total: Floats) -> Floats:
    """Multiply `weights` [N, K] by `values` in place; return each row's sum over `total` [N]: the next moment."""
    weights *= values
    return _sums(weights) / total


def _search(values: Logits, own: Floats, tolerance: float, start: float | None = None) -> float:
    """Return the β between e^−16 and e^16 with the least mean NLL: Newton's method within a bracket that closes in.

    The NLL is convex in β, so its slope Σ_k p_k z_k − z_y rises; where it does not change sign, the bound is returned.
    `tolerance` is relative, for β; the search begins at `start`, where none is given at what the logits' size suggests.
    """
    low, high = math.exp(-LOG_BOUND), math.exp(LOG_BOUND)
    target = float(own.mean())
    spread = math.sqrt(float(np.mean(np.square(values, dtype=np.float64))))
    suggested = 1.0 / spread if spread > 0 else 1.0
    beta = min(max(suggested if start is None else start, low), high)
    for _ in range(100):
        weights = np.exp(values * values.dtype.type(beta))
        total = _sums(weights)
        mean, second = _moment(weights, values, total), _moment(weights, values, total)
        slope, curvature = float(mean.mean()) - target, float((second - mean**2).mean())
        low, high = (low, beta) if slope > 0 else (beta, high)
        following = beta - slope / curvature if curvature > 0 else math.inf
        if not low < following < high:
            following = math.sqrt(low * high)
        if abs(following / beta - 1.0) < tolerance or high / low - 1.0 < tolerance:
            return following
        beta = following
    return beta


def _search_each(values: Floats, own: Floats, kept: Floats, start: Floats) -> Floats:
    """Return what `_search` finds for each of F sets of samples [F], all at once.

    Args:
        values: logits, classes first [K, N].
        own: of them the targets' [N].
        kept: 1 where a sample is in the set, else 0 [F, N].
        start: where the search begins [F].
    """
    low, high = (np.full(len(kept), math.exp(side)) for side in (-LOG_BOUND, LOG_BOUND))
    shares = kept / kept.sum(axis=1)[:, None]
    target = shares @ own
    found = np.clip(start, low, high)
    left = np.arange(len(kept))
    for _ in range(100):
        beta = found[left]
        slope, curvature = _slopes(values, shares[left], beta)
        slope -= target[left]
        low[left], high[left] = np.where(slope > 0, low[left], beta), np.where(slope > 0, beta, high[left])
        with np.errstate(divide="ignore", invalid="ignore"):
            following = beta - slope / curvature
        inside = (curvature > 0) & (low[left] < following) & (following < high[left])
        following = np.where(inside, following, np.sqrt(low[left] * high[left]))
        found[left] = following
        moved = np.abs(following / beta - 1.0)
        done = (moved < np.where(inside, SMALL_STEP, ROUNDING)) | (high[left] / low[left] - 1.0 < ROUNDING)
        left = left[~done]
        if not len(left):
            break
    return found


def _slopes(values: Floats, shares: Floats, beta: Floats) -> tuple[Floats, Floats]:
    """Return Σ_k p_k z_k under softmax(β·logits), and its slope by β, as sums weighted by `shares` [F, N], both [F].

    Args:
        values: logits, classes first [K, N].
        shares: of the samples in each sum [F, N].
        beta: [F].
    """
    weights = values * beta[:, None, None]
    np.exp(weights, out=weights)
    total = weights.sum(axis=1)
    weights *= values
    mean = weights.sum(axis=1) / total
    weights *= values
    second = weights.sum(axis=1) / total
    second -= mean * mean
    return np.einsum("fn,fn->f", shares, mean), np.einsum("fn,fn->f", shares, second)


def _weights(values: Logits, beta: Logits | np.floating[Any]) -> Logits:
    """Return exp(β·values), no less than e^−43: squares of smaller ones are subnormal, and ten times as slow."""
    scaled: Logits = values * beta
    np.maximum(scaled, values.dtype.type(-43), out=scaled)
    return np.exp(scaled, out=scaled)


def _sums(weights: Logits) -> Floats:
    """Return each row's sum [N] in float64."""
    total: Floats = np.einsum("nk->n", weights).astype(np.float64, copy=False)
    return total
