"""One training step and one prediction of all lanes' networks, given the gradients by their logits.

Perceptrons are written out: their products, in buffers whose lanes all begin at multiples of 64 bytes, so that a lane's
bits depend neither on its place nor on how many there are. Everything else is mapped, forward and backward, over all
lanes of the cohort, idle ones too: convolutions choose how they add by the number of lanes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from math import prod

import torch
from torch import Tensor, nn

from trainables.losses.composed_normalisation import ComposedNormalisation
from trainables.training.acceleration import BFLOAT16, CannotCompileError, TrainingSettings, training_forward
from trainables.training.lanes.forward import Turns, lane_forward, needs_lane_functions
from trainables.training.lanes.store import ALIGNMENT, LaneStore

Slopes = Callable[[Tensor], Tensor]
"""Logits [L, B, K] → the gradients of the lanes' losses by them, [L, B, K]."""

_WRITTEN_OUT = (nn.Flatten, nn.Linear, nn.ReLU)


class LaneNetworks(ABC):
    """The networks of a cohort.

    Attributes:
        elastic: whether a lane's bits do not depend on how many lanes compute, so that idle ones need not.
    """

    elastic: bool

    @abstractmethod
    def backward(self, inputs: Tensor, slopes: Slopes) -> None:
        """Leave in the store the gradients at inputs [L, B, ...]."""

    @abstractmethod
    def predict(self, inputs: Tensor, lanes: int) -> Tensor:
        """Return logits [L, B, K] of the first lanes at inputs [B, ...] that all share, in evaluation mode."""


def networks_of(shell: nn.Module, store: LaneStore, turns: Turns, training: TrainingSettings) -> LaneNetworks:
    """Return the networks whose architecture is that of `shell` and whose numbers are in `store`.

    Raises CannotCompileError where they are to be compiled and each lane draws its own random numbers.
    """
    if training.compile and needs_lane_functions(shell):
        raise CannotCompileError(
            "compile = true cannot translate lanes that draw dropout or stochastic depth each in its turn, or have "
            "padded embeddings; choose packing: sequential, or compile: false"
        )
    if is_perceptron(shell) and not training.compile and training.precision != BFLOAT16:
        return Perceptrons(shell, store)
    return MappedNetworks(shell, store, turns, training)


def is_perceptron(network: nn.Module) -> bool:
    """Return whether a network is nothing but linear layers, all of them trained, and ReLUs between them."""
    if not isinstance(network, nn.Sequential) or not all(type(layer) in _WRITTEN_OUT for layer in network):
        return False
    kinds = [type(layer) for layer in network if not isinstance(layer, nn.Flatten)]
    alternate = kinds[::2] == [nn.Linear] * len(kinds[::2]) and kinds[1::2] == [nn.ReLU] * len(kinds[1::2])
    trained = all(parameter.requires_grad for parameter in network.parameters())
    return trained and alternate and kinds[-1:] == [nn.Linear] and next(network.buffers(), None) is None


