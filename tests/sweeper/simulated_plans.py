"""How many trials a plan expects at each rung, whatever their stratum."""

from __future__ import annotations

import numpy as np

from sweeper.scheduling.base import Scheduler
from sweeper.scheduling.simulation import simulate_strata


def simulate(
    scheduler: Scheduler, trials: int, workers: int, repetitions: int | None = None, seed: int = 0
) -> np.ndarray:
    """Return how many of `trials` reach each rung [repetitions, rungs]."""
    return simulate_strata(scheduler, trials, workers, repetitions, seed)[1].sum(axis=1)
