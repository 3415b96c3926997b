"""Is a network affine in each of its parameters, taken one at a time? Read off its graph of operations.

The Hessian of L(z(θ)) is JᵀH_z J + Σ_k (∂L/∂z_k) ∇²z_k. Where z is affine in every single parameter tensor (almost
everywhere, with the others held fixed), each ∇²z_k has an all-zero diagonal, so the second term has no trace and
Tr(H) is exactly the trace of the first term, the Gauss–Newton matrix. Networks of linear layers, convolutions,
eval-mode batch-norm, ReLU and pooling are of that kind: multi-layer perceptrons, VGG, ResNets, MobileNet-v2.
Attention, layer-norm, GELU, sigmoid gates and shared weights are not.

An eval-mode batch-norm is folded into the convolution before it, as a function of the original parameters: with fixed
statistics, bn(conv(x, W)) = conv(x, s·W) + (b − μ)·s + β with s = γ/√(σ² + ε). The folded weight is computed from W, γ
and β inside the graph, so that gradients and Hessian over the original parameters stay exact, and the network loses an
elementwise pass over every activation, forward and in all derivatives.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from trainables.curvature.failures import graph_uses, short_name

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
LAYERS = (nn.Linear, nn.Conv2d, *BATCH_NORMS)

# Operations that are affine, or piecewise affine, in all of their inputs together.
_PIECEWISE_AFFINE = {
    "AccumulateGrad", "AdaptiveAvgPool2DBackward0", "AddBackward0", "AvgPool2DBackward0", "CatBackward0",
    "CloneBackward0", "ConstantPadNdBackward0", "ExpandBackward0", "HardtanhBackward0", "LeakyReluBackward0",
    "MaxPool2DWithIndicesBackward0", "MeanBackward0", "MeanBackward1", "NegBackward0", "PermuteBackward0",
    "ReluBackward0", "ReshapeAliasBackward0", "SelectBackward0", "SliceBackward0", "SqueezeBackward0",
    "SqueezeBackward1", "SqueezeBackward2", "SubBackward0", "SumBackward0", "SumBackward1", "TBackward0",
    "ThresholdBackward0", "TransposeBackward0", "UnsafeViewBackward0", "UnsqueezeBackward0", "ViewBackward0",
}  # fmt: skip
# Operations that multiply an input by a parameter: the slots of `next_functions` that must hold a bare parameter.
_PARAMETER_SLOTS = {
    "AddmmBackward0": (0, 2),
    "MmBackward0": (1,),
    "ConvolutionBackward0": (1, 2),
    "NativeBatchNormBackward0": (1, 2),
    "CudnnBatchNormBackward0": (1, 2),
    "MiopenBatchNormBackward0": (1, 2),
}
_PROBE_SAMPLES = 3


def affine_in_each_parameter(network: nn.Module, inputs: Tensor) -> bool:
    """Return whether the logits of `network` (eval mode, not folded) are piecewise affine in each parameter alone.

    Looks at the first samples of `inputs` [N, …]. True only if every operation between parameters and logits is known,
    every trainable parameter is the weight or bias of a linear, convolution or batch-norm layer, each is used once, and
    samples do not mix.
    """
    example = inputs[:_PROBE_SAMPLES]
    layers, logits = record_layers(network, example)
    if logits.ndim != 2 or not _owns_all_parameters(network, layers):
        return False
    uses = graph_uses([logits])
    bare = {node: count for node, count in uses.items() if short_name(node) == "AccumulateGrad"}
    used_once = all(count == 1 for count in bare.values())
    known = all(_is_known(node) for node in uses)
    return used_once and known and _samples_stay_apart(layers, logits)


def record_layers(network: nn.Module, inputs: Tensor) -> tuple[dict[nn.Module, tuple[Tensor, Tensor]], Tensor]:
    """Run `network` and return each layer's (input, output) in its graph, and the logits.

    A layer that is called twice is left out, so that its parameters count as not owned by any layer; and one whose
    output depends on no trainable parameter, as in a frozen stem.
    """
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    calls: dict[nn.Module, int] = {}

    def after(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        found[module] = (arguments[0], output)

    handles = [module.register_forward_hook(after) for module in network.modules() if type(module) in LAYERS]
    try:
        logits = network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {module: pair for module, pair in found.items() if calls[module] == 1 and pair[1].requires_grad}, logits


def _owns_all_parameters(network: nn.Module, layers: dict[nn.Module, tuple[Tensor, Tensor]]) -> bool:
    owned = [id(p) for layer in layers for p in layer.parameters(recurse=False) if p.requires_grad]
    wanted = {id(p) for p in network.parameters() if p.requires_grad}
    return len(owned) == len(set(owned)) and set(owned) == wanted


def _is_known(node: Node) -> bool:
    """Whether a graph node is affine in each parameter alone; multiplying is fine by a bare parameter or a constant."""
    name = short_name(node)
    inputs = [function for function, _ in node.next_functions]
    if name in _PIECEWISE_AFFINE:
        return True
    if name in ("MulBackward0", "DivBackward0"):
        return sum(function is not None for function in inputs) == 1 and (name[0] == "M" or inputs[0] is not None)
    if "BatchNorm" in name and getattr(node, "_saved_training", True):
        return False
    slots = _PARAMETER_SLOTS.get(name)
    return slots is not None and all(_is_bare_parameter(inputs[slot]) for slot in slots)


def _is_bare_parameter(node: Node | None) -> bool:
    """Whether a slot holds a constant, a parameter, or a transposed parameter."""
    if node is not None and short_name(node) == "TBackward0":
        node = node.next_functions[0][0]
    return node is None or short_name(node) == "AccumulateGrad"


def _samples_stay_apart(layers: dict[nn.Module, tuple[Tensor, Tensor]], logits: Tensor) -> bool:
    """Whether the first sample's logits depend only on the first row of each layer's output."""
    if len(logits) < _PROBE_SAMPLES:
        return False
    outputs = [output for _, output in layers.values()]
    if any(len(output) != len(logits) for output in outputs):
        return False
    weights = torch.linspace(1.0, 2.0, logits.shape[1], dtype=logits.dtype, device=logits.device)
    found = torch.autograd.grad(logits[0] @ weights, outputs, allow_unused=True)
    return not any(bool(gradient[1:].any()) for gradient in found if gradient is not None)


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
