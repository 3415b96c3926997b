"""Curvature measurements: statistics of each loss's Hessian as plain numbers, and its spectral density.

The density is computed by stochastic Lanczos quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trainables.curvature.blocks import Blocks, block_rows
from trainables.curvature.failures import as_unavailable
from trainables.curvature.further import (
    GaussNewton,
    fisher_trace,
    gauss_newton_split,
    lanczos_from_gradient,
    sam_sharpness,
)
from trainables.curvature.hessian import HessianOperator, Surface, second_order
from trainables.curvature.lanczos import Lanczos, LanczosRun, Product, complete_run, lanczos
from trainables.curvature.loss_of_logits import LossFunction, frozen
from trainables.curvature.second_derivatives import require_second_derivatives
from trainables.curvature.statistics.base import STATISTICS, CurvatureSettings, Measurement, statistic_names
from trainables.curvature.trace import TraceEstimate, hutchinson, per_sample_trace, rademacher


def measure_curvature(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    losses: Mapping[str, LossFunction],
    *,
    settings: CurvatureSettings,
    seed: int,
) -> dict[str, dict[str, float]]:
    """Measure the Hessian H of each mean loss over the data, by all trainable parameters at their current values.

    The network is evaluated in eval mode. The model, its flags and all random state stay unchanged, and the result
    depends on the arguments alone.

    Source: Pearlmutter 1994 (Hessian-vector products); Golub & Van Loan, Matrix Computations, §10 (Lanczos); Hutchinson
    1990 (trace). The curvature paper's Figs. 2 and 3 plot λ_max and Tr(H) of the validation loss.

    Args:
        model: network from inputs [N, …] to logits [N, K].
        inputs: inputs [N, …].
        targets: class indices [N].
        losses: label → function of (logits, targets) that returns the mean over a batch. A loss with a `frozen` method
            is first fixed at the current logits, over one partition of the data into batches of `settings.batch_size`.
        settings: statistics to measure, and limits on products.
        seed: seed for the Lanczos start and the probes.

    Returns:
        `CURVATURE_FIELDS` per label: λ_max (largest algebraic) and λ_min by Lanczos from the gradient and from a random
            start, the trace with its standard error, ‖gradient‖, the number of Hessian-vector products, the residuals
            ‖Hv − λv‖/|λ| for λ_max and λ_min, and the number of samples. Ritz values never lie outside the spectrum, so
            after few steps λ_max is a lower bound and λ_min an upper bound. The standard error is 0 for an exact trace,
            and covers the probed part of a deflated one.

    Raises:
        CurvatureUnavailable: network or loss fail, a product is not finite, an operation has no second derivative, or
            memory ran out.

    Example:
        >>> network = nn.Linear(1, 2, bias=False)  # two parameters: logits are w·x
        >>> _ = nn.init.zeros_(network.weight)
        >>> data = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
        >>> losses = {"cross_entropy": nn.functional.cross_entropy}
        >>> measured = measure_curvature(network, *data, losses, settings=CurvatureSettings(), seed=0)["cross_entropy"]
        >>> round(measured["lambda_max"], 4), round(measured["trace"], 4)  # H = mean x²/4·[[1, −1], [−1, 1]]
        (1.25, 1.25)
    """
    by_label = measure_by_block(model, inputs, targets, losses, settings=settings, seed=seed, blocks=None)
    return {label: values for label, (values, _) in by_label.items()}


def measure_by_block(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    losses: Mapping[str, LossFunction],
    *,
    settings: CurvatureSettings,
    seed: int,
    blocks: Mapping[str, str] | None,
) -> dict[str, tuple[dict[str, float], list[dict[str, object]]]]:
    """Return per label the result of `measure_curvature`, and a row per block (`blocks.block_rows`).

    `blocks` maps parameter names to block names; with `None` there are no rows. The other arguments are those of
    `measure_curvature`.
    """

    def measured(surface: Surface, loss: LossFunction) -> tuple[dict[str, float], list[dict[str, object]]]:
        partition = None if blocks is None else Blocks(surface, blocks)
        operator = HessianOperator(surface, loss)
        operator.require_symmetric()
        generator = torch.Generator().manual_seed(seed)
        # Eigenvalues first: the trace reuses their Krylov space for deflation.
        ends = complete_run(lanczos_for_ends(operator, settings, generator), operator.product)
        surface.by_layer = partition is not None
        trace = _trace(operator, ends, settings, generator, partition)
        taken = measurement(operator, ends, trace, settings, seed)
        return statistics_of(taken, settings), [] if partition is None else block_rows(taken, partition, settings, seed)

    rows = settings.lanczos_steps
    return of_each_loss(measured, model, inputs, targets, losses, settings, "the curvature", basis_rows=rows)


Result = TypeVar("Result")


def of_each_loss(
    compute: Callable[[Surface, LossFunction], Result],
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    losses: Mapping[str, LossFunction],
    settings: CurvatureSettings,
    stage: str,
    *,
    basis_rows: int,
) -> dict[str, Result]:
    """Apply `compute` to each loss on `settings.samples` evenly spaced samples, once for equal losses.

    Memory for `basis_rows` vectors of all parameters is reserved. Raises CurvatureUnavailable with the name of the
    `stage` if the model cannot be copied or run, or has no trainable parameter.
    """
    results: dict[str, Result] = {}
    with as_unavailable(stage), second_order(next(model.parameters()).device):
        surface = surface_of(model, inputs, targets, settings, basis_rows)
        for label, loss, same in distinct_losses(losses):
            # A copy keeps the results of two labels independent.
            results[label] = compute(surface, loss) if same is None else copy(results[same])
            if same is None:
                require_second_derivatives(model, inputs, targets, loss)
    return results


def surface_of(
    model: nn.Module, inputs: Tensor, targets: Tensor, settings: CurvatureSettings, basis_rows: int
) -> Surface:
    """Return the `Surface` of the network over `settings.samples` evenly spaced samples."""
    chosen = evenly_spaced(len(targets), settings.samples)
    data = inputs[chosen.to(inputs.device)], targets[chosen.to(targets.device)]
    return Surface(model, *data, batch_size=settings.batch_size, basis_rows=basis_rows)


def distinct_losses(losses: Mapping[str, LossFunction]) -> Iterator[tuple[str, LossFunction, str | None]]:
    """Yield label, loss and the label of an earlier equal loss."""
    done: list[tuple[LossFunction, str]] = []
    for label, loss in losses.items():
        yield label, loss, next((earlier for other, earlier in done if same_loss(loss, other)), None)
        done.append((loss, label))


class Tempered:
    """Cross-entropy of softmax(z/T): the loss of the probabilities after temperature scaling.

    Example:
        >>> Tempered(2.0)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.3133)
    """

    def __init__(self, temperature: float) -> None:
        """Divide logits by `temperature`, above 0."""
        self.temperature = temperature

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss for logits [N, K] and targets [N]."""
        return nn.functional.cross_entropy(logits / self.temperature, targets)


