"""How well a network's outputs tell samples of another distribution from those of its own.

Of each sample a score is taken that should be larger on the network's own distribution: the largest softmax
probability (MSP, Hendrycks & Gimpel 2017, arXiv:1610.02136), the largest logit (Hendrycks et al. 2022,
arXiv:1911.11132), the negative energy log Σ_k exp z_k (Liu et al. 2020, arXiv:2010.03759) and the negative entropy.
What is to be found, the positives, are the other distribution's samples, as in Hendrycks, Mazeika & Dietterich 2019
(arXiv:1812.04606); papers that take their own for the positives report another FPR and AUPR, and the same AUROC.

Selective prediction: how fast the risk falls when the least confident samples are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import METRICS, Booleans, Floats, Integers, finite_logits, log_softmax64

#: Splits of the network's own distribution; a data set's further splits are compared with `test`.
OWN_SPLITS = frozenset({"train", "val", "test"})

#: The share of the other distribution's samples that are to be found for FPR95.
RECALL = 0.95


def _entropy(logits: Floats) -> Floats:
    log_p = log_softmax64(logits)
    return np.asarray((np.exp(log_p) * log_p).sum(axis=1))


def _energy(logits: Floats) -> Floats:
    largest = logits.max(axis=1)
    return np.asarray(largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1)))


SCORES: dict[str, Callable[[Floats], Floats]] = {
    "msp": lambda logits: np.asarray(log_softmax64(logits).max(axis=1)),  # its logarithm keeps those near 1 apart
    "max_logit": lambda logits: np.asarray(logits.max(axis=1)),
    "energy": _energy,
    "entropy": _entropy,
}

MEASURES = ("auroc", "fpr95", "aupr")

#: Columns of `evaluations`, filled for splits that are not of `OWN_SPLITS`.
OOD_COLUMNS = tuple(f"ood_{score}_{measure}" for score in SCORES for measure in MEASURES)

for _name in OOD_COLUMNS:
    _score, _, _measure = _name.removeprefix("ood_").rpartition("_")
    METRICS.add(
        _name,
        "how well the samples of another distribution are told apart",
        "Hendrycks & Gimpel 2017, arXiv:1610.02136",
        label=f"OOD {_measure.upper()} ({_score.replace('_', ' ')})",
        mode="min" if _measure == "fpr95" else "max",
        range=(0, 1),
        always=True,
        needs="another split",
    )(lambda probabilities, targets: math.nan)


def other_splits(splits: tuple[str, ...] | list[str]) -> list[str]:
    """Return those of `splits` that are compared with `test`; none where `test` is not among them."""
    return [name for name in splits if name not in OWN_SPLITS] if "test" in splits else []


def ood_columns(own: ArrayLike, other: ArrayLike) -> dict[str, float]:
    """Return the columns of `OOD_COLUMNS` for logits [N, K] of the network's own test split and [M, K] of another."""
    both = [finite_logits(np.asarray(logits, dtype=np.float64)) for logits in (own, other)]
    found: dict[str, float] = {}
    for name, score in SCORES.items():
        inside, outside = (score(logits) for logits in both)
        values = (detection_auroc(inside, outside), false_positive_rate(inside, outside), aupr(inside, outside))
        found |= {f"ood_{name}_{measure}": value for measure, value in zip(MEASURES, values, strict=True)}
    return found


def detection_auroc(inside: Floats, outside: Floats) -> float:
    """Return the probability that a score of the other distribution [M] is below one of the own [N], ties by half."""
    return area_under_roc(-np.concatenate([inside, outside]), np.repeat([False, True], [len(inside), len(outside)]))


def false_positive_rate(inside: Floats, outside: Floats, recall: float = RECALL) -> float:
    """Return the share of own samples [N] that are flagged where at least `recall` of the others [M] are."""
    threshold = np.sort(outside)[int(np.ceil(recall * len(outside) - 1e-9)) - 1]
    return float((inside <= threshold).mean())


def aupr(inside: Floats, outside: Floats) -> float:
    """Return the average precision of finding the others [M] among the own [N]: Σ (R_i − R_{i−1}) P_i, ties as one."""
    score = np.concatenate([inside, outside])
    positive = np.repeat([0.0, 1.0], [len(inside), len(outside)])
    order = np.argsort(score, kind="stable")
    last = np.flatnonzero(np.concatenate((score[order][1:] != score[order][:-1], [True])))
    found = np.cumsum(positive[order])[last]
    return float((np.diff(found, prepend=0.0) / len(outside)) @ (found / (last + 1)))


