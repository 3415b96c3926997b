"""How well a network's outputs tell samples of another distribution from those of its own.

Of each sample a score is taken that should be larger on the network's own distribution: the largest softmax
probability (MSP, Hendrycks & Gimpel 2017, arXiv:1610.02136), the largest logit (Hendrycks et al. 2022,
arXiv:1911.11132), the negative energy log Σ_k exp z_k (Liu et al. 2020, arXiv:2010.03759) and the negative entropy.
What is to be found, the positives, are the other distribution's samples, as in Hendrycks, Mazeika & Dietterich 2019
(arXiv:1812.04606); papers that take their own for the positives report another FPR and AUPR, and the same AUROC.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import METRICS, Floats, finite_logits, log_softmax64
from trainables.metrics.selective import area_under_roc

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
