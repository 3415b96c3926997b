"""Check second derivatives of users' `torch.autograd.Function`s against differences of the gradient.

A Hessian-vector product differentiates the backward pass that its author wrote. If that detaches a value, gradients are
right and training works, but the Hessian lacks terms. It can still be symmetric, so `HessianOperator.require_symmetric`
does not notice. Networks and losses of torch's own operations are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from trainables.curvature.failures import CurvatureUnavailable, graph_uses
from trainables.curvature.hessian import flatten, hessian_vector_product, private_copy, split_like
from trainables.curvature.loss_of_logits import LossFunction, loss_of_logits

_SAMPLES = 4

# Steps relative to the weights. Rounding in float64 makes a difference wrong by about 1e-8; with longer steps, a few of
# 100,000 ReLUs change sign within a step, and their jumps are as large as the difference itself.
_STEPS = (1e-7, 1e-8)
_AGREEMENT = 1e-3  # relative distance of a product from the differences, or of these from each other

_checked: set[tuple[object, ...]] = set()


def require_second_derivatives(model: nn.Module, inputs: Tensor, targets: Tensor, loss: LossFunction) -> None:
    """Raise CurvatureUnavailable if a product with the loss's Hessian differs from differences of its gradient.

    They are compared in float64 on the first samples, in one random direction, once per process for each kind of
    network and loss with a function written in Python. A kind that cannot be decided passes: one that refuses float64,
    or whose gradient jumps nearby.

    Args:
        model: network; it stays unchanged.
        inputs: inputs [N, …].
        targets: class indices [N].
        loss: mean loss of logits and targets.
    """
    kind = _kind(model, loss)
    if kind in _checked:
        return
    network, few = (
        private_copy(model),
        (inputs[:_SAMPLES].to(next(model.parameters()).device), targets[:_SAMPLES], loss),
    )
    try:
        share = _disagreement(network.double(), *few) if _has_own_function(network, *few) else None
    except (RuntimeError, TypeError, ValueError):  # the measurement itself reports what else is wrong with them
        share = None
    if share is not None and share > _AGREEMENT:
        raise CurvatureUnavailable(
            f"a Hessian-vector product differs by {share:.1g} of its norm from differences of the gradient: the network"
            " or the loss has an operation with a wrong second derivative, as a torch.autograd.Function has whose"
            " backward pass detaches a value; let autograd follow its backward pass"
        )
    _checked.add(kind)


def _kind(model: nn.Module, loss: LossFunction) -> tuple[object, ...]:
    """Return what networks and losses with the same code have in common."""
    inner = getattr(loss, "loss", loss)  # `OfRows` wraps the loss that is trained
    own = inner if isinstance(inner, FunctionType) else type(inner)
    return own, repr(model), *(type(module) for module in model.modules())


def _has_own_function(network: nn.Module, inputs: Tensor, targets: Tensor, loss: LossFunction) -> bool:
    """Return whether the loss's graph has an operation whose backward pass is written in Python."""
    logits = network(inputs)
    value = loss_of_logits(loss, logits, targets.to(logits.device), logits.detach())
    return any(isinstance(node, BackwardCFunction) for node in graph_uses([value]))


def _disagreement(network: nn.Module, inputs: Tensor, targets: Tensor, loss: LossFunction) -> float | None:
    """Return ‖Hv − d‖ relative to ‖d‖ for differences d of the gradient along v; `None` if two steps' d disagree.

    The network is in float64.
    """
    named = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    parameters = [*named.values()]
    data = inputs.double() if inputs.is_floating_point() else inputs
    at = network(data).detach()

    def gradient(weights: Sequence[Tensor], graph: bool = False) -> list[Tensor | None]:
        logits = torch.func.functional_call(network, dict(zip(named, weights, strict=True)), (data,))
        value = loss_of_logits(loss, logits, targets.to(at.device), at)
        return [*torch.autograd.grad(value, weights, create_graph=graph, allow_unused=True)]

    generator = torch.Generator().manual_seed(0)
    start = flatten(parameters, parameters).detach()
    drawn = torch.randn(len(start), generator=generator, dtype=torch.float64).to(start.device)
    way = drawn * (start.norm() / drawn.norm())
    slopes = gradient(parameters, graph=True)
    product = flatten(hessian_vector_product(slopes, parameters, split_like(way, parameters)), parameters)
    coarse, fine = (_difference(gradient, start, way, parameters, step) for step in _STEPS)
    # Rounding of the gradient, divided by the step: below this, a curvature of zero looks like any other.
    noise = torch.finfo(torch.float64).eps * float(flatten(slopes, parameters).detach().norm()) / _STEPS[1]
    size = float(fine.norm())
    if float((coarse - fine).norm()) > _AGREEMENT * size + noise:
        return None
    return max(0.0, float((product - fine).norm()) - noise) / max(size, float(product.norm()), 1e-300)


def _difference(
    gradient: Callable[[Sequence[Tensor]], list[Tensor | None]],
    start: Tensor,
    way: Tensor,
    like: Sequence[Tensor],
    step: float,
) -> Tensor:
    """Return (g(w + step·v) − g(w − step·v)) / (2·step) as a vector [P]."""
    sides = []
    for sign in (1, -1):
        weights = [piece.detach().requires_grad_() for piece in split_like(start + sign * step * way, like)]
        sides.append(flatten(gradient(weights), like))
    return (sides[0] - sides[1]) / (2 * step)
