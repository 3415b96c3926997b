"""The calibration, accuracy and selective-prediction metrics that every evaluation measures, sharing one sort.

`trainables.metrics.binning` and `trainables.metrics.out_of_distribution` have single metrics under other conventions.

`bootstrap_standard_error` draws samples with replacement, computes the metrics again, and takes their spread. A binned
error is a sum of |Σ gap| over bins, and a resample is a vector of counts per sample. One sparse product of each bin's
gaps with these counts therefore computes all resamples. Equal-mass bins keep the bounds of the original samples. Binned
errors are biased upward at small n. A standard error does not show this bias, so report n as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import (
    METRICS,
    SMALLEST_PROBABILITY,
    Booleans,
    Floats,
    Integers,
    always_measured,
    finite_logits,
    log_softmax64,
    require_probabilities,
    top_confidence,
)
from trainables.metrics.binning import (
    Binning,
    Scheme,
    bin_edges,
    binning_of,
    classwise_calibration_error,
    equal_width_bin,
    group_sums,
    mean_of_ties,
    norm_of_gaps,
    sums_by_bin,
)
from trainables.metrics.out_of_distribution import optimal_area_under_risk_coverage, rank_weights


def evaluate_probabilities(
    probabilities: ArrayLike,
    targets: ArrayLike,
    bins: int = 15,
    names: Sequence[str] | None = None,
    logits: ArrayLike | None = None,
) -> dict[str, float]:
    """Return the metrics `names`, in that order, as plain floats; undefined metrics (no wrong samples) are NaN.

    - `accuracy` and `top5` take the first of tied classes.
    - `nll` and entropies are in nats; `brier` is Σ_k (p_k − 1[k=y])² averaged over samples.
    - `ece` and `mce` have right-closed equal-width bins of the top confidence (Naeini et al. 2015; mukhoti §3),
      `ada_ece` has equal-mass bins (Nguyen & O'Connor 2015; mukhoti Eq. 3), `cw_…` are the class-wise versions.
    - `aurc` takes the 0-1 loss, and tied confidences share their weight; `e_aurc` is its excess over the AURC of the
      best ranking with as many errors (Geifman, Uziel & El-Yaniv 2019).
    - `s99` is the share of samples with confidence above .99.
    - `balanced_accuracy` is the accuracy per class, averaged over the classes that occur (Brodersen et al. 2010);
      `majority_share` is the accuracy of always predicting the most frequent class.

    Args:
        probabilities: [N, K], rows on the simplex; float64 is best, float32 ties confidences near 1.
        targets: [N] class indices in [0, K).
        bins: number of bins, at most N; 15 as in mukhoti §5 and properness §5.1.
        names: names from METRIC_NAMES, `None` for all; without `cw_ada_ece`, which sorts every class, the call takes
            a fraction of the time.
        logits: logits [N, K] whose softmax is `probabilities`; the NLL of an underflowed probability is computed from
            them.

    Raises:
        UnusablePredictions: non-finite or non-simplex rows, labels outside [0, K), fewer samples than bins.

    Example:
        >>> probabilities = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]]
        >>> values = evaluate_probabilities(probabilities, [0, 0, 1, 0], bins=4, names=("accuracy", "nll", "ece"))
        >>> {name: round(value, 4) for name, value in values.items()}
        {'accuracy': 0.75, 'nll': 0.5108, 'ece': 0.15}
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    require_probabilities(values, targets, bins)
    scores = None if logits is None else np.asarray(logits)[None]
    (row,) = evaluate_networks(values[None], np.asarray(targets, dtype=np.int64), bins, names, scores)
    return row


