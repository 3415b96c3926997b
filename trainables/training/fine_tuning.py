"""Recipe options beyond plain steps: frozen layers, rates by depth, kept or averaged weights, SAM, mixed samples.

**Layers.** A timm network numbers its layers itself (`group_matcher`), as timm's layer-wise decay does. In other
networks, the blocks of all stages are counted in order, and a norm belongs to the layer before it.

**Weights besides the training ones.** There can be a running average of the weights, and a copy of the weights that the
recipe's checkpoint rule prefers. The last evaluation measures the preferred weights instead of the final weights.

**Sharpness.** Each step descends along the gradient at the worst weights nearby. SAM (Foret et al. 2021,
arXiv:2010.01412, Eq. 2 and Alg. 1) searches the ball with radius ρ around the weights w,

    ε = ρ·g / ‖g‖,                                  g = ∇L(w),

and ASAM (Kwon et al. 2021, arXiv:2102.11600, Eq. 4 and Alg. 1) a ball scaled by the weights, T = |w| + η:

    ε = ρ·T²g / ‖Tg‖.

The base optimiser then steps from w with ∇L(w + ε). Both passes evaluate the same function: the same batch, dropout and
loss state. Batch norms use batch statistics in both passes, and their running statistics are updated only by the first,
at w. Clipping applies to the second gradient, which the step uses.

**Mixed samples.** Mixup (Zhang et al. 2018, arXiv:1710.09412) and CutMix (Yun et al. 2019, arXiv:1905.04899), see
`Mixing`.
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
    """Return parameter name → layer number, counted from 0 at the input to the head.

    Example:
        >>> layer_numbers(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1, bias=False)))
        {'0.weight': 0, '0.bias': 0, '2.weight': 1}
    """
    matcher: Any = getattr(model, "group_matcher", None)
    if matcher is not None:
        from timm.models import group_parameters

        numbers: dict[str, int] = group_parameters(model, matcher(coarse=False), reverse=True)
        return numbers
    layers: dict[str, int] = {}
    last = 0
    for prefix, block in _blocks(model, whole=True):
        names = [f"{prefix}{name}" for name, _ in block.named_parameters()]
        # A block without a matrix, such as a norm, shares the number of the layer before it.
        if layers and _has_matrix(block):
            last += 1
        layers |= dict.fromkeys((name for name in names if name not in layers), last)
    # Parameters outside of every block, such as a class token, enter at the input.
    return {name: layers.get(name, 0) for name, _ in model.named_parameters()}


def _blocks(module: nn.Module, prefix: str = "", *, whole: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of `module` with their name prefixes; `whole` says that `module` is the whole network."""
    for name, child in module.named_children():
        divided = whole and (_is_stack(child) or any(_is_stage(part) for part in child.children()))
        if divided or _is_stage(child):
            yield from _blocks(child, f"{prefix}{name}.")
        elif next(child.parameters(), None) is not None:
            yield f"{prefix}{name}.", child


def _is_stage(module: nn.Module) -> bool:
    """Return whether a module is a sequence of blocks rather than of single operations."""
    return isinstance(module, STAGES) and any(next(part.children(), None) is not None for part in module)


def _is_stack(module: nn.Module) -> bool:
    """Return whether a module is a sequence with several convolutions or linear layers, as in VGG."""
    return isinstance(module, STAGES) and sum(_has_matrix(part) for part in module) > 1


def _has_matrix(module: nn.Module) -> bool:
    return any(parameter.dim() > 1 for parameter in module.parameters())


def freeze_layers(model: nn.Module, count: int) -> None:
    """Freeze the parameters of the first `count` layers.

    Raises:
        ValueError: no layer would be left to train.

    Example:
        >>> network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> freeze_layers(network, 1)
        >>> [parameter.requires_grad for parameter in network.parameters()]
        [False, False, True, True]
    """
    numbers = layer_numbers(model)
    layers = max(numbers.values(), default=-1) + 1
    if count >= layers:
        raise ValueError(f"freeze = {count} leaves none of the {layers} layers to train; choose at most {layers - 1}")
    for name, parameter in model.named_parameters():
        if numbers[name] < count:
            parameter.requires_grad_(False)


