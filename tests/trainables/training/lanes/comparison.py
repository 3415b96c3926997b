"""The same replicates twice, once alone and once as lanes, and how far apart they end."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.trainables.small_data import small_digits
from trainables.datasets.base import DataSet, Split
from trainables.training.lanes.cohort import Lanes
from trainables.training.loop import Replicate

SGD = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 64, "schedule": "cosine"}


def configuration(loss="cross_entropy", architecture="mlp", **optimizer):
    """A configuration of named parts; hyperparameters of the optimizer that are `None` are left out."""
    recipe = {key: value for key, value in {**SGD, **optimizer}.items() if value is not None}
    parts = {"loss": loss, "architecture": architecture, "optimizer": recipe}
    return {key: {"name": part} if isinstance(part, str) else part for key, part in parts.items()}


def digits(dtype=torch.float32):
    data = small_digits()
    return in_type(data, dtype)


def in_type(data: DataSet, dtype) -> DataSet:
    """The data set with floating-point inputs in another type."""

    def converted(split: Split) -> Split:
        return replace(split, inputs=split.inputs.to(dtype)) if split.inputs.is_floating_point() else split

    return replace(data, train=converted(data.train), val=converted(data.val), test=converted(data.test))


def pair(values, data, seeds=(3, 4, 5), max_epochs=4):
    """Replicates to train alone, and the same ones for lanes."""
    return tuple(
        [Replicate(values, seed=seed, dataset=data, max_epochs=max_epochs) for seed in seeds] for _ in range(2)
    )


def train_both(values, data, epochs=2, **options):
    """Train alone and as lanes; return both lists of replicates and both lists of rows."""
    alone, together = pair(values, data, **options)
    lanes = Lanes(together)
    rows = [[], []]
    for _ in range(epochs):
        rows[0] += [replicate.train_epoch() for replicate in alone]
        rows[1] += lanes.train_epoch()
    lanes.settle()
    return alone, together, *rows


def in_double(replicates):
    """Convert untrained replicates, with their data, to float64."""
    for replicate in replicates:
        replicate.model.double()
        replicate.dataset = in_type(replicate.dataset, torch.float64)
    return replicates


def roundings(values, data, seeds=(3, 4, 5), optimizers=True):
    """Train one epoch in float32, alone and as lanes, and alone in float64.

    Return for each seed the distance of its lane from the network alone, in units of the latter's from float64: the
    rounding of this processor's own kernels, magnified by the network and the loss themselves.
    """
    alone, lanes = train_both(values, data, epochs=1, seeds=seeds)[:2]
    exact = in_double(pair(values, data, seeds=seeds)[0])
    for replicate in exact:
        replicate.train_epoch()
    found = []
    for one, lane, true in zip(alone, lanes, exact, strict=True):
        own = max(distance([true], [one], optimizers), torch.finfo(torch.float32).eps)
        found.append(distance([one], [lane], optimizers) / own)
    return found


def distance(left, right, optimizers=True):
    """The largest difference of weights, buffers and optimiser state, relative to the largest entry of each tensor.

    Tensors of different precision are compared in float64. Without `optimizers` of weights and buffers alone: after one
    step the optimiser holds the bare gradient, whose float32 rounding a deep network multiplies. Of tensors that are
    zero but for rounding, the difference itself counts.
    """
    worst = 0.0
    for one, other in zip(left, right, strict=True):
        pairs = [*zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)]
        states = [replicate.optimizer.state_dict()["state"] for replicate in (one, other)]
        assert states[0].keys() == states[1].keys()
        for index, state in states[0].items() if optimizers else ():
            assert state.keys() == states[1][index].keys()
            pairs += [(value, states[1][index][key]) for key, value in state.items() if torch.is_tensor(value)]
        for a, b in pairs:
            assert a.shape == b.shape and a.is_floating_point() == b.is_floating_point()
            if a.numel() and not torch.equal(a, b):
                a, b = a.double(), b.double()
                worst = max(worst, float((a - b).abs().max() / a.abs().max().clamp(min=1e-3)))
    return worst


def timeless(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