def evaluate_networks(
    values: Floats, labels: Integers, bins: int, names: Sequence[str] | None = None, logits: ArrayLike | None = None
) -> list[dict[str, float]]:
    """Return per network what `evaluate_probabilities` returns, from one pass over all networks.

    A network's values do not depend on the others, to the last bit.

    Args:
        values: probabilities [L, N, K] of L networks for the same samples, checked by `require_probabilities`.
        labels: class indices [N].
        bins: number of bins.
        names: names of metrics, `None` for all.
        logits: logits [L, N, K], as in `evaluate_probabilities`.
    """
    names = always_measured() if names is None else names
    prediction = values.argmax(axis=-1)
    confidence = np.take_along_axis(values, prediction[..., None], axis=-1)[..., 0]
    correct = prediction == labels
    metrics = means_of_samples(correct, *likelihoods(values, labels, logits))
    metrics |= confidence_metrics(confidence, correct, bins)
    metrics["cw_ece"] = classwise_calibration_error(values, labels, bins)
    if "cw_ada_ece" in names:
        metrics["cw_ada_ece"] = classwise_calibration_error(values, labels, bins, "equal_mass")
    classes = values.shape[-1]
    sizes = np.bincount(labels, minlength=classes)
    hits = np.stack([np.bincount(labels[own], minlength=classes) for own in correct])
    # classes that do not occur have no accuracy
    metrics["balanced_accuracy"] = (hits / np.maximum(sizes, 1)).sum(axis=-1) / (sizes > 0).sum()
    metrics["majority_share"] = np.full(len(values), sizes.max() / len(labels))
    for name in names:
        if name not in metrics:
            metrics[name] = np.array([METRICS[name].build(own, labels) for own in values])
    columns = [metrics[name].tolist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def likelihoods(values: Floats, labels: Integers, logits: ArrayLike | None) -> tuple[Integers, Floats, Floats, Floats]:
    """Return per sample [..., N] what `means_of_samples` takes: classes ahead of the true one, NLL, Brier, entropy.

    `values` and `logits` are [..., N, K], `labels` [N].
    """
    of_target = np.take_along_axis(values, labels.reshape((1,) * (values.ndim - 2) + (-1, 1)), axis=-1)
    own = of_target[..., 0]
    nll = -np.log(np.maximum(own, SMALLEST_PROBABILITY))
    # only underflowed rows are computed from logits: a second log softmax of all rows would cost as much as the rest
    lost = np.nonzero(own < SMALLEST_PROBABILITY)
    if logits is not None and len(lost[-1]):
        rows = log_softmax64(finite_logits(np.asarray(logits)[lost]))
        nll[lost] = -rows[np.arange(len(rows)), labels[lost[-1]]]
    # a tied class counts as ahead if its index is smaller: as `argmax`, which takes the first
    ahead = values > of_target
    ahead |= (values == of_target) & (np.arange(values.shape[-1]) < labels[:, None])
    entropy = -np.einsum("...k,...k->...", values, np.log(np.maximum(values, SMALLEST_PROBABILITY)))
    # Σ_k (p_k − 1[k=y])² = Σ_k p_k² − 2p_y + 1, without a one-hot matrix
    brier = np.einsum("...k,...k->...", values, values) - 2.0 * own + 1.0
    return ahead.sum(axis=-1), nll, brier, entropy


def means_of_samples(
    correct: Booleans, ahead: Integers, nll: Floats, brier: Floats, entropy: Floats
) -> dict[str, Floats]:
    """Return the metrics [...] that are means of values per sample [..., N].

    Args:
        correct: whether the prediction is right.
        ahead: number of classes more probable than the true one.
        nll: negative log-likelihood, nats.
        brier: squared error of the probability vector.
        entropy: entropy of the probability vector, nats.
    """
    return {
        "top5": np.asarray((ahead < 5).mean(axis=-1)),
        "nll": np.asarray(nll.mean(axis=-1)),
        "nll_correct": _mean_where(correct, nll),
        "nll_wrong": _mean_where(~correct, nll),
        "brier": np.asarray(brier.mean(axis=-1)),
        "entropy_correct": _mean_where(correct, entropy),
        "entropy_wrong": _mean_where(~correct, entropy),
    }


def confidence_metrics(confidence: Floats, correct: Booleans, bins: int) -> dict[str, Floats]:
    """Return the metrics [...] of the top confidence [..., N] and its correctness [..., N] alone, sharing one sort."""
    samples = confidence.shape[-1]
    order = np.argsort(confidence, axis=-1)
    ascending = np.take_along_axis(confidence, order, axis=-1)
    # Samples of equal confidence get the mean of their outcomes. Else the file's order would change AURC and ada_ece.
    right = mean_of_ties(ascending, np.take_along_axis(correct, order, axis=-1))
    weights = rank_weights(samples)
    risks = [weights @ errors / samples for errors in (1.0 - right).reshape(-1, samples)]
    wrong = samples - correct.reshape(-1, samples).sum(axis=-1)
    best = [optimal_area_under_risk_coverage(errors, samples) for errors in wrong.tolist()]
    aurc, least = (np.reshape(values, confidence.shape[:-1]) for values in (risks, best))
    sure = confidence > 0.99
    index = equal_width_bin(confidence, bins)
    gaps = sums_by_bin(index, confidence - correct, bins)
    counts = sums_by_bin(index, np.ones_like(confidence), bins)
    return {
        "accuracy": np.asarray(correct.mean(axis=-1)),
        "s99": np.asarray(sure.mean(axis=-1)),
        "s99_accuracy": _mean_where(sure, correct),
        "confidence": np.asarray(confidence.mean(axis=-1)),
        "confidence_wrong": _mean_where(~correct, confidence),
        "ece": norm_of_gaps(gaps, counts, "mean"),
        "mce": norm_of_gaps(gaps, counts, "maximum"),
        "ada_ece": np.asarray(np.abs(group_sums(ascending - right, bins)).sum(axis=-1) / samples),
        "aurc": aurc,
        "e_aurc": aurc - least,
    }


def reliability_bins(
    probabilities: ArrayLike, targets: ArrayLike, bins: int = 15
) -> list[dict[str, float | int | None]]:
    """Return the reliability diagram's rows: `bin lower upper n confidence accuracy`, one per equal-width bin.

    Bins are (lower, upper]; confidence 0 is in the first. `confidence` and `accuracy` are means over the samples of the
    bin, `None` for an empty one. Arguments and errors are those of `evaluate_probabilities`.

    Example:
        >>> reliability_bins([[0.75, 0.25], [1.0, 0.0]], [0, 1], bins=2)[1]
        {'bin': 1, 'lower': 0.5, 'upper': 1.0, 'n': 2, 'confidence': 0.875, 'accuracy': 0.5}
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    require_probabilities(values, targets, bins)
    return bins_of(*top_confidence(values, np.asarray(targets)), bins)


def bins_of(confidence: Floats, correct: Floats, bins: int) -> list[dict[str, float | int | None]]:
    """Return the rows of `reliability_bins` for any probability [N] of an event, and whether it happened [N]."""
    index = equal_width_bin(confidence, bins)
    counts = np.bincount(index, minlength=bins)
    confidences = sums_by_bin(index, confidence, bins)
    hits = sums_by_bin(index, correct, bins)
    edges = bin_edges(bins)
    return [
        {
            "bin": b,
            "lower": float(edges[b]),
            "upper": float(edges[b + 1]),
            "n": int(counts[b]),
            "confidence": float(confidences[b] / counts[b]) if counts[b] else None,
            "accuracy": float(hits[b] / counts[b]) if counts[b] else None,
        }
        for b in range(bins)
    ]


def _mean_where(kept: Booleans, values: Floats | Booleans) -> Floats:
    """Return the mean [...] of the `kept` values [..., N], NaN without any."""
    counts = kept.sum(axis=-1)
    total = np.where(kept, values, 0.0).sum(axis=-1)
    return np.asarray(np.divide(total, counts, out=np.full(total.shape, np.nan), where=counts > 0))


def _alone(name: str, probabilities: Floats, targets: Integers) -> float:
    """Return one of the metrics that `evaluate_probabilities` computes together."""
    return evaluate_probabilities(probabilities, targets, names=(name,))[name]


def _described(
    name: str,
    summary: str,
    label: str = "",
    mode: Literal["min", "max"] | None = "min",
    marks: str = "",
    high: float = 1.0,
) -> None:
    """Register a metric; `marks` lists which of `binned`, `recalibrated` and `headline` are true."""
    METRICS.add(
        name,
        summary,
        label=label or name.replace("_", " "),
        mode=mode,
        range=(0, high),
        unit="nats" if math.isinf(high) else "",
        always=True,
        binned="binned" in marks,
        recalibrated="recalibrated" in marks,
        headline="headline" in marks,
    )(partial(_alone, name))


_in_nats = partial(_described, high=math.inf)
_SHOWN, _BINNED, _ALL = "recalibrated headline", "binned recalibrated", "binned recalibrated headline"

_described("accuracy", "share of samples whose most probable class is right", "", "max", _SHOWN)
_described("top5", "share of samples whose class is among the five most probable", "top-5 accuracy", "max")
_in_nats("nll", "negative log-likelihood", "NLL", marks=_SHOWN)
_in_nats("nll_correct", "mean NLL of the correctly classified samples", "NLL of correct samples")
_in_nats("nll_wrong", "mean NLL of the wrongly classified samples", "NLL of wrong samples")
_described("brier", "squared distance from the one-hot vector", "Brier score", marks=_SHOWN, high=2.0)
_described("ece", "gap between confidence and accuracy, equal-width bins", "ECE", marks=_ALL)
_described("ada_ece", "gap between confidence and accuracy, equal-mass bins", "equal-mass ECE", marks=_ALL)
_described("mce", "largest gap of any equal-width bin", "MCE", marks=_BINNED)
_described("cw_ece", "ECE of each class's probability, averaged", "class-wise ECE", marks=_BINNED)
_described("cw_ada_ece", "equal-mass ECE of each class, averaged", "class-wise equal-mass ECE", marks="binned")
_described("aurc", "area under the risk-coverage curve", "AURC", marks=_SHOWN)
_described("e_aurc", "AURC minus that of the best ranking of as many errors", "E-AURC")
_described("s99", "share of samples with confidence above .99", "share above .99", None, "recalibrated")
_described(
    "s99_accuracy", "accuracy of the samples with confidence above .99", "accuracy above .99", "max", "recalibrated"
)
_described("confidence", "mean top confidence", mode=None)
_described("confidence_wrong", "mean confidence of the wrongly classified samples", "confidence of wrong samples", None)
_in_nats("entropy_correct", "mean entropy of the correctly classified samples", "entropy of correct samples", None)
_in_nats("entropy_wrong", "mean entropy of the wrongly classified samples", "entropy of wrong samples", None)
_described("balanced_accuracy", "accuracy of each class, averaged", "", "max", "headline")
_described("majority_share", "accuracy of always predicting the most frequent class", mode=None)


#: Metrics that are sums over bins, with their bins; other metrics call `evaluate_probabilities` for each resample.
BINNED: dict[str, Scheme] = {
    "ece": "equal_width",
    "ada_ece": "equal_mass",
    "mce": "equal_width",
    "cw_ece": "equal_width",
    "cw_ada_ece": "equal_mass",
}

_ELEMENTS = 4_000_000  # classes × samples whose gaps are held at once: 32 MB in float64


def bootstrap_standard_error(
    metrics: str | Sequence[str],
    probabilities: ArrayLike,
    targets: ArrayLike,
    bins: int = 15,
    repetitions: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """Return the bootstrap standard error of each metric, under `<name>_se` (Efron 1979).

    Args:
        metrics: one or several names of METRIC_NAMES.
        probabilities: [N, K], rows on the simplex.
        targets: [N] class indices.
        bins: number of bins, at most N.
        repetitions: number of resamples; the relative error of the result is about 1/√(2·repetitions).
        seed: seed of the resampling; equal seeds give equal resamples for every metric.

    Raises:
        UnusablePredictions: as `evaluate_probabilities`.
        ValueError: unknown metric name, or fewer than 2 repetitions.

    Example:
        >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4]] * 50)
        >>> targets = np.array([0, 0, 0, 1] * 25)
        >>> round(bootstrap_standard_error("accuracy", probabilities, targets)["accuracy_se"], 2)  # √(.75·.25/100)
        0.04
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    require_probabilities(values, targets, bins)
    labels: Integers = np.asarray(targets, dtype=np.int64)
    if repetitions < 2:
        raise ValueError(f"repetitions = {repetitions} must be at least 2: a spread needs two values")
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    known = always_measured()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown metric {', '.join(unknown)}; known: {', '.join(known)}")
    (row,) = bootstrap_standard_errors(names, values[None], labels, bins, repetitions, seed)
    return row


