"""Functions that need help under `torch.func.vmap`, so that every lane does what it would do alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Turns = Sequence[Callable[[], Any]]
"""One context manager a lane, within which torch's global generator is that lane's."""


class _Draw(torch.autograd.Function):
    """Dropout's factors, 0 or 1/(1 − p), for an input of any shape; defined under one `vmap` only."""

    generate_vmap_rule = False

    @staticmethod
    def forward(inputs: Tensor, p: float, turns: Turns) -> Tensor:
        raise RuntimeError("dropout in lanes is drawn under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, inputs: Tensor, p: float, turns: Turns) -> tuple[Tensor, int]:
        lanes = inputs.movedim(in_dims[0], 0).unbind() if in_dims[0] is not None else [inputs] * len(turns)
        factors = []
        for lane, turn in zip(lanes, turns, strict=True):
            with turn():
                factors.append(functional.dropout(torch.ones_like(lane), p, True))
        return torch.stack(factors), 0


class LaneFunctions(TorchFunctionMode):
    """Within this context two functions do under `vmap` what they do for one network.

    Dropout draws each lane's factors in the lane's turn. An embedding's padding row gets no gradient, which mapping
    forgets.
    """

    def __init__(self, turns: Turns) -> None:
        """Let lane number l draw within `turns[l]()`."""
        super().__init__()
        self._turns = turns

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace these functions' calls, leave every other as it is."""
        if func is functional.dropout:
            return self._dropout(*args, **(kwargs or {}))
        if func is functional.embedding:
            return _embedding(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _dropout(self, inputs: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return inputs
        return inputs * _Draw.apply(inputs.detach(), p, self._turns)


def _embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None, *others: Any, **named: Any) -> Tensor:
    rows = functional.embedding(indices, weight, padding_idx, *others, **named)
    if padding_idx is None:
        return rows
    padding = padding_idx if padding_idx >= 0 else len(weight) + padding_idx
    return torch.where((indices == padding).unsqueeze(-1), rows.detach(), rows)


def needs_lane_functions(model: nn.Module) -> bool:
    """Tell whether a network drops out anything while it trains, or has an embedding with padding."""
    return any(
        (isinstance(module, nn.Dropout) and module.p > 0)
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
