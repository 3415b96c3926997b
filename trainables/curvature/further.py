"""The Gauss–Newton split H = G + R, SAM and ASAM sharpness, and the trace of the Fisher information.

**Gauss–Newton split.** G = Σ_i J_iᵀ H_z,i J_i is the generalised Gauss–Newton matrix and R = Σ_i,k (∂ℓ_i/∂z_k) ∇²z_k
the residual. G is the loss's curvature for linearised logits, so γ acts on it through H_z alone. With u = log p_y and
ℓ = φ(u), focal loss has φ' = −g(p_y, γ) (mukhoti Prop. 1), and

    H_z = g·(diag p − ppᵀ) + φ''(u)·(e_y − p)(e_y − p)ᵀ,    φ''(u) = −p_y ∂g/∂p_y,

where cross-entropy has diag p − ppᵀ. At fixed logits, the ratio of the two losses' G therefore measures the scale of
the loss. Differences of cross-entropy's G between networks are due to the networks. R vanishes where the residuals
∂ℓ_i/∂z_k vanish (Schraudolph 2002). Its trace is 0 if the network is affine in each parameter alone (`gauss_newton`).

**Sharpness.** SAM's sharpness is the rise of the mean loss after one step of length ρ along the gradient (Foret et al.
2021, arXiv:2010.01412, Eq. 2): L(w + ε) − L(w) with ε = ρ·g/‖g‖. ASAM (Kwon et al. 2021, arXiv:2102.11600, Eq. 4) uses
ε = ρ·T²g/‖Tg‖. Here T = |w| for every parameter and η = 0, as in Andriushchenko et al. 2023 (arXiv:2302.07011, section
3). Rescaling a unit's weights without changing the function then leaves the value unchanged.

The example's network has two parameters and logits w·x. At w = 0, H = G = F, and their trace is mean x²·(¼ + ¼) = 1:

    >>> from trainables.curvature import CurvatureSettings, measure_curvature
    >>> network = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(network.weight)
    >>> losses = {"nll": torch.nn.functional.cross_entropy}
    >>> data = torch.tensor([[1.0], [1.0], [2.0]]), torch.tensor([0, 1, 1])
    >>> settings = CurvatureSettings(statistics=("gauss_newton", "sharpness", "fisher"))
    >>> measured = measure_curvature(network, *data, losses, settings=settings, seed=0)["nll"]
    >>> {name: round(measured[name], 4) for name in ("gauss_newton_trace", "residual_trace", "fisher_trace", "sam")}
    {'gauss_newton_trace': 1.0, 'residual_trace': 0.0, 'fisher_trace': 1.0, 'sam': 0.0248}
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.curvature.failures import CurvatureUnavailable, as_unavailable, require_finite
from trainables.curvature.hessian import Chunk, HessianOperator, flatten, split_like
from trainables.curvature.lanczos import Lanczos, LanczosRun, Product, complete_run, gradient_start, lanczos_run
from trainables.curvature.trace import EXACT_CLASSES, TraceEstimate, hutchinson, mean_and_error, random_signs
from trainables.extensions.libraries import vector_jacobian


@dataclass(frozen=True)
class GaussNewton:
    """Spectrum ends and traces for G and for R.

    Attributes:
        ends: Lanczos result for G.
        trace: estimate of Tr(G).
        residual_ends: Lanczos result for R.
        residual_trace: estimate of Tr(R).
    """

    ends: Lanczos
    trace: TraceEstimate
    residual_ends: Lanczos
    residual_trace: TraceEstimate


class GaussNewtonOperator:
    """Products with the Gauss–Newton matrix G = Jᵀ H_z J of a loss."""

    def __init__(self, operator: HessianOperator) -> None:
        """Use the surface and the loss of `operator`."""
        self._operator, self._surface = operator, operator.surface
        self._linear: dict[int, tuple[Tensor, list[Tensor | None], Tensor, Tensor]] = {}

    def product(self, vector: Tensor) -> Tensor:
        """Return G·vector [P] in float64. Raises CurvatureUnavailable if the product fails or is not finite."""
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
        # Two backward passes compute J v as the derivative of Jᵀu by u. Some operations do not support forward mode.
        kept = [(r, v) for r, v in zip(rows, split_like(vector, parameters), strict=True) if r is not None]
        outputs, along = zip(*kept, strict=True)
        (tangent,) = vector_jacobian(outputs, cotangent, along, retain_graph=True)
        (curved,) = vector_jacobian(slope, free, tangent, retain_graph=True)
        back = vector_jacobian(logits, parameters, curved, retain_graph=True, allow_unused=True)
        return flatten(back, parameters).double()

    def _linearised(self, chunk: Chunk, logits: Tensor) -> tuple[Tensor, list[Tensor | None], Tensor, Tensor]:
        """Return u, Jᵀu per parameter with its graph, detached logits, and the loss's gradient by the logits."""
        # Jᵀu is linear in u, so its derivative does not depend on the value of u; u = 0 is enough.
        cotangent = torch.zeros_like(logits, requires_grad=True)
        rows = vector_jacobian(logits, self._surface.parameters, cotangent, create_graph=True, allow_unused=True)
        free = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(
            self._surface.mean_loss(self._operator.loss, free, chunk.targets), free, create_graph=True
        )
        return cotangent, list(rows), free, slope