def bootstrap_standard_errors(
    names: Sequence[str], values: Floats, labels: Integers, bins: int, repetitions: int = 100, seed: int = 0
) -> list[dict[str, float]]:
    """Return per network what `bootstrap_standard_error` returns, from the same resamples.

    A network's values do not depend on the others, to the last bit.

    Args:
        names: names of metrics.
        values: probabilities [L, N, K] of L networks for the same samples, checked by `require_probabilities`.
        labels: class indices [N].
        bins: number of bins.
        repetitions: number of resamples, at least 2.
        seed: seed of the resampling.
    """
    # drawn once for all metrics: their differences then have no resampling noise of their own
    draws = np.random.default_rng(seed).integers(0, len(labels), size=(repetitions, len(labels)))
    repeats: dict[str, Floats] = {}
    if binned := [name for name in names if name in BINNED]:
        cells = draws + len(labels) * np.arange(repetitions)[:, None]
        counts = np.bincount(cells.ravel(), minlength=draws.size).reshape(draws.shape)
        repeats = _resampled(binned, values, labels, np.ascontiguousarray(counts.T, dtype=np.float64), bins)
    if others := [name for name in names if name not in BINNED]:
        rows = [evaluate_networks(values[:, draw], labels[draw], bins, others) for draw in draws]
        repeats |= {name: np.array([[row[name] for row in own] for own in zip(*rows, strict=True)]) for name in others}
    spreads = [repeats[name].std(axis=-1, ddof=1).tolist() for name in names]
    return [{f"{name}_se": se for name, se in zip(names, own, strict=True)} for own in zip(*spreads, strict=True)]


