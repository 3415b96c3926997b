"""Tr(H) without Hessian-vector products, where the network is affine in each parameter alone (see `affine`).

There Tr(H) = Σ_i ⟨H_z,i, J_i J_iᵀ⟩, a sum over samples. With few classes K it is exact, from K backward passes for
all losses together. With many, each sample gets random directions w_i in logit space instead, with
E[w_i w_iᵀ] = H_z,i; since samples draw independently, the error averages out over them, unlike that of a probe in
parameter space, which every sample shares.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.curvature.hessian import HessianOperator
from trainables.curvature.trace import TraceEstimate, random_signs

EXACT_CLASSES = 32  # as many backward passes take as long as about 16 Hessian-vector products, once for all losses
SKETCHED_CLASSES = 256  # beyond, the blocks H_z,i and their roots cost more than probes
_ROUND = 2  # directions a sample at a time: the fewest with a standard error


def per_sample_trace(
    operator: HessianOperator, *, precision: float | None, max_rounds: int, generator: torch.Generator
) -> TraceEstimate | None:
    """Return Tr(H), exact or sketched by the number of classes; None where the network or the loss rules it out.

    A loss whose Hessian couples samples (mmce, kde_xe) is ruled out. A sketch takes two directions a sample, and
    with `precision` continues until its standard error is at most that times the |trace|, for `max_rounds` at most.
    """
    surface = operator.surface
    if not surface.affine:
        return None
    blocks: list[Tensor] = []
    for chunk in surface.chunks:
        block = operator.logit_blocks(chunk)
        if block is None or block.shape[1] > SKETCHED_CLASSES:
            return None
        blocks.append(block)
    if blocks[0].shape[1] <= EXACT_CLASSES:
        pairs = enumerate(blocks)
        return TraceEstimate(sum(float((block * surface.gram(i)).double().sum()) for i, block in pairs), 0.0, 0)
    return _sketch(operator, blocks, precision, max_rounds, generator)


def _sketch(
    operator: HessianOperator,
    blocks: list[Tensor],
    precision: float | None,
    max_rounds: int,
    generator: torch.Generator,
) -> TraceEstimate:
    roots = [signed_roots(block) for block in blocks]
    drawn: list[Tensor] = []  # [N, 2] a round: unbiased values of ⟨H_z,i, J_i J_iᵀ⟩
    while True:
        drawn.append(torch.cat([_draw(operator, index, root, generator) for index, root in enumerate(roots)]))
        values = torch.cat(drawn, dim=1)
        total = float(values.mean(1).sum())
        variances = values.var(1)
        error = float((variances.sum() / values.shape[1]).sqrt())
        if precision is None or error <= precision * abs(total) or len(drawn) >= max_rounds:
            return TraceEstimate(total, error, 1 + _degrees_of_freedom(variances, values.shape[1]))


def _degrees_of_freedom(variances: Tensor, draws: int) -> int:
    """Return Satterthwaite's degrees of freedom of a sum of `variances` [N], each estimated from `draws` values.

    It is (draws − 1)(Σσ²)²/Σσ⁴, and a squared estimate overstates σ⁴ by (draws + 1)/(draws − 1).
    """
    squares = float(variances.square().sum())
    return max(1, int((draws + 1) * float(variances.sum()) ** 2 / squares)) if squares > 0 else 1


def _draw(
    operator: HessianOperator, index: int, roots: list[tuple[float, Tensor]], generator: torch.Generator
) -> Tensor:
    """Return two unbiased values [n, 2] of each sample's term of the trace."""
    chunk = operator.surface.chunks[index]
    total = torch.zeros(len(chunk.targets), _ROUND, dtype=torch.float64, device=chunk.targets.device)
    for sign, root in roots:
        shape = (len(root), root.shape[2], _ROUND)
        total += sign * operator.surface.squared_norms(chunk, root @ random_signs(shape, root, generator))
    return total


def signed_roots(blocks: Tensor) -> list[tuple[float, Tensor]]:
    """Return (sign, R_i [n, K, K]) with blocks = Σ sign·R_i R_iᵀ; the negative part only where there is one."""
    values, vectors = torch.linalg.eigh(blocks.double())
    roots = []
    for sign in (1.0, -1.0):
        part = (sign * values).clamp(min=0)
        if sign > 0 or float(part.sum()) > 1e-6 * float(values.abs().sum()):
            roots.append((sign, (vectors * part.sqrt()[:, None, :]).to(blocks.dtype)))
    return roots
