"""Normalisation layers composed of elementary operations: the same values, and right third derivatives."""

import copy

import pytest
import torch
from torch import nn

from trainables.losses import build_loss
from trainables.losses.composed_normalisation import ComposedNormalisation

LAYERS = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "batch norm, plain": lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
    "batch norm, images": lambda: nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.BatchNorm2d(4), nn.Flatten()),
    "layer norm": lambda: nn.LayerNorm(4),
}
every_layer = pytest.mark.parametrize("label", LAYERS)


def _layer(label):
    torch.manual_seed(1)
    layer = LAYERS[label]().double()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return layer


@every_layer
@pytest.mark.parametrize("training", [True, False])
def test_values_and_running_statistics_are_the_layers_own(label, training):
    composed, native = _layer(label).train(training), _layer(label).train(training)
    for seed in range(3):
        inputs = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        with ComposedNormalisation():
            value = composed(inputs)
        torch.testing.assert_close(value, native(inputs), rtol=1e-12, atol=1e-12)
    for name, tensor in native.state_dict().items():
        torch.testing.assert_close(composed.state_dict()[name], tensor, rtol=1e-12, atol=1e-12)


@every_layer
def test_the_gradient_of_the_trace_matches_central_differences(label):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 4), _layer(label).float(), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs, targets = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])

    def value(weight):
        network = copy.deepcopy(model)
        network[0].weight.data = weight
        loss = build_loss("hessian_trace", weight=1.0, seed=7)
        return loss(network, inputs, targets), network[0].weight

    at = model[0].weight.detach().clone()
    total, weight = value(at)
    total.backward()
    for row, column in ((0, 0), (1, 2), (3, 1)):
        step = torch.zeros_like(at)
        step[row, column] = 1e-5
        slope = (value(at + step)[0] - value(at - step)[0]).item() / 2e-5
        assert weight.grad[row, column].item() == pytest.approx(slope, rel=1e-5, abs=1e-7)
