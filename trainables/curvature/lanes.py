"""Curvature of several perceptrons of one architecture at once: a Hessian-vector product of all is one traversal.

A small network's products cost what calling their operations costs, and lanes share the calls. Their losses need not
be alike: at the logits z₀ a loss of independent samples has the first two derivatives of its quadratic model
gᵀ(z − z₀) + ½(z − z₀)ᵀH_z(z − z₀), which for all lanes is one product of matrices. Each lane keeps a Lanczos run of its
own, which stops where it would alone. Convolutions gain nothing: four resnet8 on a core took 0.94 of their time alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainables.curvature.gauss_newton import logit_hessian
from trainables.curvature.hessian import (
    LARGEST_CHUNK,
    HessianOperator,
    LossFunction,
    Surface,
    graph_budget,
    hessian_vector_product,
    second_order,
)
from trainables.curvature.lanczos import Lanczos
from trainables.curvature.measure import asking_ends, distinct_losses, measurement, statistics_of, surface_of
from trainables.curvature.statistics.base import FULL, CurvatureSettings
from trainables.curvature.trace import EXACT_CLASSES, TraceEstimate

#: Label → statistic → value, and the rows of blocks, of which there are none: as `measure_by_block` returns them.
Curvature = dict[str, tuple[dict[str, float], list[dict[str, object]]]]

_LAYERS = (nn.Flatten, nn.Linear, nn.ReLU)


@dataclass(frozen=True)
class Lane:
    """A network, label → loss, and the seed of its measurement, as `measure_curvature` takes them."""

    model: nn.Module
    losses: Mapping[str, LossFunction]
    seed: int


def measure_lanes(
    lanes: Sequence[Lane], inputs: Tensor, targets: Tensor, *, settings: CurvatureSettings
) -> list[Curvature | None]:
    """Return for each lane what `measure_by_block` returns, up to rounding; `None` for one to be measured by itself.

    These are all lanes, unless they are stacks of linear layers and ReLUs with at most `EXACT_CLASSES` classes, their
    samples fit in one pass, and the settings ask for both ends of the spectrum and an exact trace alone; and each lane
    with a loss that couples samples or numbers that are not finite.

    Args:
        lanes: networks of one architecture, on one device.
        inputs: [N, …].
        targets: [N] class indices.
        settings: as for `measure_curvature`.
    """
    alone: list[Curvature | None] = [None] * len(lanes)
    plain = settings.trace_method == "auto" and not (settings.statistics or settings.blocks)
    if len(lanes) < 2 or not plain or settings.precision != FULL or not _is_perceptron(lanes[0].model):
        return alone
    device = next(lanes[0].model.parameters()).device
    try:
        with second_order(device):
            surface = surface_of(lanes[0].model, inputs, targets, settings, settings.lanczos_steps)
            most = int(graph_budget(device) // surface.graph_bytes)
            if most < 2 or surface.samples > LARGEST_CHUNK:
                return alone
            groups = [lanes[at : at + most] for at in range(0, len(lanes), most)]
            return [values for group in groups for values in _measured(group, surface, settings)]
    except (RuntimeError, MemoryError):  # whatever it is, it is told of the lane that has it alone, too
        return alone


def _is_perceptron(network: nn.Module) -> bool:
    layers = type(network) is nn.Sequential and all(type(layer) in _LAYERS for layer in network)
    return layers and all(parameter.requires_grad for parameter in network.parameters())


def _measured(lanes: Sequence[Lane], surface: Surface, settings: CurvatureSettings) -> list[Curvature | None]:
    """Return the curvature of lanes whose graphs fit in memory; `None` for one with a loss that couples samples."""
    stacked = _Stacked([lane.model for lane in lanes], surface)
    if stacked.logits.shape[2] > EXACT_CLASSES:
        return [None] * len(lanes)
    found: list[Curvature] = [{} for _ in lanes]
    losses = [{label: (loss, same) for label, loss, same in distinct_losses(lane.losses, settings)} for lane in lanes]
    for label in dict.fromkeys(label for own in losses for label in own):
        runs = {}
        for number, own in enumerate(losses):
            loss, same = own.get(label, (None, None))
            if same in found[number]:
                found[number][label] = found[number][same]
            elif loss is not None and same is None:
                runs[number] = loss
        for number, values in _of_one_loss(stacked, runs, [lane.seed for lane in lanes], settings).items():
            found[number][label] = values, []
    return [own if own.keys() == lane.losses.keys() else None for own, lane in zip(found, lanes, strict=True)]


class _Stacked:
    """Perceptrons over the data of a surface, in one pass, as one network with a dimension of lanes.

    Attributes:
        surface: of a network of their architecture.
        targets: [N].
        logits: [L, N, K] with their graph.
        gram: J_i J_iᵀ of each lane and sample [L, N, K, K].
    """

    def __init__(self, models: Sequence[nn.Module], surface: Surface) -> None:
        """Stack the networks' numbers and run their architecture on the inputs that they share."""
        self.surface = surface
        self.targets = torch.cat([chunk.targets for chunk in surface.chunks])
        inputs = torch.cat([chunk.inputs for chunk in surface.chunks])
        own = [dict(model.named_parameters()) for model in models]
        weights = {name: torch.stack([each[name].detach() for each in own]).requires_grad_() for name in surface.names}
        self._leaves = [*weights.values()]
        hidden, layers = inputs.flatten(1).expand(len(models), -1, -1), []
        for name, layer in surface.network.named_children():
            if isinstance(layer, nn.Linear):
                below, bias = hidden, weights.get(f"{name}.bias")
                hidden = torch.bmm(hidden, weights[f"{name}.weight"].mT)
                hidden = hidden if bias is None else hidden + bias[:, None]
                layers.append((below.square().sum(2) + float(bias is not None), hidden))
            elif isinstance(layer, nn.ReLU):
                hidden = torch.relu(hidden)
        self.logits = hidden
        self.gram = self._gram(layers)

    def _gram(self, layers: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Sum the layers' shares (u·u + 1)·dₖ·dₗ, of ‖input‖² + 1 [L, N] and output [L, N, C] of each."""
        outputs = [output for _, output in layers]
        ways = torch.eye(self.logits.shape[2]).to(self.logits).unbind()
        passes = [
            torch.autograd.grad(self.logits, outputs, way.expand_as(self.logits), retain_graph=True) for way in ways
        ]
        gram = self.logits.new_zeros(*self.logits.shape, len(ways))
        for (scale, _), slopes in zip(layers, zip(*passes, strict=True), strict=True):
            each = torch.stack(slopes, dim=2)
            gram += scale.detach()[..., None, None] * (each @ each.mT)
        return gram

    def gradients(self, slopes: Tensor, blocks: Tensor) -> list[Tensor | None]:
        """Return the parameters' gradients, with their graph, of losses with these derivatives in the logits."""
        moved = (self.logits - self.logits.detach()).unsqueeze(-1)
        slopes = slopes + (blocks @ moved).squeeze(-1)
        return list(torch.autograd.grad(self.logits, self._leaves, slopes, create_graph=True, allow_unused=True))

    def products(self, gradients: Sequence[Tensor | None], asked: Mapping[int, Tensor]) -> Tensor:
        """Return the products [L, P] with the lanes' vectors [P]; those of lanes that ask for none are zero."""
        rows = self.logits.new_zeros(len(self.logits), self.surface.dimension)
        for lane, vector in asked.items():
            rows[lane] = vector
        pieces = rows.split([leaf[0].numel() for leaf in self._leaves], dim=1)
        vectors = [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, self._leaves, strict=True)]
        return self.rows(hessian_vector_product(gradients, self._leaves, vectors))

    def rows(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Return tensors like the parameters, `None` for zeros, as rows [L, P] in float64."""
        pieces = (torch.zeros_like(p) if t is None else t.detach() for t, p in zip(tensors, self._leaves, strict=True))
        return torch.cat([piece.flatten(1) for piece in pieces], dim=1).double()


def _of_one_loss(
    stacked: _Stacked, losses: Mapping[int, LossFunction], seeds: Sequence[int], settings: CurvatureSettings
) -> dict[int, dict[str, float]]:
    """Return lane → statistics of its loss, of those whose loss keeps samples apart and gives finite numbers."""
    surface, slopes = stacked.surface, torch.zeros_like(stacked.logits)
    blocks, apart = slopes.new_zeros(*slopes.shape, slopes.shape[2]), []
    for lane, loss in losses.items():
        logits = stacked.logits[lane].detach().requires_grad_()
        value = surface.mean_loss(loss, logits, stacked.targets)
        own = logit_hessian(value, logits)
        if own is not None:
            (slopes[lane],), blocks[lane] = torch.autograd.grad(value, logits), own
            apart.append(lane)
    gradients = stacked.gradients(slopes, blocks)
    rows = stacked.rows(gradients)
    finite = [lane for lane in apart if bool(torch.isfinite(rows[lane]).all())]
    operators = {lane: HessianOperator(surface, losses[lane], gradient=rows[lane]) for lane in finite}
    found = {}
    for lane, ends in _ends_of(stacked, gradients, operators, seeds, settings).items():
        trace = TraceEstimate(float((blocks[lane] * stacked.gram[lane]).double().sum()), 0.0, 0)
        found[lane] = statistics_of(measurement(operators[lane], ends, trace, settings, seeds[lane]), settings)
    return found


def _ends_of(
    stacked: _Stacked,
    gradients: Sequence[Tensor | None],
    operators: Mapping[int, HessianOperator],
    seeds: Sequence[int],
    settings: CurvatureSettings,
) -> dict[int, Lanczos]:
    """Run Lanczos in each lane, a product of all at a time; a lane whose product is not finite is left out."""
    runs = {
        lane: asking_ends(operator, settings, torch.Generator().manual_seed(seeds[lane]))
        for lane, operator in operators.items()
    }
    found: dict[int, Lanczos] = {}
    asked = {lane: next(run) for lane, run in runs.items()}
    while asked:
        images = stacked.products(gradients, asked)
        for lane in [*asked]:
            operators[lane].products += 1
            try:
                asked[lane] = runs[lane].send(images[lane])
            except StopIteration as end:
                found[lane] = end.value
            if lane in found or not bool(torch.isfinite(images[lane]).all()):
                del asked[lane]
    return found
