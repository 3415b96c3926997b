"""Every scheduler that compares can be simulated: all trials begin, the best one finishes, time follows the workers."""

from typing import Literal

import numpy as np
import pytest

from sweeper.scheduling.simulation import simulate_sweep
from sweeper.space.spec import SchedulerSettings

TRIALS = 12


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("written", [{}, {"variant": "promotion"}, {"name": "median_stopping"}], ids=str)
def test_any_scheduler_that_compares_is_simulated(written: dict[str, str], mode: Literal["min", "max"]) -> None:
    settings = {"name": "asha", "max_epochs": 27, "grace_epochs": 3, **written}
    scheduler = SchedulerSettings.model_validate(settings).built("val_accuracy", mode)
    sign = 1 if mode == "min" else -1
    values = sign * np.arange(1.0, TRIALS + 1)[:, None].repeat(len(scheduler.rungs), 1)
    for workers in (1, 4):
        order = np.random.default_rng(workers).permutation(TRIALS).tolist()
        course = simulate_sweep(scheduler, order, values, np.ones(TRIALS), workers)
        last = len(scheduler.rungs) - 1
        assert set(course.reached) == set(range(TRIALS))
        assert course.reached[0] == last and min(course.reached.values()) < last
        epochs = sum(scheduler.rungs[place] for place in course.reached.values())
        assert epochs / workers <= course.seconds <= epochs
        assert workers > 1 or course.seconds == epochs
