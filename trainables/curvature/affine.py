"""Is a network affine in each of its parameters, taken one at a time? Read off its graph of operations.

The Hessian of L(z(θ)) is JᵀH_z J + Σ_k (∂L/∂z_k) ∇²z_k. Where z is affine in every single parameter tensor (almost
everywhere, with the others held fixed), each ∇²z_k has an all-zero diagonal, so the second term has no trace and
Tr(H) is exactly the trace of the first term, the Gauss–Newton matrix. Networks of linear layers, convolutions,
eval-mode batch-norm, ReLU and pooling are of that kind: multi-layer perceptrons, VGG, ResNets, MobileNet-v2.
Attention, layer-norm, GELU, sigmoid gates and shared weights are not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from trainables.curvature.folding import BATCH_NORMS
from trainables.curvature.graph import graph_uses, short_name

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