class OfRows:
    """A loss of weighted samples, Σ_i w_i v_i / Σ_i w_i over all N rows of fixed data; its targets are row numbers.

    A chunk of the rows contributes its share of the whole sum, whatever its own weights add up to.

    Example:
        >>> from trainables.losses import build_loss
        >>> loss = OfRows(build_loss("cross_entropy"), torch.tensor([0, 1]), torch.tensor([3.0, 1.0]))
        >>> loss(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))  # (3·0.1269 + 2.1269) / 4
        tensor(0.6269, dtype=torch.float64)
    """

    def __init__(self, loss: Any, targets: Tensor, weights: Tensor | None) -> None:
        """Wrap `loss` over rows with classes `targets` [N]; a loss without `weights` [N] stays a plain mean."""
        self.loss, self._targets = loss, targets
        self._weights = None if weights is None else weights.double() / weights.double().mean()

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the rows `targets` [n] for their logits [n, K]."""
        classes = self._targets[targets]
        if self._weights is None:
            plain: Tensor = self.loss(logits, classes)
            return plain
        values: Tensor = self.loss.per_sample(logits, classes)
        return (self._weights[targets] * values).mean()

    def frozen(self, logits: Tensor, targets: Tensor) -> LossFunction:
        """Return the loss with its constants fixed at these logits."""
        fixed = copy(self)
        fixed.loss = frozen(self.loss, logits, self._targets[targets])
        return fixed


def evenly_spaced(total: int, samples: int | None) -> Tensor:
    """Return `samples` evenly spaced indices below `total`, or all of them.

    Example:
        >>> evenly_spaced(10, 4)
        tensor([0, 2, 5, 7])
    """
    # Not random: values of different subsets must not be compared, and even spacing covers sorted data fairly.
    count = total if samples is None else min(samples, total)
    return torch.arange(count) * total // count


def same_loss(first: LossFunction, second: LossFunction) -> bool:
    """Return whether two losses are the same object or both plain cross-entropy."""
    names = {getattr(first, "name", None), getattr(second, "name", None)}
    return first is second or names == {"cross_entropy"}


def lanczos_for_ends(operator: HessianOperator, settings: CurvatureSettings, generator: torch.Generator) -> LanczosRun:
    """Return a Lanczos run from the gradient, and from a random start, for both ends of the spectrum."""
    # From the gradient alone, λ_min was up to 15 % off in 3 of 140 small networks although its residual had converged.
    steps, tolerance = settings.lanczos_steps, settings.residual_tolerance
    return lanczos_from_gradient(operator, generator, steps=steps, tolerance=tolerance, starts=2)


def measurement(
    operator: HessianOperator, ends: Lanczos, trace: TraceEstimate, settings: CurvatureSettings, seed: int
) -> Measurement:
    """Collect all inputs of the statistics. Expensive inputs are computed on demand, once."""

    @cache
    def split() -> GaussNewton:
        steps, tolerance = settings.lanczos_steps, settings.residual_tolerance
        return gauss_newton_split(operator, trace, settings.trace_probes, steps=steps, tolerance=tolerance, seed=seed)

    def rise(adaptive: bool) -> float:
        return sam_sharpness(operator, settings.adaptive_rho if adaptive else settings.rho, adaptive=adaptive)

    fisher = cache(lambda: fisher_trace(operator, settings.trace_probes, seed))
    return Measurement(operator, ends, trace, operator.surface.samples, split, rise, fisher)


def statistics_of(taken: Measurement, settings: CurvatureSettings) -> dict[str, float]:
    """Return every requested statistic by name."""
    return {name: STATISTICS[name].build(taken) for name in statistic_names(settings.statistics)}


def _trace(
    operator: HessianOperator,
    ends: Lanczos,
    settings: CurvatureSettings,
    generator: torch.Generator,
    blocks: Blocks | None,
) -> TraceEstimate:
    """Return the trace: exact or sketched if the network allows it, else probed on the complement of `ends`."""
    exact = per_sample_trace(operator, generator)
    if exact is not None:
        return exact
    probe = hutchinson if blocks is None else blocks.hutchinson
    return probe(operator.products_of, ends, settings.trace_probes, generator)


#: Rows of a density table.
_POINTS = 256

#: Relative standard error of a spectrum's mean at which probing stops. Two probes alone were off by up to 31 %.
SPECTRUM_PRECISION = 0.1

#: Maximum number of probes: if positive and negative eigenvalues cancel, no relative precision can be reached.
SPECTRUM_PROBES = 16

_WIDTH = 0.01  # width of the Gaussian that replaces each node, relative to the spectrum's range


@dataclass(frozen=True)
class Quadrature:
    """Quadrature of a spectral density: ∫f(λ)ρ(λ)dλ ≈ Σ weight·f(node), with weights that sum to 1.

    Attributes:
        nodes: Ritz values of all probes.
        weights: weight per node.
        probes: number of probes.
        mean: mean eigenvalue Tr(H)/P over probes.
        mean_se: standard error of `mean`.
    """

    nodes: Tensor
    weights: Tensor
    probes: int = 1
    mean: float = math.nan
    mean_se: float = math.nan

    def density(self, points: Tensor, width: float) -> Tensor:
        """Return the density at `points` [M], with each node widened to a Gaussian of standard deviation `width`."""
        distances = (points[:, None] - self.nodes[None, :]) / width
        return (torch.exp(-(distances**2) / 2) @ self.weights) / (width * math.sqrt(2 * math.pi))


def lanczos_quadrature(
    product: Product,
    like: Tensor,
    *,
    probes: int,
    steps: int,
    generator: torch.Generator,
    precision: float | None = None,
    most: int = 0,
) -> Quadrature:
    """Return the spectrum of an operator on vectors like `like` [P], by stochastic Lanczos quadrature.

    Each probe is a Lanczos run of `steps` products from a vector of random signs. Its Ritz values are the nodes,
    weighted by the squared first coordinates of the Ritz vectors (Golub & Meurant 2010; Ghorbani, Krishnan & Xiao 2019,
    arXiv:1901.10159, §2). With `precision`, probes continue, up to `most` in all, until the standard error of the mean
    eigenvalue is at most that fraction of it.

    Example:
        >>> matrix, like = torch.diag(torch.tensor([3.0, 1.0])), torch.zeros(2)
        >>> generator = torch.Generator().manual_seed(0)
        >>> spectrum = lanczos_quadrature(lambda v: matrix @ v, like, probes=1, steps=2, generator=generator)
        >>> spectrum.nodes.round(decimals=3), spectrum.weights.round(decimals=3)
        (tensor([1., 3.], dtype=torch.float64), tensor([0.5000, 0.5000], dtype=torch.float64))
    """
    nodes: list[Tensor] = []
    weights: list[Tensor] = []
    means: list[float] = []
    error = math.inf
    starts = [*rademacher(probes, like[None], generator)]
    while starts:
        # Tolerance 0: all steps are taken, because the quadrature needs the bulk and not only the ends.
        run = lanczos(product, starts.pop(0), steps=steps, tolerance=0.0, generator=generator)
        nodes.append(run.values)
        weights.append(run.coordinates[0].double().cpu() ** 2)
        means.append(float((weights[-1] * nodes[-1]).sum()))
        if len(means) > 1:
            error = stdev(means) / math.sqrt(len(means))
        if not starts and precision is not None and len(means) < most and error > precision * abs(fmean(means)):
            starts = [*rademacher(1, like[None], generator)]
    count = len(means)
    return Quadrature(torch.cat(nodes), torch.cat(weights) / count, count, fmean(means), error)


def spectral_density(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    losses: Mapping[str, LossFunction],
    *,
    settings: CurvatureSettings,
    seed: int,
    probes: int = 2,
    precision: float | None = SPECTRUM_PRECISION,
) -> dict[str, list[dict[str, float]]]:
    """Return the spectral density of each mean loss's Hessian as rows of `eigenvalue`, `density` and `weight`.

    Each row also has `probes`, the number of Lanczos runs, and `mean` and `mean_se`, the mean eigenvalue Tr(H)/P over
    them and its standard error.

    The density is ρ(λ) ≈ Σ_i w_i N(λ; λ_i, σ²) over the nodes λ_i and weights w_i of `probes` Lanczos runs, with σ at
    1 % of the spectrum's range. Rows are evenly spaced eigenvalues over the spectrum. `density` integrates to 1 over
    them; `weight` is the share of eigenvalues in the row's interval, which a logarithmic axis can show next to the bulk
    at 0.

    Source: Ghorbani, Krishnan & Xiao 2019, arXiv:1901.10159, §2.

    Args:
        model: network as for `measure_curvature`; it stays unchanged.
        inputs: inputs [N, …].
        targets: class indices [N].
        losses: label → mean loss.
        settings: `spectrum_steps` products per probe, `samples` and `batch_size`.
        seed: seed for the probes.
        probes: Lanczos runs per loss; more probes resolve the bulk, and more steps resolve the edges.
        precision: continue, up to SPECTRUM_PROBES runs, until the mean's standard error is at most this fraction of it;
            `None` stops after `probes`.

    Raises:
        CurvatureUnavailable: as for `measure_curvature`.

    Example:
        >>> network = nn.Linear(1, 2, bias=False)
        >>> data = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
        >>> losses = {"cross_entropy": nn.functional.cross_entropy}
        >>> rows = spectral_density(network, *data, losses, settings=CurvatureSettings(), seed=0)["cross_entropy"]
        >>> round(sum(row["weight"] for row in rows), 6)
        1.0
    """

    def rows(surface: Surface, loss: LossFunction) -> list[dict[str, float]]:
        operator = HessianOperator(surface, loss)
        operator.require_symmetric()
        like, generator = operator.gradient.to(surface.basis_type), torch.Generator().manual_seed(seed)
        spectrum = lanczos_quadrature(
            operator.product, like, probes=probes, steps=steps, generator=generator,
            precision=precision, most=SPECTRUM_PROBES,
        )  # fmt: skip
        return density_rows(spectrum)

    steps = settings.spectrum_steps
    return of_each_loss(rows, model, inputs, targets, losses, settings, "the spectral density", basis_rows=steps)


def density_rows(quadrature: Quadrature) -> list[dict[str, float]]:
    """Return `quadrature` as table rows on an even grid that extends four widths beyond the outermost nodes."""
    low, high = float(quadrature.nodes.min()), float(quadrature.nodes.max())
    # All eigenvalues of a zero Hessian are equal; the Gaussian still needs a width.
    width = _WIDTH * max(high - low, 1e-12)
    grid = torch.linspace(low - 4 * width, high + 4 * width, _POINTS, dtype=torch.float64)
    spacing = float(grid[1] - grid[0])
    density = quadrature.density(grid, width)
    interval = ((quadrature.nodes - grid[0]) / spacing).round().long().clamp(0, _POINTS - 1)
    weight = torch.zeros(_POINTS, dtype=torch.float64).index_add_(0, interval, quadrature.weights)
    rows = zip(grid.tolist(), density.tolist(), weight.tolist(), strict=True)
    common = {"probes": quadrature.probes, "mean": quadrature.mean, "mean_se": quadrature.mean_se}
    return [{"eigenvalue": x, "density": y, "weight": w, **common} for x, y, w in rows]
