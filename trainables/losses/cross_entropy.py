"""Cross-entropy and its variants, and the Brier score.

The variants smooth labels, weight samples, normalise the length of the logits, or penalise logits that trail the
largest logit by more than a margin, with one weight (MbLS) or one weight per class (CALS).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional

from trainables.losses.base import LOSSES, Loss, Number, State, as_type, full_precision, true_class, widened


@LOSSES.add("cross_entropy", constant_gamma=lambda given: 0.0)  # the focal loss at γ = 0, where Ψ is the identity
class CrossEntropy(Loss):
    """Negative log-likelihood of the true class.

    −log p_y.

    Source: the baseline of all five papers.

    Example:
        >>> CrossEntropy()(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.3709)
    """

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −log p_y, [N]."""
        return functional.cross_entropy(logits, targets, reduction="none")


# The smoothed focal loss at γ = 0 (posterior §6.1, LS).
@LOSSES.add("label_smoothing", constant_gamma=lambda given: 0.0, cross_entropy_at_zero=("alpha",))
@dataclass(eq=False)
class LabelSmoothing(Loss):
    """Cross-entropy against softened targets.

    −Σ_k v_k log p_k for the softened targets v.

    `form="others"` puts 1 − α on the target and α/(K−1) on each other class (mukhoti §5.1). `form="uniform"` mixes in
    α/K of every class, as torch's `label_smoothing` does; it equals the first form with α(K−1)/K.

    Source: mukhoti §5.1.

    Args:
        alpha: share of the target's probability given to other classes; at 1 the target has none
            [mukhoti §5.1].
        form: [mukhoti §5.1].

    Example:
        >>> LabelSmoothing(alpha=0.1).per_sample(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))  # 0.0486 + 0.1·3
        tensor([0.3486])
    """

    lanes = "stacked"

    alpha: Annotated[Number, "[0, 1)"] = 0.05
    form: Literal["others", "uniform"] = "others"

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −Σ_k v_k log p_k, [N]."""
        log_p = torch.log_softmax(logits, dim=-1)
        classes = logits.shape[-1]
        alpha = as_type(self.alpha, logits)
        every = alpha / (classes - 1 if self.form == "others" else classes)
        # `every` applies to all classes including the target, so `target` is the rest of the target's weight
        target = 1 - alpha - every if self.form == "others" else 1 - alpha
        return -(target * true_class(log_p, targets) + every * log_p.sum(-1))


class WeightedCrossEntropy(Loss):
    """−w_i log p_y(i) with constant weights [N], valid for the batch that the weights were computed on."""

    name = "weighted_cross_entropy"

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights.detach()

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return w_i·CE_i, [N].

        Raises:
            ValueError: the batch has another size than the weights.
        """
        if len(self.weights) != len(targets):
            raise ValueError(f"{len(self.weights)} frozen weights do not fit a batch of {len(targets)}")
        return self.weights * functional.cross_entropy(logits, targets, reduction="none")


