"""A lane ends where the same seed ends alone: every architecture, every loss, every optimiser."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.trainables.losses.test_every_loss import CASES
from tests.trainables.models.test_networks import HEAVY, OPTIONS, inputs_for
from tests.trainables.registered import register
from tests.trainables.training.lanes.comparison import configuration, digits, distance, in_type, roundings, train_both
from trainables.datasets.base import DataSet, Split
from trainables.models import ARCHITECTURES
from trainables.models.base import ArchitectureComponent

SLOW = HEAVY | {"timm", "torchvision", "resnet32", "resnet44", "resnet56", "preresnet56", "mobilenet_v2", "resnet18"}
SMALL = {
    **OPTIONS,
    "resnet_cifar": {"depth": 8},
    "densenet": {"layers": 2, "growth": 6},
    "preresnet": {"depth": 8, "width": 0.5},
    "wide_resnet": {"depth": 10, "width": 0.5, "dropout": 0.3},
    "vit_small_32": {"depth": 1, "dropout": 0.1},
    "global_pooling_cnn": {"vocabulary": 100, "channels": 16, "dimension": 10},
    "text_average": {"vocabulary": 100},
}
HESSIAN_TRACES = [
    ({"name": "hessian_trace", "weight": 1e-3, "probes": 2}, "mlp"),
    ({"name": "hessian_trace", "weight": 1e-3, "base": "adafocal"}, "mlp"),
    ({"name": "hessian_trace", "weight": 1e-5}, {"name": "resnet8", "width": 0.25}),
    ({"name": "hessian_trace", "weight": 0.0}, {"name": "resnet8", "width": 0.25}),
]
OPTIMIZERS = [
    {"nesterov": True},
    {"momentum": 0.0},
    {"gradient_clip": 0.3},
    {"gradient_clip": 2.0, "reduction": "sum"},
    {"name": "adam", "lr": 1e-3, "momentum": None},
    {"name": "adamw", "lr": 1e-3, "momentum": None},
    {"name": "adagrad", "lr": 0.05, "momentum": None},
]


def _images(name, dtype):
    """Twelve samples for two lanes: three steps an epoch."""
    inputs = inputs_for(name, 12)
    targets = torch.arange(12) % 3
    split = Split(inputs, targets)
    data = DataSet("random", split, split, split, 3, tuple(inputs.shape[1:]), "")
    return in_type(data, dtype)


def _architecture(name):
    return {"name": name, **SMALL.get(name, {})}


def _compare(name, dtype, epochs=1, batch_size=4):
    values = configuration({"name": "cross_entropy"}, _architecture(name), lr=0.01, batch_size=batch_size)
    return distance(*train_both(values, _images(name, dtype), epochs=epochs, seeds=(1, 2))[:2])


#: Largest accepted distance of a lane from the network alone, in units of that network's own rounding (`roundings`).
#: Kernels of a default build, of AVX2 and of AVX-512 differ by up to 1.8 of them.
ROUNDINGS = 8


def _roundings(name, seeds):
    """Return the least of several lanes' distances in float32 after one step; see `ROUNDINGS`.

    Where the input of a ReLU is 0 but for rounding, a lane passes it on and a network alone does not, or the other way
    round, and their weights differ by a hundredth instead of a millionth: three of eight densenets on a processor
    without AVX-512, others elsewhere. Lanes that compute something else are all far.
    """
    values = configuration({"name": "cross_entropy"}, _architecture(name), lr=0.01, batch_size=12)
    return min(roundings(values, _images(name, torch.float32), seeds, optimizers=False))


def _names(slow):
    return [name for name in ARCHITECTURES if (name in SLOW) == slow and not ARCHITECTURES[name].lanes]


@pytest.mark.parametrize("name", _names(slow=False))
def test_an_architecture_in_float64(double, name):
    assert _compare(name, double) < 1e-8


@pytest.mark.parametrize("name", _names(slow=False))
def test_an_architecture_in_float32_over_one_step(name):
    assert _roundings(name, seeds=(1, 2, 3, 4)) < ROUNDINGS


@pytest.mark.slow
@pytest.mark.parametrize("name", _names(slow=True))
def test_a_heavy_architecture_in_float64(double, name):
    assert _compare(name, double) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", _names(slow=True))
def test_a_heavy_architecture_in_float32_over_one_step(name):
    """The network itself can magnify rounding, as batch statistics of 12 values do in VGG-19."""
    assert _roundings(name, seeds=(1, 2)) < ROUNDINGS


LOSS_CASES = [
    {"name": name, **plain, **{key: lanes[1] for key, lanes in by_lane.items()}}
    for name, plain, by_lane in CASES.values()
]


def test_gradients_are_clipped_lane_by_lane(double):
    """With a joint norm every lane would move less than alone; here each moves as alone, and as far as the bound."""
    plain = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 160}
    values = configuration(architecture={"name": "mlp", "depth": 0}, gradient_clip=0.01, **plain)
    alone, lanes, _, _ = train_both(values, digits(double), epochs=1)
    assert distance(alone, lanes) < 1e-12
    fresh, _, _, _ = train_both(values, digits(double), epochs=0)
    for before, after in zip(fresh, lanes, strict=True):
        moved = [a - b for a, b in zip(after.model.parameters(), before.model.parameters(), strict=True)]
        assert torch.cat([m.flatten() for m in moved]).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_the_checkpoint_rule_keeps_each_lanes_own_epoch(double):
    values = configuration(lr=0.5, checkpoint="best_val_nll")
    alone, lanes, _, _ = train_both(values, digits(double), epochs=4)
    assert [r.state_dict()["kept_value"] for r in lanes] == pytest.approx([r.state_dict()["kept_value"] for r in alone])
    for one, other in zip(alone, lanes, strict=True):
        for name, kept in one.state_dict()["kept"].items():
            torch.testing.assert_close(other.state_dict()["kept"][name], kept, rtol=1e-8, atol=1e-12)


class StochasticDepth(nn.Module):
    """A residual branch that is left out for some samples, as timm's networks do it."""

    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob
        self.branch = nn.Linear(64, 64)

    def forward(self, inputs):
        kept = inputs.new_empty((len(inputs), 1)).bernoulli_(1 - self.drop_prob) if self.training else 1.0
        return inputs + kept * self.branch(inputs)


def test_stochastic_depth_is_the_seeds_own(double, monkeypatch):
    def build(input_shape, classes):
        return nn.Sequential(nn.Flatten(), StochasticDepth(0.5), nn.Linear(64, classes))

    register(monkeypatch, ARCHITECTURES, "stochastic", ArchitectureComponent("stochastic", build))
    assert distance(*train_both(configuration("focal", "stochastic"), digits(double))[:2]) < 1e-8
