"""The exact trace of the Gauss–Newton matrix JᵀH_z J, for networks that are affine in each parameter.

The Hessian of L(z(θ)) is JᵀH_z J + Σ_k (∂L/∂z_k) ∇²z_k. If z is affine in every single parameter tensor (almost
everywhere, with the others held fixed), each ∇²z_k has an all-zero diagonal. The second term then has no trace, and
Tr(H) is exactly the trace of the first term, the Gauss–Newton matrix. This holds for networks of linear layers,
convolutions, eval-mode batch-norm, ReLU and pooling: multi-layer perceptrons, VGG, ResNets, MobileNet-v2. It does not
hold for attention, layer-norm, GELU, sigmoid gates and shared weights. The autograd graph shows which case applies.

An eval-mode batch-norm is folded into the convolution before it, as a function of the original parameters: with fixed
statistics, bn(conv(x, W)) = conv(x, s·W) + (b − μ)·s + β with s = γ/√(σ² + ε). The folded weight is computed from W, γ
and β inside the graph, so gradients and Hessian over the original parameters stay exact. The forward pass and every
derivative then skip an elementwise pass over every activation.

The trace is Σ_i ⟨H_z,i, J_i J_iᵀ⟩ over samples i. It needs the K×K inner products of each sample's logit gradients.
They depend on the network alone, so they are computed once for all losses. For a layer with input columns u_t and
output gradients d_t, the weight's gradient is Σ_t d_t u_tᵀ. With few positions t, the inner products are cheaper as
Σ_tt' (d_t·d'_t')(u_t·u_t'), without forming that gradient (Goodfellow 2015, arXiv:1510.01799; for convolutions Rochette
et al. 2019, arXiv:1912.06015).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from trainables.curvature.failures import graph_uses, short_name
from trainables.extensions.libraries import vector_jacobian

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
LAYERS = (nn.Linear, nn.Conv2d, *BATCH_NORMS)

# Operations that are affine, or piecewise affine, in all of their inputs together. The names are torch's own. If an
# operation is missing here, its network's trace is only estimated. A wrong entry would give a wrong trace.
_PIECEWISE_AFFINE = {
    "AccumulateGrad", "AdaptiveAvgPool2DBackward0", "AddBackward0", "AvgPool2DBackward0", "CatBackward0",
    "CloneBackward0", "ConstantPadNdBackward0", "ExpandBackward0", "HardtanhBackward0", "LeakyReluBackward0",
    "LeakyReluBackward1",
    "MaxPool2DWithIndicesBackward0", "MeanBackward0", "MeanBackward1", "NegBackward0", "PermuteBackward0",
    "ReluBackward0", "ReshapeAliasBackward0", "SelectBackward0", "SliceBackward0", "SqueezeBackward0",
    "SqueezeBackward1", "SqueezeBackward2", "SubBackward0", "SumBackward0", "SumBackward1", "TBackward0",
    "ThresholdBackward0", "TransposeBackward0", "UnsafeViewBackward0", "UnsqueezeBackward0", "ViewBackward0",
}  # fmt: skip
# Operations that multiply an input by a parameter, with the slots of `next_functions` that must hold a bare parameter.
# A parameter computed from others would be multiplied twice.
_PARAMETER_SLOTS = {
    "AddmmBackward0": (0, 2),
    "MmBackward0": (1,),
    "ConvolutionBackward0": (1, 2),
    "NativeBatchNormBackward0": (1, 2),
    "CudnnBatchNormBackward0": (1, 2),
    "MiopenBatchNormBackward0": (1, 2),
}
_PROBE_SAMPLES = 3  # enough to see whether samples mix


def affine_in_each_parameter(network: nn.Module, inputs: Tensor) -> bool:
    """Return whether the logits of `network` (eval mode, not folded) are piecewise affine in each parameter alone.

    This is true only under three conditions. Every operation between parameters and logits is known. Every trainable
    parameter is the weight or bias of a linear, convolution or batch-norm layer and is used once. Samples do not mix.

    Args:
        network: network in eval mode.
        inputs: inputs [N, …]; the first three are used.

    Example:
        >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
        >>> affine_in_each_parameter(network, torch.ones(3, 2))
        True
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

    Layers called twice are left out, so that no layer counts as the owner of their parameters. Layers whose output
    depends on no trainable parameter, as in a frozen stem, are left out as well.
    """
    calls, logits = _recorded(network, inputs, [m for m in network.modules() if type(m) in LAYERS])
    times = Counter(module for module, _, _ in calls)
    once = {m: (features, output) for m, features, output in calls if times[m] == 1 and output.requires_grad}
    return once, logits


def _recorded(
    network: nn.Module, inputs: Tensor, watched: Iterable[nn.Module]
) -> tuple[list[tuple[nn.Module, Tensor, Tensor]], Tensor]:
    """Run `network` and return the calls of its modules `watched` as (module, input, output), and the logits."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def after(module: nn.Module, arguments: tuple[Tensor, ...], given: dict[str, Tensor], output: Tensor) -> Tensor:
        calls.append((module, next(iter((*arguments, *given.values()))), output))
        # The network continues with a copy, so that an in-place operation cannot change the recorded output.
        return output.clone()

    # `prepend` records the module's own output before the network's own hooks can change it.
    handles = [module.register_forward_hook(after, prepend=True, with_kwargs=True) for module in watched]
    try:
        return calls, network(inputs)
    finally:
        for handle in handles:
            handle.remove()


