"""The base class of training losses, and the registry of losses by their names in a search space.

To add a loss, write a file in this folder with a subclass of `Loss` under the decorator that describes it. No other
file lists losses. The arguments of its constructor are its hyperparameters, see `trainables.registry.hyperparameters`.

    @LOSSES.add("quarter", "a quarter of the Brier score", "Brier 1950")
    class Quarter(Loss):
        def values(self, logits: Tensor, targets: Tensor) -> Tensor:
            p = torch.softmax(logits, dim=-1)
            return (p.square().sum(-1) - 2 * p.gather(-1, targets.unsqueeze(-1)).squeeze(-1) + 1) / 4

Attributes such as `batch_coupled` and `stateful`, and `lanes` of its `LossComponent`, declare how it can be trained.
`tests/trainables/losses/test_every_loss.py` tests the properties that every loss has, with hyperparameters drawn from
its signature. Users' own losses need no file here: this module adapts the functions and classes that their paths name.

This module also holds the building blocks of losses: logarithms of probabilities that stay accurate at both ends,
soft targets for label smoothing, and confidence scores. Each of these functions takes logits or log-probabilities [N,
K], keeps their type and works under `torch.func.vmap` (no shape depends on data).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainables.extensions.targets import OwnFamily, described
from trainables.registry import Component, ExtensionError, HyperparameterValue, Options, Registry, hyperparameters_of

Number = float | Tensor


def true_class_logs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y and log(1 − p_y), each [N].

    With the log-odds m = z_y − logsumexp_{k≠y} z_k, these are log σ(m) and log σ(−m). Both keep full relative accuracy
    as p_y → 0 and as p_y → 1, and are finite for all finite logits.

    Example:
        >>> log_p, log_rest = true_class_logs(torch.tensor([[50.0, 0.0]], dtype=torch.float64), torch.tensor([0]))
        >>> f"{log_p.item():.2e}, {log_rest.item():.1f}"  # log(1 - p) would be -inf
        '-1.93e-22, -50.0'
    """
    index = targets.unsqueeze(-1)
    others = logits.scatter(-1, index, -math.inf).logsumexp(-1)
    log_odds = logits.gather(-1, index).squeeze(-1) - others
    return functional.logsigmoid(log_odds), functional.logsigmoid(-log_odds)


def true_class(values: Tensor, targets: Tensor) -> Tensor:
    """Return the entry of `values` [N, K] at each target, [N]."""
    return values.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def log_complements(log_probabilities: Tensor) -> Tensor:
    """Return log(1 − p_k) [N, K] in O(K).

    For all classes except the largest, p_k ≤ 1/2, where log1p(−p_k) is accurate. For the largest class, 1 − p is the
    sum of the other probabilities.
    """
    # For p near 1, log1p(−p) would lose all digits of 1 − p; the sum of the other classes keeps them.
    top = log_probabilities.argmax(-1, keepdim=True)
    rest = log_probabilities.scatter(-1, top, -math.inf)
    return torch.log1p(-rest.exp()).scatter(-1, top, rest.logsumexp(-1, keepdim=True))


def smoothed_targets(like: Tensor, targets: Tensor, amount: Number, form: str) -> Tensor:
    """Return soft targets [N, K].

    Args:
        like: tensor [N, K] that gives the number of classes, type and device.
        targets: class indices [N].
        amount: smoothing α; [L, 1] for logits [L, N, K].
        form: `others` puts 1 − α on the target and α/(K−1) elsewhere (mukhoti §5.1); `uniform` puts α/K everywhere and
            1 − α more on the target (the form of torch's `label_smoothing`).

    Example:
        >>> smoothed_targets(torch.zeros(1, 3), torch.tensor([0]), 0.3, "others")
        tensor([[0.7000, 0.1500, 0.1500]])
    """
    classes = like.shape[-1]
    # one α per lane [L, 1] becomes [L, 1, 1], so that it broadcasts over samples and classes
    amount = amount.unsqueeze(-1) if isinstance(amount, Tensor) and amount.dim() else amount
    elsewhere = amount / (classes - 1 if form == "others" else classes)
    on_target = 1.0 - amount if form == "others" else 1.0 - amount + elsewhere
    one_hot = torch.arange(classes, device=like.device) == targets.unsqueeze(-1)
    return torch.where(one_hot, as_type(on_target, like), as_type(elsewhere, like))


