"""The forward pass of all lanes: mapped in general, written out where a network is nothing but matrix products.

Mapping costs tens of microseconds an operation, as much as a small network's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from trainables.training.lanes.functions import Turns, lane_functions, needs_lane_functions

Weights = Mapping[str, Tensor]
"""The lanes' parameters and buffers by name, each [L, ...]."""

_WRITTEN_OUT = (nn.Flatten, nn.Linear, nn.ReLU)


def lane_forward(network: nn.Module, turns: Turns) -> Callable[[Weights, Tensor, bool], Tensor]:
    """Return the forward pass of `network`'s architecture: weights, inputs, whether these differ by lane → logits.

    Args:
        network: called in the mode, training or evaluation, that it is in.
        turns: the lanes' generators, for dropout.
    """
    if isinstance(network, nn.Sequential) and all(type(layer) in _WRITTEN_OUT for layer in network):
        return lambda weights, inputs, by_lane: _perceptron(network, weights, inputs, by_lane)
    helped = needs_lane_functions(network)

    def one(weights: Weights, inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(network, dict(weights), (inputs,))
        return logits

    def mapped(weights: Weights, inputs: Tensor, by_lane: bool) -> Tensor:
        # What else is random, stochastic depth for one, must not be the same in all lanes.
        lanes = vmap(one, in_dims=(0, 0 if by_lane else None), randomness="different")
        with lane_functions(turns, helped and network.training):
            logits: Tensor = lanes(weights, inputs)
        return logits

    return mapped


def _perceptron(network: nn.Sequential, weights: Weights, inputs: Tensor, by_lane: bool) -> Tensor:
    """Return the logits of a stack of linear layers and ReLUs as batched matrix products."""
    hidden = inputs
    for name, layer in network.named_children():
        if isinstance(layer, nn.Flatten):
            hidden = hidden.flatten(2 if by_lane else 1)
        elif isinstance(layer, nn.ReLU):
            hidden = torch.relu(hidden)
        else:
            weight, bias = weights[f"{name}.weight"].transpose(1, 2), weights.get(f"{name}.bias")
            rows = hidden if hidden.dim() == 3 else hidden.expand(len(weight), -1, -1)
            hidden = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight)
    return hidden
