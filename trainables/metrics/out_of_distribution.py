"""Detection of samples from another distribution, and metrics of selective prediction.

Each sample gets a score that should be larger on the network's own distribution: the largest softmax probability (MSP,
Hendrycks & Gimpel 2017, arXiv:1610.02136), the largest logit (Hendrycks et al. 2022, arXiv:1911.11132), the negative
energy log Σ_k exp z_k (Liu et al. 2020, arXiv:2010.03759) and the negative entropy. The positives are the samples of
the other distribution, as in Hendrycks, Mazeika & Dietterich 2019 (arXiv:1812.04606); papers that count their own
samples as the positives report another FPR and AUPR, but the same AUROC.

Metrics of selective prediction measure how fast the risk falls when the least confident samples are rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import METRICS, Booleans, Floats, Integers, finite_logits, log_softmax64

#: Splits of the network's own distribution; further splits of a data set are compared with `test`.
OWN_SPLITS = frozenset({"train", "val", "test"})

#: Share of the other distribution's samples that FPR95 requires to be detected.
RECALL = 0.95


def _entropy(logits: Floats) -> Floats:
    log_p = log_softmax64(logits)
    return np.asarray((np.exp(log_p) * log_p).sum(axis=1))


def _energy(logits: Floats) -> Floats:
    # exp of a logit above 709 is infinite in float64
    largest = logits.max(axis=1)
    return np.asarray(largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1)))


SCORES: dict[str, Callable[[Floats], Floats]] = {
    "msp": lambda logits: np.asarray(log_softmax64(logits).max(axis=1)),  # the logarithm has fewer ties near 1
    "max_logit": lambda logits: np.asarray(logits.max(axis=1)),
    "energy": _energy,
    "entropy": _entropy,
}

MEASURES = ("auroc", "fpr95", "aupr")

#: Columns of `evaluations`, filled for splits that are not in `OWN_SPLITS`.
OOD_COLUMNS = tuple(f"ood_{score}_{measure}" for score in SCORES for measure in MEASURES)

for _name in OOD_COLUMNS:
    _score, _, _measure = _name.removeprefix("ood_").rpartition("_")
    METRICS.add(
        _name,
        "detection of samples from another distribution",
        "Hendrycks & Gimpel 2017, arXiv:1610.02136",
        label=f"OOD {_measure.upper()} ({_score.replace('_', ' ')})",
        mode="min" if _measure == "fpr95" else "max",
        range=(0, 1),
        always=True,
        needs="another split",
    )(lambda probabilities, targets: math.nan)


def other_splits(splits: tuple[str, ...] | list[str]) -> list[str]:
    """Return the splits that are compared with `test`; none if `splits` does not contain `test`."""
    return [name for name in splits if name not in OWN_SPLITS] if "test" in splits else []


def ood_columns(own: ArrayLike, other: ArrayLike) -> dict[str, float]:
    """Return the columns of `OOD_COLUMNS` for logits [N, K] of the network's own test split and [M, K] of another.

    Example:
        >>> columns = ood_columns([[9.0, 0.0], [0.0, 8.0]], [[1.0, 0.0], [0.0, 0.0]])
        >>> columns["ood_msp_auroc"], columns["ood_energy_fpr95"]
        (1.0, 0.0)
    """
    both = [finite_logits(np.asarray(logits, dtype=np.float64)) for logits in (own, other)]
    columns: dict[str, float] = {}
    for name, score in SCORES.items():
        inside, outside = (score(logits) for logits in both)
        values = (detection_auroc(inside, outside), false_positive_rate(inside, outside), aupr(inside, outside))
        columns |= {f"ood_{name}_{measure}": value for measure, value in zip(MEASURES, values, strict=True)}
    return columns


def detection_auroc(inside: Floats, outside: Floats) -> float:
    """Return the probability that a score of the other distribution [M] is below an own score [N]; ties count half."""
    return area_under_roc(-np.concatenate([inside, outside]), np.repeat([False, True], [len(inside), len(outside)]))


def false_positive_rate(inside: Floats, outside: Floats) -> float:
    """Return the share of own samples [N] flagged by a threshold that flags at least `RECALL` of other samples [M]."""
    # 0.95 times a count can exceed a whole number by rounding, and the ceiling would then take one sample more
    threshold = np.sort(outside)[int(np.ceil(RECALL * len(outside) - 1e-9)) - 1]
    return float((inside <= threshold).mean())


def aupr(inside: Floats, outside: Floats) -> float:
    """Return the average precision Σ (R_i − R_{i−1}) P_i of detecting other samples [M] among own samples [N].

    Equal scores are one threshold.
    """
    score = np.concatenate([inside, outside])
    positive = np.repeat([0.0, 1.0], [len(inside), len(outside)])
    order = np.argsort(score, kind="stable")
    last = np.flatnonzero(np.concatenate((score[order][1:] != score[order][:-1], [True])))
    hits = np.cumsum(positive[order])[last]
    return float((np.diff(hits, prepend=0.0) / len(outside)) @ (hits / (last + 1)))


def rank_weights(samples: int) -> Floats:
    """Return the AURC weights α_r = ψ(n+1) − ψ(n−r+1) of ranks r = 1 … n by ascending confidence; their mean is 1.

    Differences of ψ are harmonic sums: α_r = Σ_{j=n−r+1}^{n} 1/j (selective Def. 3.3).

    Example:
        >>> rank_weights(3).round(4).tolist()
        [0.3333, 0.8333, 1.8333]
    """
    return np.cumsum(1.0 / np.arange(samples, 0, -1))


def optimal_area_under_risk_coverage(errors: int, samples: int) -> float:
    """Return A* = (1/n) Σ_{i=n−m+1}^{n} (i − (n−m))/i: the AURC of m errors all ranked below the n − m hits.

    E-AURC is AURC − A* (Geifman, Uziel & El-Yaniv 2019).

    Example:
        >>> optimal_area_under_risk_coverage(errors=1, samples=4)  # only full coverage has a risk: 1/4 of the mean
        0.0625
    """
    coverage = np.arange(samples - errors + 1, samples + 1)
    return float(((coverage - (samples - errors)) / coverage).sum() / samples)


#: Share of samples that are predicted unless a search space says otherwise.
COVERAGE = 0.8


@METRICS.add("risk_at_coverage", mode="min", range=(0, 1))
def risk_at_coverage(
    probabilities: Floats, targets: Integers, coverage: Annotated[float, "(0, 1]"] = COVERAGE
) -> float:
    """Error rate among the most confident share of samples.

    Return the error rate among the ⌈coverage·N⌉ samples with the highest top confidence: the selective risk. Samples
    tied with the last accepted one count with their accepted share.

    Source: Geifman & El-Yaniv 2017, arXiv:1705.08500.

    Args:
        probabilities: [N, K].
        targets: [N] class indices.
        coverage: share of samples that are accepted [our choice: one sample in five is rejected].

    Example:
        >>> probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
        >>> risk_at_coverage(probabilities, np.array([0, 1, 0, 1]), coverage=0.5)
        0.5
    """
    return risk_among(probabilities.max(axis=1), probabilities.argmax(axis=1) != targets, coverage)


def risk_among(confidence: Floats, wrong: Booleans, coverage: float) -> float:
    """Return the error rate among the share `coverage` of samples with the highest confidence [N], as above."""
    accepted = int(np.ceil(coverage * len(wrong)))
    last = np.sort(confidence)[-accepted]
    above, tied = confidence > last, confidence == last
    return float((wrong[above].sum() + wrong[tied].mean() * (accepted - above.sum())) / accepted)


@METRICS.add("confidence_auroc", label="AUROC of confidence", mode="max", range=(0, 1))
def confidence_auroc(probabilities: Floats, targets: Integers) -> float:
    """How well confidence separates correct from wrong predictions; larger is better.

    Return the probability that a correct prediction is more confident than a wrong one, ties counting half; NaN without
    correct or without wrong predictions. It is the area under the ROC curve of the top confidence as a score of
    correctness, for probabilities [N, K] and targets [N].

    Source: Hendrycks & Gimpel 2017, arXiv:1610.02136.

    Example:
        >>> probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
        >>> confidence_auroc(probabilities, np.array([0, 1, 0]))
        0.5
    """
    correct = probabilities.argmax(axis=1) == targets
    return area_under_roc(probabilities.max(axis=1), correct)


def area_under_roc(score: Floats, positive: Booleans) -> float:
    """Return the probability that the score [N] of a positive exceeds that of a negative, ties counting half.

    NaN if there are no positives or no negatives.

    Source: Mann & Whitney 1947, by ranks.

    Example:
        >>> area_under_roc(np.array([0.1, 0.5, 0.5, 0.9]), np.array([False, False, True, True]))
        0.875
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return float("nan")
    ascending = np.sort(score)
    taken = score[positive]
    # the mean rank of ties, from their first and last place
    rank = (np.searchsorted(ascending, taken, "left") + np.searchsorted(ascending, taken, "right") + 1) / 2
    return float((rank.sum() - positives * (positives + 1) / 2) / (positives * negatives))


