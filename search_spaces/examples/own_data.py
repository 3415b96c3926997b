"""A data set of one's own: spirals in the plane, one arm a class, which no straight line separates."""

import numpy as np
import torch

from trainables.datasets import DataSet, Split, hash_of_splits
from trainables.datasets.base import stratified_split


def spirals(samples: int = 1200, classes: int = 3, noise: float = 0.25, seed: int = 0) -> DataSet:
    """Draw spirals; 60 % of each class are for training, 20 % for validation, 20 % for test."""
    random = np.random.RandomState(seed)
    targets = np.arange(samples) % classes
    along = random.uniform(0.3, 1.0, samples)
    angle = 4.0 * along + 2.0 * np.pi * targets / classes + noise * random.standard_normal(samples)
    points = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    parts = stratified_split(targets, (0.2, 0.2), seed)
    splits = [Split(torch.tensor(points[part], dtype=torch.float32), torch.tensor(targets[part])) for part in parts]
    return DataSet("spirals", *splits, classes=classes, input_shape=(2,), split_hash=hash_of_splits(*parts))
