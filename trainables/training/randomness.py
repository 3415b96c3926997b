"""What continues within an epoch beside weights: a replicate's own random state, and how far its epoch has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class OwnRandomness:
    """The state of torch's global generators as one replicate would have it alone in its process."""

    def __init__(self, seed: int, device: torch.device) -> None:
        """Begin with the state that seeding would give, without seeding the process."""
        self._device, self._inside = device, False
        self._state = _seeded(seed)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put this state in the place of the global one, and keep what becomes of it."""
        outside = _current(self._device)
        _set(self._state)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self._state = _current(self._device)
            _set(outside)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state by device, as it is now."""
        return _current(self._device) if self._inside else self._state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict()`'s result."""
        self._state = {key: value.cpu() for key, value in state.items()}


def _seeded(seed: int) -> dict[str, Tensor]:
    state = {"cpu": torch.Generator().manual_seed(seed).get_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.Generator("cuda").manual_seed(seed).get_state()
    return state


def _current(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set(state: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@dataclass
class EpochProgress:
    """An epoch between its first batch and its last.

    Attributes:
        order: state of the generator of order and augmentation when the epoch began.
        loss_sum: of the losses of samples so far, a scalar on the device.
        batches: so far.
        samples: in them.
        loss_state: of a loss that continues, which the beginning of an epoch would reset; `None` in an epoch from its
            first batch.
    """

    order: Tensor
    loss_sum: Tensor
    batches: int = 0
    samples: int = 0
    loss_state: Mapping[str, Any] | None = None

    def add(self, value: Tensor, samples: int) -> None:
        """Count a batch and its mean loss."""
        self.loss_sum += value * samples
        self.batches += 1
        self.samples += samples

    def state_dict(self) -> dict[str, Any]:
        """Return what to save."""
        return {"loss_sum": self.loss_sum, "batches": self.batches, "samples": self.samples}

    @staticmethod
    def from_state(saved: Mapping[str, Any], device: torch.device) -> EpochProgress | None:
        """Return the epoch in whose midst a replicate was saved; `None` where it was saved between epochs.

        Args:
            saved: `Replicate.state_dict()`.
            device: where it continues.
        """
        progress = saved.get("progress")
        if progress is None:
            return None
        total = progress["loss_sum"].to(device, copy=True)
        return EpochProgress(saved["order"].cpu(), total, progress["batches"], progress["samples"], saved["loss"])
