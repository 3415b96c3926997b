"""The spectral density of a symmetric operator by stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainables.curvature.failures import CurvatureUnavailable, unavailable
from trainables.curvature.hessian import HessianOperator, LossFunction
from trainables.curvature.lanczos import Product, lanczos
from trainables.curvature.measure import of_each_loss
from trainables.curvature.statistics.base import CurvatureSettings
from trainables.curvature.surface import Surface
from trainables.curvature.trace import rademacher

_POINTS = 256
_WIDTH = 0.01  # of the Gaussian that replaces each node, as a share of the spectrum's range


@dataclass(frozen=True)
class Quadrature:
    """Nodes (eigenvalues) and their weights, which sum to 1: ∫f(λ)ρ(λ)dλ ≈ Σ weight·f(node)."""

    nodes: Tensor
    weights: Tensor

    def moment(self, function: Callable[[Tensor], Tensor]) -> float:
        """Return the mean of `function` over the spectrum, Σ w_i f(λ_i); times the dimension it is Tr f(H)."""
        return float((self.weights * function(self.nodes)).sum())

    def density(self, points: Tensor, width: float) -> Tensor:
        """Return the density at `points` [M], each node widened to a Gaussian of standard deviation `width`."""
        distances = (points[:, None] - self.nodes[None, :]) / width
        return (torch.exp(-(distances**2) / 2) @ self.weights) / (width * math.sqrt(2 * math.pi))


def lanczos_quadrature(
    product: Product,
    like: Tensor,
    *,
    probes: int,
    steps: int,
    generator: torch.Generator,
) -> Quadrature:
    """Return the spectrum of an operator on vectors as `like` [P] from `probes` Lanczos runs of `steps` products each.

    Each run starts at a vector of random signs; its Ritz values are nodes, weighted by the squared first coordinates
    of the Ritz vectors (Golub & Meurant 2010; Ghorbani, Krishnan & Xiao 2019, arXiv:1901.10159, §2).
    """
    nodes, weights = [], []
    for start in rademacher(probes, like[None], generator):
        found = lanczos(product, start, steps=steps, tolerance=0.0, generator=generator)
        nodes.append(found.values)
        weights.append(found.coordinates[0].double().cpu() ** 2 / probes)
    return Quadrature(torch.cat(nodes), torch.cat(weights))


def spectral_density(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    losses: Mapping[str, LossFunction],
    *,
    settings: CurvatureSettings,
    seed: int,
    probes: int = 2,
) -> dict[str, list[dict[str, float]]]:
    """Return the spectral density of each mean loss's Hessian as rows of `eigenvalue`, `density` and `weight`.

    Stochastic Lanczos quadrature (Ghorbani, Krishnan & Xiao 2019, arXiv:1901.10159, §2): ρ(λ) ≈ Σ_i w_i N(λ; λ_i, σ²)
    over the nodes λ_i and weights w_i of `probes` Lanczos runs, σ being 1 % of the spectrum's range. Rows are evenly
    spaced eigenvalues over the spectrum; `density` integrates to 1 over them, and `weight` is the share of eigenvalues
    in that row's interval, which a logarithmic axis can show beside the bulk at 0.

    Args:
        model: as for `measure_curvature`, which also says what stays untouched.
        inputs: [N, …].
        targets: [N] class indices.
        losses: label → mean loss.
        settings: `spectrum_steps` products a probe, `samples` and `batch_size`.
        seed: of the probes.
        probes: Lanczos runs for each loss; more probes settle the bulk, more steps the edges.

    Raises:
        CurvatureUnavailable: as `measure_curvature`.
    """

    def rows(surface: Surface, loss: LossFunction) -> list[dict[str, float]]:
        return density_rows(_quadrature(surface, loss, settings, seed, probes))

    steps = settings.spectrum_steps
    return of_each_loss(rows, model, inputs, targets, losses, settings, "the spectral density", basis_rows=steps)


def _quadrature(
    surface: Surface, loss: LossFunction, settings: CurvatureSettings, seed: int, probes: int
) -> Quadrature:
    operator = HessianOperator(surface, loss)
    try:
        return lanczos_quadrature(
            operator.product,
            operator.gradient.to(surface.basis_type),
            probes=probes,
            steps=settings.spectrum_steps,
            generator=torch.Generator().manual_seed(seed),
        )
    except CurvatureUnavailable:
        raise
    except RuntimeError as error:
        raise unavailable("the spectral density", error) from error


def density_rows(quadrature: Quadrature, points: int = _POINTS) -> list[dict[str, float]]:
    """Return `quadrature` as table rows on an even grid that reaches four widths past its outermost nodes."""
    low, high = float(quadrature.nodes.min()), float(quadrature.nodes.max())
    width = _WIDTH * max(high - low, 1e-12)
    grid = torch.linspace(low - 4 * width, high + 4 * width, points, dtype=torch.float64)
    spacing = float(grid[1] - grid[0])
    density = quadrature.density(grid, width)
    interval = ((quadrature.nodes - grid[0]) / spacing).round().long().clamp(0, points - 1)
    weight = torch.zeros(points, dtype=torch.float64).index_add_(0, interval, quadrature.weights)
    rows = zip(grid.tolist(), density.tolist(), weight.tolist(), strict=True)
    return [{"eigenvalue": x, "density": y, "weight": w} for x, y, w in rows]
