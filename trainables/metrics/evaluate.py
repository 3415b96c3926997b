"""The calibration, accuracy and selective-prediction metrics that every evaluation measures, with one sort for all.

`trainables.metrics.binning` and `trainables.metrics.out_of_distribution` give single metrics under other conventions,
`trainables.metrics.bootstrap` their standard errors.
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
    bin_edges,
    classwise_calibration_error,
    equal_width_bin,
    group_sums,
    norm_of_gaps,
    stable_order,
    sums_by_bin,
)
from trainables.metrics.out_of_distribution import optimal_area_under_risk_coverage, tied_rank_weights


def evaluate_probabilities(
    probabilities: ArrayLike,
    targets: ArrayLike,
    bins: int = 15,
    names: Sequence[str] | None = None,
    logits: ArrayLike | None = None,
) -> dict[str, float]:
    """Return every metric of `names`, in that order, as plain floats; an undefined one (no wrong samples) is NaN.

    `accuracy` and `top5` take the first of tied classes. `nll` and entropies are in nats, `brier` is
    Σ_k (p_k − 1[k=y])² averaged over samples, `ece`/`mce` use right-closed equal-width bins of the top
    confidence, `ada_ece` equal-mass bins, `cw_…` the class-wise versions, `aurc` the 0-1 loss with tied
    confidences sharing their weight, `e_aurc` its excess over the best ranking of as many errors (Geifman, Uziel &
    El-Yaniv 2019), `s99` the share of samples with confidence above .99, `balanced_accuracy` the mean over the classes
    that occur of the share of their samples that are right (Brodersen et al. 2010), `majority_share` the accuracy of
    always predicting the most frequent class. Metrics of other files are added by their own functions.

    Args:
        probabilities: [N, K], rows on the simplex; float64 is best, float32 ties confidences near 1.
        targets: [N] class indices in [0, K).
        bins: number of bins, at most N; 15 as in mukhoti §5 and properness §5.1.
        names: of METRIC_NAMES, `None` for all; without `cw_ada_ece`, which sorts every class, it takes a fraction of
            the time.
        logits: [N, K] that the probabilities are the softmax of: where one underflowed, the nll is taken from them.

    Raises:
        UnusablePredictions: non-finite or non-simplex rows, labels outside [0, K), fewer samples than bins.
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    require_probabilities(values, targets, bins)
    labels: Integers = np.asarray(targets, dtype=np.int64)
    names = always_measured() if names is None else names
    prediction = values.argmax(axis=1)
    rows = np.arange(len(labels))
    confidence = values[rows, prediction]
    correct = prediction == labels
    found = _likelihood_metrics(values, labels, correct, logits)
    found |= confidence_metrics(confidence, correct, bins)
    found["cw_ece"] = classwise_calibration_error(values, labels, bins)
    if "cw_ada_ece" in names:
        found["cw_ada_ece"] = classwise_calibration_error(values, labels, bins, "equal_mass")
    sizes = np.bincount(labels, minlength=values.shape[1])
    hits = np.bincount(labels[correct], minlength=values.shape[1])
    found["balanced_accuracy"] = float((hits[sizes > 0] / sizes[sizes > 0]).mean())
    found["majority_share"] = float(sizes.max() / len(labels))
    return {name: found[name] if name in found else METRICS[name].build(values, labels) for name in names}


def _likelihood_metrics(
    values: Floats, labels: Integers, correct: Booleans, logits: ArrayLike | None
) -> dict[str, float]:
    """Return accuracy, top5, nll, brier and entropies of `values` [N, K]."""
    of_target = np.take_along_axis(values, labels[:, None], axis=1)
    nll = -np.log(np.maximum(of_target[:, 0], SMALLEST_PROBABILITY))
    lost = np.flatnonzero(of_target[:, 0] < SMALLEST_PROBABILITY)
    if logits is not None and len(lost):
        nll[lost] = -log_softmax64(finite_logits(np.asarray(logits)[lost]))[np.arange(len(lost)), labels[lost]]
    ahead = values > of_target
    ahead |= (values == of_target) & (np.arange(values.shape[1]) < labels[:, None])
    entropy = -np.einsum("nk,nk->n", values, np.log(np.maximum(values, SMALLEST_PROBABILITY)))
    brier = np.einsum("nk,nk->n", values, values) - 2.0 * of_target[:, 0] + 1.0
    return means_of_samples(correct, ahead.sum(axis=1), nll, brier, entropy)