@METRICS.add("augrc", label="AUGRC", mode="min", range=(0, 1))
def area_under_generalised_risk_coverage(probabilities: Floats, targets: Integers) -> float:
    """Share of samples both accepted and wrong, averaged over coverages.

    Return AUGRC = (1 − AUROC)·a·(1 − a) + (1 − a)²/2, where a is the accuracy and AUROC is that of confidence as a
    score of correctness, for probabilities [N, K] and targets [N]. AURC gives the most confident errors more weight,
    because few samples are accepted together with them. AUGRC does not (Traub et al. 2024, Overcoming common flaws in
    the evaluation of selective classification systems, arXiv:2407.01032, Eq. 8).

    Source: Traub et al. 2024, arXiv:2407.01032, Eq. 8.

    Example:
        >>> probabilities = np.array([[0.9, 0.1], [0.8, 0.2]])
        >>> area_under_generalised_risk_coverage(probabilities, np.array([0, 1]))  # the error is less confident
        0.125
    """
    wrong = float((probabilities.argmax(axis=1) != targets).mean())
    # AUROC is NaN without hits or without errors; its term then has the factor 0
    if wrong in (0.0, 1.0):
        return wrong / 2
    return (1 - confidence_auroc(probabilities, targets)) * (1 - wrong) * wrong + wrong**2 / 2