def frozen_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules without trainable parameters, which stay in evaluation mode during training."""
    # In training mode, a frozen batch norm would still update its statistics, and frozen dropout would add noise.
    return [
        module
        for module in model.modules()
        if (parameters := [*module.parameters()]) and not any(parameter.requires_grad for parameter in parameters)
    ]


def scale_by_depth(model: nn.Module, optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Split the optimiser's parameters into groups by layer, with an `lr_scale` that falls towards the input.

    Layer l of 0 … L learns at decay^(L − l) times the rate (Clark et al. 2020, arXiv:2003.10555, app. A.7; BEiT, Bao et
    al. 2022, arXiv:2106.08254, app. H). Unlike in these papers, every parameter keeps the recipe's weight decay.

    Args:
        model: network.
        optimizer: optimiser of its trainable parameters, before the first step.
        decay: factor per layer in (0, 1].
    """
    numbers = layer_numbers(model)
    head = max(numbers.values())
    (plain,) = optimizer.param_groups
    held: dict[int, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            held.setdefault(numbers[name], []).append(parameter)
    options = {key: value for key, value in plain.items() if key != "params"}
    # The groups can be rebuilt, because the optimiser has no state before its first step.
    optimizer.param_groups.clear()
    for number, parameters in sorted(held.items()):
        optimizer.add_param_group({**options, "params": parameters, "lr_scale": decay ** (head - number)})


class KeptWeights:
    """A copy of the best epoch's weights so far, if the recipe has a checkpoint rule."""

    def __init__(self, recipe: Options, max_epochs: int) -> None:
        """Start without weights.

        Args:
            recipe: recipe with the checkpoint rule.
            max_epochs: length of training.
        """
        self._recipe, self._max_epochs = recipe, max_epochs
        self._weights: dict[str, Tensor] | None = None
        self._value: float | None = None

    def keep_if_better(self, network: nn.Module, epoch: int, metrics: Mapping[str, float]) -> None:
        """Keep the network's weights if the rule prefers an epoch with these metrics."""
        metric = checkpoint_metric(self._recipe)
        if metric is None:
            return
        if replaces_checkpoint(self._recipe, epoch, self._max_epochs, metrics[metric], self._value):
            self._weights, self._value = _copy_of(network), metrics[metric]

    @contextmanager
    def in_place(self, network: nn.Module) -> Iterator[None]:
        """Within this context, the network has the kept weights, if any."""
        if self._weights is None:
            yield
            return
        current = _copy_of(network)
        network.load_state_dict(self._weights)
        yield
        network.load_state_dict(current)

    def state_dict(self) -> State:
        """Return the kept weights and their metric, for a checkpoint of the replicate."""
        return {"kept": self._weights, "kept_value": self._value}

    def load_state_dict(self, state: State, device: torch.device) -> None:
        """Continue from `state_dict()`'s result, on `device`."""
        kept = state["kept"]
        self._weights = None if kept is None else dict(placed(kept, device))
        self._value = state["kept_value"]


def _copy_of(network: nn.Module) -> dict[str, Tensor]:
    # `state_dict` returns views, which later steps would change.
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def averaged_weights(model: nn.Module, decay: float) -> AveragedModel:
    """Return a copy of `model` for the running average W̄ ← decay·W̄ + (1 − decay)·W, which starts at the first step's W.

    The running statistics of batch norms are averaged like weights.
    """
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True).requires_grad_(True)


def measured_weights(saved: State, *, finished: bool) -> Mapping[str, Tensor]:
    """Return the weights in a replicate's saved state that evaluations measure.

    Args:
        saved: result of `Replicate.state_dict()`.
        finished: whether the last epoch is done, so that the recipe's checkpoint rule applies.
    """
    weights: Mapping[str, Tensor] = saved["model"]
    if saved.get("averaged") is not None:
        weights = saved["averaged"]["model"]
    if finished and saved["kept"] is not None:
        weights = saved["kept"]
    return weights


