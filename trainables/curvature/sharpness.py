"""Sharpness that a rescaling of weights cannot make, and the trace of the Fisher information.

SAM's is how far the mean loss rises within the ball of radius ρ, by its one step (Foret et al. 2021, arXiv:2010.01412,
Eq. 2), L(w + ε) − L(w) with ε = ρ·g/‖g‖. ASAM's (Kwon et al. 2021, arXiv:2102.11600, Eq. 4) takes ε = ρ·T²g/‖Tg‖; here
T = |w| of every parameter and without η, as Andriushchenko et al. 2023 (arXiv:2302.07011, section 3) measure it, so
that rescaling a unit's weights, which leaves the function as it is, leaves the value as it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainables.curvature.failures import CurvatureUnavailable
from trainables.curvature.hessian import Chunk, HessianOperator, flatten, split_like
from trainables.curvature.trace import EXACT_CLASSES, TraceEstimate, mean_and_error, random_signs

#: Draws for each probe of a trace: a backward pass takes about a quarter of a Hessian-vector product.
DRAWS_PER_PROBE = 4


def sam_sharpness(operator: HessianOperator, rho: float, *, adaptive: bool) -> float:
    """Return L(w + ε) − L(w) for SAM's ε at the radius `rho`, or ASAM's; 0 at a gradient of zero.

    What the loss treats as constant stays as it is at w. Raises CurvatureUnavailable where it is not finite.
    """
    scale = flatten(operator.surface.parameters, operator.surface.parameters).detach().abs().double()
    scale = scale if adaptive else torch.ones_like(scale)
    scaled = scale * operator.gradient
    norm = float(scaled.norm())
    if norm == 0:
        return 0.0
    risen = _mean_loss(operator, rho / norm * scale * scaled) - _mean_loss(operator, torch.zeros_like(scaled))
    if not math.isfinite(risen):
        raise CurvatureUnavailable(f"the loss at a distance of rho = {rho:g} is not finite")
    return risen


@torch.no_grad()
def _mean_loss(operator: HessianOperator, moved: Tensor) -> float:
    """Return the mean loss at the weights moved by `moved` [P]; the graphs that are kept stay as they are."""
    surface, total = operator.surface, 0.0
    steps = split_like(moved, surface.parameters)
    weights = {n: p + step for n, p, step in zip(surface.names, surface.parameters, steps, strict=True)}
    for chunk in surface.chunks:
        logits = torch.func.functional_call(surface.network, weights, (chunk.inputs,))
        total += float(surface.mean_loss(operator.loss, logits, chunk.targets, at=surface.logits(chunk)))
    return total


def fisher_trace(operator: HessianOperator, probes: int, seed: int) -> TraceEstimate:
    """Return Tr(F) of the Fisher information F = mean_i J_iᵀ(diag p − ppᵀ)J_i under the network's own probabilities.

    It is cross-entropy's Gauss–Newton matrix (Martens 2020, arXiv:1412.1193, section 9). Exact where J_i J_iᵀ is at
    hand; else the mean of ‖Σ_i J_iᵀ R_i s_i‖², R_i R_iᵀ = diag p − ppᵀ, over random signs s: a backward pass each,
    `DRAWS_PER_PROBE` for each of `probes`.
    """
    surface = operator.surface
    roots = [_fisher_root(surface.logits(chunk).detach()) / math.sqrt(surface.samples) for chunk in surface.chunks]
    if surface.affine and roots[0].shape[1] <= EXACT_CLASSES:
        traces = ((r @ r.mT * surface.gram(index)).double().sum() for index, r in enumerate(roots))
        return TraceEstimate(float(sum(traces)), 0.0, 0)
    generator = torch.Generator().manual_seed(seed)
    values = [_squared_norm(operator, roots, generator) for _ in range(DRAWS_PER_PROBE * probes)]
    return TraceEstimate(*mean_and_error(values), len(values))


def _fisher_root(logits: Tensor) -> Tensor:
    """Return R [n, K, K] with R Rᵀ = diag p − ppᵀ: diag √p − p√pᵀ."""
    p = torch.softmax(logits, 1)
    return torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None, :]


def _squared_norm(operator: HessianOperator, roots: list[Tensor], generator: torch.Generator) -> float:
    """Return ‖Σ_i J_iᵀ R_i s_i‖² for fresh random signs."""
    surface = operator.surface
    total = torch.zeros_like(operator.gradient)

    def add(chunk: Chunk, root: Tensor) -> None:
        ways = root @ random_signs((len(root), root.shape[2], 1), root, generator)
        logits, parameters = surface.logits(chunk), surface.parameters
        total.add_(flatten(torch.autograd.grad(logits, parameters, ways[:, :, 0], retain_graph=True), parameters))

    for chunk, root in zip(surface.chunks, roots, strict=True):
        add(chunk, root)
    return float(total.square().sum())
