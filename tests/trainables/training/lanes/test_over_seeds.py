"""Rounding grows over a training; over seeds, what comes out of lanes is what comes out alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainables.training.lanes.comparison import configuration, train_both
from trainables.datasets import load_dataset

SEEDS, EPOCHS = 24, 8
METRICS = ("train_loss", "val_nll", "val_accuracy", "val_ece")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "architecture"),
    [("cross_entropy", "mlp"), ({"name": "focal", "gamma": 3.0}, "mlp"), ("cross_entropy", "resnet8")],
)
def test_final_metrics_are_indistinguishable(loss, architecture):
    """Paired by seed: no shift beyond chance (|t| < 3.5), and one that is small beside the scatter of the seeds."""
    values = configuration(loss, architecture, batch_size=128)
    _, _, alone, lanes = train_both(values, load_dataset("digits"), EPOCHS, seeds=range(SEEDS), max_epochs=EPOCHS)
    for metric in METRICS:
        one, other = (np.array([row[metric] for row in rows[-SEEDS:]]) for rows in (alone, lanes))
        difference = other - one
        scatter, error = one.std(ddof=1), difference.std(ddof=1) / np.sqrt(SEEDS)
        print(
            f"{metric}: {one.mean():.5f} ± {scatter:.5f} alone, lanes differ by {difference.mean():.2g} ± {error:.2g}"
        )
        assert abs(difference.mean()) <= 3.5 * error + 1e-9
        assert abs(difference.mean()) < 0.1 * scatter
