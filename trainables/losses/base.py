"""What a training loss is, and the registry of all of them by their names in a search space.

Adding one: a file of this folder with a subclass of `Loss` under the decorator that describes it; no other file lists
them. The arguments of its constructor are its hyperparameters, see `trainables.registry.hyperparameters`.

    @LOSSES.add("quarter", "a quarter of the Brier score", "Brier 1950")
    class Quarter(Loss):
        def values(self, logits: Tensor, targets: Tensor) -> Tensor:
            p = torch.softmax(logits, dim=-1)
            return (p - functional.one_hot(targets, logits.shape[-1])).square().sum(-1) / 4

`batch_coupled`, `stateful` and the like, and `lanes` of its `LossComponent`, say how it may be trained. A line in
`CASES` of `tests/trainables/losses/test_every_loss.py` tests what holds for every loss. Users' own losses need no file
here: this module adapts what their import paths name.

What losses are made of is here, too: logarithms of probabilities that stay accurate at both ends, targets of label
smoothing, and confidence scores. Each such function takes logits or log-probabilities [N, K], keeps their type and
works under `torch.func.vmap` (no shape depends on data).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainables.extensions.targets import OwnFamily, described
from trainables.registry import Component, ExtensionError, HyperparameterValue, Options, Registry, hyperparameters_of

Number = float | Tensor


def true_class_logs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y and log(1 − p_y), each [N].

    With the log-odds m = z_y − logsumexp_{k≠y} z_k these are log σ(m) and log σ(−m): both keep full relative
    accuracy as p_y → 0 and p_y → 1, and are finite for every finite logit.
    """
    index = targets.unsqueeze(-1)
    others = logits.scatter(-1, index, -math.inf).logsumexp(-1)
    log_odds = logits.gather(-1, index).squeeze(-1) - others
    return functional.logsigmoid(log_odds), functional.logsigmoid(-log_odds)


def true_class(values: Tensor, targets: Tensor) -> Tensor:
    """Return [N], the entry of `values` [N, K] at each target."""
    return values.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def log_complements(log_probabilities: Tensor) -> Tensor:
    """Return log(1 − p_k) [N, K] in O(K).

    A class that is not the largest has p_k ≤ 1/2, where log1p(−p_k) is accurate; for the largest, 1 − p is the
    sum of the others.
    """
    top = log_probabilities.argmax(-1, keepdim=True)
    rest = log_probabilities.scatter(-1, top, -math.inf)
    return torch.log1p(-rest.exp()).scatter(-1, top, rest.logsumexp(-1, keepdim=True))


def smoothed_targets(like: Tensor, targets: Tensor, amount: Number, form: str) -> Tensor:
    """Return soft targets [N, K].

    `others`: 1 − α on the target and α/(K−1) elsewhere (mukhoti §5.1). `uniform`: α/K everywhere and 1 − α more
    on the target (the form of torch's own `label_smoothing`). An `amount` [L, 1] is that of logits [L, N, K].
    """
    classes = like.shape[-1]
    amount = amount.unsqueeze(-1) if isinstance(amount, Tensor) and amount.dim() else amount
    elsewhere = amount / (classes - 1 if form == "others" else classes)
    on_target = 1.0 - amount if form == "others" else 1.0 - amount + elsewhere
    one_hot = torch.arange(classes, device=like.device) == targets.unsqueeze(-1)
    return torch.where(one_hot, as_type(on_target, like), as_type(elsewhere, like))


def as_type(number: Number, like: Tensor) -> Tensor:
    """Return a number or tensor as a tensor of the type and device of `like`."""
    if isinstance(number, Tensor):
        return number.to(like)
    return torch.full((), number, dtype=like.dtype, device=like.device)  # filled there: nothing to copy or wait for


def is_zero(number: Number) -> bool:
    """Return whether a plain number is 0; a tensor never counts, for its values may differ between lanes."""
    return not isinstance(number, Tensor) and number == 0


def maximum_softmax_probability(log_probabilities: Tensor) -> Tensor:
    """Return max_k p_k for log-probabilities [N, K] → [N]."""
    return log_probabilities.max(-1).values.exp()


def softmax_margin(log_probabilities: Tensor) -> Tensor:
    """Return p₍₁₎ − p₍₂₎, the lead of the most probable class over the next, for [N, K] → [N]."""
    top = log_probabilities.topk(2, dim=-1).values.exp()
    return top[..., 0] - top[..., 1]


def negative_entropy(log_probabilities: Tensor) -> Tensor:
    """Return 1 + Σ_k p_k log p_k / log K for [N, K] → [N]: 0 for uniform probabilities, 1 for a one-hot vector."""
    classes = log_probabilities.shape[-1]
    raw = 1 + (log_probabilities.exp() * log_probabilities).sum(-1) / math.log(classes)
    return raw.clamp(0, 1)  # rounding may leave [0, 1] by one unit in the last place


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "msp": maximum_softmax_probability,
    "margin": softmax_margin,
    "negative_entropy": negative_entropy,
}
SCORE_NAMES: tuple[str, ...] = tuple(SCORES)


