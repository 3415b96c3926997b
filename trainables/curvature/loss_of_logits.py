"""Evaluate a loss of logits so that its second derivatives stay accurate where a probability rounds to 1.

A sample's curvature by its logits consists of terms p_y(1 − p_y). From a margin of 17 on, p_y is 1 in float32, and
torch's second derivative of a softmax can be wrong by any factor. Logits are therefore converted to float64 if the loss
accepts it, and softmaxes are computed from all classes except the largest, so that nothing cancels.
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
    """A loss that treats some values as constant: ranks, weights, thresholds, a bandwidth, per-sample γ."""

    def frozen(self, logits: Tensor, targets: Tensor) -> LossFunction:
        """Return the loss with these values fixed at logits [N, K] and targets [N]."""


def loss_of_logits(loss: LossFunction, logits: Tensor, targets: Tensor, at: Tensor) -> Tensor:
    """Return `loss` at logits [N, K], with the values that it treats as constant fixed at logits `at` [N, K].

    The loss receives copies, which it may change in place. If a loss has float32 tensors and refuses float64, it
    receives the logits in their original dtype.

    Example:
        >>> logits, targets = torch.tensor([[0.0, 0.0]]), torch.tensor([1])
        >>> loss_of_logits(functional.cross_entropy, logits, targets, at=logits)
        tensor(0.6931, dtype=torch.float64)
    """
    with ComposedSoftmax():
        if logits.dtype != torch.float64:
            try:
                return frozen(loss, at.double(), targets)(logits.double(), targets)
            except (RuntimeError, TypeError, ValueError):
                pass  # any error that is not about float64 is raised again below
        return frozen(loss, at.clone(), targets)(logits.clone(), targets)


def frozen(loss: LossFunction, logits: Tensor, targets: Tensor) -> LossFunction:
    """Return `loss` with its constants fixed at `logits`; a plain function is returned unchanged."""
    return loss.frozen(logits, targets) if isinstance(loss, Freezable) else loss


def log_softmax(logits: Tensor, dim: int) -> Tensor:
    """Return log p whose first and second derivatives keep full relative accuracy as p → 0 and p → 1.

    With d_k = z_k − z_top and S = Σ_{k≠top} exp d_k, log p_k = d_k − log(1 + S).

    Example:
        >>> log_softmax(torch.tensor([[40.0, 0.0]], dtype=torch.float64), dim=1)[0, 0].item()
        -4.2...e-18
    """
    top = logits.argmax(dim, keepdim=True)
    differences = logits - logits.gather(dim, top)
    rest = torch.log1p(differences.scatter(dim, top, -torch.inf).exp().sum(dim, keepdim=True))
    return differences.scatter(dim, top, 0.0) - rest


class ComposedSoftmax(TorchFunctionMode):
    """Within this context, softmaxes and cross-entropies with class indices are computed by `log_softmax`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace plain calls of these functions and pass all other calls on."""
        given = dict(kwargs or {})
        if func is functional.cross_entropy:
            return _cross_entropy(*args, **given)
        dim = given.get("dim") if len(args) == 1 else args[1] if len(args) == 2 else None
        if func in _SOFTMAXES and isinstance(dim, int) and given.keys() <= {"dim", "_stacklevel"}:
            log_p = log_softmax(args[0], dim)
            return log_p if _SOFTMAXES[func] else log_p.exp()
        return func(*args, **given)


#: Softmax function → whether it returns logarithms. torch dispatches each spelling separately, so all are listed.
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
    # Class weights keep the dtype of the loss; torch refuses to mix it with float64 logits.
    weight = None if weight is None else weight.to(logits)
    more = (weight, size_average, ignore_index, reduce, reduction)
    if logits.dim() != 2 or target.is_floating_point() or label_smoothing:
        return functional.cross_entropy(logits, target, *more, label_smoothing)
    return functional.nll_loss(log_softmax(logits, 1), target, *more)
