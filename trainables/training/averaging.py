"""The exponential moving average of a network's weights, which is measured in the place of the network that trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


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