def _resampled(names: Sequence[str], values: Floats, labels: Integers, counts: Floats, bins: int) -> dict[str, Floats]:
    """Return name → binned error [L, R] on resamples; `counts` [N, R] says how often each resample holds a sample."""
    confidence, correct = top_confidence(values, labels)
    found: dict[str, Floats] = {}
    for name in names:
        scheme = BINNED[name]
        if name.startswith("cw_"):
            found[name] = _resampled_by_class(values, labels, counts, bins, scheme)
            continue
        binning = binning_of(confidence, bins, scheme)
        gaps = np.abs(_sums(binning, confidence - correct, counts))
        if name == "mce":
            sizes = _sums(binning, np.ones_like(confidence), counts)
            found[name] = (gaps / np.maximum(sizes, 1)).max(axis=1)
        else:
            found[name] = gaps.sum(axis=1) / len(labels)
    return found


def _resampled_by_class(values: Floats, labels: Integers, counts: Floats, bins: int, scheme: Scheme) -> Floats:
    networks, samples, classes = values.shape
    of_class = values.swapaxes(1, 2).reshape(-1, samples)
    errors = np.empty((len(of_class), counts.shape[1]))
    # at least one class; at most `_ELEMENTS` numbers, so 1,000 classes of 50,000 samples fit in memory
    together = max(1, _ELEMENTS // samples)
    for first in range(0, len(of_class), together):
        rows = slice(first, first + together)
        own = np.ascontiguousarray(of_class[rows])
        gaps = own - (labels == (np.arange(first, first + len(own)) % classes)[:, None])
        errors[rows] = np.abs(_sums(binning_of(own, bins, scheme), gaps, counts)).sum(axis=1)
    return np.asarray(errors.reshape(networks, classes, -1).sum(axis=1) / (samples * classes))


def _sums(binning: Binning, gaps: Floats, counts: Floats) -> Floats:
    """Return Σ gap [k, bins, R] in each bin of each row, for `gaps` [k, N] and `counts` [N, R]."""
    from scipy.sparse import csc_array  # slow to import, and not needed for labels

    rows, samples = gaps.shape
    place = (binning.cell + binning.cells * np.arange(rows)[:, None]).T.ravel()
    ends = rows * np.arange(samples + 1)
    sums = csc_array((gaps.T.ravel(), place, ends), shape=(rows * binning.cells, samples)) @ counts
    return binning.of_bins(np.asarray(sums).reshape(rows, binning.cells, -1))
