"""The losses of all lanes. Losses of one family share one computation, with separate hyperparameters per lane.

A family is a kind of loss with the settings that determine its computation: texts, flags, counts, and the set of
numbers that are 0, because losses skip work for a zero. Its other numbers (γ, coverage, ν, smoothing, a weight) are
vectors with a value per lane. A user's own loss keeps plain numbers, because it may compare them in Python. Its lanes
share a family only if they are replicates of one configuration.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import vmap

from trainables.curvature.hessian import hessian_vector_product
from trainables.losses import LOSSES, Loss
from trainables.losses.base import as_type, full_precision, widened
from trainables.losses.hessian_trace import HessianTrace
from trainables.losses.selective_risk import SelectiveRisk


class LaneLosses:
    """Computes the losses of all lanes and their gradients by the logits."""

    def __init__(self, losses: Sequence[Loss], device: torch.device | str) -> None:
        """Group the lanes' losses into families.

        Create it after `begin_epoch`, because that can change a loss's numbers. Numbers move to `device` here, so that
        no training step waits for a transfer.
        """
        by_family: dict[object, list[int]] = {}
        for lane, loss in enumerate(losses):
            by_family.setdefault(_family(loss), []).append(lane)
        self._families = [_Family([losses[lane] for lane in lanes], lanes, device) for lanes in by_family.values()]

    def gradients(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lanes' losses [L] and their gradients [L, N, K], at logits [L, N, K] and targets [L, N]."""
        # Each family differentiates its own lanes, so that NaN in one family does not reach another.
        if len(self._families) == 1:
            return self._families[0].gradients(logits, targets)
        values, slopes = logits.new_empty(len(logits)), torch.empty_like(logits)
        for family in self._families:
            own, slope = family.gradients(logits[family.places], targets[family.places])
            values[family.places], slopes[family.places] = own.to(values), slope
        return values, slopes

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the lanes' losses [L] with their graph through logits [L, N, K]."""
        if len(self._families) == 1:
            return self._families[0].values(logits, targets)
        parts = [family.values(logits[family.places], targets[family.places]) for family in self._families]
        order = torch.cat([family.places for family in self._families]).argsort()
        return torch.cat(parts)[order]


class _Family:
    """Lanes whose losses share one computation."""

    def __init__(self, losses: Sequence[Loss], lanes: Sequence[int], device: torch.device | str) -> None:
        self.places = torch.tensor(lanes, device=device)
        self._losses = losses
        # A copy, because its numbers are replaced by tensors while it computes.
        self._mapped = copy.copy(losses[0])
        self._numbers = {
            key: torch.tensor([float(getattr(loss, key)) for loss in losses], dtype=torch.float64, device=device)
            for key, value in vars(losses[0]).items()
            if _is_number(losses[0], key, value)
        }
        self._counting = [loss for loss in losses if isinstance(loss, SelectiveRisk) and loss.stateful]
        self._states = self._stacked_states()

    def gradients(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses [L] and their gradients by logits [L, N, K]."""
        leaf = logits.detach().requires_grad_()
        values = self.values(leaf, targets)
        (slopes,) = torch.autograd.grad(values.sum(), leaf)
        return values.detach(), slopes

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the losses [L]."""
        first = self._mapped
        if not (first.batch_coupled or self._states) and not self._numbers:
            # A mean of independent terms without numbers per lane: the samples of all lanes form one batch.
            return first.reduced(first.per_sample(logits.flatten(0, 1), targets.flatten()).view(targets.shape))
        if first.lanes == "stacked":
            return self._broadcast(logits, targets)
        numbers = {key: values.to(widened(logits[:0]).dtype) for key, values in self._numbers.items()}
        values: Tensor = vmap(self._value)(numbers, self._states, logits, targets)
        if self._counting:
            # `SelectiveRisk` counts the samples it sees, but under vmap it cannot store the counts itself.
            for own, seen in zip(self._losses, logits.detach(), strict=True):
                own.observe(seen)  # type: ignore[attr-defined]  # only `SelectiveRisk` counts
            self._states = self._stacked_states()
        return values

    def _broadcast(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the losses [L] of a kind that accepts leading dimensions."""
        with full_precision(logits):
            wide = widened(logits)
            for key, numbers in self._numbers.items():
                setattr(self._mapped, key, numbers.to(wide).unsqueeze(1))
            return self._mapped.reduced(self._mapped.values(wide, targets))

    def _value(
        self, numbers: Mapping[str, Tensor], state: Mapping[str, Tensor], logits: Tensor, targets: Tensor
    ) -> Tensor:
        """Return one lane's loss, for mapping over lanes."""
        for key, number in numbers.items():
            setattr(self._mapped, key, number)
        if state:
            self._mapped.restore(state)
        return self._mapped(logits, targets)

    def _stacked_states(self) -> dict[str, Tensor]:
        """Return the tensors of the lanes' states, stacked to [L, ...]; plain numbers are mapped separately."""
        own = [loss.state_dict() for loss in self._losses]
        return {
            key: torch.stack([torch.as_tensor(state[key]) for state in own])
            for key, value in own[0].items()
            if isinstance(value, Tensor)
        }


def _family(loss: Loss) -> object:
    """Return a key that is equal for losses with the same computation."""
    fixed = {key: value for key, value in vars(loss).items() if not isinstance(value, Tensor)}
    return type(loss), loss.name, repr({k: "a value a lane" if _is_number(loss, k, v) else v for k, v in fixed.items()})


def _is_number(loss: Loss, key: str, value: object) -> bool:
    """Return whether an attribute of a loss is a number that can differ between lanes of a family."""
    if LOSSES.is_own(loss.name):
        return False
    if isinstance(value, int) and not isinstance(value, bool):
        described = LOSSES[loss.name].hyperparameter(key)
        return value != 0 and described is not None and described.kind == "number"
    return isinstance(value, float) and value != 0


def with_trace(values: Tensor, held: Sequence[Tensor], losses: Sequence[HessianTrace]) -> Tensor:
    """Return values [L] plus τ·Tr(H) per lane (curvature Eq. 33), with probes drawn by each lane's own loss."""
    # Lanes are independent, so the gradient of the sum is the stack of their gradients: the two backward passes of
    # Hutchinson's estimate serve all lanes at once.
    gradients = torch.autograd.grad(values.sum(), held, create_graph=True, allow_unused=True)
    drawn = [loss.draw([stacked[lane] for stacked in held]) for lane, loss in enumerate(losses)]
    trace = torch.zeros_like(values)
    for signs in zip(*drawn, strict=True):
        probe = [torch.stack(of_lanes) for of_lanes in zip(*signs, strict=True)]
        trace = trace + lane_inner(hessian_vector_product(gradients, held, probe, training=True), probe)
    weights = torch.stack([as_type(float(loss.weight), values) for loss in losses])
    return values + weights * trace / len(drawn[0])


def lane_inner(left: Sequence[Tensor | None], right: Sequence[Tensor]) -> Tensor:
    """Return inner products [L] of two sequences of tensors [L, ...], summed over all dimensions but lanes.

    `None` stands for zeros.

    Example:
        >>> lane_inner([torch.tensor([[1.0, 2.0]]), None], [torch.tensor([[3.0, 4.0]]), torch.ones(1)])
        tensor([11.])
    """
    total = right[0].new_zeros(len(right[0]))
    for a, b in zip(left, right, strict=True):
        if a is not None:
            total = total + (a * b).reshape(len(b), -1).sum(1)
    return total