def _owns_all_parameters(network: nn.Module, layers: dict[nn.Module, tuple[Tensor, Tensor]]) -> bool:
    owned = [id(p) for layer in layers for p in layer.parameters(recurse=False) if p.requires_grad]
    trainable = {id(p) for p in network.parameters() if p.requires_grad}
    return len(owned) == len(set(owned)) and set(owned) == trainable


def _is_known(node: Node) -> bool:
    """Return whether a graph node is affine in each parameter alone, for example a product with a bare parameter."""
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
    """Return whether a slot holds a constant, a parameter, or a transposed parameter."""
    if node is not None and short_name(node) == "TBackward0":
        node = node.next_functions[0][0]
    return node is None or short_name(node) == "AccumulateGrad"


def _samples_stay_apart(layers: dict[nn.Module, tuple[Tensor, Tensor]], logits: Tensor) -> bool:
    """Return whether the first sample's logits depend only on the first row of each layer's output."""
    if len(logits) < _PROBE_SAMPLES:
        return False
    outputs = [output for _, output in layers.values()]
    if any(len(output) != len(logits) for output in outputs):
        return False
    # The weights are unequal: with equal weights, the gradients of a network that ends in a softmax would cancel.
    weights = torch.linspace(1.0, 2.0, logits.shape[1], dtype=logits.dtype, device=logits.device)
    gradients = torch.autograd.grad(logits[0] @ weights, outputs, allow_unused=True)
    return not any(bool(gradient[1:].any()) for gradient in gradients if gradient is not None)