SAM, ASAM = "sam", "asam"

#: Default ρ: Foret et al. 2021, section 3.1 (ImageNet); Kwon et al. 2021, section 5.2 (CIFAR-10).
RADIUS = {SAM: 0.05, ASAM: 0.5}

#: η of ASAM: Kwon et al. 2021, section 5.2. As in their released code, biases are not scaled: T = 1.
ETA = 0.01

#: Avoids 0/0 for a zero gradient.
TINY = 1e-12


def radius_of(recipe: Options) -> float:
    """Return ρ of a recipe; 0 for plain steps.

    Example:
        >>> radius_of({"name": "sgd", "sharpness": "sam"})
        0.05
    """
    kind = setting(recipe, "sharpness")
    if kind is None:
        return 0.0
    given = setting(recipe, "rho")
    return RADIUS[kind] if given is None else float(given)


class SharpnessAware:
    """Computes the gradient at w + ε and restores the weights w."""

    def __init__(self, model: nn.Module, loss: Loss, recipe: Options, device: torch.device) -> None:
        """Prepare steps of `model` on `loss` with the recipe's `sharpness` and `rho`."""
        self._model, self._loss, self._device = model, loss, device
        self._adaptive, self._rho = setting(recipe, "sharpness") == ASAM, radius_of(recipe)

    def __call__(self, differentiate: Callable[[], Tensor]) -> Tensor:
        """Leave the gradient at w + ε in the parameters and return the loss at w.

        Args:
            differentiate: function that writes a batch's gradients to the parameters and returns its loss.
        """
        # The second pass replays the first one's random numbers and loss state, so that both evaluate one function.
        random, state = random_state(self._device), copy.deepcopy(self._loss.state_dict())
        value = differentiate()
        drawn, seen = random_state(self._device), copy.deepcopy(self._loss.state_dict())
        statistics = [buffer.detach().clone() for buffer in self._model.buffers()]
        before = self._ascend()
        set_random_state(random)
        self._loss.load_state_dict(state)
        # `finally`: an interrupted step must not leave the weights at w + ε, where a checkpoint would save them.
        try:
            differentiate()
        finally:
            with torch.no_grad():
                for parameter, weights in before:
                    parameter.copy_(weights)
                for buffer, kept in zip(self._model.buffers(), statistics, strict=True):
                    buffer.copy_(kept)
        # Training continues from the state after the first pass, as if the second had not happened.
        set_random_state(drawn)
        self._loss.load_state_dict(seen)
        return value

    @torch.no_grad()
    def _ascend(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Move the weights by ε; return every moved parameter with its previous weights."""
        held = [(name, p, p.grad) for name, p in self._model.named_parameters() if p.grad is not None]
        scales = [p.abs() + ETA if self._adaptive and not _is_bias(name) else None for name, p, _ in held]
        scaled = [g if t is None else g * t for (_, _, g), t in zip(held, scales, strict=True)]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in scaled]))
        factor = self._rho / (norm + TINY)
        before = []
        for (_, parameter, _), direction, scale in zip(held, scaled, scales, strict=True):
            # Subtracting ε again would leave rounding errors in w, so w is copied.
            before.append((parameter, parameter.detach().clone()))
            parameter.add_(factor * (direction if scale is None else direction * scale))
        return before


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"


IMAGE_DIMENSIONS = 3  # channels, height, width


class Mixing:
    """Mixes a replicate's batches by mixup or CutMix.

    Each sample x gets a partner x' from a permutation of the batch. The batch gets one share λ ~ Beta(α, α), as in both
    papers' code. Mixup trains on λx + (1 − λ)x'. CutMix pastes a box of x' with 1 − λ of the image's area into x; λ is
    then the remaining share of x. If mixup and CutMix are both requested, a fair coin chooses one per batch, as in
    timm.

    The target is v = λe_y + (1 − λ)e_y', and the loss is λ·L(y) + (1 − λ)·L(y'). This agrees with the papers' losses at
    soft targets:

    * cross-entropy, with or without label smoothing, is linear in v;
    * focal-type losses are Σ_k v_k·L(k) (posterior §6.1), with each class's γ chosen by its own probability;
    * the Brier score at v is lower by 2λ(1 − λ) where y ≠ y'. This difference does not depend on the network, so
      gradients are equal;
    * the weights of `aurc` and `selective_risk` depend on the scores alone.

    Three kinds of losses have no such form and are refused: losses that depend on the correctness of samples (`mmce`,
    `kde_xe`), losses that count samples, and losses that take the network itself.
    """

    def __init__(self, configuration: Configuration, seed: int, loss: Loss, dataset: DataSet) -> None:
        """Prepare mixing for batches of `dataset`. Raises ValueError if its samples or the loss cannot be mixed."""
        if (fault := mixing_fault(configuration, dataset)) is not None:
            raise ValueError(fault)
        recipe = configuration["optimizer"]
        self._kinds = [(kind, float(recipe[name])) for name, kind in KINDS.items() if recipe.get(name)]
        self._seed, self._loss = [seed & 0xFFFFFFFF, seed >> 32], loss
        self._order, self._share = torch.empty(0, dtype=torch.int64), 1.0

    def __call__(self, inputs: Tensor, epoch: int, batch: int) -> Tensor:
        """Return mixed inputs [B, ...] for a batch, and store permutation and share for its `loss`."""
        # Seed, epoch and batch determine the draws, so no state needs to be saved in checkpoints.
        random = np.random.RandomState([*self._seed, epoch, batch])
        mix, alpha = self._kinds[random.randint(len(self._kinds))]
        self._order = torch.from_numpy(random.permutation(len(inputs))).to(inputs.device)
        mixed, self._share = mix(inputs, inputs[self._order], random.beta(alpha, alpha), random)
        return mixed

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss for the last mixed batch, at logits [B, K] and the unmixed targets [B]."""
        own, partners = self._loss(logits, targets), self._loss(logits, targets[self._order])
        return self._share * own + (1 - self._share) * partners


