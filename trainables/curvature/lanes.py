"""Curvature of several perceptrons with one architecture at once: one traversal gives all Hessian-vector products.

A small network's product takes as long as calling its operations. Networks measured together, called lanes, share these
calls. Losses may differ between lanes, because a product needs only a loss's first two derivatives by each sample's
logits if the loss does not couple samples. The traversals, forwards and backwards, are written out as matrix products
with a lane dimension. Each lane has its own Lanczos run, which stops after as many steps as it would alone. The lane is
then left out. Convolutions gain almost nothing: four resnet8 on one core took 0.94 of the time that they take one by
one.
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
from trainables.curvature.measure import distinct_losses, lanczos_for_ends, measurement, statistics_of, surface_of
from trainables.curvature.second_derivatives import require_second_derivatives
from trainables.curvature.statistics.base import CurvatureSettings
from trainables.curvature.trace import EXACT_CLASSES, TraceEstimate

#: Result of `measure_by_block` for one network: label → (statistic → value, block rows). Lanes have no block rows.
Curvature = dict[str, tuple[dict[str, float], list[dict[str, object]]]]

_LAYERS = (nn.Flatten, nn.Linear, nn.ReLU)


@dataclass(frozen=True)
class Lane:
    """A network, its losses by label and a seed: arguments of `measure_curvature`."""

    model: nn.Module
    losses: Mapping[str, LossFunction]
    seed: int


def measure_lanes(
    lanes: Sequence[Lane], inputs: Tensor, targets: Tensor, *, settings: CurvatureSettings
) -> list[Curvature | None]:
    """Return per lane the result of `measure_by_block`, up to rounding, or `None` for a lane to measure separately.

    Lanes can be measured together if they are stacks of linear layers and ReLUs with at most `EXACT_CLASSES` classes,
    their samples fit in one pass, and the settings request only both spectrum ends and the trace. A lane's result
    is also `None` if its loss couples samples or its numbers are not finite.

    Args:
        lanes: networks of one architecture on one device.
        inputs: inputs [N, …].
        targets: class indices [N].
        settings: settings as for `measure_curvature`.

    Example:
        >>> losses = {"nll": nn.functional.cross_entropy}
        >>> lanes = [Lane(nn.Sequential(nn.Linear(1, 2)), losses, seed) for seed in (0, 1)]
        >>> data = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
        >>> [sorted(lane) for lane in measure_lanes(lanes, *data, settings=CurvatureSettings())]
        [['nll'], ['nll']]
    """
    alone: list[Curvature | None] = [None] * len(lanes)
    if len(lanes) < 2 or settings.statistics or settings.blocks or not _is_perceptron(lanes[0].model):
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
    except (CurvatureUnavailable, torch.OutOfMemoryError):
        # Each lane is then measured by itself, which raises the error again for the lanes that cause it.
        return alone


def _is_perceptron(network: nn.Module) -> bool:
    every = [layer for _, layer in network.named_modules(remove_duplicate=False)]
    once = len({*every}) == len(every)  # a shared layer has one name and would be stacked once
    layers = type(network) is nn.Sequential and all(type(layer) in _LAYERS for layer in network)
    # The traversal is written out, so it would ignore hooks and replaced `forward` methods.
    hooked = any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in every)
    return once and layers and not hooked and all(parameter.requires_grad for parameter in network.parameters())


def _measured(lanes: Sequence[Lane], surface: Surface, settings: CurvatureSettings) -> list[Curvature | None]:
    """Return the curvature of lanes that fit in memory together; `None` for a lane whose loss couples samples."""
    stacked = _Stacked([lane.model for lane in lanes], surface)
    if stacked.logits.shape[2] > EXACT_CLASSES:
        return [None] * len(lanes)
    results: list[Curvature] = [{} for _ in lanes]
    losses = [{label: (loss, same) for label, loss, same in distinct_losses(lane.losses)} for lane in lanes]
    for label in dict.fromkeys(label for own in losses for label in own):
        runs = {}
        for number, own in enumerate(losses):
            loss, same = own.get(label, (None, None))
            if same in results[number]:
                results[number][label] = results[number][same]
            elif loss is not None and same is None:
                runs[number] = loss
        for number, values in _of_one_loss(stacked, runs, [lane.seed for lane in lanes], settings).items():
            results[number][label] = values, []
    return [own if own.keys() == lane.losses.keys() else None for own, lane in zip(results, lanes, strict=True)]


@dataclass(frozen=True)
class _Layer:
    """A linear layer of every lane, with the ReLU after it if any, at fixed inputs.

    Attributes:
        weight: weights [L, C, D].
        biased: whether the layer has a bias.
        below: inputs of the layer [L, N, D].
        passes: 1 where the ReLU passes the output on, else 0 [L, N, C].
    """

    weight: Tensor
    biased: bool
    below: Tensor
    passes: Tensor

    def of(self, lanes: Sequence[int]) -> _Layer:
        """Select some of the lanes."""
        index = list(lanes)
        return _Layer(self.weight[index], self.biased, self.below[index], self.passes[index])

    def rows(self, weight: Tensor, slopes: Tensor) -> list[Tensor]:
        """Return the derivatives by weight [L, C, D] and bias as rows, from the derivatives by outputs [L, N, C]."""
        return [weight.flatten(1), slopes.sum(1)] if self.biased else [weight.flatten(1)]


class _Stacked:
    """Several perceptrons on the same data as one network with a lane dimension, differentiated by hand.

    Attributes:
        surface: `Surface` of one network with the same architecture.
        targets: class indices [N].
        layers: layers from first to last.
        logits: logits [L, N, K].
        gram: J_i J_iᵀ per lane and sample [L, N, K, K].
    """

    def __init__(self, models: Sequence[nn.Module], surface: Surface) -> None:
        """Stack the networks' parameters and run their architecture on the shared inputs."""
        self.surface = surface
        self.targets = torch.cat([chunk.targets for chunk in surface.chunks])
        inputs = torch.cat([chunk.inputs for chunk in surface.chunks])
        own = [dict(model.named_parameters()) for model in models]
        weights = {name: torch.stack([parameters[name].detach() for parameters in own]) for name in surface.names}
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
        """Return J_i J_iᵀ, the sum of (‖u‖² + 1)·dₖ·dₗ over layers (inputs u, logits' derivatives d by outputs)."""
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
        """Return the Hessian of losses with first and second derivatives [L, N, K] and [L, N, K, K] by logits."""
        slopes = [of_logits * self.layers[-1].passes]
        for below, layer in zip(self.layers[-2::-1], self.layers[:0:-1], strict=True):
            slopes.append((slopes[-1] @ layer.weight) * below.passes)
        return _Hessian(self.layers, slopes[::-1], blocks)


