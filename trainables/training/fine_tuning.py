"""What recipes add to plain steps: frozen layers, rates by depth, kept or averaged weights, sharpness, mixed samples.

Layers: a network of timm numbers its layers itself (`group_matcher`), as its own layer-wise decay does. Of any other,
the blocks of its stages follow one another, and a norm belongs to the layer before it.

Weights beside those that train: the running average, and those that a recipe's checkpoint rule prefers, which the last
evaluation measures in the place of the last.

Sharpness: each step descends along the gradient at the worst weights nearby. SAM (Foret et al. 2021, arXiv:2010.01412,
Eq. 2 and Alg. 1) looks within the ball of radius ρ around the weights w,

    ε = ρ·g / ‖g‖,                                  g = ∇L(w),

ASAM (Kwon et al. 2021, arXiv:2102.11600, Eq. 4 and Alg. 1) within one scaled by the weights, T = |w| + η:

    ε = ρ·T²g / ‖Tg‖.

The base optimiser then takes its step at w with ∇L(w + ε). Both passes are of one function: the same batch, the same
dropout, the same state of the loss. Batch norms normalise by the batch in both, and their running statistics take in
the first pass alone: those of w, not of w + ε. Clipping is of the second gradient, whose step is taken.

Mixed samples: mixup (Zhang et al. 2018, arXiv:1710.09412) and CutMix (Yun et al. 2019, arXiv:1905.04899), see `Mixing`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainables.datasets.base import DataSet
from trainables.losses import Loss, build_loss
from trainables.registry import Configuration, Options
from trainables.training.prediction import State, placed, random_state, set_random_state
from trainables.training.recipe import checkpoint_metric, replaces_checkpoint, setting

STAGES = (nn.Sequential, nn.ModuleList)


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """Return parameter's name → number of its layer, counted from 0 at the input; the highest is the head's."""
    matcher: Any = getattr(model, "group_matcher", None)
    if matcher is not None:
        from timm.models import group_parameters

        numbers: dict[str, int] = group_parameters(model, matcher(coarse=False), reverse=True)
        return numbers
    found: dict[str, int] = {}
    last = 0
    for prefix, block in _blocks(model, whole=True):
        names = [f"{prefix}{name}" for name, _ in block.named_parameters()]
        if found and _has_matrix(block):
            last += 1
        found |= dict.fromkeys((name for name in names if name not in found), last)
    # those that belong to no block, as a class token does, enter at the input
    return {name: found.get(name, 0) for name, _ in model.named_parameters()}


def _blocks(module: nn.Module, prefix: str = "", *, whole: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of `module`, each with its name's prefix; `whole`: of a network, not of a part of one."""
    for name, child in module.named_children():
        divided = whole and (_is_stack(child) or any(_is_stage(part) for part in child.children()))
        if divided or _is_stage(child):
            yield from _blocks(child, f"{prefix}{name}.")
        elif next(child.parameters(), None) is not None:
            yield f"{prefix}{name}.", child


def _is_stage(module: nn.Module) -> bool:
    """Return whether a module is a sequence of blocks, rather than of single operations."""
    return isinstance(module, STAGES) and any(next(part.children(), None) is not None for part in module)


def _is_stack(module: nn.Module) -> bool:
    """Return whether a module is a sequence of several convolutions or linear layers, as VGG's is."""
    return isinstance(module, STAGES) and sum(_has_matrix(part) for part in module) > 1


def _has_matrix(module: nn.Module) -> bool:
    return any(parameter.dim() > 1 for parameter in module.parameters())


def freeze_layers(model: nn.Module, count: int) -> None:
    """Hold the first `count` layers as they are: their parameters are not trained.

    Raises:
        ValueError: nothing would be left to train.
    """
    numbers = layer_numbers(model)
    layers = max(numbers.values(), default=-1) + 1
    if count >= layers:
        raise ValueError(f"freeze = {count} leaves nothing to train of {layers} layers; choose at most {layers - 1}")
    for name, parameter in model.named_parameters():
        if numbers[name] < count:
            parameter.requires_grad_(False)


