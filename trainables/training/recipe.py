"""Training recipes: optimiser, learning-rate schedule, gradient clipping, and the checkpoint rule.

A recipe is the `optimizer` part of a configuration, e.g. `{name: sgd, lr: 0.1, momentum: 0.9, schedule: step,
milestones: [150, 250], recipe_epochs: 350}`. With `recipe_epochs`, every epoch in the recipe is scaled by
`max_epochs / recipe_epochs`. For example, a 350-epoch recipe rehearsed in 7 epochs drops its learning rate at epochs 3
and 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import nn

from trainables.extensions.libraries import without_compiler
from trainables.registry import BrokenRule, Hyperparameter, Options, Registry, hyperparameters_of

OPTIMIZERS = Registry("optimizer", leading=["model"])

EPOCH_TOLERANCE = 1e-6  # a milestone that was scaled in floating point still falls on its whole epoch


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters that every optimiser's recipe accepts in addition to the optimiser's own.

    Options with the default `None` have no effect unless they are set.

    Attributes:
        batch_size: [mukhoti App. D, posterior, selective].
        milestones: a milestone is an epoch (1 or more) or a fraction of the run (below 1) [mukhoti App. D: 150 and 250
            of 350].
        decay: [mukhoti App. D].
        recipe_epochs: number of epochs for which the recipe's milestones were written.
        warmup_start: fraction of the learning rate at the start [our choice].
        final_factor: [Loshchilov & Hutter 2017, eta_min 0].
        gradient_clip: a bound of 0 would stop training; leave it out for no clipping [mukhoti's released code clips at
            2].
        reduction: [mukhoti's released code clips the gradient of the loss summed over the batch].
        checkpoint: [mukhoti App. D].
        checkpoint_after: [selective: 40 of 200, 20 of 90].
        freeze: number of frozen layers, from the input; 1 is the stem alone.
        layer_decay: ratio of a layer's rate to the next layer's [BEiT (arXiv:2106.08254) app. H: 0.65 to 0.85].
        ema: fraction of the average that a step keeps [0.999 to 0.9999 are usual].
        sharpness: [arXiv:2010.01412, arXiv:2102.11600].
        rho: [0.05 for sam, 0.5 for asam; 0 takes plain steps].
        mixup: α, 0 for none [arXiv:1710.09412: 1, on ImageNet 0.1 to 0.4].
        cutmix: α, 0 for none [arXiv:1905.04899: 1].
    """

    batch_size: Annotated[int, "[1, inf)"] = 128
    schedule: Literal["constant", "cosine", "step", "inverse_sqrt"] = "constant"
    milestones: Annotated[Sequence[float], "(0, inf)"] = (150, 250)
    decay: Annotated[float, "(0, 1]"] = 0.1
    recipe_epochs: Annotated[float | None, "(0, inf)"] = None
    warmup_epochs: Annotated[float, "[0, inf)"] = 0
    warmup_start: Annotated[float, "[0, 1]"] = 0.01
    final_factor: Annotated[float, "[0, 1]"] = 0.0
    gradient_clip: Annotated[float | None, "(0, inf)"] = None
    reduction: Literal["mean", "sum"] = "mean"
    checkpoint: Literal["last", "best_val_nll", "best_val_accuracy"] = "last"
    checkpoint_after: Annotated[float, "[0, inf)"] = 0
    freeze: Annotated[int | None, "[1, inf)"] = None
    layer_decay: Annotated[float | None, "(0, 1]"] = None
    ema: Annotated[float | None, "(0, 1)"] = None
    sharpness: Literal["sam", "asam"] | None = None
    rho: Annotated[float | None, "[0, inf)"] = None
    mixup: Annotated[float | None, "[0, inf)"] = None
    cutmix: Annotated[float | None, "[0, inf)"] = None


COMMON = hyperparameters_of(Recipe, "Recipe", [], ())

#: Recipe options that lanes do not implement.
ALONE = ("freeze", "layer_decay", "ema", "sharpness", "mixup", "cutmix")