def fixed_statistics(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the running mean μ [C] and 1/√(σ² + ε) [C] of a batch-norm that keeps running statistics."""
    assert norm.running_mean is not None and norm.running_var is not None, "the batch-norm uses batch statistics"
    return norm.running_mean, torch.rsqrt(norm.running_var + norm.eps)


def normalisation_scale(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Return scale s [C] and shift β − μ·s [C] of an eval-mode batch-norm, differentiable in γ and β."""
    mean, inverse = fixed_statistics(norm)
    scale = inverse if norm.weight is None else norm.weight * inverse
    shift = -mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias


def fold_batch_norm(network: nn.Module, example: Tensor) -> Sequence[tuple[nn.Module, BatchNorm]]:
    """Fold each batch-norm that directly follows a convolution into it, in place, and return the folded pairs.

    One forward pass over `example` finds the pairs. In a pair, the convolution's output goes only to the batch-norm,
    and both are called once. Nothing is folded if the logits would change, for example because a forward method reads a
    batch-norm's attributes itself.

    Args:
        network: private copy in eval mode.
        example: a few inputs [n, …].
    """
    pairs = _adjacent_pairs(network, example)
    if not pairs:
        return []
    with torch.no_grad():
        before = network(example)
        for convolution, norm in pairs:
            # A method that held its own module would be a reference cycle, which keeps GPU memory until the garbage
            # collector runs.
            convolution.__dict__["forward"] = partial(_folded, weakref.ref(convolution), norm)
            norm.__dict__["forward"] = _identity
        after = network(example)
    # Folding rounds differently; a real difference is far larger than 1e-3.
    if before.shape == after.shape and torch.allclose(before, after, rtol=1e-3, atol=1e-4 * float(before.abs().max())):
        return pairs
    for module in (module for pair in pairs for module in pair):
        del module.__dict__["forward"]
    return []


def _folded(module: weakref.ref[nn.Conv2d], norm: BatchNorm, inputs: Tensor) -> Tensor:
    convolution = module()
    assert convolution is not None, "the module exists while it is called"
    scale, shift = normalisation_scale(norm)
    bias = shift if convolution.bias is None else shift + convolution.bias * scale
    forward: Callable[..., Tensor] = convolution._conv_forward
    return forward(inputs, convolution.weight * scale[:, None, None, None], bias)


def _identity(inputs: Tensor) -> Tensor:
    return inputs


def _adjacent_pairs(network: nn.Module, example: Tensor) -> list[tuple[nn.Conv2d, BatchNorm]]:
    """Return pairs of a convolution and the only user of its output, a batch-norm with fixed statistics."""
    watched = [m for m in network.modules() if type(m) is nn.Conv2d or isinstance(m, BATCH_NORMS)]
    calls, logits = _recorded(network, example, watched)
    times = Counter(module for module, _, _ in calls)
    convolutions = {output.grad_fn: module for module, _, output in calls if isinstance(module, nn.Conv2d)}
    uses = graph_uses([logits])
    pairs: list[tuple[nn.Conv2d, BatchNorm]] = []
    for norm, features, _ in calls:
        copied = features.grad_fn  # a CloneBackward0 unless an operation has changed the convolution's output in place
        if copied is None or not isinstance(norm, BATCH_NORMS) or norm.running_mean is None:
            continue
        convolution = convolutions.get(copied.next_functions[0][0])
        used_once = short_name(copied) == "CloneBackward0" and uses.get(copied, 0) == 1
        if convolution is not None and used_once and times[convolution] == times[norm] == 1:
            pairs.append((convolution, norm))
    return pairs


Folded = Mapping[nn.Module, BatchNorm]

_MAX_BYTES = 128 * 2**20  # limit on per-class gradients held at once
_TEMPORARIES = 16  # rough number of logit-sized tensors in a loss's second derivative; float64 ones count twice


def logit_hessian(value: Tensor, logits: Tensor) -> Tensor | None:
    """Return the Hessian blocks H_z,i [n, K, K] of a scalar `value` of `logits` [n, K], or `None` if samples couple.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0]], requires_grad=True)
        >>> logit_hessian(nn.functional.cross_entropy(logits, torch.tensor([0])), logits)
        tensor([[[ 0.2500, -0.2500],
                 [-0.2500,  0.2500]]])
    """
    (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
    count, classes = logits.shape
    if not gradient.requires_grad:
        return logits.new_zeros(count, classes, classes)

    # Samples couple if a product with a vector on every second, or every third, sample reaches the others.
    slopes = torch.linspace(1, -2, classes, dtype=logits.dtype, device=logits.device)
    for period in (2, 3) if count > 1 else ():
        inside = (torch.arange(count, device=logits.device) % period == 0).to(logits.dtype)[:, None]
        (image,) = _images(gradient, logits, (inside * slopes)[None])
        if float((image * (1 - inside)).abs().max()) > 1e-9 * float(image.abs().max()):
            return None
    # One product with a 1 at class k of every sample gives column k of all blocks.
    columns = torch.eye(classes, dtype=logits.dtype, device=logits.device)[:, None].expand(-1, count, -1)
    size = max(1, _MAX_BYTES // (_TEMPORARIES * logits.numel() * logits.element_size()))
    blocks = torch.cat([_images(gradient, logits, part) for part in columns.split(size)]).permute(1, 2, 0)
    return (blocks + blocks.transpose(1, 2)) / 2  # removes asymmetry from rounding


def _images(gradient: Tensor, logits: Tensor, vectors: Tensor) -> Tensor:
    """Return products [m, n, K] of the Hessian by logits with `vectors` [m, n, K], in one traversal if possible."""

    def product(vector: Tensor) -> Tensor:
        return vector_jacobian(gradient, logits, vector, retain_graph=True)[0]

    try:
        return torch.func.vmap(product)(vectors)
    except RuntimeError:  # a user's own autograd function may have no batching rule
        return torch.stack([product(row) for row in vectors])


#: A layer and its contribution to J_i J_iᵀ [n, K, K].
Share = tuple[nn.Module, Tensor | float]


def logit_gram(
    network: nn.Module,
    folded: Folded,
    inputs: Tensor,
    directions: Tensor | None = None,
    shares: dict[nn.Module, list[Tensor]] | None = None,
) -> Tensor:
    """Return the inner products J_i J_iᵀ [N, K, K] of each sample's logit gradients over all trainable parameters.

    Args:
        network: network that passed `affine_in_each_parameter` before folding.
        folded: convolution → the batch-norm folded into it; J includes the batch-norm's parameters.
        inputs: inputs [N, …].
        directions: W_i [N, K, m]; if given, return W_iᵀ J_i J_iᵀ W_i [N, m, m] from m backward passes instead of K.
        shares: filled with each layer's contribution, one entry per slice of samples.
    """
    layers, logits = record_layers(network, inputs[:1])
    if directions is None:
        identity = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
        directions = identity.expand(len(inputs), -1, -1)
    # Slices bound memory: a backward pass per class keeps the gradient of every layer's output.
    absorbed = set(folded.values())
    numbers = sum(output.numel() for layer, (_, output) in layers.items() if layer not in absorbed)
    size = max(1, _MAX_BYTES // (inputs.element_size() * directions.shape[2] * numbers))
    slices = zip(inputs.split(size), directions.split(size), strict=True)
    return torch.cat([_slice_gram(network, folded, part, ways, shares) for part, ways in slices])


def gram_holds(network: nn.Module, folded: Folded, inputs: Tensor) -> bool:
    """Return whether `logit_gram` agrees with plain backward passes along one direction, for each sample of `inputs`.

    It disagrees if the network changes a layer's output in a way that the graph does not show.
    """
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for sample in inputs.split(1):
        logits = network(sample)
        way = torch.linspace(1.0, 2.0, logits.shape[1], dtype=logits.dtype, device=logits.device)[None]
        rows = vector_jacobian(logits, parameters, way, allow_unused=True)
        plain = sum(float(row.double().square().sum()) for row in rows if row is not None)
        gram = float(logit_gram(network, folded, sample, way[:, :, None]))
        # `not <=` also refuses NaN.
        if not abs(gram - plain) <= max(1e-3, 8 * torch.finfo(logits.dtype).eps) * plain:
            return False
    return True


def _slice_gram(
    network: nn.Module, folded: Folded, inputs: Tensor, directions: Tensor, shares: dict[nn.Module, list[Tensor]] | None
) -> Tensor:
    layers, logits = record_layers(network, inputs)
    for norm in folded.values():
        layers.pop(norm, None)
    outputs = [output for _, output in layers.values()]
    passes = [vector_jacobian(logits, outputs, way, retain_graph=True) for way in directions.unbind(2)]
    count = directions.shape[2]
    gram = logits.new_zeros(len(inputs), count, count)
    with torch.no_grad():
        for index, (layer, (features, _)) in enumerate(layers.items()):
            gradients = torch.stack([outputs[index] for outputs in passes], dim=1)  # [n, m, …]
            grams = _layer_grams(layer, folded.get(layer), features, gradients)
            gram += sum(share for _, share in grams)
            if shares is not None:
                for module, share in grams:
                    shares.setdefault(module, []).append(torch.as_tensor(share).expand_as(gram))
    return gram


def _layer_grams(layer: nn.Module, norm: BatchNorm | None, features: Tensor, gradients: Tensor) -> list[Share]:
    """Return a layer's contribution to J_i J_iᵀ, from its input and the logits' gradients by its output.

    A batch-norm folded into the layer has a separate entry, which comes first.
    """
    if isinstance(layer, nn.Linear):
        columns = features.reshape(len(features), 1, -1, layer.in_features).transpose(2, 3)
        ways = gradients.reshape(*gradients.shape[:2], -1, layer.out_features).mT
        return [(layer, _affine_gram(layer, columns, ways))]
    gradients = gradients.reshape(*gradients.shape[:3], -1)
    if isinstance(layer, BATCH_NORMS):
        return [(layer, _normalisation_gram(layer, features.reshape(*features.shape[:2], -1), gradients))]
    assert isinstance(layer, nn.Conv2d), f"no rule for a {type(layer).__name__}; see affine.LAYERS"
    columns = _convolution_columns(layer, features)
    if norm is None:
        return [(layer, _affine_gram(layer, columns, gradients))]
    share = _normalisation_gram(norm, _convolve(layer, columns), gradients)
    scale, _ = normalisation_scale(norm)
    return [(norm, share), (layer, _affine_gram(layer, columns, gradients * scale[:, None]))]


def _affine_gram(layer: nn.Linear | nn.Conv2d, columns: Tensor, gradients: Tensor) -> Tensor | float:
    """Return the contribution of a weight and bias, from columns [n, G, R, T] and output gradients [n, K, C, T]."""
    share: Tensor | float = 0.0
    if layer.weight.requires_grad:
        share = share + _matrix_gram(columns, gradients)
    if layer.bias is not None and layer.bias.requires_grad:
        share = share + _outer(gradients.sum(3))
    return share


def _matrix_gram(columns: Tensor, gradients: Tensor) -> Tensor:
    """Return ⟨D_k, D_l⟩ [n, K, K] for D_k = Σ_t d_kt u_tᵀ, in the cheaper of two orders."""
    count, groups, rows, positions = columns.shape
    classes, width = gradients.shape[1], gradients.shape[2] // groups
    grouped = gradients.reshape(count, classes, groups, width, positions).transpose(1, 2)  # [n, G, K, C/G, T]
    flat = grouped.reshape(count, groups, classes * width, positions)
    # Multiplications needed to form every D_k, and to pair positions without forming it.
    formed = classes * width * rows * (positions + classes)
    paired = positions * (positions * (rows + classes * width) + classes**2 * width)
    if formed < paired:
        return _outer((flat @ columns.mT).reshape(count, groups, classes, width * rows)).sum(1)
    smoothed = (flat @ (columns.mT @ columns)).reshape(count, groups, classes, width * positions)
    return (smoothed @ flat.reshape_as(smoothed).mT).sum(1)


def _normalisation_gram(norm: BatchNorm, features: Tensor, gradients: Tensor) -> Tensor | float:
    """Return the contribution of an eval-mode batch-norm's γ and β, from its input [n, C, T]."""
    share: Tensor | float = 0.0
    if norm.weight is not None and norm.weight.requires_grad:
        mean, inverse = fixed_statistics(norm)
        normalised = (features - mean[:, None]) * inverse[:, None]
        share = share + _outer((gradients * normalised[:, None]).sum(3))
    if norm.bias is not None and norm.bias.requires_grad:
        share = share + _outer(gradients.sum(3))
    return share


def _outer(vectors: Tensor) -> Tensor:
    """Return inner products [..., K, K] of vectors [..., K, D]."""
    return vectors @ vectors.mT


def _convolution_columns(layer: nn.Conv2d, features: Tensor) -> Tensor:
    """Return the inputs to each output position, [n, groups, C_in/groups·k², T]."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    # The name is private in torch, but `Conv2d.forward` itself uses it for padding in every mode.
    padded = nn.functional.pad(features, layer._reversed_padding_repeated_twice, mode=mode)
    columns = nn.functional.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride)
    return columns.reshape(len(features), layer.groups, -1, columns.shape[-1])


def _convolve(layer: nn.Conv2d, columns: Tensor) -> Tensor:
    """Return a convolution's output [n, C, T] from its columns."""
    weight = layer.weight.reshape(layer.groups, layer.out_channels // layer.groups, -1)
    output = (weight @ columns).reshape(len(columns), layer.out_channels, -1)
    return output if layer.bias is None else output + layer.bias[:, None]
