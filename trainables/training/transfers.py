"""Tensors between devices: what a GPU has computed comes to the host in one transfer, as each waits for all work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Return tensors on the host, those of a GPU by one transfer; what is there already stays as it is."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [*tensors]
    return parted(joined(tensors).cpu(), tensors)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of tensors of any type and shape, one after the other, uint8 [sum of their sizes]."""
    return torch.cat([tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors])


def parted(together: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return what `joined` has put together, by the types and shapes of `like`."""
    parts = together.split([tensor.nbytes for tensor in like])
    # A copy begins where its type may begin; a part may not.
    return [part.clone().view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def placed(state: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a state with its tensors on `device`; other values as they are."""
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in state.items()}
