"""Wrong second derivatives of users' own backward passes are noticed; every loss and network here passes."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trainables.curvature import CurvatureSettings, CurvatureUnavailable, measure_curvature, second_derivatives
from trainables.curvature.lanes import Lane, measure_lanes
from trainables.losses import LOSSES, build_loss

SETTINGS = CurvatureSettings(lanczos_steps=4)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    monkeypatch.setattr(second_derivatives, "_checked", set())


class Detached(torch.autograd.Function):
    """Squares, with the right gradient and a second derivative of zero."""

    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values.square()

    @staticmethod
    def backward(ctx, outer):
        (values,) = ctx.saved_tensors
        return 2 * values.detach() * outer


class Square(Detached):
    """Squares, with derivatives that are right."""

    @staticmethod
    def backward(ctx, outer):
        (values,) = ctx.saved_tensors
        return 2 * values * outer


class Squares(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, inputs):
        return self.function.apply(inputs)


def penalised(function):
    def loss(logits, targets):
        return cross_entropy(logits, targets) + 0.1 * function.apply(logits).mean()

    return loss


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 6, generator=generator), torch.arange(20) % 3


def network(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Linear(8, 3))


def test_a_network_whose_backward_detaches_is_refused():
    with pytest.raises(CurvatureUnavailable, match="wrong second derivative"):
        measure_curvature(network(Squares(Detached)), *data(), {"ce": cross_entropy}, settings=SETTINGS, seed=0)
    right = network(Squares(Square))
    assert measure_curvature(right, *data(), {"ce": cross_entropy}, settings=SETTINGS, seed=0)["ce"]["lambda_max"] > 0


def test_a_loss_whose_backward_detaches_is_refused_alone_and_in_lanes():
    lanes = [Lane(network(nn.ReLU()), {"training": penalised(function)}, 0) for function in (Square, Detached)]
    assert measure_lanes(lanes, *data(), settings=SETTINGS) == [None, None], "each is then measured by itself"
    assert measure_lanes([lanes[0], lanes[0]], *data(), settings=SETTINGS)[0] is not None
    with pytest.raises(CurvatureUnavailable, match="wrong second derivative"):
        measure_curvature(network(nn.ReLU()), *data(), lanes[1].losses, settings=SETTINGS, seed=0)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "hessian_trace"])
def test_every_loss_is_decided_and_right(name):
    inputs, targets = data()
    loss = build_loss(name)
    share = second_derivatives._disagreement(network(nn.Tanh()).double(), inputs, targets, loss)
    assert share is not None and share < 1e-4