def score_from_log_probabilities(name: str, log_probabilities: Tensor) -> Tensor:
    """Return the confidence score `name` of log-probabilities [N, K] as [N] in [0, 1].

    Raises:
        ValueError: the name is none of `SCORE_NAMES`.
    """
    if name not in SCORES:
        raise ValueError(f"unknown confidence score {name!r}; known: {', '.join(SCORE_NAMES)}")
    return SCORES[name](log_probabilities)


def confidence_score(name: str, logits: Tensor) -> Tensor:
    """Return the confidence score `name` of logits [N, K] as [N] in [0, 1], in float32 or wider.

    `msp` is the largest softmax probability, `margin` the largest less the second largest, `negative_entropy`
    Σ p log p mapped from [−log K, 0] to [0, 1] (selective, App. A, Table 1). The softmax is applied once.

    Raises:
        ValueError: the name is none of `SCORE_NAMES`.
    """
    return score_from_log_probabilities(name, torch.log_softmax(widened(logits), dim=-1))


State = dict[str, Tensor | float | int]


class Loss:
    """A training loss on logits: the mean over a batch, per-sample values, and the hooks a trial calls.

    Hyperparameters may be Python numbers or tensors, so that `torch.func.vmap` can map over logits and
    hyperparameters at once. Values and gradients are finite for logits up to ±1e4, and computed in float32 or
    wider whatever the logits' type, autocast included.

    Attributes:
        name: the key in the registry.
        batch_coupled: the value is not a mean of independent per-sample terms.
        needs_model: called with (model, inputs, targets) instead of (logits, targets).
        stateful: this instance keeps state between batches or epochs (`state_dict` is not empty).
        takes_lanes: `values` takes logits [L, N, K] and targets [L, N], with numbers [L, 1] as hyperparameters.
        takes_soft_targets: at targets v of several classes the loss is Σ_k v_k·loss(k), up to what no network changes.
    """

    name: str = ""
    batch_coupled: bool = False
    needs_model: bool = False
    stateful: bool = False
    takes_lanes: bool = False

    @property
    def takes_soft_targets(self) -> bool:
        """One of independent samples is the mean over their targets; others say themselves."""
        return not (self.batch_coupled or self.needs_model)

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the batch, a scalar.

        Args:
            logits: [N, K], K ≥ 2.
            targets: [N] int64 class indices.

        Raises:
            ValueError: the shapes do not belong together.
        """
        check_batch(logits, targets)
        with full_precision(logits):
            return self.value(widened(logits), targets)

    def per_sample(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return [N] values whose mean is the loss.

        Raises:
            TypeError: the loss is a function of the whole batch and has none.
            ValueError: the shapes do not belong together.
        """
        check_batch(logits, targets)
        with full_precision(logits):
            return self.values(widened(logits), targets)

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar loss of checked logits in float32 or wider; the mean of `values` unless overridden."""
        return self.values(logits, targets).mean()

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] per-sample values of checked logits in float32 or wider.

        Raises:
            TypeError: the loss is a function of the whole batch and has none.
        """
        raise TypeError(f"{self.name} has no per-sample values: it is a function of the whole batch")

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the loss with everything it treats as constant fixed at these logits.

        Ranks, weights, thresholds, bandwidths and per-sample γ stay what they are here, so the result is a
        smooth function of the logits of this very batch: the one whose Hessian is taken.
        """
        return self

    def begin_epoch(self, epoch: int, max_epochs: int) -> None:
        """Tell the loss that epoch number `epoch` (from 0) of `max_epochs` begins."""

    def end_epoch(self, val_logits: Tensor, val_targets: Tensor) -> None:
        """Show the loss the validation logits [M, K] and targets [M] at the end of an epoch."""

    def state_dict(self) -> State:
        """Return what has to be saved with the trial so that training resumes as if never interrupted."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore `state_dict`. Raises ValueError when the keys are not this loss's."""
        expected = set(self.state_dict())
        if set(state) != expected:
            raise ValueError(f"{self.name} keeps {sorted(expected)}, but the saved state has {sorted(state)}")
        self.restore(state)

    def restore(self, state: Mapping[str, object]) -> None:
        """Take over a state whose keys were checked; losses with state override this."""


def check_batch(logits: Tensor, targets: Tensor) -> None:
    """Raise ValueError unless logits are [N, K] with N ≥ 1 and K ≥ 2 and targets are [N] integers."""
    if logits.dim() != 2 or logits.shape[0] < 1 or logits.shape[1] < 2:
        raise ValueError(f"logits of shape {tuple(logits.shape)} must be [samples, classes], at least [1, 2]")
    if targets.shape != logits.shape[:1] or targets.is_floating_point():
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} and type {targets.dtype} must be {logits.shape[0]} class indices"
        )


def full_precision(logits: Tensor) -> torch.autocast:
    """Return a context in which autocast lowers no precision: losses are cheap, their rounding errors are not."""
    return torch.autocast(device_type=logits.device.type, enabled=False)


