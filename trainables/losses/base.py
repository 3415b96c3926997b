"""What a training loss is, and the registry that every loss enters under its name in a search space."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainables.registry import HyperparameterValue, Registry

State = dict[str, Tensor | float | int]

LOSSES = Registry("loss")  # `trainables.losses.own` adds users' own


class Loss:
    """A training loss on logits: the mean over a batch, per-sample values, and the hooks a trial calls.

    Hyperparameters may be Python numbers or tensors, so that `torch.func.vmap` can map over logits and
    hyperparameters at once. Values and gradients are finite for logits up to ±1e4, and computed in float32 or
    wider whatever the logits' type, autocast included.

    Attributes:
        name: the key in the registry.
        batch_coupled: the value is not a mean of independent per-sample terms.
        needs_model: called with (model, inputs, targets) instead of (logits, targets).
        takes_share: of one that needs the model: takes `share`, what part of a batch's samples it is given, and
            returns that part of the batch's value, so that the parts of several ranks add up to it.
        stateful: this instance keeps state between batches or epochs (`state_dict` is not empty).
        takes_lanes: `values` takes logits [L, N, K] and targets [L, N], with numbers [L, 1] as hyperparameters.
    """

    name: str = ""
    batch_coupled: bool = False
    needs_model: bool = False
    takes_share: bool = False
    stateful: bool = False
    takes_lanes: bool = False

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


def build_loss(name: str, **hyperparameters: HyperparameterValue | Tensor) -> Loss:
    """Build the loss registered as `name`.

    Tensor-valued hyperparameters are taken as they are; all others are checked against their ranges.

    Raises:
        ValueError: an unknown name (with the nearest one), an unknown hyperparameter or a value out of range.
    """
    loss: Loss = LOSSES.build(name, **hyperparameters)
    return loss


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