@LOSSES.add("brier")
@dataclass(eq=False)
class Brier(Loss):
    """Squared error between probabilities and the one-hot target, summed over classes.

    Σ_k (p_k − 1[k = y])², a value in [0, 2]: summed over classes, not averaged (Brier 1950; mukhoti §5.1).

    `form="released"` divides the mean over a batch by the size of the batch. The focal_calibration code sums every
    other loss over the batch before it clips gradients, but averages the Brier score. This form has the gradients of
    that code if the recipe sets `reduction: sum`. Per-sample values and curvature are those of the paper's form.

    Source: Brier 1950; mukhoti §5.1; `Losses/brier_score.py` of github.com/torrvision/focal_calibration.

    Args:
        form: the formula of the paper or of the released code [mukhoti §5.1].

    Example:
        >>> Brier().per_sample(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1]))
        tensor([0.5000, 1.8148])
    """

    form: Literal["paper", "released"] = "paper"

    def reduced(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean over the batch; the released form divides it by the batch's size."""
        mean = super().reduced(values, weights)
        return mean / values.shape[-1] if self.form == "released" else mean

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of the probability vector, [N]."""
        p = torch.softmax(logits, dim=-1)
        # subtracts 1 at the target without a one-hot matrix
        minus_one = -torch.ones_like(p[..., :1])
        return p.scatter_add(-1, targets.unsqueeze(-1), minus_one).square().sum(-1)

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the paper's form, whose mean over samples does not depend on how they are batched."""
        return Brier()


#: Added to the length, so that logits of 0 have a finite gradient; the authors' code adds the same number.
LEAST_LENGTH = 1e-7


@LOSSES.add("logit_norm")
class LogitNorm(Loss):
    """Cross-entropy of z/(τ‖z‖): the length of the logits, which changes only the confidence, is not trained.

    Because the length is arbitrary, the softmax of the logits is not calibrated: fit a temperature. No other loss here
    changes when a constant is added to all logits.

    Source: Wei et al. 2022, Mitigating neural network overconfidence with logit normalization, arXiv:2205.09310.

    Args:
        temperature: τ, the divisor of the normalised logits [Wei et al. 2022: 0.04 on CIFAR-10].

    Example:
        >>> LogitNorm(temperature=1.0).per_sample(torch.tensor([[1.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 0]))
        tensor([0.3133, 0.3133])
    """

    def __init__(self, temperature: Annotated[Number, "(0, inf)"] = 0.04) -> None:
        self.temperature = temperature

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of normalised logits, [N]."""
        length = (logits.square().sum(-1, keepdim=True) + LEAST_LENGTH**2).sqrt()
        scaled = logits / length / as_type(self.temperature, logits)
        return functional.cross_entropy(scaled, targets, reduction="none")


Margin = Annotated[Number, "(0, inf)"]


def distances(logits: Tensor) -> Tensor:
    """Return max_j z_j − z_k of logits [N, K], [N, K]."""
    return logits.max(-1, keepdim=True).values - logits


@LOSSES.add("margin_smoothing", cross_entropy_at_zero=("weight",))
@dataclass(eq=False)
class MarginSmoothing(Loss):
    """Cross-entropy plus a penalty on logits that trail the largest by more than a margin (MbLS).

    −log p_y + λ·(1/K) Σ_k max(0, max_j z_j − z_k − m). The mean over classes follows the released code; the paper
    prints a sum. Label smoothing pulls all logits together; this penalty ignores distances within the margin.

    Source: Liu et al. 2022, The devil is in the margin, arXiv:2111.15430.

    Args:
        weight: λ; a negative one would push logits apart [Liu et al. 2022: 0.1].
        margin: distances below it cost nothing [Liu et al. 2022: 10 on Tiny-ImageNet, 6 on CIFAR-10].

    Example:
        >>> logits, targets = torch.tensor([[12.0, 0.0]]), torch.tensor([0])
        >>> MarginSmoothing(weight=0.1, margin=10.0)(logits, targets)  # 0.1·(12 − 10)/2, and a small −log p
        tensor(0.1000)
    """

    weight: Annotated[Number, "[0, inf)"] = 0.1
    margin: Margin = 10.0

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropy plus the weighted penalty, [N]."""
        excess = torch.relu(distances(logits) - as_type(self.margin, logits)).mean(-1)
        return functional.cross_entropy(logits, targets, reduction="none") + as_type(self.weight, logits) * excess


@LOSSES.add("cals")
@dataclass(eq=False)
class ClassAdaptive(Loss):
    """Cross-entropy under margins of the logits, with a multiplier for each class from validation data (CALS).

    With h_k = (max_j z_j − z_k)/m − 1, the penalty of class k is λ_k h_k + ρ_k h_k²/2, or −λ_k²/(2ρ_k) where
    λ_k + ρ_k h_k < 0 (the augmented Lagrangian). After each epoch λ_k becomes the validation mean of
    max(0, λ_k + ρ_k h_k), and ρ_k grows by a factor if the mean violation of class k did not fall.

    Source: Liu et al. 2023, Class adaptive network calibration, arXiv:2211.15088.

    Args:
        margin: m, in logits [Liu et al. 2023: 10].
        growth: factor of ρ; below 1 it would forget violated constraints [Liu et al. 2023: 1.2].

    Example:
        >>> loss = ClassAdaptive(margin=10.0)
        >>> loss.end_epoch(torch.tensor([[30.0, 0.0]]), torch.tensor([0]))  # class 1 trails by 3 margins
        >>> loss.multipliers
        tensor([1.0000e-06, 2.0000e+00], dtype=torch.float64)
    """

    stateful = True

    margin: Margin = 10.0
    growth: Annotated[float, "[1, inf)"] = 1.2

    def __post_init__(self) -> None:
        # one entry for all classes, because their number is unknown until the first validation logits
        self.multipliers = torch.full((1,), 1e-6, dtype=torch.float64)
        self.stiffness = torch.ones(1, dtype=torch.float64)
        self.violations = torch.full((1,), torch.inf, dtype=torch.float64)

    def _pressure(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return λ + ρh and h, each [N, K], and λ and ρ in their type."""
        rate, stiff = self.multipliers.to(logits), self.stiffness.to(logits)
        h = distances(logits) / as_type(self.margin, logits) - 1
        return rate + stiff * h, h, rate, stiff

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropy plus the penalties of all classes, [N]."""
        pressure, h, rate, stiff = self._pressure(logits)
        penalty = torch.where(pressure >= 0, rate * h + stiff * h.square() / 2, -rate.square() / (2 * stiff))
        return functional.cross_entropy(logits, targets, reduction="none") + penalty.sum(-1)

    def end_epoch(self, val_logits: Tensor, val_targets: Tensor) -> None:
        """Update the multipliers from validation logits [M, K]."""
        with torch.no_grad(), full_precision(val_logits):
            pressure, h, _, stiff = self._pressure(widened(val_logits).double())
            violation = h.mean(0)
            # relu: a constraint that holds needs no larger ρ, even where its slack shrinks
            worse = violation > torch.relu(self.violations.to(violation))
            # limits keep a multiplier from overflowing, and from vanishing: its class would then never be penalised
            # again
            self.multipliers = pressure.clamp(min=0).mean(0).clamp(1e-6, 1e6)
            self.stiffness = torch.where(worse, stiff * self.growth, stiff).clamp(max=1e6)
            self.violations = violation

    def state_dict(self) -> State:
        """Return the multiplier, ρ and last mean violation of each class."""
        return {"multipliers": self.multipliers, "stiffness": self.stiffness, "violations": self.violations}

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore a `state_dict`."""
        self.multipliers, self.stiffness, self.violations = (
            torch.as_tensor(state[key]) for key in ("multipliers", "stiffness", "violations")
        )