def widened(logits: Tensor) -> Tensor:
    """Return the logits in float32, or float64 where they are that already."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


PROBED_CLASSES = 3


def mean_of(found: object, targets: Tensor) -> Tensor:
    """Return the mean of [N] values, or the number that is given. Raises ValueError for anything else."""
    if isinstance(found, Tensor) and found.shape in ((), targets.shape):
        return found.mean()
    shown = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    raise ValueError(f"it returns {shown} for {len(targets)} samples; it must return one number or one per sample")


class FunctionLoss(Loss):
    """A function of (logits [N, K], targets [N]) with its hyperparameters, giving [N] values or their mean.

    Whether it is a mean of independent values is tested, not assumed: only then may batches be joined.
    """

    def __init__(self, function: Callable[..., Tensor], path: str, /, **hyperparameters: HyperparameterValue) -> None:
        """Keep the function; `path` is its import path, for messages."""
        self.name = path
        self._function = partial(function, **hyperparameters)
        self.batch_coupled = not self._has_independent_values()

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] values. Raises TypeError where they depend on the whole batch."""
        if self.batch_coupled:
            return super().values(logits, targets)
        return self._function(logits, targets)

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar loss."""
        return mean_of(self._function(logits, targets), targets)

    def _has_independent_values(self) -> bool:
        """Return whether each sample has its own value, the same in every batch."""
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(6, PROBED_CLASSES, generator=generator, dtype=torch.float64)
        targets = torch.tensor([0, 1, 2, 2, 1, 0])
        try:
            whole, part = self._function(logits, targets), self._function(logits[:2], targets[:2])
        except Exception:
            return False  # one that takes other classes only; as a function of the whole batch it is right in any case
        shapes = isinstance(whole, Tensor) and whole.shape == (6,) and part.shape == (2,)
        return shapes and torch.allclose(whole[:2], part, rtol=1e-6, atol=0.0)


class ModuleLoss(Loss):
    """A `torch.nn.Module` whose `forward` takes (logits [N, K], targets [N]); its buffers are its state."""

    batch_coupled = True

    def __init__(self, kind: type[nn.Module], path: str, /, **hyperparameters: HyperparameterValue) -> None:
        """Build the module. Raises ExtensionError when it has parameters, which nothing would train."""
        self.name = path
        module = kind(**hyperparameters)
        learned = [name for name, _ in module.named_parameters()]
        if learned:
            raise ExtensionError(f"{path} has parameters ({', '.join(learned)}), but only the network is trained")
        self._module = module
        self.stateful = bool(module.state_dict())

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar loss."""
        return mean_of(self._module.to(logits.device)(logits, targets), targets)

    def begin_epoch(self, epoch: int, max_epochs: int) -> None:
        """Put the module into training mode."""
        self._module.train()

    def state_dict(self) -> State:
        """Return the module's buffers."""
        return {name: buffer.clone() for name, buffer in self._module.state_dict().items()}

    def restore(self, state: Mapping[str, object]) -> None:
        """Take the buffers over."""
        self._module.load_state_dict(dict(state))


@dataclass(frozen=True)
class LossComponent(Component):
    """A loss.

    Attributes:
        lanes: why it cannot be trained as lanes, replicates side by side; empty where it can.
        constant_gamma: the γ of a loss of these hyperparameters whose risk minimiser the focal map Ψ^γ turns back into
            the posterior; `None` where no map does, as for a γ that changes by sample or epoch.
    """

    lanes: str = ""
    constant_gamma: Callable[[Options], float | None] | None = None


def _loss(target: object, path: str, name: str) -> LossComponent:
    build: Callable[..., Loss]
    leading: list[str] = []
    if isinstance(target, type) and issubclass(target, Loss):
        build = target
    elif isinstance(target, type) and issubclass(target, nn.Module):
        build = partial(ModuleLoss, target, path)
    elif inspect.isfunction(target):
        build, leading = partial(FunctionLoss, target, path), ["logits", "targets"]
    else:
        raise ExtensionError(
            f"{path} is {described(target)}; a loss is a subclass of trainables.losses.Loss, a torch.nn.Module class, "
            "or a function of (logits, targets)"
        )

    def named(**hyperparameters: HyperparameterValue) -> Loss:
        loss = build(**hyperparameters)
        loss.name = name  # a subclass of one of ours is not that one
        return loss

    return LossComponent(name, named, hyperparameters_of(target, path, leading))


LOSSES = Registry("loss", OwnFamily("losses", _loss), LossComponent)


def build_loss(name: str, **hyperparameters: HyperparameterValue | Tensor) -> Loss:
    """Build the loss registered as `name`.

    Tensor-valued hyperparameters are taken as they are; all others are checked against their ranges.

    Raises:
        ValueError: an unknown name (with the nearest one), an unknown hyperparameter or a value out of range.
    """
    loss: Loss = LOSSES.build(name, **hyperparameters)
    return loss
