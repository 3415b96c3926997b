"""The value of a loss of logits, whose derivatives are right where a probability rounds to 1.

A sample's curvature by its logits is made of p_y(1 − p_y). From a margin of 17 on p_y is 1 in float32, and torch's own
second derivative of a softmax wrong by any factor. So logits are taken in float64, as far as the loss allows, and
softmaxes are composed of what the other classes have beside the largest, at which nothing cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LossFunction = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class Freezable(Protocol):
    """A loss that treats something as constant: ranks, weights, thresholds, a bandwidth, per-sample γ."""

    def frozen(self, logits: Tensor, targets: Tensor) -> LossFunction:
        """Return the loss with all that fixed at these logits [N, K] and targets [N]."""


def loss_of_logits(loss: LossFunction, logits: Tensor, targets: Tensor, at: Tensor) -> Tensor:
    """Return `loss` of logits [N, K] with everything that it treats as constant fixed at the logits `at` [N, K].

    It gets copies of them, which it may change in place. A loss that has numbers of its own in float32 may refuse
    float64; it gets the logits as they are.
    """
    with ComposedSoftmax():
        if logits.dtype != torch.float64:
            try:
                return frozen(loss, at.double(), targets)(logits.double(), targets)
            except (RuntimeError, TypeError, ValueError):
                pass  # what else may be the matter is the matter without float64, too
        return frozen(loss, at.clone(), targets)(logits.clone(), targets)


def frozen(loss: LossFunction, logits: Tensor, targets: Tensor) -> LossFunction:
    """Return `loss` with everything that it treats as constant fixed at `logits`; a plain function as it is."""
    return loss.frozen(logits, targets) if isinstance(loss, Freezable) else loss


def log_softmax(logits: Tensor, dim: int) -> Tensor:
    """Return log p, of which first and second derivatives keep full relative accuracy as p → 0 and p → 1.

    With d_k = z_k − z_top and S = Σ d_k's exponentials over all but the largest, log p_k = d_k − log(1 + S).
    """
    top = logits.argmax(dim, keepdim=True)
    beside = logits - logits.gather(dim, top)
    rest = torch.log1p(beside.scatter(dim, top, -torch.inf).exp().sum(dim, keepdim=True))
    return beside.scatter(dim, top, 0.0) - rest


class ComposedSoftmax(TorchFunctionMode):
    """Within this context softmaxes and cross-entropies of class indices are composed by `log_softmax`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace calls of these functions in their plain forms; leave all others unchanged."""
        given = dict(kwargs or {})
        if func is functional.cross_entropy:
            return _cross_entropy(*args, **given)
        dim = given.get("dim") if len(args) == 1 else args[1] if len(args) == 2 else None
        if func in _SOFTMAXES and isinstance(dim, int) and given.keys() <= {"dim", "_stacklevel"}:
            found = log_softmax(args[0], dim)
            return found if _SOFTMAXES[func] else found.exp()
        return func(*args, **given)


#: A function → whether it gives logarithms.
_SOFTMAXES: dict[Any, bool] = {
    functional.log_softmax: True, torch.log_softmax: True, Tensor.log_softmax: True, torch.special.log_softmax: True,
    functional.softmax: False, torch.softmax: False, Tensor.softmax: False, torch.special.softmax: False,
}  # fmt: skip


def _cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    weight = None if weight is None else weight.to(logits)
    more = (weight, size_average, ignore_index, reduce, reduction)
    if logits.dim() != 2 or target.is_floating_point() or label_smoothing:
        return functional.cross_entropy(logits, target, *more, label_smoothing)
    return functional.nll_loss(log_softmax(logits, 1), target, *more)
