"""Fixtures of tests that hold numbers against numbers: one thread, and networks in float64; a small network."""

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def double():
    """Networks are built in float64."""
    torch.set_default_dtype(torch.float64)
    yield torch.float64
    torch.set_default_dtype(torch.float32)


def normed(input_shape, classes):
    """A network with a batch norm and dropout."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
        nn.Linear(4 * (input_shape[1] - 2) * (input_shape[2] - 2), classes),
    )  # fmt: skip