def lanczos_from_gradient(
    operator: HessianOperator, generator: torch.Generator, *, steps: int, tolerance: float, starts: int = 1
) -> LanczosRun:
    """Return a Lanczos run that starts at the gradient, in the types of the operator's surface (see `lanczos_run`)."""
    surface = operator.surface
    start, arithmetic = gradient_start(operator.gradient, generator).to(surface.basis_type), surface.arithmetic
    return lanczos_run(
        start, steps=steps, tolerance=tolerance, generator=generator, arithmetic=arithmetic, starts=starts
    )


def gauss_newton_split(
    operator: HessianOperator, whole: TraceEstimate, probes: int, *, steps: int, tolerance: float, seed: int
) -> GaussNewton:
    """Return spectrum ends and traces for G and R.

    If the network is affine in each parameter alone, Tr(G) = Tr(H) and Tr(R) = 0. Otherwise Tr(G) is probed on the
    complement of its Krylov space. The standard error of Tr(R) = Tr(H) − Tr(G) then includes both errors.

    Args:
        operator: Hessian products.
        whole: estimate of Tr(H).
        probes: number of probes for a probed trace.
        steps: maximum products per Lanczos run.
        tolerance: relative residual at which a Lanczos run stops.
        seed: seed for starts and probes.
    """
    curved, generator = GaussNewtonOperator(operator), torch.Generator().manual_seed(seed)

    def ends_of(product: Product) -> Lanczos:
        return complete_run(lanczos_from_gradient(operator, generator, steps=steps, tolerance=tolerance), product)

    ends = ends_of(curved.product)
    residual = ends_of(lambda vector: operator.product(vector) - curved.product(vector))
    if operator.surface.affine:
        return GaussNewton(ends, whole, residual, TraceEstimate(0.0, 0.0, 0))
    trace = hutchinson(curved.products_of, ends, probes, generator)
    error = math.hypot(trace.standard_error, whole.standard_error)
    rest = TraceEstimate(whole.value - trace.value, error, min(trace.probes, whole.probes))
    return GaussNewton(ends, trace, residual, rest)


#: Draws per trace probe: a backward pass takes about a quarter of the time of a Hessian-vector product.
DRAWS_PER_PROBE = 4


def sam_sharpness(operator: HessianOperator, rho: float, *, adaptive: bool) -> float:
    """Return L(w + ε) − L(w) for SAM's ε with radius `rho`, or ASAM's if `adaptive`; 0 if the gradient is zero.

    Values that the loss treats as constant stay fixed at w. Raises CurvatureUnavailable if the result is not finite.

    Source: Foret et al. 2021, Eq. 2; Kwon et al. 2021, Eq. 4.
    """
    scale = flatten(operator.surface.parameters, operator.surface.parameters).detach().abs().double()
    scale = scale if adaptive else torch.ones_like(scale)
    scaled = scale * operator.gradient
    norm = float(scaled.norm())
    if norm == 0:
        return 0.0
    risen = _mean_loss(operator, rho / norm * scale * scaled) - _mean_loss(operator, torch.zeros_like(scaled))
    if not math.isfinite(risen):
        raise CurvatureUnavailable(f"the loss is not finite at distance rho = {rho:g} from the weights: lower rho")
    return risen


@torch.no_grad()
def _mean_loss(operator: HessianOperator, moved: Tensor) -> float:
    """Return the mean loss at the weights moved by `moved` [P]."""
    # `functional_call` leaves the parameters, and with them the kept graphs, unchanged.
    surface, total = operator.surface, 0.0
    steps = split_like(moved, surface.parameters)
    weights = {n: p + step for n, p, step in zip(surface.names, surface.parameters, steps, strict=True)}
    for chunk in surface.chunks:
        logits = torch.func.functional_call(surface.network, weights, (chunk.inputs,))
        total += float(surface.mean_loss(operator.loss, logits, chunk.targets, at=surface.logits(chunk)))
    return total


def fisher_trace(operator: HessianOperator, probes: int, seed: int) -> TraceEstimate:
    """Return Tr(F) for the Fisher information F = mean_i J_iᵀ(diag p − ppᵀ)J_i under the network's own probabilities.

    F is cross-entropy's Gauss–Newton matrix (Martens 2020, arXiv:1412.1193, section 9). The trace is exact if J_i J_iᵀ
    is available. Otherwise it is the mean of ‖Σ_i J_iᵀ R_i s_i‖² over random signs s, with R_i R_iᵀ = diag p − ppᵀ,
    from `DRAWS_PER_PROBE` backward passes per probe.
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
    """Return ‖Σ_i J_iᵀ R_i s_i‖² for newly drawn random signs s."""
    surface = operator.surface
    total = torch.zeros_like(operator.gradient)

    # A function, so that each chunk's graph is freed before the next one is built.
    def add(chunk: Chunk, root: Tensor) -> None:
        ways = root @ random_signs((len(root), root.shape[2], 1), root, generator)
        logits, parameters = surface.logits(chunk), surface.parameters
        total.add_(flatten(vector_jacobian(logits, parameters, ways[:, :, 0], retain_graph=True), parameters))

    for chunk, root in zip(surface.chunks, roots, strict=True):
        add(chunk, root)
    return float(total.square().sum())
