"""The weights that a recipe's checkpoint rule prefers, which the last evaluation measures in the place of the last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainables.training.recipe import checkpoint_metric, replaces_checkpoint
from trainables.training.transfers import placed


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