def frozen_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules of which no parameter is trained.

    They compute as in evaluation while the others train: batch norms by their statistics, which stay, and without
    dropout.
    """
    return [
        module
        for module in model.modules()
        if (parameters := [*module.parameters()]) and not any(parameter.requires_grad for parameter in parameters)
    ]


def scale_by_depth(model: nn.Module, optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Divide the optimiser's parameters into groups whose rate falls towards the input: `lr_scale` of each group.

    Layer l of 0 … L learns at decay^(L − l) of the rate (Clark et al. 2020, arXiv:2003.10555, app. A.7; BEiT, Bao et
    al. 2022, arXiv:2106.08254, app. H). Unlike theirs, every parameter keeps the recipe's weight decay.

    Args:
        model: the network.
        optimizer: of its trainable parameters, before its first step.
        decay: in (0, 1].
    """
    numbers = layer_numbers(model)
    head = max(numbers.values())
    (plain,) = optimizer.param_groups
    held: dict[int, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            held.setdefault(numbers[name], []).append(parameter)
    options = {key: value for key, value in plain.items() if key != "params"}
    optimizer.param_groups.clear()
    for number, parameters in sorted(held.items()):
        optimizer.add_param_group({**options, "params": parameters, "lr_scale": decay ** (head - number)})


class KeptWeights:
    """A copy of the best epoch's weights so far; none where the recipe has no rule, or before the first epoch."""

    def __init__(self, recipe: Options, max_epochs: int) -> None:
        """Begin with none.

        Args:
            recipe: its checkpoint rule decides.
            max_epochs: the epoch that training runs to.
        """
        self._recipe, self._max_epochs = recipe, max_epochs
        self._weights: dict[str, Tensor] | None = None
        self._value: float | None = None

    def keep_if_better(self, network: nn.Module, epoch: int, metrics: Mapping[str, float]) -> None:
        """Keep the network's weights of an epoch with these metrics when the rule prefers them."""
        metric = checkpoint_metric(self._recipe)
        if metric is None:
            return
        if replaces_checkpoint(self._recipe, epoch, self._max_epochs, metrics[metric], self._value):
            self._weights, self._value = _copy_of(network), metrics[metric]

    @contextmanager
    def in_place(self, network: nn.Module) -> Iterator[None]:
        """Within this context the network has the weights that were kept, if any."""
        if self._weights is None:
            yield
            return
        current = _copy_of(network)
        network.load_state_dict(self._weights)
        yield
        network.load_state_dict(current)

    def state_dict(self) -> State:
        """Return the weights and the metric's value, for a checkpoint of the replicate."""
        return {"kept": self._weights, "kept_value": self._value}

    def load_state_dict(self, state: State, device: torch.device) -> None:
        """Continue from `state_dict()`'s result, on `device`."""
        kept = state["kept"]
        self._weights = None if kept is None else dict(placed(kept, device))
        self._value = state["kept_value"]


def _copy_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def averaged_weights(model: nn.Module, decay: float) -> AveragedModel:
    """Return a copy of `model` that takes up W̄ ← decay·W̄ + (1 − decay)·W after each step, from the first step's W on.

    A batch norm's running statistics are averaged as weights are.
    """
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True).requires_grad_(True)


def measured_weights(saved: State, *, finished: bool) -> Mapping[str, Tensor]:
    """Return the weights that evaluations measure, of a replicate's saved state.

    Args:
        saved: `Replicate.state_dict()`.
        finished: whether its last epoch is done, where the recipe's checkpoint rule counts.
    """
    weights: Mapping[str, Tensor] = saved["model"]
    if saved.get("averaged") is not None:
        weights = saved["averaged"]["model"]
    if finished and saved["kept"] is not None:
        weights = saved["kept"]
    return weights


SAM, ASAM = "sam", "asam"

#: Defaults of ρ: Foret et al. 2021, section 3.1 (ImageNet); Kwon et al. 2021, section 5.2 (CIFAR-10).
RADIUS = {SAM: 0.05, ASAM: 0.5}

#: Kwon et al. 2021, section 5.2. As in their released code, parameters called bias are not scaled: T = 1.
ETA = 0.01

#: Keeps a gradient of zero from dividing zero by zero.
TINY = 1e-12


def radius_of(recipe: Options) -> float:
    """Return ρ of a recipe; 0 where it takes plain steps."""
    kind = setting(recipe, "sharpness")
    if kind is None:
        return 0.0
    given = setting(recipe, "rho")
    return RADIUS[kind] if given is None else float(given)


