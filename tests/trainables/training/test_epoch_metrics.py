"""An epoch's metrics are their plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trainables.training.epoch_metrics import epoch_metrics


@pytest.mark.parametrize("seed", range(5))
def test_an_epochs_metrics_equal_plain_formulas(seed):
    rng = np.random.default_rng(seed)
    logits, targets = rng.normal(0, 3, (40, 5)), rng.integers(0, 5, 40)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    metrics = epoch_metrics(torch.tensor(logits), torch.tensor(targets), 15)
    nll = -np.mean([math.log(p[t]) for p, t in zip(probabilities, targets, strict=True)])
    assert metrics["val_nll"] == pytest.approx(nll, rel=1e-6)
    assert metrics["val_accuracy"] == np.mean(probabilities.argmax(1) == targets)