def means_of_samples(
    correct: Booleans, ahead: Integers, nll: Floats, brier: Floats, entropy: Floats
) -> dict[str, float]:
    """Return the metrics that are means of what is known of each sample [N]; `ahead` counts classes before its own."""
    return {
        "top5": float((ahead < 5).mean()),
        "nll": float(nll.mean()),
        "nll_correct": _mean(nll[correct]),
        "nll_wrong": _mean(nll[~correct]),
        "brier": float(brier.mean()),
        "entropy_correct": _mean(entropy[correct]),
        "entropy_wrong": _mean(entropy[~correct]),
    }


def confidence_metrics(confidence: Floats, correct: Booleans, bins: int) -> dict[str, float]:
    """Return the metrics that the top confidence [N] and its correctness [N] decide; one sort serves several."""
    samples = len(confidence)
    right = correct.astype(np.float64)
    order = stable_order(confidence)
    ascending, wrong = confidence[order], ~correct[order]
    aurc = float(tied_rank_weights(ascending) @ wrong / samples)
    sure = confidence > 0.99
    index = equal_width_bin(confidence, bins)
    gaps, counts = sums_by_bin(index, confidence - right, bins), np.bincount(index, minlength=bins)
    return {
        "accuracy": float(correct.mean()),
        "s99": float(sure.mean()),
        "s99_accuracy": _mean(correct[sure]),
        "confidence": float(confidence.mean()),
        "confidence_wrong": _mean(confidence[~correct]),
        "ece": float(norm_of_gaps(gaps, counts, "mean")),
        "mce": float(norm_of_gaps(gaps, counts, "maximum")),
        "ada_ece": float(np.abs(group_sums(ascending - ~wrong, bins)).sum() / samples),
        "aurc": aurc,
        "e_aurc": aurc - optimal_area_under_risk_coverage(int(wrong.sum()), samples),
    }


def reliability_bins(
    probabilities: ArrayLike, targets: ArrayLike, bins: int = 15
) -> list[dict[str, float | int | None]]:
    """Return the reliability diagram's rows: `bin lower upper n confidence accuracy`, one per equal-width bin.

    Bins are (lower, upper]; confidence 0 is in the first. `confidence` and `accuracy` are means over the bin's
    samples, `None` where there are none. Arguments and errors as `evaluate_probabilities`.
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    require_probabilities(values, targets, bins)
    confidence, correct = top_confidence(values, np.asarray(targets))
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


def _mean(values: Floats | Booleans) -> float:
    return float(values.mean()) if values.size else float("nan")


def _alone(name: str, probabilities: Floats, targets: Integers) -> float:
    """Return one of the metrics that are computed together."""
    return evaluate_probabilities(probabilities, targets, names=(name,))[name]


def _described(
    name: str,
    summary: str,
    label: str = "",
    mode: Literal["min", "max"] | None = "min",
    marks: str = "",
    high: float = 1.0,
) -> None:
    """Add a metric; `marks` names those of `binned`, `recalibrated` and `headline` that hold."""
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
_in_nats("nll_correct", "of samples that are right", "NLL of correct samples")
_in_nats("nll_wrong", "of samples that are wrong", "NLL of wrong samples")
_described("brier", "squared distance from the one-hot vector", "Brier score", marks=_SHOWN, high=2.0)
_described("ece", "gap of confidence and accuracy, equal-width bins", "ECE", marks=_ALL)
_described("ada_ece", "gap of confidence and accuracy, equal-mass bins", "equal-mass ECE", marks=_ALL)
_described("mce", "largest gap of any equal-width bin", "MCE", marks=_BINNED)
_described("cw_ece", "ECE of each class's probability, averaged", "class-wise ECE", marks=_BINNED)
_described("cw_ada_ece", "equal-mass ECE of each class, averaged", "class-wise equal-mass ECE", marks="binned")
_described("aurc", "area under the risk-coverage curve", "AURC", marks=_SHOWN)
_described("e_aurc", "AURC above that of the best ranking of as many errors", "E-AURC")
_described("s99", "share of samples with confidence above .99", "share above .99", None, "recalibrated")
_described("s99_accuracy", "accuracy of those", "accuracy above .99", "max", "recalibrated")
_described("confidence", "mean top confidence", mode=None)
_described("confidence_wrong", "of samples that are wrong", "confidence of wrong samples", None)
_in_nats("entropy_correct", "of samples that are right", "entropy of correct samples", None)
_in_nats("entropy_wrong", "of samples that are wrong", "entropy of wrong samples", None)
_described("balanced_accuracy", "accuracy of each class, averaged", "", "max", "headline")
_described("majority_share", "accuracy of always predicting the most frequent class", mode=None)
