"""Focal loss and its relatives: a weight on log p_y, and optional label smoothing.

γ can be constant, fall in three steps over the run (FLSc, mukhoti App. E), depend on the probability of each sample's
true class (FLSD, mukhoti §4), or be the γ at which the gradient equals that of cross-entropy at a chosen p₀. Inverse
focal loss puts the weight on samples that the network is sure of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from trainables.losses.base import (
    LOSSES,
    Lanes,
    Loss,
    Number,
    State,
    as_type,
    is_zero,
    log_complements,
    smoothed_targets,
    true_class_logs,
    widened,
)
from trainables.registry import BrokenRule, Hyperparameter, Options, number_in

Smoothing = Annotated[
    Number,
    "[0, 1): share of the target's probability given to other classes; at 1 the target has none",
    Hyperparameter(source="0: one-hot targets; posterior §6.1 uses 0.1 in its label-smoothing paradigm"),
]
SmoothingForm = Annotated[
    Literal["others", "uniform"], Hyperparameter(source="posterior §6.1 states no form; `uniform` is torch's own")
]


@dataclass(eq=False)
class FocalTypeLoss(Loss):
    """Base class of losses −w(u)^γ log u, with u the probability of the true class.

    With `smoothing` α > 0 the target becomes a vector v and the loss −Σ_k v_k w(u_k)^γ log u_k (posterior §6.1).
    Subclasses define `gamma`; they can override the weight (`log_modulation`) and choose γ per sample (`gammas`).
    """

    lanes: ClassVar[Lanes] = "stacked"

    gamma: Number = field(init=False)
    smoothing: Smoothing = field(default=0.0, kw_only=True)
    smoothing_form: SmoothingForm = field(default="uniform", kw_only=True)

    def gammas(self, true_log_p: Tensor) -> Number:
        """Return γ: one number, or [N] chosen without gradient from log p_y [N] of the true classes."""
        return self.gamma

    def log_modulation(self, log_p: Tensor, log_complement: Tensor, gamma: Tensor) -> Tensor:
        """Return γ·log w, elementwise, from log u and log(1 − u)."""
        return gamma * log_complement

    def log_modulation_true(
        self, logits: Tensor, targets: Tensor, logs: tuple[Tensor, Tensor], gamma: Tensor
    ) -> Tensor:
        """Return γ·log w [N] of the true classes; `logs` holds their log p and log(1 − p)."""
        return self.log_modulation(*logs, gamma)

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the per-sample losses, [N]."""
        logs = true_class_logs(logits, targets)
        # detached: γ is a weight, and mukhoti chooses it per sample without a gradient
        gamma = as_type(self.gammas(logs[0].detach()), logits)
        if is_zero(self.smoothing):
            # exp(γ·log w) instead of w^γ, whose gradient is infinite at w = 0 for γ < 1
            return -self.log_modulation_true(logits, targets, logs, gamma).exp() * logs[0]
        log_p = torch.log_softmax(logits, dim=-1)
        soft = smoothed_targets(logits, targets, self.smoothing, self.smoothing_form)
        gamma = gamma.unsqueeze(-1) if gamma.dim() else gamma
        weight = self.log_modulation(log_p, log_complements(log_p), gamma).exp()
        return -(soft * weight * log_p).sum(-1)


@LOSSES.add(
    "focal", constant_gamma=lambda given: number_in(given, "gamma", None), cross_entropy_at_zero=("gamma", "smoothing")
)
@dataclass(eq=False)
class Focal(FocalTypeLoss):
    """Cross-entropy weighted by (1 − p_y)^γ.

    −(1 − p_y)^γ log p_y (Lin et al. 2017, Eq. 4; mukhoti §3).

    Source: Lin et al. 2017, Eq. 4; mukhoti §3.

    Args:
        gamma: a negative γ puts more weight on correctly classified samples; adafocal offers that form [mukhoti App. E:
            best fixed γ by ECE].

    Example:
        >>> logits, targets = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0])
        >>> Focal(gamma=1.0).per_sample(logits, targets)  # 0.5·log 2, and little for the easy sample
        tensor([0.3466, 0.0023])
    """

    gamma: Annotated[Number, "[0, inf)"] = 3.0


