"""Which samples are for training, validation and test: seeded, reproducible, and identified by a hash.

Draws come from `numpy.random.RandomState`, whose streams are frozen permanently, so a split never changes with a
numpy release. And wrong training labels on purpose, to see which loss is confident in its mistakes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainables.registry import Hyperparameter

Indices = NDArray[np.int64]


def stratified_split(targets: NDArray[np.generic], fractions: Sequence[float], seed: int) -> list[Indices]:
    """Split sample indices into parts holding the same share of every class.

    Args:
        targets: classes, int [N].
        fractions: share of each part after the first, e.g. (0.2, 0.2) for 60/20/20; each class contributes
            `round(fraction * class size)` samples, the first part gets the rest.
        seed: of the draw.

    Returns:
        `1 + len(fractions)` sorted index arrays: the rest, then one for each fraction.
    """
    random = np.random.RandomState(seed)
    parts: list[list[Indices]] = [[] for _ in range(1 + len(fractions))]
    for label in np.unique(targets):
        members = random.permutation(np.flatnonzero(targets == label)).astype(np.int64)
        start = 0
        for part, fraction in enumerate(fractions, start=1):
            count = round(fraction * len(members))
            parts[part].append(members[start : start + count])
            start += count
        parts[0].append(members[start:])
    return [np.sort(np.concatenate(part)) for part in parts]


def shuffled_split(samples: int, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Split off the first `floor(fraction * samples)` of one shuffle, without regard to classes.

    Returns:
        (the rest, the part split off), each sorted.
    """
    order = np.random.RandomState(seed).permutation(samples).astype(np.int64)
    count = int(np.floor(fraction * samples))
    return np.sort(order[count:]), np.sort(order[:count])


def thinned(indices: Indices, targets: NDArray[np.generic], fraction: float, seed: int) -> Indices:
    """Keep `round(fraction * size)` of the samples of each class among `indices`; sorted."""
    _, kept = stratified_split(targets[indices], (fraction,), seed)
    return indices[kept]


def hash_of_splits(*parts: NDArray[np.generic]) -> str:
    """Return the sha256 of index arrays, as hex: equal exactly when every part holds the same indices in order.

    Each part is hashed as its length and its indices, little-endian 64-bit integers.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
    return digest.hexdigest()


NOISE_SEED = 0

LABEL_NOISE = Hyperparameter(
    "label_noise",
    "number",
    minimum=0,
    maximum=1,
    open_maximum=True,
    reason="the share of training labels that are flipped",
    source="mukhoti App. B flips a tenth",
)


def flip_labels(targets: NDArray[np.int64], share: float, classes: int, seed: int = NOISE_SEED) -> NDArray[np.int64]:
    """Return labels of which exactly `round(share * N)` were changed to another class, each other one equally likely.

    Symmetric noise (Zhang et al., "Understanding Deep Learning Requires Rethinking Generalization", 2017), but a
    flipped label is never the right one again, so that `share` is what it says.

    Args:
        targets: classes from 0, int [N].
        share: of the labels to flip.
        classes: number of classes K, at least 2 when anything is flipped.
        seed: of the draw.
    """
    random = np.random.RandomState(seed)
    chosen = random.permutation(len(targets))[: round(share * len(targets))]
    flipped = targets.copy()
    flipped[chosen] = (targets[chosen] + random.randint(1, max(2, classes), len(chosen))) % classes
    return flipped
