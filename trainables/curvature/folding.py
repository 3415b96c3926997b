"""Eval-mode batch-norm folded into the convolution before it, as a function of the original parameters.

With fixed statistics, bn(conv(x, W)) = conv(x, s·W) + (b − μ)·s + β with s = γ/√(σ² + ε). Since the folded weight is
computed from W, γ and β inside the graph, gradients and Hessian over the original parameters stay exact, and the
network loses an elementwise pass over every activation, forward and in all derivatives.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from trainables.curvature.graph import graph_uses

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def fixed_statistics(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the running mean μ and 1/√(σ² + ε), each [C], of a batch-norm that keeps running statistics."""
    assert norm.running_mean is not None and norm.running_var is not None, "its statistics are the batch's"
    return norm.running_mean, torch.rsqrt(norm.running_var + norm.eps)


def normalisation_scale(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the factor s [C] and shift β − μ·s [C] of an eval-mode batch-norm, differentiable in γ and β."""
    mean, inverse = fixed_statistics(norm)
    scale = inverse if norm.weight is None else norm.weight * inverse
    shift = -mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias


def fold_batch_norm(network: nn.Module, example: Tensor) -> list[tuple[nn.Conv2d, BatchNorm]]:
    """Fold, in place, each batch-norm of `network` (a private copy in eval mode) that directly follows a convolution.

    One forward pass over `example` finds the pairs: the convolution's output goes to that batch-norm and nowhere
    else, and both are called once. Returns the folded pairs; none where the folded network would not give the
    same logits, as when a forward method reads a batch-norm's attributes itself.
    """
    pairs = _adjacent_pairs(network, example)
    if not pairs:
        return []
    with torch.no_grad():
        before = network(example)
        for convolution, norm in pairs:
            # A method that held its own module would be a cycle, which keeps a card's memory until Python looks for it.
            convolution.__dict__["forward"] = partial(_folded, weakref.ref(convolution), norm)
            norm.__dict__["forward"] = _identity
        after = network(example)
    if before.shape == after.shape and torch.allclose(before, after, rtol=1e-3, atol=1e-4 * float(before.abs().max())):
        return pairs
    for module in (module for pair in pairs for module in pair):
        del module.__dict__["forward"]
    return []


def _folded(module: weakref.ref[nn.Conv2d], norm: BatchNorm, inputs: Tensor) -> Tensor:
    convolution = module()
    assert convolution is not None, "it is being called"
    scale, shift = normalisation_scale(norm)
    bias = shift if convolution.bias is None else shift + convolution.bias * scale
    forward: Callable[..., Tensor] = convolution._conv_forward
    return forward(inputs, convolution.weight * scale[:, None, None, None], bias)


def _identity(inputs: Tensor) -> Tensor:
    return inputs


def _adjacent_pairs(network: nn.Module, example: Tensor) -> list[tuple[nn.Conv2d, BatchNorm]]:
    """Return the convolutions whose output is used by one batch-norm with fixed statistics and by nothing else."""
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    calls: dict[nn.Module, int] = {}
    followers: list[tuple[nn.Conv2d, BatchNorm, Tensor]] = []

    def after(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        if isinstance(module, nn.Conv2d):
            outputs[id(output)] = (module, output)
        elif isinstance(module, BATCH_NORMS) and id(arguments[0]) in outputs and module.running_mean is not None:
            convolution, tensor = outputs[id(arguments[0])]
            followers.append((convolution, module, tensor))

    watched = [m for m in network.modules() if type(m) is nn.Conv2d or isinstance(m, BATCH_NORMS)]
    handles = [module.register_forward_hook(after) for module in watched]
    try:
        logits = network(example)
    finally:
        for handle in handles:
            handle.remove()
    uses = graph_uses([logits])
    return [
        (convolution, norm)
        for convolution, norm, tensor in followers
        if calls[convolution] == calls[norm] == 1 and tensor.grad_fn is not None and uses.get(tensor.grad_fn, 0) == 1
    ]