def as_type(number: Number, like: Tensor) -> Tensor:
    """Return a number or tensor as a tensor of the type and device of `like`."""
    if isinstance(number, Tensor):
        return number.to(like)
    return torch.full((), number, dtype=like.dtype, device=like.device)  # filled on the device: no copy to wait for


def is_zero(number: Number) -> bool:
    """Return whether a plain number is 0; `False` for a tensor, whose values can differ between lanes."""
    return not isinstance(number, Tensor) and number == 0


def maximum_softmax_probability(log_probabilities: Tensor) -> Tensor:
    """Return max_k p_k for log-probabilities [N, K] → [N]."""
    return log_probabilities.max(-1).values.exp()


def softmax_margin(log_probabilities: Tensor) -> Tensor:
    """Return p₍₁₎ − p₍₂₎, the lead of the most probable class over the second, for [N, K] → [N]."""
    top = log_probabilities.topk(2, dim=-1).values.exp()
    return top[..., 0] - top[..., 1]


def negative_entropy(log_probabilities: Tensor) -> Tensor:
    """Return 1 + Σ_k p_k log p_k / log K for [N, K] → [N]: 0 for uniform probabilities, 1 for a one-hot vector."""
    classes = log_probabilities.shape[-1]
    raw = 1 + (log_probabilities.exp() * log_probabilities).sum(-1) / math.log(classes)
    return raw.clamp(0, 1)  # rounding can exceed [0, 1] by one unit in the last place


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "msp": maximum_softmax_probability,
    "margin": softmax_margin,
    "negative_entropy": negative_entropy,
}
SCORE_NAMES: tuple[str, ...] = tuple(SCORES)


def score_from_log_probabilities(name: str, log_probabilities: Tensor) -> Tensor:
    """Return the confidence score `name` of log-probabilities [N, K] as [N] in [0, 1].

    Raises:
        ValueError: the name is not in `SCORE_NAMES`.
    """
    if name not in SCORES:
        raise ValueError(f"unknown confidence score {name!r}; known: {', '.join(SCORE_NAMES)}")
    return SCORES[name](log_probabilities)


def confidence_score(name: str, logits: Tensor) -> Tensor:
    """Return the confidence score `name` of logits [N, K] as [N] in [0, 1], in float32 or wider.

    `msp` is the largest softmax probability, `margin` is the largest minus the second largest, and `negative_entropy`
    is Σ p log p mapped from [−log K, 0] to [0, 1] (selective, App. A, Table 1). The softmax is applied once (the
    released code of that paper applies it twice).

    Raises:
        ValueError: the name is not in `SCORE_NAMES`.

    Example:
        >>> confidence_score("margin", torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
        tensor([0.4621, 0.9051])
    """
    return score_from_log_probabilities(name, torch.log_softmax(widened(logits), dim=-1))


State = dict[str, Tensor | float | int]
Lanes: TypeAlias = Literal["mapped", "stacked", "none"]


