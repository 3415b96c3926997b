"""Weights beside those that train: the running average, and those that a recipe's checkpoint rule prefers, which the
last evaluation measures in the place of the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainables.training.prediction import placed
from trainables.training.recipe import checkpoint_metric, replaces_checkpoint


class KeptWeights:
    """A copy of the best epoch's weights so far; none where the recipe has no rule, or before the first epoch."""

    def __init__(self, recipe: Mapping[str, Any], max_epochs: int) -> None:
        """Begin with none.

        Args:
            recipe: its checkpoint rule decides.
            max_epochs: the epoch that training runs to.
        """
        self._recipe, self._max_epochs = recipe, max_epochs
        self._weights: dict[str, Tensor] | None = None
        self._value: float | None = None

    def keep_if_better(self, network: nn.Module, epoch: int, metrics: Mapping[str, float]) -> None:
        """Keep the network's weights of an epoch with these metrics when the rule prefers them."""
        metric = checkpoint_metric(self._recipe)
        if metric is None:
            return
        if replaces_checkpoint(self._recipe, epoch, self._max_epochs, metrics[metric], self._value):
            self._weights, self._value = _copy_of(network), metrics[metric]

    @contextmanager
    def in_place(self, network: nn.Module) -> Iterator[None]:
        """Within this context the network has the weights that were kept, if any."""
        if self._weights is None:
            yield
            return
        current = _copy_of(network)
        network.load_state_dict(self._weights)
        yield
        network.load_state_dict(current)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the metric's value, for a checkpoint of the replicate."""
        return {"kept": self._weights, "kept_value": self._value}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Continue from `state_dict()`'s result, on `device`."""
        kept = state["kept"]
        self._weights = None if kept is None else placed(kept, device)
        self._value = state["kept_value"]


def _copy_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


class AveragedWeights:
    """W̄ ← decay·W̄ + (1 − decay)·W after each step, from the first step's weights on: torch's `AveragedModel`.

    A batch norm's running statistics are averaged as weights are.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Begin with a copy of `model`.

        Args:
            model: the network that trains.
            decay: of each step, in (0, 1).
        """
        self._averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
        self._averaged.requires_grad_(True)

    @property
    def network(self) -> nn.Module:
        """The network with the averaged weights."""
        network: nn.Module = self._averaged.module
        return network

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights after a step."""
        self._averaged.update_parameters(model)

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged weights and the number of steps that they have taken in."""
        return {"model": self.network.state_dict(), "steps": int(self._averaged.n_averaged)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`'s result."""
        self.network.load_state_dict(state["model"])
        self._averaged.n_averaged.fill_(state["steps"])


def measured_weights(saved: Mapping[str, Any], *, finished: bool) -> Mapping[str, Tensor]:
    """Return the weights that evaluations measure, of a replicate's saved state.

    Args:
        saved: `Replicate.state_dict()`.
        finished: whether its last epoch is done, where the recipe's checkpoint rule counts.
    """
    weights: Mapping[str, Tensor] = saved["model"]
    if saved.get("averaged") is not None:
        weights = saved["averaged"]["model"]
    if finished and saved["kept"] is not None:
        weights = saved["kept"]
    return weights
