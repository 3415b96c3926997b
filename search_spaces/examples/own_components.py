"""Your own components, one of each kind: a loss, a network, a data set, a metric and a post-hoc method."""

import math
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from torch import Tensor, nn
from torch.nn import functional

from trainables.datasets import DataSet, Split, hash_of_splits
from trainables.datasets.base import stratified_split
from trainables.losses import Loss
from trainables.registry import Hyperparameter

Floats = NDArray[np.float64]


class Poly1(Loss):
    """Poly-1 cross-entropy (Leng et al. 2022, arXiv:2204.12511, Eq. 4); ε = 0 is cross-entropy."""

    HYPERPARAMETERS = (
        Hyperparameter(
            "epsilon",
            default=1.0,
            minimum=-1.0,
            reason="below -1 the gradient of a confident mistake turns around",
            source="Leng et al. 2022, section 5",
        ),
    )

    def __init__(self, epsilon: float = 1.0) -> None:
        self.epsilon = epsilon

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] values; the mean over the batch is the loss."""
        log_p = functional.log_softmax(logits, dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return -log_p + self.epsilon * (1.0 - log_p.exp())


class GatedMlp(nn.Module):
    """A perceptron with gated linear units (Dauphin et al. 2017, arXiv:1612.08083)."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, width: int = 32, depth: int = 1) -> None:
        super().__init__()
        # Twice the width before each GLU, which halves it again.
        sizes = [math.prod(input_shape), *[width] * depth]
        gated = [(nn.Linear(before, 2 * after), nn.GLU()) for before, after in pairwise(sizes)]
        self.features = nn.Sequential(nn.Flatten(), *(layer for pair in gated for layer in pair))
        self.classifier = nn.Linear(sizes[-1], classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits [N, classes] of inputs [N, *input_shape]."""
        return self.classifier(self.features(inputs))


def spirals(samples: int = 1200, classes: int = 3, noise: float = 0.25, seed: int = 0) -> DataSet:
    """Draw spirals, 60 % of each class for training, 20 % for validation and 20 % for test."""
    # A generator with its own seed: a draw from the global one would depend on earlier draws.
    random = np.random.RandomState(seed)
    targets = np.arange(samples) % classes
    # Not from 0: the arms meet in the centre, where no network could distinguish them.
    along = random.uniform(0.3, 1.0, samples)
    angle = 4.0 * along + 2.0 * np.pi * targets / classes + noise * random.standard_normal(samples)
    points = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    parts = stratified_split(targets, (0.2, 0.2), seed)
    splits = [Split(torch.tensor(points[part], dtype=torch.float32), torch.tensor(targets[part])) for part in parts]
    return DataSet("spirals", *splits, classes=classes, input_shape=(2,), split_hash=hash_of_splits(*parts))


def worst_class_gap(probabilities: Floats, targets: NDArray[np.int64], least: int = 5) -> float:
    """Return the largest |mean confidence − accuracy| over predicted classes of at least `least` samples."""
    predicted = probabilities.argmax(axis=1)
    confidence, correct = probabilities.max(axis=1), predicted == targets
    # Small classes are left out: the gap of a few samples is mostly noise, and a maximum would pick it.
    gaps = [
        abs(confidence[predicted == k].mean() - correct[predicted == k].mean())
        for k in range(probabilities.shape[1])
        if (predicted == k).sum() >= least
    ]
    if not gaps:
        raise ValueError(f"no class was predicted for {least} samples or more")
    return float(max(gaps))


class BiasCorrected:
    """Bias-corrected temperature scaling (Alexandari et al. 2020, arXiv:1901.06852, section 3), fitted by NLL."""

    PARAMETERS = ("temperature", "largest_bias")  # the keys of `parameters`: columns of the results

    def __init__(self, logits: Floats, targets: NDArray[np.int64], penalty: float = 1e-3) -> None:
        # The penalty keeps the biases finite where a class never occurs in the validation data.
        rows = np.arange(len(targets))

        def objective(free: Floats) -> float:
            log_p = log_softmax(logits * np.exp(-free[0]) + free[1:], axis=1)
            return -log_p[rows, targets].mean() + penalty * (free[1:] ** 2).sum()

        # exp(-free[0]) keeps the temperature positive without a bounded optimiser.
        self.free = minimize(objective, np.zeros(1 + logits.shape[1]), method="L-BFGS-B").x
        # Plain numbers: each becomes a column of the results.
        self.parameters = {"temperature": np.exp(self.free[0]), "largest_bias": np.abs(self.free[1:]).max()}

    def __call__(self, logits: Floats) -> Floats:
        """Return probabilities [M, K] of logits [M, K]."""
        return softmax(logits * np.exp(-self.free[0]) + self.free[1:], axis=1)