@dataclass(frozen=True)
class _Hessian:
    """The Hessians of one loss per lane.

    Attributes:
        layers: layers of the networks from first to last.
        slopes: derivatives of the losses by each layer's outputs [L, N, C].
        blocks: second derivatives of the losses by the logits [L, N, K, K].
    """

    layers: Sequence[_Layer]
    slopes: Sequence[Tensor]
    blocks: Tensor

    def of(self, lanes: Sequence[int]) -> _Hessian:
        """Select some of the lanes."""
        index = list(lanes)
        layers = [layer.of(index) for layer in self.layers]
        return _Hessian(layers, [slope[index] for slope in self.slopes], self.blocks[index])

    def gradients(self) -> Tensor:
        """Return the losses' gradients [L, P] in float64."""
        pairs = zip(self.layers, self.slopes, strict=True)
        rows = [piece for layer, own in pairs for piece in layer.rows(own.mT @ layer.below, own)]
        return torch.cat(rows, dim=1).double()

    def products(self, vectors: Tensor) -> Tensor:
        """Return each lane's product with its row of `vectors`, both [L, P], in float64.

        Source: Pearlmutter 1994.
        """
        # The derivative along `vectors` of a forward pass (first loop) and of a backward pass (second loop).
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
    """Return lane → statistics, for lanes whose loss does not couple samples and whose numbers are finite."""
    surface, slopes = stacked.surface, torch.zeros_like(stacked.logits)
    for loss in losses.values():
        require_second_derivatives(surface.network, surface.chunks[0].inputs, stacked.targets, loss)
    blocks, separable = slopes.new_zeros(*slopes.shape, slopes.shape[2]), []
    for lane, loss in losses.items():
        logits = stacked.logits[lane].clone().requires_grad_()
        value = surface.mean_loss(loss, logits, stacked.targets)
        own = logit_hessian(value, logits)
        if own is not None:
            (slopes[lane],), blocks[lane] = torch.autograd.grad(value, logits), own
            separable.append(lane)
    hessian = stacked.hessian(slopes, blocks)
    rows = hessian.gradients()
    finite = [lane for lane in separable if bool(torch.isfinite(rows[lane]).all())]
    operators = {lane: HessianOperator(surface, losses[lane], gradient=rows[lane]) for lane in finite}
    results = {}
    for lane, ends in _ends_of(hessian, operators, seeds, settings).items():
        trace = TraceEstimate(float((blocks[lane] * stacked.gram[lane]).double().sum()), 0.0, 0)
        results[lane] = statistics_of(measurement(operators[lane], ends, trace, settings, seeds[lane]), settings)
    return results


def _ends_of(
    hessian: _Hessian, operators: Mapping[int, HessianOperator], seeds: Sequence[int], settings: CurvatureSettings
) -> dict[int, Lanczos]:
    """Run Lanczos in all lanes with shared products; lanes with a product that is not finite are left out."""
    runs = {
        lane: lanczos_for_ends(operator, settings, torch.Generator().manual_seed(seeds[lane]))
        for lane, operator in operators.items()
    }
    results: dict[int, Lanczos] = {}
    vectors = {lane: next(run) for lane, run in runs.items()}
    active, lanes = hessian.of([*vectors]), [*vectors]
    while vectors:
        # Selecting lanes copies their layers, so lanes are selected only after one has finished.
        if len(vectors) < len(lanes):
            active, lanes = active.of([place for place, lane in enumerate(lanes) if lane in vectors]), [*vectors]
        images = active.products(torch.stack([*vectors.values()]))
        for lane, image in zip(lanes, images, strict=True):
            operators[lane].products += 1
            try:
                vectors[lane] = runs[lane].send(image)
            except StopIteration as end:
                results[lane] = end.value
            if lane in results or not bool(torch.isfinite(image).all()):
                del vectors[lane]
    return results
