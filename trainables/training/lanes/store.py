"""The lanes' numbers: one row of a matrix holds all parameters of a lane, and each lane's own network looks into it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

ALIGNMENT = 64
"""Elements to which a parameter's place in its row is rounded up. A product of matrices rounds by their addresses
modulo 64 bytes, too: with this every lane has the same, so a lane's bits do not depend on its place."""


class LaneStore:
    """Parameters, gradients and the optimiser's memory of up to W lanes, [W, P] each, and buffers [W, ...].

    Parameters and buffers of a lane's network become views into its row: a change of either is seen in both.

    Attributes:
        width: W.
        values, gradients: [W, P], padded with zeros between parameters.
        parameters, slopes: parameter name → view [W, *shape] into `values` and into `gradients`.
        fixed: buffers and parameters that are not trained, by name, [W, ...].
    """

    def __init__(self, template: nn.Module, width: int) -> None:
        """Make room for `width` networks of the template's architecture, in its types and on its device."""
        self.width = width
        self._places: dict[str, tuple[int, torch.Size]] = {}
        end = 0
        trained = {name: p for name, p in template.named_parameters() if p.requires_grad}
        for name, parameter in trained.items():
            self._places[name] = end, parameter.shape
            end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        like = next(iter(trained.values()))
        self.values, self.gradients = (torch.zeros(width, end, dtype=like.dtype, device=like.device) for _ in range(2))
        self.parameters, self.slopes = self.views(self.values), self.views(self.gradients)
        self.memories: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {name: p for name, p in template.named_parameters() if not p.requires_grad}
        kept.update(template.named_buffers())
        self.fixed = {name: tensor.detach().new_zeros((width, *tensor.shape)) for name, tensor in kept.items()}

    def memory(self, key: str) -> Tensor:
        """Return what the optimiser keeps under `key`, [W, P], zeros at first."""
        if key not in self.memories:
            self.memories[key] = torch.zeros_like(self.values)
        return self.memories[key]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return each parameter's part of [L, P], as [L, *shape]."""
        return {
            name: flat[:, at : at + prod(shape)].view(len(flat), *shape) for name, (at, shape) in self._places.items()
        }

    def take(self, lane: int, model: nn.Module) -> None:
        """Copy a network's numbers into row `lane` and make its parameters and buffers views of it."""
        self.values[lane] = self.gradients[lane] = 0
        for memory in self.memories.values():
            memory[lane] = 0
        for name, stacked in {**self.parameters, **self.fixed}.items():
            own = _tensor(model, name)
            stacked[lane].copy_(own.detach())
        self.show(lane, model)

    def show(self, lane: int, model: nn.Module) -> None:
        """Let a network look into row `lane`."""
        for name, stacked in {**self.parameters, **self.fixed}.items():
            _tensor(model, name).data = stacked[lane]

    def move(self, source: int, target: int, model: nn.Module) -> None:
        """Move a lane and its network to another row."""
        for flat in (self.values, self.gradients, *self.memories.values(), *self.fixed.values()):
            flat[target] = flat[source]
        self.show(target, model)

    def release(self, model: nn.Module) -> None:
        """Give a network numbers of its own again; its row is free."""
        for name in (*self.parameters, *self.fixed):
            own = _tensor(model, name)
            own.data = own.detach().clone()

    def memory_of(self, lane: int, name: str, keys: Sequence[str]) -> dict[str, Tensor]:
        """Return copies of what the optimiser keeps of a lane's parameter, by key."""
        at, shape = self._places[name]
        return {key: self.memories[key][lane, at : at + prod(shape)].view(shape).clone() for key in keys}

    def remember(self, lane: int, name: str, key: str, value: Tensor) -> None:
        """Take over what an optimiser keeps of a lane's parameter."""
        at, shape = self._places[name]
        self.memory(key)[lane, at : at + prod(shape)] = value.reshape(-1).to(self.values)


def _tensor(model: nn.Module, name: str) -> Tensor:
    owner, _, attribute = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(owner), attribute)
    return tensor