# variant → γ in the three parts of a run (mukhoti App. E)
SCHEDULES = {"flsc_532": (5.0, 3.0, 2.0), "flsc_531": (5.0, 3.0, 1.0)}


def check_switches(values: Mapping[str, object]) -> BrokenRule | None:
    """Return the error for switches in the wrong order, or `None`."""
    first, second = number_in(values, "first_switch", 100 / 350), number_in(values, "second_switch", 250 / 350)
    if first <= second:
        return None
    return "first_switch", f"first_switch = {first:g} must not come after second_switch = {second:g}"


class FocalByEpoch(FocalTypeLoss):
    """Base class of focal losses whose γ depends on the epoch alone; γ is their state."""

    stateful = True

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return focal loss with the current γ."""
        return Focal(self.gamma, smoothing=self.smoothing, smoothing_form=self.smoothing_form)

    def state_dict(self) -> State:
        """Return the current γ."""
        return {"gamma": self.gamma}

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore γ: a number, or a tensor in a lane."""
        gamma = state["gamma"]
        assert isinstance(gamma, (int, float, Tensor))
        self.gamma = gamma


@LOSSES.add("focal_scheduled", check=check_switches)
@dataclass(eq=False)
class FocalScheduled(FocalByEpoch):
    """Focal loss with γ 5, 3 and 2 (or 1) over the run.

    −(1 − p_y)^γ log p_y with γ 5, then 3, then 2 (FLSc-532) or 1 (FLSc-531), switching at given shares of the run.

    Only `begin_epoch` changes γ: epoch e of E uses the second γ once e/E ≥ `first_switch`.

    Source: mukhoti App. E.

    Args:
        variant: [mukhoti App. E].
        first_switch: share of the run's epochs [mukhoti App. E: epoch 100 of 350; the released script has 30 of 100
            for Tiny-ImageNet].
        second_switch: share of the run's epochs [mukhoti App. E: epoch 250 of 350; the released script has 70 of 100
            for Tiny-ImageNet].

    Example:
        >>> loss, gammas = FocalScheduled(), []
        >>> for epoch in range(7):
        ...     loss.begin_epoch(epoch, max_epochs=7)
        ...     gammas.append(loss.gamma)
        >>> gammas
        [5.0, 5.0, 3.0, 3.0, 3.0, 2.0, 2.0]
    """

    variant: Annotated[str, tuple(SCHEDULES)] = "flsc_532"
    first_switch: Annotated[float, "[0, 1]"] = 100 / 350
    second_switch: Annotated[float, "[0, 1]"] = 250 / 350

    def __post_init__(self) -> None:
        self.gamma = SCHEDULES[self.variant][0]

    def begin_epoch(self, epoch: int, max_epochs: int) -> None:
        """Set γ for epoch `epoch` (from 0) of `max_epochs`."""
        switches = (self.first_switch, self.second_switch)
        self.gamma = SCHEDULES[self.variant][sum(epoch / max_epochs >= switch for switch in switches)]


@LOSSES.add("two_stage", cross_entropy_at_zero=("gamma", "smoothing"))
@dataclass(eq=False)
class TwoStage(FocalByEpoch):
    """Focal loss in the first part of the run, then cross-entropy: does focal loss help as a warm-up?

    −(1 − p_y)^γ log p_y while e/E < `switch` at epoch e of E, then −log p_y.

    Source: mukhoti App. E changes γ over the run; ending in cross-entropy is the baseline of later reproductions.

    Args:
        gamma: a negative γ puts more weight on correctly classified samples; adafocal offers that form [mukhoti App. E:
            best fixed γ by ECE].
        switch: share of the run's epochs [ours: half of them].

    Example:
        >>> loss = TwoStage(gamma=3.0)
        >>> loss.begin_epoch(5, max_epochs=10)
        >>> loss.gamma
        0.0
    """

    gamma: Annotated[Number, "[0, inf)"] = 3.0
    switch: Annotated[float, "[0, 1]"] = 0.5

    def __post_init__(self) -> None:
        self.first = self.gamma  # `begin_epoch` overwrites `gamma`

    def begin_epoch(self, epoch: int, max_epochs: int) -> None:
        """Set γ for epoch `epoch` (from 0) of `max_epochs`."""
        self.gamma = self.first if epoch / max_epochs < self.switch else 0.0


