"""Losses with a trace of the Hessian, over lanes: weights and probes of each lane's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainables.curvature.hessian import hessian_vector_product
from trainables.losses import Loss
from trainables.losses.hessian_trace import HessianTrace
from trainables.losses.numerics import is_zero
from trainables.training.lanes.losses import lane_inner


def lane_weights(losses: Sequence[Loss]) -> Tensor | None:
    """Return the lanes' weights of the trace [L]; `None` where these are 0 and nothing is added."""
    own = [loss.weight for loss in losses if isinstance(loss, HessianTrace)]
    if any(is_zero(weight) for weight in own):
        return None
    return torch.tensor([float(weight) for weight in own], dtype=torch.float64)


def with_trace(values: Tensor, leaves: Mapping[str, Tensor], losses: Sequence[Loss], weights: Tensor) -> Tensor:
    """Return values [L] plus τ·Tr(H) of each lane (curvature Eq. 33), its probes drawn by its own loss.

    Lanes are independent, so the gradient of the sum is the stack of their gradients: the two backward passes of
    Hutchinson's estimate serve all lanes at once.
    """
    held = list(leaves.values())
    gradients = torch.autograd.grad(values.sum(), held, create_graph=True, allow_unused=True)
    drawn = [
        loss.draw({name: stacked[lane] for name, stacked in leaves.items()})
        for lane, loss in enumerate(losses)
        if isinstance(loss, HessianTrace)
    ]
    trace = torch.zeros_like(values)
    for trees in zip(*drawn, strict=True):
        probe = [torch.stack([tree[name] for tree in trees]) for name in leaves]
        trace = trace + lane_inner(hessian_vector_product(gradients, held, probe, training=True), probe)
    return values + weights * trace / len(drawn[0])