def build_optimizer(model: nn.Module, settings: Options) -> torch.optim.Optimizer:
    """Build the optimiser `settings["name"]` for all trainable parameters of `model`.

    Args:
        model: network.
        settings: `name` and hyperparameters of the optimiser; missing hyperparameters have their defaults.

    Raises:
        ValueError: unknown name, or invalid hyperparameters; the message lists every fault.

    Example:
        >>> optimizer = build_optimizer(nn.Linear(2, 2), {"name": "adam", "lr": 0.01})
        >>> type(optimizer).__name__, optimizer.defaults["lr"]
        ('Adam', 0.01)
    """
    hyperparameters = {key: value for key, value in settings.items() if key != "name"}
    optimizer: torch.optim.Optimizer = OPTIMIZERS.build(settings["name"], model, **hyperparameters)
    return optimizer


def learning_rate(settings: Options, epoch: float, max_epochs: int) -> float:
    """Return the learning rate at `epoch`, counted from 0 and possibly fractional, in a run of `max_epochs`.

    Example:
        >>> recipe = {"name": "sgd", "lr": 0.1, "schedule": "step", "milestones": [0.5]}
        >>> [round(learning_rate(recipe, epoch, max_epochs=4), 3) for epoch in range(4)]
        [0.1, 0.1, 0.01, 0.01]
    """
    return float(setting(settings, "lr")) * learning_rate_factor(settings, epoch, max_epochs)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of every parameter group to `value` times its `lr_scale`, if any."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("lr_scale", 1.0)


