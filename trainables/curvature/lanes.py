"""Curvature of several perceptrons of one architecture at once: a Hessian-vector product of all is one traversal.

A small network's products cost what calling their operations costs, and lanes share the calls. Their losses need not
be alike: where a loss keeps samples apart, all that a product needs of it is its first two derivatives by each sample's
logits. Traversals are written out, forwards and backwards, as products of matrices with a dimension of lanes. Each lane
has a Lanczos run of its own, which stops where it would alone; from then on that lane is left out. Convolutions gain
nothing: four resnet8 on a core took 0.94 of their time alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainables.curvature.failures import CurvatureUnavailable, as_unavailable
from trainables.curvature.gauss_newton import logit_hessian
from trainables.curvature.hessian import LARGEST_CHUNK, HessianOperator, Surface, graph_budget, second_order
from trainables.curvature.lanczos import Lanczos
from trainables.curvature.loss_of_logits import LossFunction
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
        with as_unavailable("the curvature of lanes"), second_order(device):
            surface = surface_of(lanes[0].model, inputs, targets, settings, settings.lanczos_steps)
            most = int(graph_budget(device) // surface.graph_bytes)
            if most < 2 or surface.samples > LARGEST_CHUNK:
                return alone
            groups = [lanes[at : at + most] for at in range(0, len(lanes), most)]
            return [values for group in groups for values in _measured(group, surface, settings)]
    except (
        CurvatureUnavailable,
        torch.OutOfMemoryError,
    ):  # whatever it is, it is told of the lane that has it alone, too
        return alone


def _is_perceptron(network: nn.Module) -> bool:
    every = [layer for _, layer in network.named_modules(remove_duplicate=False)]
    once = len({*every}) == len(every)  # a layer that occurs twice is named, and would be stacked, once
    layers = type(network) is nn.Sequential and all(type(layer) in _LAYERS for layer in network)
    hooked = any(each._forward_hooks or each._forward_pre_hooks or "forward" in vars(each) for each in every)
    return once and layers and not hooked and all(parameter.requires_grad for parameter in network.parameters())


def _measured(lanes: Sequence[Lane], surface: Surface, settings: CurvatureSettings) -> list[Curvature | None]:
    """Return the curvature of lanes that fit in memory together; `None` for one with a loss that couples samples."""
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


@dataclass(frozen=True)
class _Layer:
    """A linear layer of every lane and the ReLU after it, if any, at the inputs that it has.

    Attributes:
        weight: [L, C, D].
        biased: whether it has a bias.
        below: its inputs [L, N, D].
        passes: 1 where the ReLU lets its output through, else 0 [L, N, C].
    """

    weight: Tensor
    biased: bool
    below: Tensor
    passes: Tensor

    def of(self, lanes: Sequence[int]) -> _Layer:
        """Return it in some of the lanes."""
        index = list(lanes)
        return _Layer(self.weight[index], self.biased, self.below[index], self.passes[index])

    def rows(self, weight: Tensor, slopes: Tensor) -> list[Tensor]:
        """Return derivatives by the weight [L, C, D] and by the bias, from those by outputs [L, N, C], as rows."""
        return [weight.flatten(1), slopes.sum(1)] if self.biased else [weight.flatten(1)]


class _Stacked:
    """Perceptrons over the data of a surface as one network with a dimension of lanes, differentiated by hand.

    Attributes:
        surface: of a network of their architecture.
        targets: [N].
        layers: first to last.
        logits: [L, N, K].
        gram: J_i J_iᵀ of each lane and sample [L, N, K, K].
    """

    def __init__(self, models: Sequence[nn.Module], surface: Surface) -> None:
        """Stack the networks' numbers and run their architecture on the inputs that they share."""
        self.surface = surface
        self.targets = torch.cat([chunk.targets for chunk in surface.chunks])
        inputs = torch.cat([chunk.inputs for chunk in surface.chunks])
        own = [dict(model.named_parameters()) for model in models]
        weights = {name: torch.stack([each[name].detach() for each in own]) for name in surface.names}
        self.layers: list[_Layer] = []
        hidden = inputs.flatten(1).expand(len(models), -1, -1)
        for name, layer in surface.network.named_children():
            if isinstance(layer, nn.Linear):
                weight, bias, below = weights[f"{name}.weight"], weights.get(f"{name}.bias"), hidden
                hidden = below @ weight.mT if bias is None else torch.baddbmm(bias[:, None], below, weight.mT)
                self.layers.append(_Layer(weight, bias is not None, below, torch.ones_like(hidden)))
            elif isinstance(layer, nn.ReLU):
                if self.layers:
                    self.layers[-1].passes.mul_(hidden > 0)
                hidden = torch.relu(hidden)
        self.logits = hidden
        self.gram = self._gram()

    def _gram(self) -> Tensor:
        """Sum the layers' shares (u·u + 1)·dₖ·dₗ, of ‖input‖² + 1 and the logits' slopes by the outputs."""
        lanes, samples, classes = self.logits.shape
        gram = self.logits.new_zeros(lanes, samples, classes, classes)
        slopes = torch.eye(classes).to(self.logits).expand_as(gram)
        for layer in reversed(self.layers):
            slopes = slopes * layer.passes[:, :, None]
            scale = layer.below.square().sum(2) + float(layer.biased)
            gram += scale[..., None, None] * (slopes @ slopes.mT)
            slopes = (slopes.flatten(1, 2) @ layer.weight).unflatten(1, (samples, classes))
        return gram

    def hessian(self, of_logits: Tensor, blocks: Tensor) -> _Hessian:
        """Return the Hessian of losses with these first and second derivatives [L, N, K] and [L, N, K, K] by logits."""
        slopes = [of_logits * self.layers[-1].passes]
        for below, layer in zip(self.layers[-2::-1], self.layers[:0:-1], strict=True):
            slopes.append((slopes[-1] @ layer.weight) * below.passes)
        return _Hessian(self.layers, slopes[::-1], blocks)