def rank_weights(samples: int) -> Floats:
    """Return the AURC weights α_r = ψ(n+1) − ψ(n−r+1) of ranks r = 1 … n by ascending confidence; their mean is 1.

    ψ differences are harmonic: α_r = Σ_{j=n−r+1}^{n} 1/j (selective, AURC's plug-in estimator).
    """
    return np.cumsum(1.0 / np.arange(samples, 0, -1))


def tied_rank_weights(ascending: Floats) -> Floats:
    """Return the AURC weight of each of the sorted confidences [N]; tied confidences share their mean weight.

    AURC = (1/n) Σ α_r ℓ_i is the mean, over coverages 1/n … 1, of the risk of the most confident share (Geifman, Uziel
    & El-Yaniv 2019, arXiv:1805.08206; with weights, selective Def. 3.3).
    """
    weights = rank_weights(len(ascending))
    starts = np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1])))
    if len(starts) == len(ascending):
        return weights
    sizes = np.diff(starts, append=len(ascending))
    return np.repeat(np.add.reduceat(weights, starts) / sizes, sizes)


def optimal_area_under_risk_coverage(errors: int, samples: int) -> float:
    """Return A* = (1/n) Σ_{i=n−m+1}^{n} (i − (n−m))/i: the AURC of m errors all ranked below the n − m hits.

    E-AURC is AURC − A* (Geifman, Uziel & El-Yaniv 2019).
    """
    coverage = np.arange(samples - errors + 1, samples + 1)
    return float(((coverage - (samples - errors)) / coverage).sum() / samples)


@METRICS.add("risk_at_coverage", range=(0, 1))
def risk_at_coverage(probabilities: Floats, targets: Integers, coverage: Annotated[float, "(0, 1]"] = 0.8) -> float:
    """Error rate among the most confident share of samples.

    Return the error rate among the ⌈coverage·N⌉ samples with the highest top confidence.

    The selective risk of Geifman & El-Yaniv 2017, arXiv:1705.08500. Samples tied with the last accepted one
    count with the share of them that is accepted.

    Source: Geifman & El-Yaniv 2017, arXiv:1705.08500.

    Args:
        probabilities: [N, K].
        targets: [N] class indices.
        coverage: it is the share of samples that are accepted [our choice: one sample in five is rejected].
    """
    confidence = probabilities.max(axis=1)
    wrong = probabilities.argmax(axis=1) != targets
    accepted = int(np.ceil(coverage * len(targets)))
    last = np.sort(confidence)[-accepted]
    above, tied = confidence > last, confidence == last
    return float((wrong[above].sum() + wrong[tied].mean() * (accepted - above.sum())) / accepted)


@METRICS.add("confidence_auroc", label="AUROC of confidence", mode="max", range=(0, 1))
def confidence_auroc(probabilities: Floats, targets: Integers) -> float:
    """How well confidence separates correct from wrong predictions; larger is better.

    Return the probability that a hit is more confident than an error, ties counting half; NaN without either.

    The area under the ROC curve of the top confidence as a score of correctness, for probabilities [N, K] and targets
    [N] (Hendrycks & Gimpel 2017, arXiv:1610.02136).

    Source: Hendrycks & Gimpel 2017, arXiv:1610.02136.
    """
    correct = probabilities.argmax(axis=1) == targets
    return area_under_roc(probabilities.max(axis=1), correct)


def area_under_roc(score: Floats, positive: Booleans) -> float:
    """Return the probability that a positive's score [N] is above a negative's, ties counting half; NaN without either.

    Source: Mann & Whitney 1947, by ranks.
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return float("nan")
    ascending = np.sort(score)
    taken = score[positive]
    rank = (np.searchsorted(ascending, taken, "left") + np.searchsorted(ascending, taken, "right") + 1) / 2
    return float((rank.sum() - positives * (positives + 1) / 2) / (positives * negatives))


@METRICS.add("augrc", label="AUGRC", range=(0, 1))
def area_under_generalised_risk_coverage(probabilities: Floats, targets: Integers) -> float:
    """Share of samples both accepted and wrong, averaged over coverages.

    Return AUGRC, the mean over coverages of the share of samples that are both accepted and wrong.

    With a the accuracy, AUGRC = (1 − AUROC)·a·(1 − a) + (1 − a)²/2, AUROC that of confidence against correctness:
    unlike AURC it does not weigh the most confident errors by how few are accepted with them (Traub et al. 2024,
    Overcoming common flaws in the evaluation of selective classification systems, arXiv:2407.01032, Eq. 8). For
    probabilities [N, K] and targets [N].

    Source: Traub et al. 2024, arXiv:2407.01032.
    """
    wrong = float((probabilities.argmax(axis=1) != targets).mean())
    if wrong in (0.0, 1.0):
        return wrong / 2
    return (1 - confidence_auroc(probabilities, targets)) * (1 - wrong) * wrong + wrong**2 / 2
