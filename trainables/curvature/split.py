"""H = G + R: the generalised Gauss–Newton matrix G = Σ_i J_iᵀ H_z,i J_i and the residual R = Σ_i,k (∂ℓ_i/∂z_k) ∇²z_k.

G is the loss's curvature at linear logits, so γ acts on it through H_z alone: with u = log p_y and ℓ = φ(u), focal loss
has φ' = −g(p_y, γ) (mukhoti Prop. 1), and

    H_z = g·(diag p − ppᵀ) + φ''(u)·(e_y − p)(e_y − p)ᵀ,    φ''(u) = −p_y ∂g/∂p_y,

against diag p − ppᵀ of cross-entropy. At fixed logits, the ratio of both losses' G is therefore the loss's own scale;
what cross-entropy's G changes between networks is the networks'. R vanishes where residuals do (Schraudolph 2002), and
has no trace where a network is affine in each parameter alone (`gauss_newton`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainables.curvature.failures import as_unavailable, require_finite
from trainables.curvature.hessian import Chunk, HessianOperator, flatten, split_like
from trainables.curvature.lanczos import Asking, Lanczos, Product, answered, asking_lanczos, gradient_start
from trainables.curvature.trace import Effort, TraceEstimate, hutchinson


@dataclass(frozen=True)
class GaussNewton:
    """Ends of the spectrum and traces of G and of R."""

    ends: Lanczos
    trace: TraceEstimate
    residual_ends: Lanczos
    residual_trace: TraceEstimate


class GaussNewtonOperator:
    """Products with G of a Hessian's loss: J v as the derivative of Jᵀu in u, then H_z, then Jᵀ."""

    def __init__(self, operator: HessianOperator) -> None:
        """Take the surface and the loss of `operator`."""
        self._operator, self._surface = operator, operator.surface
        self._linear: dict[int, tuple[Tensor, list[Tensor | None], Tensor, Tensor]] = {}

    def product(self, vector: Tensor) -> Tensor:
        """Return G·vector [P] in float64. Raises CurvatureUnavailable where it cannot be had or is not finite."""
        total = torch.zeros_like(vector, dtype=torch.float64)
        with as_unavailable("a Gauss–Newton product"):
            for index, chunk in enumerate(self._surface.chunks):
                total += self._of_chunk(index, chunk, vector)
        return require_finite(total, "a Gauss–Newton product")

    def products_of(self, vectors: Tensor) -> Tensor:
        """Return G·v for each row v of `vectors` [m, P]."""
        return torch.stack([self.product(vector) for vector in vectors])

    def _of_chunk(self, index: int, chunk: Chunk, vector: Tensor) -> Tensor:
        logits, parameters = self._surface.logits(chunk), self._surface.parameters
        linear = self._linear.get(index) or self._linearised(chunk, logits)
        if chunk.kept:
            self._linear[index] = linear
        cotangent, rows, free, slope = linear
        if not slope.requires_grad:  # the loss is affine in the logits
            return torch.zeros_like(vector, dtype=torch.float64)
        kept = [(r, v) for r, v in zip(rows, split_like(vector, parameters), strict=True) if r is not None]
        outputs, along = zip(*kept, strict=True)
        (tangent,) = torch.autograd.grad(outputs, cotangent, along, retain_graph=True)
        (curved,) = torch.autograd.grad(slope, free, tangent, retain_graph=True)
        back = torch.autograd.grad(logits, parameters, curved, retain_graph=True, allow_unused=True)
        return flatten(back, parameters).double()

    def _linearised(self, chunk: Chunk, logits: Tensor) -> tuple[Tensor, list[Tensor | None], Tensor, Tensor]:
        """Return u, Jᵀu of each parameter with its graph, the logits alone, and the loss's gradient in them."""
        cotangent = torch.zeros_like(logits, requires_grad=True)
        rows = torch.autograd.grad(
            logits, self._surface.parameters, cotangent, create_graph=True, retain_graph=True, allow_unused=True
        )
        free = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(
            self._surface.mean_loss(self._operator.loss, free, chunk.targets), free, create_graph=True
        )
        return cotangent, list(rows), free, slope


def asking_from_gradient(
    operator: HessianOperator, generator: torch.Generator, *, steps: int, tolerance: float
) -> Asking:
    """Return the Lanczos run from the gradient, in the types of the operator's surface."""
    surface = operator.surface
    start, arithmetic = gradient_start(operator.gradient, generator).to(surface.basis_type), surface.arithmetic
    return asking_lanczos(start, steps=steps, tolerance=tolerance, generator=generator, arithmetic=arithmetic)


def gauss_newton_split(
    operator: HessianOperator, whole: TraceEstimate, effort: Effort, *, steps: int, tolerance: float, seed: int
) -> GaussNewton:
    """Return both ends and both traces of G and R, by Lanczos runs of `steps` products to `tolerance` each.

    `whole` is the estimate of Tr(H), `effort` what a probed trace may take. Where the network is affine in each
    parameter alone, Tr(G) = Tr(H) and Tr(R) = 0; elsewhere Tr(G) is probed beside its own Krylov space, and
    Tr(R) = Tr(H) − Tr(G) has the errors of both.
    """
    curved, generator = GaussNewtonOperator(operator), torch.Generator().manual_seed(seed)

    def ends_of(product: Product) -> Lanczos:
        return answered(asking_from_gradient(operator, generator, steps=steps, tolerance=tolerance), product)

    ends = ends_of(curved.product)
    residual = ends_of(lambda vector: operator.product(vector) - curved.product(vector))
    if operator.surface.affine:
        return GaussNewton(ends, whole, residual, TraceEstimate(0.0, 0.0, 0))
    trace = hutchinson(curved.products_of, ends.basis, ends.trace, replace(effort, floor=ends.norm), generator)
    error = math.hypot(trace.standard_error, whole.standard_error)
    rest = TraceEstimate(whole.value - trace.value, error, min(trace.probes, whole.probes))
    return GaussNewton(ends, trace, residual, rest)
