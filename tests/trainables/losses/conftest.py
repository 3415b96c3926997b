"""Random batches, and the comparison of a loss with its naive reference."""

import math
from types import SimpleNamespace

import pytest
import torch

SHAPES = [(1, 2), (2, 2), (1, 5), (4, 3), (7, 10), (16, 4), (3, 50), (12, 7)]
SEEDS = range(24)


def random_batch(seed, shape=None, scale=None):
    """Logits [N, K], float64 numbers that float32 holds exactly, and targets [N], a third of them the top class."""
    generator = torch.Generator().manual_seed(seed)
    samples, classes = shape or SHAPES[seed % len(SHAPES)]
    logits = torch.randn(samples, classes, generator=generator) * (scale or (0.5, 1.5, 4.0)[seed % 3])
    targets = torch.randint(classes, (samples,), generator=generator)
    known = torch.rand(samples, generator=generator) < 1 / 3
    return logits.double(), torch.where(known, logits.argmax(-1), targets)


def softmax_rows(logits):
    """Softmax row by row in plain Python floats."""
    rows = []
    for row in logits.tolist():
        top = max(row)
        exponentials = [math.exp(z - top) for z in row]
        total = math.fsum(exponentials)
        rows.append([e / total for e in exponentials])
    return rows


def check_against_reference(loss, reference, per_sample=True):
    """Compare over seeds and shapes: 1e-10 in float64, 1e-5 relative in float32.

    `reference(rows, targets)` takes probability rows and targets as lists and returns per-sample values, or one
    number for a loss that has none.
    """
    for seed in SEEDS:
        logits, targets = random_batch(seed)
        expected = reference(softmax_rows(logits), targets.tolist())
        mean = math.fsum(expected) / len(expected) if per_sample else expected
        scale = max(1.0, abs(mean))
        assert abs(loss(logits, targets).item() - mean) <= 1e-10 * scale, f"float64, seed {seed}"
        assert loss(logits.float(), targets).item() == pytest.approx(mean, rel=1e-5, abs=1e-7), f"float32, seed {seed}"
        if per_sample:
            values = loss.per_sample(logits, targets)
            wanted = torch.tensor(expected, dtype=torch.float64)
            torch.testing.assert_close(values, wanted, rtol=1e-10, atol=1e-10)


def check_gradient(loss, seeds=range(8)):
    """Compare automatic with numerical gradients in float64."""
    for seed in seeds:
        logits, targets = random_batch(seed, scale=1.0)
        assert torch.autograd.gradcheck(
            lambda z, y=targets: loss(z, y), (logits.clone().requires_grad_(),), atol=1e-6, rtol=1e-5
        )


@pytest.fixture
def reference():
    """The helpers of this folder's tests under one name."""
    return SimpleNamespace(
        batch=random_batch, rows=softmax_rows, check=check_against_reference, check_gradient=check_gradient
    )
