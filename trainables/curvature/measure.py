"""One curvature measurement: every statistic of every loss's Hessian as plain numbers, or its spectral density.

The density is found by stochastic Lanczos quadrature.
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
    asking_from_gradient,
    fisher_trace,
    gauss_newton_split,
    sam_sharpness,
)
from trainables.curvature.hessian import HessianOperator, Surface, second_order
from trainables.curvature.lanczos import Asking, Lanczos, Product, answered, lanczos
from trainables.curvature.loss_of_logits import LossFunction
from trainables.curvature.statistics.base import (
    FIXED,
    ROUNDED,
    STATISTICS,
    CurvatureSettings,
    Measurement,
    statistic_names,
)
from trainables.curvature.trace import Effort, TraceEstimate, hutch_plus_plus, hutchinson, per_sample_trace, rademacher


def measure_curvature(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    losses: Mapping[str, LossFunction],
    *,
    settings: CurvatureSettings,
    seed: int,
) -> dict[str, dict[str, float]]:
    """Measure the Hessian H of each mean loss over the data, at the model's parameters and over all trainable ones.

    The network is evaluated in eval mode. The model, its flags and all random state stay as they are, and the result
    depends on the arguments alone.

    Args:
        model: maps inputs [N, …] to logits [N, K].
        inputs: [N, …].
        targets: [N] class indices.
        losses: label → a function of (logits, targets) that returns the mean over a batch. One with a `frozen`
            method is first fixed at the current logits, over one partition of the data into batches of
            `settings.batch_size`.
        settings: what to measure, and the limits on products.
        seed: of the Lanczos start and the probes.

    Returns:
        For each label the `CURVATURE_FIELDS`: λ_max (largest algebraic) and λ_min by Lanczos from the gradient, the
        trace with its standard error, ‖gradient‖, the number of Hessian-vector products, the residual ‖Hv − λv‖/|λ|
        of λ_max and the number of samples. A Ritz value never lies outside the spectrum: after few steps λ_max is a
        lower bound and λ_min an upper bound. An exact trace has standard error 0; a deflated one has that of the part
        that was probed.

    Raises:
        CurvatureUnavailable: network or loss fail, a product is not finite, an operator has no second derivative, or
            memory ran out.
    """
    found = measure_by_block(model, inputs, targets, losses, settings=settings, seed=seed, blocks=None)
    return {label: values for label, (values, _) in found.items()}


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
    """Return for each label what `measure_curvature` does, and a row for each block (`blocks.block_rows`).

    Takes its arguments, and `blocks`, parameter's name → name of its block; with `None` there are no rows.
    """

    def measured(surface: Surface, loss: LossFunction) -> tuple[dict[str, float], list[dict[str, object]]]:
        partition = None if blocks is None else Blocks(surface, blocks)
        operator = HessianOperator(surface, loss, settings.vectors_per_pass)
        operator.require_symmetric()
        generator = torch.Generator().manual_seed(seed)
        ends = answered(asking_ends(operator, settings, generator), operator.product)
        surface.by_layer = partition is not None
        trace = _trace(operator, ends, settings, generator, partition)
        each = measurement(operator, ends, trace, settings, seed)
        return statistics_of(each, settings), [] if partition is None else block_rows(each, partition, settings, seed)

    rows = settings.lanczos_steps
    return of_each_loss(measured, model, inputs, targets, losses, settings, "the curvature", basis_rows=rows)


Found = TypeVar("Found")


def of_each_loss(
    compute: Callable[[Surface, LossFunction], Found],
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    losses: Mapping[str, LossFunction],
    settings: CurvatureSettings,
    stage: str,
    *,
    basis_rows: int,
) -> dict[str, Found]:
    """Return label → what is computed of each loss, once where two are one, on `settings.samples` spaced samples.

    Memory for `basis_rows` vectors of all parameters is left beside the graphs. Raises CurvatureUnavailable, which
    names the `stage`, when the model cannot be copied or run, or has no trainable parameter.
    """
    found: dict[str, Found] = {}
    with as_unavailable(stage), second_order(next(model.parameters()).device):
        surface = surface_of(model, inputs, targets, settings, basis_rows)
        for label, loss, same in distinct_losses(losses, settings):
            found[label] = compute(surface, loss) if same is None else copy(found[same])
    return found


def surface_of(
    model: nn.Module, inputs: Tensor, targets: Tensor, settings: CurvatureSettings, basis_rows: int
) -> Surface:
    """Return the network over `settings.samples` spaced samples, see `Surface`."""
    chosen = evenly_spaced(len(targets), settings.samples)
    data = inputs[chosen.to(inputs.device)], targets[chosen.to(targets.device)]
    surface = Surface(model, *data, batch_size=settings.batch_size, basis_rows=basis_rows)
    if settings.precision == ROUNDED:
        surface.arithmetic = torch.bfloat16
    return surface


def distinct_losses(
    losses: Mapping[str, LossFunction], settings: CurvatureSettings
) -> Iterator[tuple[str, LossFunction, str | None]]:
    """Yield label and loss, its weights fixed where the settings say so, and the label of an earlier equal loss."""
    done: list[tuple[LossFunction, str]] = []
    for label, given in losses.items():
        fixed = settings.weights == FIXED and hasattr(given, "with_fixed_weights")
        loss = AtFixedWeights(given) if fixed else given
        yield label, loss, next((earlier for other, earlier in done if same_loss(loss, other)), None)
        done.append((loss, label))


class Tempered:
    """Cross-entropy of logits over a temperature T: the loss of the probabilities softmax(z/T) that one deploys."""

    def __init__(self, temperature: float) -> None:
        """Divide logits by `temperature`, above 0."""
        self.temperature = temperature

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        return nn.functional.cross_entropy(logits / self.temperature, targets)


class AtFixedWeights:
    """A loss whose sample weights are taken as constants, for `weights: fixed`."""

    def __init__(self, loss: Any) -> None:
        """Measure `loss`, which has `with_fixed_weights`."""
        self.loss = loss

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        value: Tensor = self.loss(logits, targets)
        return value

    def frozen(self, logits: Tensor, targets: Tensor) -> LossFunction:
        """Return cross-entropy with the weights of these logits."""
        fixed: LossFunction = self.loss.with_fixed_weights(logits, targets)
        return fixed


def evenly_spaced(total: int, samples: int | None) -> Tensor:
    """Return `samples` evenly spaced indices below `total`: the same for every seed, and fair to sorted data."""
    count = total if samples is None else min(samples, total)
    return torch.arange(count) * total // count


def same_loss(first: LossFunction, second: LossFunction) -> bool:
    """Whether two losses are one: the same object, or both named plain cross-entropy."""
    names = {getattr(first, "name", None), getattr(second, "name", None)}
    return first is second or names == {"cross_entropy"}


def asking_ends(operator: HessianOperator, settings: CurvatureSettings, generator: torch.Generator) -> Asking:
    """Return the Lanczos run, from the gradient, for both ends of the spectrum."""
    steps = min(settings.lanczos_steps, max(1, settings.max_matvecs - 2))  # two probes have a standard error
    return asking_from_gradient(operator, generator, steps=steps, tolerance=settings.residual_tolerance)


def measurement(
    operator: HessianOperator, ends: Lanczos, trace: TraceEstimate, settings: CurvatureSettings, seed: int
) -> Measurement:
    """Return what statistics are computed from."""

    @cache
    def split() -> GaussNewton:
        effort = Effort(settings.trace_probes, settings.trace_precision, 0.0, settings.max_matvecs)
        steps, tolerance = settings.lanczos_steps, settings.residual_tolerance
        return gauss_newton_split(operator, trace, effort, steps=steps, tolerance=tolerance, seed=seed)

    def rise(adaptive: bool) -> float:
        return sam_sharpness(operator, settings.adaptive_rho if adaptive else settings.rho, adaptive=adaptive)

    fisher = cache(lambda: fisher_trace(operator, settings.trace_probes, seed))
    return Measurement(operator, ends, trace, operator.surface.samples, split, rise, fisher)


def statistics_of(found: Measurement, settings: CurvatureSettings) -> dict[str, float]:
    """Return every statistic that the settings ask for, by name."""
    return {name: STATISTICS[name].build(found) for name in statistic_names(settings.statistics)}


def _trace(
    operator: HessianOperator,
    ends: Lanczos,
    settings: CurvatureSettings,
    generator: torch.Generator,
    blocks: Blocks | None,
) -> TraceEstimate:
    """Return the trace: exact or sketched where the network allows it, else from probes beside the space of `ends`."""
    left = settings.max_matvecs - operator.products
    if settings.trace_method == "auto":
        found = per_sample_trace(
            operator, precision=settings.trace_precision, max_rounds=max(1, left // 4), generator=generator
        )
        if found is not None:
            return found
    estimate = hutch_plus_plus if settings.trace_method == "hutch++" else hutchinson
    effort = Effort(settings.trace_probes, settings.trace_precision, floor=ends.norm, max_products=left)
    more = () if blocks is None else (ends.images, blocks.sums)
    return estimate(operator.products_of, ends.basis, ends.trace, effort, generator, *more)


_POINTS = 256
#: Relative standard error of a spectrum's mean below which no further probe is taken; two missed it by up to 31 %.
SPECTRUM_PRECISION = 0.1

#: The most probes: where positive and negative eigenvalues cancel, the mean has no relative precision.
SPECTRUM_PROBES = 16

_WIDTH = 0.01  # of the Gaussian that replaces each node, as a share of the spectrum's range


@dataclass(frozen=True)
class Quadrature:
    """Nodes (eigenvalues) and their weights, which sum to 1: ∫f(λ)ρ(λ)dλ ≈ Σ weight·f(node).

    Attributes:
        nodes, weights: of all probes.
        probes: how many there were.
        mean, mean_se: of the eigenvalues, Tr(H)/P, over probes, and its standard error.
    """

    nodes: Tensor
    weights: Tensor
    probes: int = 1
    mean: float = math.nan
    mean_se: float = math.nan

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
    precision: float | None = None,
    most: int = 0,
) -> Quadrature:
    """Return the spectrum of an operator on vectors as `like` [P] from `probes` Lanczos runs of `steps` products each.

    Each run starts at a vector of random signs; its Ritz values are nodes, weighted by the squared first coordinates
    of the Ritz vectors (Golub & Meurant 2010; Ghorbani, Krishnan & Xiao 2019, arXiv:1901.10159, §2). Up to `most`
    further probes are taken until the standard error of the mean eigenvalue is below `precision` of its size.
    """
    nodes: list[Tensor] = []
    weights: list[Tensor] = []
    means: list[float] = []
    error = math.inf
    starts = [*rademacher(probes, like[None], generator)]
    while starts:
        found = lanczos(product, starts.pop(0), steps=steps, tolerance=0.0, generator=generator)
        nodes.append(found.values)
        weights.append(found.coordinates[0].double().cpu() ** 2)
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

    Each row also has `probes`, how many Lanczos runs there were, and `mean` and `mean_se`, the mean eigenvalue Tr(H)/P
    over them and its standard error.

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
        precision: more are taken, up to SPECTRUM_PROBES, until the mean's standard error is at most this share of it;
            `None` takes `probes`.

    Raises:
        CurvatureUnavailable: as `measure_curvature`.
    """

    def rows(surface: Surface, loss: LossFunction) -> list[dict[str, float]]:
        operator = HessianOperator(surface, loss)
        operator.require_symmetric()
        like, generator = operator.gradient.to(surface.basis_type), torch.Generator().manual_seed(seed)
        found = lanczos_quadrature(
            operator.product, like, probes=probes, steps=steps, generator=generator,
            precision=precision, most=SPECTRUM_PROBES,
        )  # fmt: skip
        return density_rows(found)

    steps = settings.spectrum_steps
    return of_each_loss(rows, model, inputs, targets, losses, settings, "the spectral density", basis_rows=steps)


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
    said = {"probes": quadrature.probes, "mean": quadrature.mean, "mean_se": quadrature.mean_se}
    return [{"eigenvalue": x, "density": y, "weight": w, **said} for x, y, w in rows]