def mixup(own: Tensor, partners: Tensor, share: float, random: np.random.RandomState) -> tuple[Tensor, float]:
    """Return λx + (1 − λ)x' and λ (Zhang et al. 2018).

    Example:
        >>> mixup(torch.ones(1), torch.zeros(1), share=0.75, random=np.random.RandomState(0))
        (tensor([0.7500]), 0.75)
    """
    return own * share + partners * (1 - share), share


def cutmix(own: Tensor, partners: Tensor, share: float, random: np.random.RandomState) -> tuple[Tensor, float]:
    """Return x [B, C, H, W] with a box of x' pasted in, and the remaining share of x (Yun et al. 2019, Eqs. 1, 2).

    Example:
        >>> images, partners = torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)
        >>> mixed, share = cutmix(images, partners, share=0.5, random=np.random.RandomState(0))
        >>> mixed.mean().item() == share
        True
    """
    height, width = own.shape[-2:]
    slices = []
    for size in (height, width):
        half, centre = int(size * np.sqrt(1 - share)) // 2, random.randint(size)
        slices.append(slice(max(centre - half, 0), min(centre + half, size)))
    # A box that crosses the image's edge is cut off, so the share is computed from its actual area.
    mixed = own.clone()
    mixed[..., slices[0], slices[1]] = partners[..., slices[0], slices[1]]
    pasted = (slices[0].stop - slices[0].start) * (slices[1].stop - slices[1].start)
    return mixed, 1 - pasted / (height * width)


#: Recipe hyperparameter that gives α → mixing function.
KINDS = {"mixup": mixup, "cutmix": cutmix}


def mixes(recipe: Options) -> str | None:
    """Return the hyperparameter that requests mixed samples, or `None` if none has α above 0.

    Example:
        >>> mixes({"name": "sgd", "mixup": 0.2})
        'mixup'
    """
    return next((name for name in KINDS if recipe.get(name)), None)


def mixing_fault(configuration: Configuration, dataset: DataSet) -> str | None:
    """Return why samples of these data cannot be mixed for a configuration, or `None`; called before a run."""
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
