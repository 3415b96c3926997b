"""The exact trace of the Gauss–Newton matrix JᵀH_z J for several losses, from one backward pass a class.

The trace is Σ_i ⟨H_z,i, J_i J_iᵀ⟩ over samples i: it needs the K×K inner products of each sample's logit gradients,
which depend on the network alone, so a second loss costs nothing more. For a layer with input columns u_t and
output gradients d_t the weight's gradient is Σ_t d_t u_tᵀ; where positions t are few, inner products come cheaper
as Σ_tt' (d_t·d'_t')(u_t·u_t'), without forming it (Goodfellow 2015, arXiv:1510.01799; for convolutions Rochette
et al. 2019, arXiv:1912.06015).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainables.curvature.affine import BATCH_NORMS, BatchNorm, fixed_statistics, normalisation_scale, record_layers

Folded = Mapping[nn.Module, BatchNorm]

_MAX_BYTES = 128 * 2**20  # of per-class gradients at a time


def logit_hessian(value: Tensor, logits: Tensor) -> Tensor | None:
    """Return the blocks H_z,i [n, K, K] of a scalar `value` of `logits` [n, K], or None where samples are coupled.

    Column k of all blocks is one product with the vector that has a 1 at class k of every sample. Samples are
    coupled when a product with a vector on some samples reaches the others.
    """
    (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
    count, classes = logits.shape
    if not gradient.requires_grad:
        return logits.new_zeros(count, classes, classes)

    def times(vector: Tensor) -> Tensor:
        return torch.autograd.grad(gradient, logits, vector, retain_graph=True)[0]

    slopes = torch.linspace(1, -2, classes, dtype=logits.dtype, device=logits.device)
    for period in (2, 3) if count > 1 else ():
        inside = (torch.arange(count, device=logits.device) % period == 0).to(logits.dtype)[:, None]
        image = times(inside * slopes)
        if float((image * (1 - inside)).abs().max()) > 1e-9 * float(image.abs().max()):
            return None
    columns = torch.eye(classes, dtype=logits.dtype, device=logits.device)
    blocks = torch.stack([times(column.expand_as(logits)) for column in columns], dim=2)
    return (blocks + blocks.transpose(1, 2)) / 2


def logit_gram(network: nn.Module, folded: Folded, inputs: Tensor, directions: Tensor | None = None) -> Tensor:
    """Return the inner products of each sample's logit gradients over all parameters: J_i J_iᵀ [N, K, K].

    With `directions` W_i [N, K, m] they are W_iᵀ J_i J_iᵀ W_i [N, m, m], from m backward passes in place of K.
    `network` must have passed `affine_in_each_parameter` before folding; `folded` maps each convolution to the
    batch-norm that was folded into it. J covers all trainable parameters, those of folded batch-norms included.
    """
    layers, logits = record_layers(network, inputs[:1])
    if directions is None:
        identity = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
        directions = identity.expand(len(inputs), -1, -1)
    absorbed = set(folded.values())
    numbers = sum(output.numel() for layer, (_, output) in layers.items() if layer not in absorbed)
    size = max(1, _MAX_BYTES // (inputs.element_size() * directions.shape[2] * numbers))
    slices = zip(inputs.split(size), directions.split(size), strict=True)
    return torch.cat([_slice_gram(network, folded, part, ways) for part, ways in slices])


def _slice_gram(network: nn.Module, folded: Folded, inputs: Tensor, directions: Tensor) -> Tensor:
    layers, logits = record_layers(network, inputs)
    for norm in folded.values():
        layers.pop(norm, None)
    outputs = [output for _, output in layers.values()]
    passes = [torch.autograd.grad(logits, outputs, way, retain_graph=True) for way in directions.unbind(2)]
    count = directions.shape[2]
    gram = logits.new_zeros(len(inputs), count, count)
    with torch.no_grad():
        for index, (layer, (features, _)) in enumerate(layers.items()):
            gradients = torch.stack([found[index] for found in passes], dim=1)  # [n, m, …]
            gram += _layer_gram(layer, folded.get(layer), features, gradients)
    return gram


def _layer_gram(layer: nn.Module, norm: BatchNorm | None, features: Tensor, gradients: Tensor) -> Tensor | float:
    """Return one layer's share of J_i J_iᵀ [n, K, K], from its input and each logit's gradient of its output."""
    if isinstance(layer, nn.Linear):
        columns = features.reshape(len(features), 1, -1, layer.in_features).transpose(2, 3)
        return _affine_gram(layer, columns, gradients.reshape(*gradients.shape[:2], -1, layer.out_features).mT)
    gradients = gradients.reshape(*gradients.shape[:3], -1)
    if isinstance(layer, BATCH_NORMS):
        return _normalisation_gram(layer, features.reshape(*features.shape[:2], -1), gradients)
    assert isinstance(layer, nn.Conv2d), f"no rule for a {type(layer).__name__}; see affine.LAYERS"
    columns = _convolution_columns(layer, features)
    if norm is None:
        return _affine_gram(layer, columns, gradients)
    share = _normalisation_gram(norm, _convolve(layer, columns), gradients)
    scale, _ = normalisation_scale(norm)
    return share + _affine_gram(layer, columns, gradients * scale[:, None])


def _affine_gram(layer: nn.Linear | nn.Conv2d, columns: Tensor, gradients: Tensor) -> Tensor | float:
    """Return the share of a weight and bias, from columns [n, G, R, T] and output gradients [n, K, C, T]."""
    share: Tensor | float = 0.0
    if layer.weight.requires_grad:
        share = share + _matrix_gram(columns, gradients)
    if layer.bias is not None and layer.bias.requires_grad:
        share = share + _outer(gradients.sum(3))
    return share


def _matrix_gram(columns: Tensor, gradients: Tensor) -> Tensor:
    """Return ⟨D_k, D_l⟩ [n, K, K] for D_k = Σ_t d_kt u_tᵀ, by whichever order of products is cheaper."""
    count, groups, rows, positions = columns.shape
    classes, width = gradients.shape[1], gradients.shape[2] // groups
    grouped = gradients.reshape(count, classes, groups, width, positions).transpose(1, 2)  # [n, G, K, C/G, T]
    flat = grouped.reshape(count, groups, classes * width, positions)
    formed = classes * width * rows * (positions + classes)
    paired = positions * (positions * (rows + classes * width) + classes**2 * width)
    if formed < paired:
        return _outer((flat @ columns.mT).reshape(count, groups, classes, width * rows)).sum(1)
    smoothed = (flat @ (columns.mT @ columns)).reshape(count, groups, classes, width * positions)
    return (smoothed @ flat.reshape_as(smoothed).mT).sum(1)


def _normalisation_gram(norm: BatchNorm, features: Tensor, gradients: Tensor) -> Tensor | float:
    """Return the share of an eval-mode batch-norm's γ and β, from its input [n, C, T]."""
    share: Tensor | float = 0.0
    if norm.weight is not None and norm.weight.requires_grad:
        mean, inverse = fixed_statistics(norm)
        normalised = (features - mean[:, None]) * inverse[:, None]
        share = share + _outer((gradients * normalised[:, None]).sum(3))
    if norm.bias is not None and norm.bias.requires_grad:
        share = share + _outer(gradients.sum(3))
    return share


def _outer(vectors: Tensor) -> Tensor:
    """Return the inner products [..., K, K] of vectors [..., K, D]."""
    return vectors @ vectors.mT


def _convolution_columns(layer: nn.Conv2d, features: Tensor) -> Tensor:
    """Return the inputs that meet each output position, [n, groups, C_in/groups·k², T]."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = nn.functional.pad(features, layer._reversed_padding_repeated_twice, mode=mode)
    columns = nn.functional.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride)
    return columns.reshape(len(features), layer.groups, -1, columns.shape[-1])


def _convolve(layer: nn.Conv2d, columns: Tensor) -> Tensor:
    """Return the convolution's output [n, C, T] from its columns."""
    weight = layer.weight.reshape(layer.groups, layer.out_channels // layer.groups, -1)
    output = (weight @ columns).reshape(len(columns), layer.out_channels, -1)
    return output if layer.bias is None else output + layer.bias[:, None]