def learning_rate_factor(settings: Options, epoch: float, max_epochs: int) -> float:
    """Return the schedule's factor on the learning rate.

    * `constant`: 1;
    * `step`: `decay` to the power of the number of milestones reached. A milestone is reached in the epoch of that
      number, counted from 0, as in the papers ("150 epochs at 0.1, the next 100 at 0.01");
    * `cosine`: from 1 at the end of the warm-up to `final_factor` at `max_epochs` (Loshchilov & Hutter 2017, Eq. 5);
    * `inverse_sqrt`: the square root of `warmup_epochs` / epoch, after a warm-up (Vaswani et al. 2017, Eq. 3); it
      changes with every step instead of every epoch.

    During the first `warmup_epochs`, the factor is multiplied by a line from `warmup_start` to 1 (Goyal et al. 2017,
    section 2.2).

    Args:
        settings: recipe.
        epoch: completed epochs; fractional for a schedule that changes with every step.
        max_epochs: length of the run.

    Example:
        >>> recipe = {"name": "sgd", "schedule": "cosine"}
        >>> [round(learning_rate_factor(recipe, epoch, max_epochs=4), 3) for epoch in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    warmup = scaled_epoch(settings, setting(settings, "warmup_epochs"), max_epochs)
    factor = 1.0
    if epoch < warmup:
        start = float(setting(settings, "warmup_start"))
        factor = start + (1 - start) * epoch / warmup
    schedule = setting(settings, "schedule")
    if schedule == "step":
        return factor * float(setting(settings, "decay")) ** milestones_reached(settings, epoch, max_epochs)
    if schedule == "cosine":
        final = float(setting(settings, "final_factor"))
        progress = min(1.0, max(0.0, epoch - warmup) / max(max_epochs - warmup, EPOCH_TOLERANCE))
        return factor * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)))
    if schedule == "inverse_sqrt" and epoch > warmup > 0:
        return float(math.sqrt(warmup / epoch))
    return factor


def changes_by_step(settings: Options) -> bool:
    """Return whether a recipe changes the learning rate with every step instead of every epoch."""
    return bool(setting(settings, "schedule") == "inverse_sqrt")


def milestones_reached(settings: Options, epoch: float, max_epochs: int) -> int:
    """Return the number of milestones at or before `epoch`, counted from 0.

    Example:
        >>> milestones_reached({"name": "sgd", "milestones": [150, 250]}, 150, max_epochs=350)
        1
    """
    points = (scaled_epoch(settings, point, max_epochs) for point in setting(settings, "milestones"))
    return sum(epoch >= point - EPOCH_TOLERANCE for point in points)


def scaled_epoch(settings: Options, point: float, max_epochs: int) -> float:
    """Convert an epoch of the recipe to an epoch of this run.

    Values below 1 are fractions of the run. Others are epochs, scaled by `max_epochs / recipe_epochs` if the recipe has
    `recipe_epochs`.

    Example:
        >>> scaled_epoch({"name": "sgd", "recipe_epochs": 350}, 150, max_epochs=7)
        3.0
    """
    if point < 1:
        return point * max_epochs
    recipe_epochs = setting(settings, "recipe_epochs")
    return point if recipe_epochs is None else point * max_epochs / recipe_epochs


def prepare_gradients(parameters: Iterable[nn.Parameter], settings: Options, batch: int) -> None:
    """Scale and clip the gradients of a mean loss in place, before the optimiser's step.

    `reduction: sum` multiplies gradients by `batch`, which gives the gradients of the summed loss. `gradient_clip` then
    limits their joint Euclidean norm (mukhoti's released code: sum, clip 2).
    """
    clip = setting(settings, "gradient_clip")
    summed = setting(settings, "reduction") == "sum"
    if clip is None and not summed:
        return
    held = list(parameters)
    if summed:
        gradients = [parameter.grad for parameter in held if parameter.grad is not None]
        # One call for all gradients. The function is private, but torch's own optimisers rely on it.
        torch._foreach_mul_(gradients, float(batch))
    if clip is not None:
        nn.utils.clip_grad_norm_(held, clip)


def replaces_checkpoint(settings: Options, epoch: int, max_epochs: int, value: float, best: float | None) -> bool:
    """Return whether the state after `epoch` completed epochs replaces the state to evaluate at the end.

    The rule `last` always replaces. The `best_…` rules replace on strict improvements after `checkpoint_after`.

    Args:
        settings: recipe with `checkpoint` and `checkpoint_after`.
        epoch: completed epochs, counted from 1.
        max_epochs: length of the run, which scales `checkpoint_after`.
        value: value after this epoch of the metric that `checkpoint_metric` names.
        best: value of the kept state; `None` if there is none.

    Example:
        >>> recipe = {"name": "sgd", "checkpoint": "best_val_nll"}
        >>> replaces_checkpoint(recipe, epoch=2, max_epochs=4, value=0.3, best=0.4)
        True
    """
    metric = checkpoint_metric(settings)
    if metric is None:
        return True
    # Epochs before `checkpoint_after` never count, not even as `best`: in the selective paper's released code, a
    # minimum before the warm-up blocks later checkpoints.
    if epoch <= scaled_epoch(settings, setting(settings, "checkpoint_after"), max_epochs) or math.isnan(value):
        return False
    if best is None:
        return True
    return value > best if metric == "val_accuracy" else value < best


def checkpoint_metric(settings: Options) -> str | None:
    """Return the epoch column that the checkpoint rule compares, or `None` for the rule `last`."""
    rule = setting(settings, "checkpoint")
    return None if rule == "last" else rule.removeprefix("best_")


def setting(settings: Options, name: str) -> Any:
    """Return hyperparameter `name` of a recipe, or the optimiser's default if the recipe does not set it.

    Raises:
        KeyError: the optimiser has no such hyperparameter.

    Example:
        >>> setting({"name": "sgd"}, "momentum")
        0.9
    """
    value = settings.get(name)
    if value is not None:
        return value
    description = OPTIMIZERS[settings.get("name", "sgd")].hyperparameter(name)
    if description is None:
        raise KeyError(f"the optimizer {settings.get('name')!r} has no hyperparameter {name!r}")
    return description.default


def alone_fault(settings: Options) -> str | None:
    """Return why replicates with this recipe cannot train as lanes of one network, or `None`."""
    requested = [name for name in ALONE if settings.get(name)]
    return f"{requested[0]} is not computed for lanes" if requested else None


def check_recipe(values: Options) -> BrokenRule | None:
    """Return the rule that a combination of hyperparameters breaks, or `None`.

    Example:
        >>> check_recipe({"milestones": [250, 150]})
        ('milestones', 'milestones = [250, 150] must be in ascending order')
    """
    if values.get("rho") is not None and values.get("sharpness") is None:
        return "rho", "rho is the radius of a sharpness-aware step; set sharpness: sam or asam, or leave rho out"
    if values.get("nesterov") and not values.get("momentum", 0.9):
        return "nesterov", "nesterov needs momentum above 0; set momentum, or leave nesterov out"
    if values.get("schedule") == "inverse_sqrt" and not values.get("warmup_epochs"):
        return "schedule", "schedule = inverse_sqrt starts to fall at the end of the warm-up; set warmup_epochs above 0"
    points = list(values.get("milestones", ()))
    if points != sorted(points):
        return "milestones", f"milestones = {points} must be in ascending order"
    after, length = values.get("checkpoint_after", 0), values.get("recipe_epochs")
    if length is not None and max([after, *points]) > length:
        return "milestones", f"milestones and checkpoint_after must lie within recipe_epochs = {length:g}"
    return None


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


Rate = Annotated[float, "(0, inf)"]
Decay = Annotated[float, "[0, inf)"]
_KINGMA = Hyperparameter(source="Kingma & Ba 2015")
Beta = Annotated[float, "[0, 1)", _KINGMA]
Epsilon = Annotated[float, "(0, inf): it divides", _KINGMA]


@OPTIMIZERS.add("sgd", "stochastic gradient descent with (Nesterov) momentum", more=COMMON, check=check_recipe)
def sgd(
    model: nn.Module,
    lr: Rate = 0.1,
    momentum: Annotated[float, "[0, 1)"] = 0.9,
    nesterov: bool = False,
    weight_decay: Decay = 5e-4,
    **_: Any,
) -> torch.optim.Optimizer:
    """Return SGD for the trainable parameters of `model`.

    Args:
        model: network.
        lr: [mukhoti App. D].
        momentum: [mukhoti App. D].
        nesterov: [mukhoti App. D uses plain momentum].
        weight_decay: [mukhoti App. D].
    """
    return without_compiler(torch.optim.SGD)(
        _trained(model), lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
    )


@OPTIMIZERS.add("adam", "Adam", more=COMMON, check=check_recipe)
def adam(
    model: nn.Module,
    lr: Rate = 1e-3,
    beta1: Beta = 0.9,
    beta2: Beta = 0.999,
    epsilon: Epsilon = 1e-8,
    weight_decay: Annotated[float, "[0, inf)", _KINGMA] = 0,
    **_: Any,
) -> torch.optim.Optimizer:
    """Return Adam for the trainable parameters of `model`.

    Args:
        model: network.
        lr: [mukhoti App. D, text].
    """
    return without_compiler(torch.optim.Adam)(
        _trained(model), lr=lr, betas=(beta1, beta2), eps=epsilon, weight_decay=weight_decay
    )


@OPTIMIZERS.add("adamw", "Adam with decoupled weight decay", more=COMMON, check=check_recipe)
def adamw(
    model: nn.Module,
    lr: Rate = 1e-3,
    beta1: Beta = 0.9,
    beta2: Beta = 0.999,
    epsilon: Epsilon = 1e-8,
    weight_decay: Decay = 0.01,
    **_: Any,
) -> torch.optim.Optimizer:
    """Return AdamW for the trainable parameters of `model`.

    Args:
        model: network.
        lr: [Loshchilov & Hutter 2019].
        weight_decay: [PyTorch's default].
    """
    return without_compiler(torch.optim.AdamW)(
        _trained(model), lr=lr, betas=(beta1, beta2), eps=epsilon, weight_decay=weight_decay
    )


@OPTIMIZERS.add("adagrad", "AdaGrad", more=COMMON, check=check_recipe)
def adagrad(model: nn.Module, lr: Rate = 0.05, weight_decay: Decay = 1e-4, **_: Any) -> torch.optim.Optimizer:
    """Return AdaGrad for the trainable parameters of `model`.

    Args:
        model: network.
        lr: [mukhoti App. D, text].
        weight_decay: [mukhoti App. D, text].
    """
    return without_compiler(torch.optim.Adagrad)(_trained(model), lr=lr, weight_decay=weight_decay)