class Loss:
    """Base class of training losses on logits: the mean over a batch, per-sample values, and the hooks a trial calls.

    Hyperparameters can be Python numbers or tensors, so `torch.func.vmap` can map over logits and hyperparameters at
    once. Values and gradients are finite for logits up to ±1e4. They are computed in float32 or wider for logits of any
    type, and under autocast, too.

    Attributes:
        name: key in the registry.
        batch_coupled: whether the value is not a mean of independent per-sample terms.
        needs_model: whether the loss takes (model, inputs, targets) instead of (logits, targets).
        stateful: whether this instance keeps state between batches or epochs (`state_dict` is not empty).
        lanes: how it is computed for several replicates side by side: `mapped` by `torch.func.vmap`; `stacked`, if
            `values` takes logits [L, N, K] and targets [L, N] with hyperparameters [L, 1]; `none` if it cannot.
        takes_soft_targets: whether the loss at soft targets v is Σ_k v_k·loss(k), up to a constant.

    Example:
        >>> class Quarter(Loss):
        ...     def values(self, logits, targets):
        ...         p = torch.softmax(logits, dim=-1)
        ...         return (p - functional.one_hot(targets, logits.shape[-1])).square().sum(-1) / 4
        >>> Quarter()(torch.zeros(5, 2), torch.tensor([0, 1, 1, 0, 1]))
        tensor(0.1250)
    """

    name: str = ""
    batch_coupled: bool = False
    needs_model: bool = False
    stateful: bool = False
    lanes: ClassVar[Lanes] = "mapped"

    def __init_subclass__(cls, **options: object) -> None:
        """Refuse an unknown value of `lanes`, which would be computed as `mapped`."""
        super().__init_subclass__(**options)
        if cls.lanes not in get_args(Lanes):
            raise TypeError(f"{cls.__name__}.lanes = {cls.lanes!r} must be one of {', '.join(get_args(Lanes))}")

    @property
    def takes_soft_targets(self) -> bool:
        """Whether soft targets can be used: true for a mean of independent terms; other losses override it."""
        return not (self.batch_coupled or self.needs_model)

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss over the batch, a scalar.

        Args:
            logits: [N, K], K ≥ 2.
            targets: [N] int64 class indices.
            weights: weights w [N] of the samples, for Σ_i w_i v_i / Σ_i w_i over the values v, as torch's
                `cross_entropy` weights classes; `None` for the plain mean.

        Raises:
            ValueError: the shapes do not match.
            TypeError: weights are given, and the loss is a function of the whole batch.
        """
        check_batch(logits, targets)
        with full_precision(logits):
            if weights is None:
                return self.value(widened(logits), targets)
            if self.batch_coupled:
                raise TypeError(unweighted(self.name))
            return self.reduced(self.values(widened(logits), targets), weights)

    def per_sample(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return [N] values whose mean is the loss.

        Raises:
            TypeError: the loss is a function of the whole batch and has no such values.
            ValueError: the shapes do not match.
        """
        check_batch(logits, targets)
        with full_precision(logits):
            return self.values(widened(logits), targets)

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar loss of checked logits in float32 or wider; `reduced` of `values` unless overridden."""
        return self.reduced(self.values(logits, targets))

    def reduced(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss [...] from the values [..., N] of the samples of a batch, with weights [N] if given."""
        return values.mean(-1) if weights is None else (weights * values).sum(-1) / weights.sum(-1)

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] per-sample values of checked logits in float32 or wider.

        Raises:
            TypeError: the loss is a function of the whole batch and has no such values.
        """
        raise TypeError(f"{self.name} has no per-sample values: it is a function of the whole batch")

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the loss with all quantities that carry no gradient fixed at their values for these logits.

        Ranks, weights, thresholds, bandwidths and per-sample γ keep these values, so the result is a smooth function of
        the logits of this batch. Curvature is computed from the Hessian of this function.
        """
        return self

    def begin_epoch(self, epoch: int, max_epochs: int) -> None:
        """Prepare for epoch `epoch` (from 0) of `max_epochs`."""

    def end_epoch(self, val_logits: Tensor, val_targets: Tensor) -> None:
        """Update the state from the validation logits [M, K] and targets [M] at the end of an epoch."""

    def state_dict(self) -> State:
        """Return the state that a checkpoint needs, so that training resumes as if never interrupted."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore a `state_dict`.

        Raises:
            ValueError: the keys are not those of this loss's state.
        """
        expected = set(self.state_dict())
        if set(state) != expected:
            raise ValueError(f"{self.name} keeps {sorted(expected)}, but the saved state has {sorted(state)}")
        self.restore(state)

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore a state with checked keys. Losses with state override this method."""


def unweighted(name: str) -> str:
    """Return the error for weights with a batch-coupled loss."""
    return f"{name} is a function of the whole batch, in which samples have no weights; choose another loss"


def check_batch(logits: Tensor, targets: Tensor) -> None:
    """Check that logits are [N, K] with N ≥ 1 and K ≥ 2, and targets [N] integers.

    Raises:
        ValueError: they are not.
    """
    if logits.dim() != 2 or logits.shape[0] < 1 or logits.shape[1] < 2:
        raise ValueError(f"logits of shape {tuple(logits.shape)} must be [samples, classes], at least [1, 2]")
    if targets.shape != logits.shape[:1] or targets.is_floating_point():
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} and type {targets.dtype} must be {logits.shape[0]} class indices"
        )


def full_precision(logits: Tensor) -> torch.autocast:
    """Return a context without autocast: losses are cheap, and half precision would dominate their error."""
    return torch.autocast(device_type=logits.device.type, enabled=False)


def widened(logits: Tensor) -> Tensor:
    """Return the logits in float32, or in float64 if they are float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