class Perceptrons(LaneNetworks):
    """Stacks of linear layers and ReLUs: products of matrices, batched over lanes, and their gradients by hand."""

    elastic = True

    def __init__(self, shell: nn.Module, store: LaneStore) -> None:
        """Compute with the numbers in `store`."""
        self._store = store
        self._layers = [name for name, layer in shell.named_children() if isinstance(layer, nn.Linear)]
        self._buffers: dict[tuple[object, ...], Tensor] = {}

    @torch.no_grad()
    def backward(self, inputs: Tensor, slopes: Slopes) -> None:
        """Leave in the store the gradients at inputs [L, B, ...]."""
        lanes = len(inputs)
        hidden = [inputs.flatten(2)]
        for depth, name in enumerate(self._layers):
            hidden.append(self._linear(name, depth, hidden[-1], lanes, last=depth == len(self._layers) - 1))
        with torch.enable_grad():
            slope = self._buffer("slope", hidden[-1].shape).copy_(slopes(hidden[-1]))
        for depth in reversed(range(len(self._layers))):
            name, below = self._layers[depth], hidden[depth]
            torch.bmm(slope.transpose(1, 2), below, out=self._store.slopes[f"{name}.weight"][:lanes])
            if f"{name}.bias" in self._store.slopes:
                torch.sum(slope, 1, out=self._store.slopes[f"{name}.bias"][:lanes])
            if depth:
                weight = self._store.parameters[f"{name}.weight"][:lanes]
                passed = torch.bmm(slope, weight, out=self._buffer(("back", depth), below.shape))
                # What a ReLU did not pass on has no part in the gradient.
                slope = torch.ops.aten.threshold_backward.grad_input(passed, below, 0, grad_input=passed)

    @torch.no_grad()
    def predict(self, inputs: Tensor, lanes: int) -> Tensor:
        """Return logits [L, B, K] of the first lanes at inputs [B, ...] that all share."""
        hidden = inputs.flatten(1).expand(lanes, -1, -1)
        for depth, name in enumerate(self._layers):
            hidden = self._linear(name, depth, hidden, lanes, last=depth == len(self._layers) - 1)
        return hidden.clone()

    def _linear(self, name: str, depth: int, rows: Tensor, lanes: int, *, last: bool) -> Tensor:
        weight = self._store.parameters[f"{name}.weight"][:lanes].transpose(1, 2)
        place = self._buffer(("forward", depth), torch.Size((lanes, rows.shape[1], weight.shape[2])))
        bias = self._store.parameters.get(f"{name}.bias")
        if bias is None:
            torch.bmm(rows, weight, out=place)
        else:
            torch.baddbmm(bias[:lanes].unsqueeze(1), rows, weight, out=place)
        return place if last else place.relu_()

    def _buffer(self, name: object, shape: torch.Size) -> Tensor:
        """Return a buffer [L, B, D] whose lanes begin at multiples of 64 bytes, the same one for the same request."""
        key = (name, *shape)
        if key not in self._buffers:
            size = prod(shape[1:])
            flat = self._store.values.new_empty(shape[0], -(-size // ALIGNMENT) * ALIGNMENT)
            self._buffers[key] = flat[:, :size].view(shape)
        return self._buffers[key]


class MappedNetworks(LaneNetworks):
    """Any network, under `torch.func.vmap`, with automatic differentiation back through it."""

    elastic = False

    def __init__(self, shell: nn.Module, store: LaneStore, turns: Turns, training: TrainingSettings) -> None:
        """Compute with the numbers in `store`, while training as `training` says."""
        self._shell, self._store = shell, store
        self._forward = lane_forward(shell, turns)
        self._training_forward = training_forward(self._forward, training, store.values.device)
        self._weights = leaves_of(store)

    def backward(self, inputs: Tensor, slopes: Slopes) -> None:
        """Leave in the store the gradients at inputs [W, B, ...]."""
        self._shell.train()
        leaves = self._weights
        logits = self._training_forward({**leaves, **self._store.fixed}, inputs, True)
        gradients = torch.autograd.grad(logits, list(leaves.values()), slopes(logits.detach()), allow_unused=True)
        with torch.no_grad():
            for name, gradient in zip(leaves, gradients, strict=True):
                self._store.slopes[name].copy_(gradient) if gradient is not None else self._store.slopes[name].zero_()

    @torch.no_grad()
    def predict(self, inputs: Tensor, lanes: int) -> Tensor:
        """Return logits [L, B, K] of the first lanes at inputs [B, ...] that all share."""
        self._shell.eval()
        return self._forward({**self._store.parameters, **self._store.fixed}, inputs, False)[:lanes]


def leaves_of(store: LaneStore) -> dict[str, Tensor]:
    """Return the parameters as leaves of a graph, sharing memory with the store."""
    return {name: stacked.detach().requires_grad_() for name, stacked in store.parameters.items()}


def differentiable(
    shell: nn.Module, store: LaneStore, turns: Turns, inputs: Tensor, *, thrice: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits [L, B, K] with their graph, and its leaves, for losses that need the network itself."""
    shell.train()
    lanes = len(inputs)
    leaves = {name: stacked[:lanes].detach().requires_grad_() for name, stacked in store.parameters.items()}
    fixed = {name: stacked[:lanes] for name, stacked in store.fixed.items()}
    with ComposedNormalisation() if thrice else nullcontext():
        return lane_forward(shell, turns)({**leaves, **fixed}, inputs, True), leaves
