"""The forward pass of all lanes: mapped in general, written out where a network is nothing but matrix products.

Mapping costs tens of microseconds an operation, as much as a small network's arithmetic. Functions that draw random
numbers, and embeddings with a padding row, need help under `torch.func.vmap`, so that a lane does what it would alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Turns = Sequence[Callable[[], Any]]
"""One context manager a lane, within which torch's global generator is that lane's."""

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


class _Draw(torch.autograd.Function):
    """`draw(lane)` for each lane of a tensor, in that lane's turn; defined under one `vmap` only."""

    generate_vmap_rule = False

    @staticmethod
    def forward(inputs: Tensor, draw: Callable[[Tensor], Tensor], turns: Turns) -> Tensor:
        raise RuntimeError("random numbers in lanes are drawn under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, inputs: Tensor, draw: Callable[[Tensor], Tensor], turns: Turns
    ) -> tuple[Tensor, int]:
        lanes = inputs.movedim(in_dims[0], 0).unbind() if in_dims[0] is not None else [inputs] * len(turns)
        drawn = []
        for lane, turn in zip(lanes, turns, strict=True):
            with turn():
                drawn.append(draw(lane))
        return torch.stack(drawn), 0


def _drawn(inputs: Tensor, draw: Callable[[Tensor], Tensor], turns: Turns) -> Tensor:
    """Return the draws of `draw` for each lane of `inputs`."""
    drawn: Tensor = _Draw.apply(inputs, draw, turns)  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
    return drawn


class LaneFunctions(TorchFunctionMode):
    """Within this context some functions do under `vmap` what they do for one network.

    Dropout, and the Bernoulli draws of stochastic depth, draw for each lane in its turn. An embedding's padding row
    gets no gradient, which mapping forgets.
    """

    def __init__(self, turns: Turns) -> None:
        """Let lane number l draw within `turns[l]()`."""
        super().__init__()
        self._turns = turns

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace calls of these functions; leave all others unchanged."""
        if func is functional.dropout:
            return self._dropout(*args, **(kwargs or {}))
        if func is torch.Tensor.bernoulli_:
            return self._bernoulli(*args, **(kwargs or {}))
        if func is functional.embedding:
            return _embedding(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _dropout(self, inputs: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return inputs
        # Dropout of ones: its factors 0 or 1/(1 − p), from the numbers that it would take for the lane's inputs.
        factors = _drawn(inputs.detach(), lambda lane: functional.dropout(torch.ones_like(lane), p), self._turns)
        return inputs * factors

    def _bernoulli(self, place: Tensor, p: float = 0.5) -> Tensor:
        return place.copy_(_drawn(place, lambda lane: torch.empty_like(lane).bernoulli_(p), self._turns))


def _embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None, *others: Any, **named: Any) -> Tensor:
    rows = functional.embedding(indices, weight, padding_idx, *others, **named)
    if padding_idx is None:
        return rows
    padding = padding_idx if padding_idx >= 0 else len(weight) + padding_idx
    return torch.where((indices == padding).unsqueeze(-1), rows.detach(), rows)


def needs_lane_functions(model: nn.Module) -> bool:
    """Return whether a network drops anything at random while it trains, or has an embedding with padding."""
    return any(
        (isinstance(module, nn.Dropout) and module.p > 0)
        or getattr(module, "drop_prob", 0)  # timm's stochastic depth
        or (isinstance(module, nn.Embedding) and module.padding_idx is not None)
        for module in model.modules()
    )


@contextmanager
def lane_functions(turns: Turns, needed: bool) -> Iterator[None]:
    """Use `LaneFunctions` where they are `needed`: they cost a microsecond for every function a network calls."""
    if not needed:
        yield
        return
    with LaneFunctions(turns):
        yield
