"""Check that replicates can train as lanes: a few batches, compared with the same replicates trained alone.

For the project's own networks and losses tests show it. A user's own are tried where they train: a loss that looks at
its values in Python cannot be mapped, one that keeps its state elsewhere than in `state_dict` would be mapped wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from trainables.datasets.base import DataSet, Split
from trainables.training.lanes import Lanes
from trainables.training.loop import Replicate

STEPS = 3
"""Steps an epoch; with two epochs a wrong gradient or a lost state shows in the second one's losses."""

EPOCHS = 2

TOLERANCE = 0.01
"""Of losses and states after six steps. Lanes round otherwise, by some 1e-6 a step; a wrong gradient, or a state that
is not each lane's own, shows in the first digits."""


def few_batches(dataset: DataSet, batch_size: int, steps: int = STEPS) -> DataSet:
    """Return the data set cut to a few batches for training, and one for validation."""
    train, val = dataset.train, dataset.val
    return replace(dataset, train=_first(train, steps * batch_size), val=_first(val, batch_size))


def lane_fault(
    build: Callable[[int, DataSet], Replicate], seeds: Sequence[int], dataset: DataSet, batch_size: int
) -> str | None:
    """Return why replicates do not train as lanes what they train alone, or `None` when they do.

    Args:
        build: makes a replicate from a seed, to train on the data set given.
        seeds: of two replicates or more; two are tried.
        dataset: on the device.
        batch_size: of the recipe.
    """
    few = few_batches(dataset, batch_size)
    alone, together = ([build(seed, few) for seed in seeds[:2]] for _ in range(2))
    expected = [[each.train_epoch() for each in alone] for _ in range(EPOCHS)]
    try:
        lanes = Lanes(together)
        found = [lanes.train_epoch() for _ in range(EPOCHS)]
        lanes.settle()
    except Exception as error:
        # torch.func names what it cannot map over lanes in many ways, and a user's code may fail in others.
        words = " ".join(str(error).split())
        return f"it cannot be mapped over lanes ({type(error).__name__}: {words[:200]})"
    for mine, theirs in zip(expected, found, strict=True):
        for lane, (left, right) in enumerate(zip(mine, theirs, strict=True)):
            for column in ("train_loss", "val_nll"):
                if not _close(left[column], right[column]):
                    return (
                        f"as lane {lane} its {column} is {right[column]:.6g}, alone {left[column]:.6g}, in epoch "
                        f"{left['epoch']}"
                    )
    return _state_fault([each.loss.state_dict() for each in alone], [each.loss.state_dict() for each in together])


def _state_fault(alone: Sequence[Mapping[str, Any]], together: Sequence[Mapping[str, Any]]) -> str | None:
    for left, right in zip(alone, together, strict=True):
        for key, value in left.items():
            mine, theirs = torch.as_tensor(value).double(), torch.as_tensor(right[key]).double()
            if mine.shape != theirs.shape or not torch.allclose(mine, theirs, rtol=TOLERANCE, atol=1e-6):
                return f"the loss's state {key!r} is not the same after training in lanes"
    return None


def _close(left: float, right: float) -> bool:
    same = math.isnan(left) and math.isnan(right)
    return same or math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=1e-6)


def _first(split: Split, samples: int) -> Split:
    return split.first(samples)
