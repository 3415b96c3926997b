"""Stacked weights: one tensor holds a parameter of every lane, and each lane's own network looks into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainables.training.recipe import build_optimizer


class Stack:
    """The parameters, buffers and optimiser state of several replicates, stacked along a first dimension of lanes.

    Parameters and buffers of the replicates' networks become views into the stacked tensors: a change of either is
    seen in both, and the weights take no memory twice. The optimiser's state is copied: `settle` brings it back.

    Attributes:
        parameters: trainable parameters by name, leaves [L, ...] of the graph.
        fixed: buffers and parameters that are not trained, by name, [L, ...].
        weights: both together.
        optimizer: the recipe's optimiser over `parameters`. Its arithmetic is elementwise, so that one step of it is
            a step of each lane's.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], recipe: Any) -> None:
        """Stack networks of one architecture, and the states of their optimisers, which `recipe` describes."""
        self._models, self._optimizers = models, optimizers
        self.parameters: dict[str, Tensor] = {}
        self.fixed: dict[str, Tensor] = {}
        for name, parameter in models[0].named_parameters():
            stacked = self._share(name)
            if parameter.requires_grad:
                self.parameters[name] = nn.Parameter(stacked)
            else:
                self.fixed[name] = stacked
        for name, _ in models[0].named_buffers():
            self.fixed[name] = self._share(name)
        self.weights = {**self.parameters, **self.fixed}
        self.optimizer = build_optimizer(nn.ParameterList(self.parameters.values()), recipe)
        self._take_optimizer_state()

    def settle(self) -> None:
        """Give each lane's own optimiser the state that it would have if it had trained its lane alone."""
        for name, stacked in self.parameters.items():
            state = self.optimizer.state.get(stacked, {})
            for lane, (model, optimizer) in enumerate(zip(self._models, self._optimizers, strict=True)):
                optimizer.state[model.get_parameter(name)] = {
                    key: _lane_of(value, lane, stacked) for key, value in state.items()
                }
        for optimizer in self._optimizers:
            # An optimiser that has not seen a parameter yet has no entry for it, and looks for one to start from.
            for parameter in [p for p, state in optimizer.state.items() if not state]:
                del optimizer.state[parameter]

    def _share(self, name: str) -> Tensor:
        """Stack the lanes' tensors `name` and make each of them a view into the result."""
        own = [_tensor(model, name) for model in self._models]
        stacked = torch.stack([tensor.detach() for tensor in own])
        for tensor, view in zip(own, stacked.unbind(), strict=True):
            tensor.data = view
        return stacked

    def _take_optimizer_state(self) -> None:
        for name, stacked in self.parameters.items():
            pairs = zip(self._models, self._optimizers, strict=True)
            own = [optimizer.state.get(model.get_parameter(name), {}) for model, optimizer in pairs]
            if not own[0]:
                continue
            shape = self._models[0].get_parameter(name).shape
            self.optimizer.state[stacked] = {
                # All lanes have taken the same number of steps; the rest is shaped like the parameter, or absent.
                key: torch.stack([state[key] for state in own]) if _follows(key, value, shape) else _copy(value)
                for key, value in own[0].items()
            }


def _tensor(model: nn.Module, name: str) -> Tensor:
    owner, _, attribute = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(owner), attribute)
    return tensor


def _follows(key: str, value: Any, shape: torch.Size) -> bool:
    return key != "step" and isinstance(value, Tensor) and value.shape == shape


def _lane_of(value: Any, lane: int, stacked: Tensor) -> Any:
    if isinstance(value, Tensor) and value.shape == stacked.shape:
        return value[lane].clone()
    return _copy(value)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
