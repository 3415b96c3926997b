"""The losses of all lanes as one function: a configuration's hyperparameters are the same, its state is each lane's."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from trainables.curvature.hessian import hessian_vector_product
from trainables.losses import Loss
from trainables.losses.hessian_trace import HessianTrace
from trainables.losses.numerics import as_type, is_zero
from trainables.losses.selective_risk import SelectiveRisk


class LaneLosses:
    """One mapped loss for several lanes.

    Each lane keeps its own loss, with its state and its hooks; under `torch.func.vmap` a copy computes, and
    takes up a lane's state (γ by bin, counts) as a mapped argument.
    """

    def __init__(self, losses: Sequence[Loss]) -> None:
        """Map over `losses`, which differ in their state alone."""
        self._losses = losses
        self._bases = [getattr(loss, "base", loss) for loss in losses]
        self._mapped = copy.copy(self._bases[0])

    @property
    def regularises(self) -> bool:
        """Whether a trace is added, so that the forward pass is differentiated three times."""
        first = self._losses[0]
        return isinstance(first, HessianTrace) and not is_zero(first.weight)

    def renew(self) -> None:
        """Copy the state that the lanes' losses share, after `begin_epoch`."""
        self._mapped = copy.copy(self._bases[0])

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the lanes' losses [L] at logits [L, N, K] and targets [L, N], before any regulariser."""
        base = self._bases[0]
        if not (base.batch_coupled or base.stateful):
            # A mean of independent terms: the samples of all lanes are one batch.
            return self._mapped.per_sample(logits.flatten(0, 1), targets.flatten()).view(targets.shape).mean(1)
        values: Tensor = vmap(self._value)(self._states(), logits, targets)
        for own, seen in zip(self._bases, logits.detach(), strict=True):
            if isinstance(own, SelectiveRisk) and own.stateful:
                # It counts what passes through it, but stores nothing under vmap.
                own.observe(seen)
        return values

    def _states(self) -> dict[str, Tensor]:
        """Return the lanes' states, each entry stacked [L, ...]; empty for a loss without state."""
        own = [base.state_dict() for base in self._bases]
        return {key: torch.stack([torch.as_tensor(state[key]) for state in own]) for key in own[0]}

    def _value(self, state: Mapping[str, Tensor], logits: Tensor, targets: Tensor) -> Tensor:
        """Return one lane's loss; to be mapped over lanes."""
        if state:
            self._mapped.load_state_dict(state)
        return self._mapped(logits, targets)

    def regularised(self, values: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return values [L] plus τ·Tr(H) of each lane where the loss is `hessian_trace`.

        Lanes are independent, so the gradient of their sum is the stack of their gradients: the two backward passes
        of Hutchinson's estimate (curvature Eq. 33) serve all lanes at once. Each lane draws its own probes.
        """
        first = self._losses[0]
        if not isinstance(first, HessianTrace) or not self.regularises:
            return values
        held = list(parameters.values())
        gradients = torch.autograd.grad(values.sum(), held, create_graph=True, allow_unused=True)
        trace = torch.zeros_like(values)
        for probe in self._probes(parameters):
            product = hessian_vector_product(gradients, held, probe, training=True)
            trace = trace + lane_inner(product, probe)
        return values + as_type(first.weight, values) * trace / first.probes

    def _probes(self, parameters: Mapping[str, Tensor]) -> list[list[Tensor]]:
        """Return M probes, each a list of signs [L, ...] in the order of the parameters."""
        drawn: list[Any] = [
            loss.draw({name: stacked[lane] for name, stacked in parameters.items()})
            for lane, loss in enumerate(self._losses)
            if isinstance(loss, HessianTrace)
        ]
        return [
            [torch.stack([tree[name] for tree in trees]) for name in parameters] for trees in zip(*drawn, strict=True)
        ]


def lane_inner(left: Sequence[Tensor | None], right: Sequence[Tensor]) -> Tensor:
    """Return the inner products [L] of two sequences of tensors [L, ...], summed over everything but lanes.

    `None` stands for zeros.
    """
    total = right[0].new_zeros(len(right[0]))
    for a, b in zip(left, right, strict=True):
        if a is not None:
            total = total + (a * b).reshape(len(b), -1).sum(1)
    return total