@dataclass(frozen=True)
class _Hessian:
    """The Hessian of a loss in each of some lanes.

    Attributes:
        layers: of the networks, first to last.
        slopes: of the losses by the outputs of each layer [L, N, C].
        blocks: the losses' second derivatives by the logits [L, N, K, K].
    """

    layers: Sequence[_Layer]
    slopes: Sequence[Tensor]
    blocks: Tensor

    def of(self, lanes: Sequence[int]) -> _Hessian:
        """Return it in some of the lanes."""
        index = list(lanes)
        layers = [layer.of(index) for layer in self.layers]
        return _Hessian(layers, [each[index] for each in self.slopes], self.blocks[index])

    def gradients(self) -> Tensor:
        """Return the losses' gradients [L, P] in float64."""
        pairs = zip(self.layers, self.slopes, strict=True)
        rows = [piece for layer, own in pairs for piece in layer.rows(own.mT @ layer.below, own)]
        return torch.cat(rows, dim=1).double()

    def products(self, vectors: Tensor) -> Tensor:
        """Return the products with a vector in each lane, both [L, P], in float64.

        The derivative along the vectors of what a traversal forwards and one backwards compute (Pearlmutter 1994).
        """
        ways, moves, moved = list[Tensor](), list[Tensor | None](), None
        left = vectors.to(self.blocks)
        for layer in self.layers:
            ways.append(left[:, : layer.weight[0].numel()].view_as(layer.weight))
            moves.append(moved)
            change = layer.below @ ways[-1].mT
            left = left[:, layer.weight[0].numel() :]
            if layer.biased:
                change += left[:, None, : change.shape[2]]
                left = left[:, change.shape[2] :]
            moved = (change if moved is None else change.baddbmm_(moved, layer.weight.mT)).mul_(layer.passes)
        assert moved is not None
        change, rows = (self.blocks * moved.unsqueeze(2)).sum(3), list[Tensor]()
        for layer, way, move, own in reversed([*zip(self.layers, ways, moves, self.slopes, strict=True)]):
            change *= layer.passes
            weight = change.mT @ layer.below
            rows[:0] = layer.rows(weight if move is None else weight.baddbmm_(own.mT, move), change)
            if move is not None:
                change = (change @ layer.weight).baddbmm_(own, way)
        return torch.cat(rows, dim=1).double()


def _of_one_loss(
    stacked: _Stacked, losses: Mapping[int, LossFunction], seeds: Sequence[int], settings: CurvatureSettings
) -> dict[int, dict[str, float]]:
    """Return lane → statistics of its loss, of those whose loss keeps samples apart and gives finite numbers."""
    surface, slopes = stacked.surface, torch.zeros_like(stacked.logits)
    blocks, apart = slopes.new_zeros(*slopes.shape, slopes.shape[2]), []
    for lane, loss in losses.items():
        logits = stacked.logits[lane].clone().requires_grad_()
        value = surface.mean_loss(loss, logits, stacked.targets)
        own = logit_hessian(value, logits)
        if own is not None:
            (slopes[lane],), blocks[lane] = torch.autograd.grad(value, logits), own
            apart.append(lane)
    hessian = stacked.hessian(slopes, blocks)
    rows = hessian.gradients()
    finite = [lane for lane in apart if bool(torch.isfinite(rows[lane]).all())]
    operators = {lane: HessianOperator(surface, losses[lane], gradient=rows[lane]) for lane in finite}
    found = {}
    for lane, ends in _ends_of(hessian, operators, seeds, settings).items():
        trace = TraceEstimate(float((blocks[lane] * stacked.gram[lane]).double().sum()), 0.0, 0)
        found[lane] = statistics_of(measurement(operators[lane], ends, trace, settings, seeds[lane]), settings)
    return found


def _ends_of(
    hessian: _Hessian, operators: Mapping[int, HessianOperator], seeds: Sequence[int], settings: CurvatureSettings
) -> dict[int, Lanczos]:
    """Run Lanczos in each lane, a product of all at a time; a lane whose product is not finite is left out."""
    runs = {
        lane: asking_ends(operator, settings, torch.Generator().manual_seed(seeds[lane]))
        for lane, operator in operators.items()
    }
    found: dict[int, Lanczos] = {}
    asked = {lane: next(run) for lane, run in runs.items()}
    active, lanes = hessian.of([*asked]), [*asked]
    while asked:
        if len(asked) < len(lanes):
            active, lanes = active.of([place for place, lane in enumerate(lanes) if lane in asked]), [*asked]
        images = active.products(torch.stack([*asked.values()]))
        for lane, image in zip(lanes, images, strict=True):
            operators[lane].products += 1
            try:
                asked[lane] = runs[lane].send(image)
            except StopIteration as end:
                found[lane] = end.value
            if lane in found or not bool(torch.isfinite(image).all()):
                del asked[lane]
    return found