# variant → γ below the first boundary of p_y, then (boundary, γ from there on); mukhoti §5.1 and App. E
POLICIES: dict[str, tuple[float, tuple[tuple[float, float], ...]]] = {
    "flsd_53": (5.0, ((0.2, 3.0),)),
    "flsd_532": (5.0, ((0.2, 3.0), (0.5, 2.0))),
}


@LOSSES.add("focal_sample_dependent")
@dataclass(eq=False)
class FocalSampleDependent(FocalTypeLoss):
    """Focal loss with a larger γ for samples whose true class is improbable.

    −(1 − p_y)^γ log p_y with γ 5 for p_y < 0.2 and 3 above (FLSD-53), or also 2 from 0.5 (FLSD-532).

    γ is chosen without gradient; the loss jumps where p_y crosses a boundary.

    Source: mukhoti §4, §5.1, App. E.

    Args:
        variant: [mukhoti §5.1, App. E].

    Example:
        >>> FocalSampleDependent().gammas(torch.tensor([0.1, 0.3, 0.9]).log())
        tensor([5., 3., 3.])
    """

    variant: Annotated[str, tuple(POLICIES)] = "flsd_53"

    def gammas(self, true_log_p: Tensor) -> Number:
        """Return γ per sample, [N]."""
        lowest, steps = POLICIES[self.variant]
        p = true_log_p.exp()
        gammas = torch.full_like(p, lowest)
        for boundary, gamma in steps:
            gammas = torch.where(p >= boundary, gamma, gammas)
        return gammas

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return focal loss with the per-sample γ of these logits."""
        log_p, _ = true_class_logs(widened(logits.detach()), targets)
        return Focal(self.gammas(log_p), smoothing=self.smoothing, smoothing_form=self.smoothing_form)


# From a tight bound, Newton's method reaches float64 accuracy after 6 steps; vmap needs a fixed number of steps.
NEWTON_STEPS = 12


def _constant_gamma(given: Options) -> float | None:
    """Return the γ of a built loss, else the γ that p₀ implies."""
    gamma, p0 = number_in(given, "gamma", None), number_in(given, "p0", None)
    return lambert_gamma(p0).item() if gamma is None and p0 is not None else gamma


@LOSSES.add("focal_lambert", constant_gamma=_constant_gamma)
@dataclass(eq=False)
class FocalLambert(FocalTypeLoss):
    """Focal loss whose gradient equals cross-entropy's at p_y = p₀.

    −(1 − p_y)^γ log p_y with the constant γ = γ*(p₀) of mukhoti Prop. 2.

    Its gradient is larger than cross-entropy's for p_y < p₀, and smaller for p_y > p₀. γ*(0.2) = 4.851 and γ*(0.25) =
    3.070, which the paper rounds to 5 and 3.

    Source: mukhoti Prop. 2.

    Args:
        p0: for p₀ ≥ 0.5 the only γ ≥ 0 with equal gradients is 0 [mukhoti §4: γ*(.25) = 3.07, the γ of most
            samples in FLSD-53].

    Example:
        >>> round(FocalLambert(p0=0.2).gamma, 3)
        4.851
    """

    p0: Annotated[Number, "(0, 0.5)"] = 0.25

    def __post_init__(self) -> None:
        gamma = lambert_gamma(self.p0)
        # a number is filled on the logits' device; a CPU tensor would be copied at every batch
        self.gamma = gamma if isinstance(self.p0, Tensor) else gamma.item()


def lambert_gamma(p0: Number) -> Tensor:
    """Return γ*(p₀) = a/b + W₋₁(−a^(1−a/b)·ln(a)/b)/ln a with a = 1 − p₀, b = p₀ ln p₀ (mukhoti Prop. 2).

    It solves (1−p)^γ − γ p (1−p)^(γ−1) ln p = 1 at p = p₀ for 0 < p₀ < 0.5. The result is a float64 scalar, or has the
    shape of a tensor p₀.

    Example:
        >>> lambert_gamma(0.25)
        tensor(3.0702, dtype=torch.float64)
    """
    # W₋₁ is used although the paper remarks that W₀ is one solution: W₀ always gives the trivial root γ = 0.
    p = torch.as_tensor(p0, dtype=torch.float64)
    log_a, b = torch.log1p(-p), p * p.log()
    ratio = (1 - p) / b
    log_argument = (1 - ratio) * log_a - torch.log(-b) + torch.log(-log_a)
    return ratio + lambert_w_minus_one(log_argument) / log_a


def lambert_w_minus_one(log_argument: Tensor) -> Tensor:
    """Return W₋₁(−e^ℓ) for ℓ ≤ −1: the root w ≤ −1 of w + ln(−w) = ℓ, by Newton's method.

    The start is −1 − √(2u) − u with u = −1 − ℓ (Chatzigeorgiou 2013, Theorem 1). It lies below the root, and the
    function is concave, so the iterates rise to the root without overshooting.
    """
    # at u = 0 (the branch point) the derivative 1 + 1/w is 0, and Newton's step is 0/0
    u = (-1 - log_argument).clamp(min=1e-300)
    w = -1 - (2 * u).sqrt() - u
    for _ in range(NEWTON_STEPS):
        w = w - (w + torch.log(-w) - log_argument) / (1 + 1 / w)
    return w


# The gradient in p is ≤ 0 everywhere iff γ ≤ (1 + p)/(−p ln p) for all p; the right side is smallest at
# p = W₀(1/e) = 0.278465, where it equals 1/p.
LARGEST_GAMMA = 3.5911214766686221
REVERSES = (
    "above γ = 3.5911 the gradient in p_y turns positive around p_y = 0.278, "
    "so training pushes the true class's probability down; set allow_reversed_gradient: true to allow it"
)


def check_gradient(values: Mapping[str, object]) -> BrokenRule | None:
    """Return the error for γ above 3.5911 without `allow_reversed_gradient`, or `None`."""
    gamma = number_in(values, "gamma", None)
    if gamma is None or gamma <= LARGEST_GAMMA or values.get("allow_reversed_gradient", False):
        return None
    return "gamma", f"gamma = {gamma:g} is outside [0, 3.5911]: {REVERSES}"


@LOSSES.add("inverse_focal", check=check_gradient, cross_entropy_at_zero=("gamma", "smoothing"))
@dataclass(eq=False)
class InverseFocal(FocalTypeLoss):
    """Cross-entropy weighted by (1 + p_y)^γ.

    −(1 + p_y)^γ log p_y (selective Def. 3.2).

    `allow_reversed_gradient` does not change the loss; it lets a γ above 3.5911 pass the registry's check.

    Source: Wang et al. 2021; selective Def. 3.2.

    Args:
        gamma: [selective Table 2: 1 … 3 selected, 1.5 the middle; limit derived from App. C.2's gradient].
        allow_reversed_gradient: [selective App. E.1: large γ consistently underperforms].

    Example:
        >>> InverseFocal(gamma=1.0).per_sample(torch.zeros(1, 2), torch.tensor([0]))  # 1.5·log 2
        tensor([1.0397])
    """

    gamma: Annotated[Number, f"[0, inf): a negative γ would turn it into a focal loss; {REVERSES}"] = 1.5
    allow_reversed_gradient: bool = field(default=False, kw_only=True)

    def log_modulation(self, log_p: Tensor, log_complement: Tensor, gamma: Tensor) -> Tensor:
        """Return γ·log(1 + u)."""
        return gamma * torch.log1p(log_p.exp())
