"""One replicate's randomness among others in a process: its own state of torch's global generators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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