class SharpnessAware:
    """Leaves the gradient at w + ε in the parameters, and the weights as they were."""

    def __init__(self, model: nn.Module, loss: Loss, recipe: Options, device: torch.device) -> None:
        """Prepare for steps of `model` on `loss`, as `sharpness` and `rho` of the recipe say."""
        self._model, self._loss, self._device = model, loss, device
        self._adaptive, self._rho = setting(recipe, "sharpness") == ASAM, radius_of(recipe)

    def __call__(self, differentiate: Callable[[], Tensor]) -> Tensor:
        """Return the loss at w.

        Args:
            differentiate: leaves a batch's gradients in the parameters and returns its loss.
        """
        random, state = random_state(self._device), copy.deepcopy(self._loss.state_dict())
        value = differentiate()
        drawn, seen = random_state(self._device), copy.deepcopy(self._loss.state_dict())
        statistics = [buffer.detach().clone() for buffer in self._model.buffers()]
        before = self._ascend()
        set_random_state(random)
        self._loss.load_state_dict(state)
        try:
            differentiate()
        finally:
            with torch.no_grad():
                for parameter, weights in before:
                    parameter.copy_(weights)
                for buffer, kept in zip(self._model.buffers(), statistics, strict=True):
                    buffer.copy_(kept)
        set_random_state(drawn)
        self._loss.load_state_dict(seen)
        return value

    @torch.no_grad()
    def _ascend(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Move the weights by ε; return each parameter that moved with its weights before."""
        held = [(name, p, p.grad) for name, p in self._model.named_parameters() if p.grad is not None]
        scales = [p.abs() + ETA if self._adaptive and not _is_bias(name) else None for name, p, _ in held]
        scaled = [g if t is None else g * t for (_, _, g), t in zip(held, scales, strict=True)]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in scaled]))
        factor = self._rho / (norm + TINY)
        before = []
        for (_, parameter, _), direction, scale in zip(held, scaled, scales, strict=True):
            before.append((parameter, parameter.detach().clone()))
            parameter.add_(factor * (direction if scale is None else direction * scale))
        return before


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"


IMAGE_DIMENSIONS = 3


class Mixing:
    """Mixes a replicate's batches. Batch b of epoch e is drawn by (seed, e, b) alone: no state is to be saved.

    Each sample x of a batch gets a partner x', the batch in another order, and the batch a share λ ~ Beta(α, α), as in
    both papers' code. Mixup trains on λx + (1 − λ)x'; CutMix pastes a box of x' with 1 − λ of the image's area into x,
    and λ is then what is left of x. With both, each batch is one of the two, by a fair coin, as in timm.

    The target is v = λe_y + (1 − λ)e_y', and the loss λ·L(y) + (1 − λ)·L(y'), which is what papers define at soft
    targets:

    * cross-entropy, with label smoothing or without, is linear in v;
    * focal-type losses are Σ_k v_k·L(k) (posterior §6.1), γ of a class chosen by that class's own probability;
    * the Brier score at v is 2λ(1 − λ) less where y ≠ y', whatever the network says: gradients are the same;
    * the weights of `aurc` and `selective_risk` follow from the scores alone.

    Losses that ask which samples are right (`mmce`, `kde_xe`), that keep counts of the samples that they saw, or that
    take the network itself have no such form, and are refused.
    """

    def __init__(self, configuration: Configuration, seed: int, loss: Loss, dataset: DataSet) -> None:
        """Prepare for batches of `dataset`. Raises ValueError where these, or the loss, cannot be mixed."""
        if (fault := mixing_fault(configuration, dataset)) is not None:
            raise ValueError(fault)
        recipe = configuration["optimizer"]
        self._kinds = [(kind, float(recipe[name])) for name, kind in KINDS.items() if recipe.get(name)]
        self._seed, self._loss = [seed & 0xFFFFFFFF, seed >> 32], loss
        self._order, self._share = torch.empty(0, dtype=torch.int64), 1.0

    def __call__(self, inputs: Tensor, epoch: int, batch: int) -> Tensor:
        """Return a batch's inputs [B, ...] mixed, and remember how for its `loss`."""
        random = np.random.RandomState([*self._seed, epoch, batch])
        mix, alpha = self._kinds[random.randint(len(self._kinds))]
        self._order = torch.from_numpy(random.permutation(len(inputs))).to(inputs.device)
        mixed, self._share = mix(inputs, inputs[self._order], random.beta(alpha, alpha), random)
        return mixed

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the batch that was mixed last, at logits [B, K] and its own targets [B]."""
        own, partners = self._loss(logits, targets), self._loss(logits, targets[self._order])
        return self._share * own + (1 - self._share) * partners


def mixup(own: Tensor, partners: Tensor, share: float, random: np.random.RandomState) -> tuple[Tensor, float]:
    """Return λx + (1 − λ)x' and λ."""
    return own * share + partners * (1 - share), share


def cutmix(own: Tensor, partners: Tensor, share: float, random: np.random.RandomState) -> tuple[Tensor, float]:
    """Return x [B, C, H, W] with a box of x', and what is left of x's area: the box ends at the image's edge."""
    height, width = own.shape[-2:]
    slices = []
    for size in (height, width):
        half, centre = int(size * np.sqrt(1 - share)) // 2, random.randint(size)
        slices.append(slice(max(centre - half, 0), min(centre + half, size)))
    mixed = own.clone()
    mixed[..., slices[0], slices[1]] = partners[..., slices[0], slices[1]]
    pasted = (slices[0].stop - slices[0].start) * (slices[1].stop - slices[1].start)
    return mixed, 1 - pasted / (height * width)


#: Hyperparameter of a recipe, α of its Beta distribution, and what it does.
KINDS = {"mixup": mixup, "cutmix": cutmix}


def mixes(recipe: Options) -> str | None:
    """Return which hyperparameter asks for mixed samples; `None` where none does, or α is 0."""
    return next((name for name in KINDS if recipe.get(name)), None)


def mixing_fault(configuration: Configuration, dataset: DataSet) -> str | None:
    """Return why a configuration cannot have mixed samples of these data, or `None`; for use before a run."""
    recipe, loss = configuration["optimizer"], build_loss(**configuration["loss"])
    if (name := mixes(recipe)) is None:
        return None
    if not loss.takes_soft_targets:
        return f"{name} needs a loss with soft targets, and {loss.name} has none; choose another loss, or {name}: 0"
    if dataset.vocabulary is not None or dataset.train.inputs.dtype == torch.int64:
        return f"{name} cannot mix samples of {dataset.name}, which are tokens; choose {name}: 0"
    if recipe.get("cutmix") and len(dataset.input_shape) != IMAGE_DIMENSIONS:
        return f"cutmix needs images, and samples of {dataset.name} are {[*dataset.input_shape]}; choose cutmix: 0"
    return None