# the smallest number of classes at which a multi-class function differs from a binary one
PROBED_CLASSES = 3


def mean_of(result: object, targets: Tensor) -> Tensor:
    """Return the mean of a user's loss, given as a scalar or as [N] values.

    Raises:
        ValueError: the result is neither.
    """
    if isinstance(result, Tensor) and result.shape in ((), targets.shape):
        return result.mean()
    shown = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
    raise ValueError(f"it returns {shown} for {len(targets)} samples; it must return one number or one per sample")


class FunctionLoss(Loss):
    """A user's function of (logits [N, K], targets [N]) and hyperparameters that returns [N] values or their mean.

    The constructor tests whether the loss is a mean of independent values: only then can batches be joined.

    Example:
        >>> loss = FunctionLoss(lambda logits, targets: -logits[:, 0], "my_losses.first")
        >>> loss.batch_coupled, loss(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
        (False, tensor(-1.))
    """

    def __init__(self, function: Callable[..., Tensor], path: str, /, **hyperparameters: HyperparameterValue) -> None:
        """Keep the function; `path` is its import path, shown in messages."""
        self.name = path
        self._function = partial(function, **hyperparameters)
        self.batch_coupled = not self._has_independent_values()

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] values.

        Raises:
            TypeError: the values depend on the whole batch.
        """
        if self.batch_coupled:
            return super().values(logits, targets)
        return self._function(logits, targets)

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar loss."""
        return mean_of(self._function(logits, targets), targets)

    def _has_independent_values(self) -> bool:
        """Return whether the value of a sample is the same in every batch."""
        # a separate generator and float64: the probe changes no other random number, and its tolerance can be tight
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(6, PROBED_CLASSES, generator=generator, dtype=torch.float64)
        targets = torch.tensor([0, 1, 2, 2, 1, 0])
        try:
            whole, part = self._function(logits, targets), self._function(logits[:2], targets[:2])
        except Exception:
            return False  # it may need another number of classes; treating it as batch-coupled is always correct
        shapes = isinstance(whole, Tensor) and whole.shape == (6,) and part.shape == (2,)
        return shapes and torch.allclose(whole[:2], part, rtol=1e-6, atol=0.0)


class ModuleLoss(Loss):
    """A `torch.nn.Module` whose `forward` takes (logits [N, K], targets [N]); its buffers are its state."""

    batch_coupled = True

    def __init__(self, kind: type[nn.Module], path: str, /, **hyperparameters: HyperparameterValue) -> None:
        """Build the module.

        Raises:
            ExtensionError: the module has parameters, which nothing would train.
        """
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
        """Return copies of the module's buffers."""
        # copies: the module changes its buffers in place
        return {name: buffer.clone() for name, buffer in self._module.state_dict().items()}

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore the buffers."""
        self._module.load_state_dict(dict(state))


@dataclass(frozen=True)
class LossComponent(Component):
    """The registry's entry of a loss.

    Attributes:
        constant_gamma: function from hyperparameters of the loss to γ. The focal map Ψ^γ with this γ turns the loss's
            risk minimiser back into the posterior. `None` if there is no such γ, e.g. if it changes by sample or epoch.
        cross_entropy_at_zero: hyperparameters that, all at 0, make the loss cross-entropy. A line of values of one of
            them contains 0.
    """

    constant_gamma: Callable[[Options], float | None] | None = None
    cross_entropy_at_zero: tuple[str, ...] = ()


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
        loss.name = name  # a user's subclass of one of our losses would inherit the name of that loss
        return loss

    return LossComponent(name, named, hyperparameters_of(target, path, leading))


LOSSES = Registry("loss", OwnFamily("losses", _loss), LossComponent)


def build_loss(name: str, **hyperparameters: HyperparameterValue | Tensor) -> Loss:
    """Build the loss registered as `name`.

    Tensor-valued hyperparameters are not checked; all others are checked against their ranges.

    Raises:
        ValueError: unknown name (the message suggests the nearest one), unknown hyperparameter or value out of range.

    Example:
        >>> from trainables.losses import build_loss
        >>> loss = build_loss("focal", gamma=2.0)
        >>> loss(torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.3431)
    """
    loss: Loss = LOSSES.build(name, **hyperparameters)
    return loss
