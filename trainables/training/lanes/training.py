"""Several replicates of one configuration, trained as one batched network.

The forward pass runs once under `torch.func.vmap` over stacked weights; ordinary automatic differentiation goes
back through it. Lanes share nothing, so the gradient of the sum of their losses is each lane's own gradient, and a
lane whose numbers overflow spoils no other.

A rung's evaluation takes the replicates one by one. On a CPU, stacked predictions were 1.23 times as fast for five
mlps, of 1.4 ms in all, and half as fast for five resnet8; stacked Hessian-vector products 1.35 and 0.95 times as fast
(`make bench-lane-evaluation`, n = 9). That does not pay for curvature's shortcuts, which take one network at a time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from trainables.datasets.base import Split, evaluation_batches
from trainables.losses.composed_normalisation import ComposedNormalisation
from trainables.training.acceleration import CannotCompileError, training_arithmetic, training_forward
from trainables.training.lanes.forward import lane_forward
from trainables.training.lanes.functions import needs_lane_functions
from trainables.training.lanes.losses import LaneLosses
from trainables.training.lanes.stack import Stack
from trainables.training.loop import Replicate
from trainables.training.recipe import changes_by_step, set_learning_rate, setting

PREDICTION_BATCH = 1024  # samples of all lanes together, as many as a single network predicts at a time


class Lanes:
    """Trains replicates side by side: each takes the steps that it would take alone, rounded otherwise.

    In float64 the weights agree after epochs; in float32 one step agrees to rounding, and that is all: batch
    normalisation amplifies a last digit to some 1e-2 of the weights within three epochs, as it does between two
    networks that are trained alone and differ in a last digit. Compare distributions over seeds, not weights.

    The replicates stay whole: their networks look into the stacked weights, their generators order the data, draw
    augmentation and dropout, and their losses keep their state. Evaluate and save them as ever, after `settle`.
    """

    packing = "fused"

    def __init__(self, replicates: Sequence[Replicate]) -> None:
        """Take up replicates of one configuration at the same epoch.

        Raises CannotCompileError where they are to be compiled and each lane draws its own random numbers.
        """
        self._replicates = replicates
        first = replicates[0]
        if first.training.compile and needs_lane_functions(first.model):
            raise CannotCompileError(
                "compile = true cannot translate lanes that draw dropout or stochastic depth each in its turn, or have "
                "padded embeddings; choose packing: sequential, or compile: false"
            )
        self._shell = first.model
        self._recipe = first.recipe
        self._stack = Stack([r.model for r in replicates], [r.optimizer for r in replicates], first.recipe)
        self._losses = LaneLosses([r.loss for r in replicates])
        self._forward = lane_forward(first.model, [r.own_randomness for r in replicates])
        self._training_forward = training_forward(self._forward, first.training, first.device)

    def settle(self) -> None:
        """Bring everything that training keeps here back into the replicates."""
        self._stack.settle()

    def train_epoch(self) -> list[dict[str, Any]]:
        """Train one epoch and return each replicate's row of the `epochs` table, `seconds` in equal shares."""
        started = time.perf_counter()
        first, dataset = self._replicates[0], self._replicates[0].dataset
        for replicate in self._replicates:
            lr = replicate.begin_epoch()
        set_learning_rate(self._stack.optimizer, lr)
        self._losses.renew()
        total = torch.zeros(len(self._replicates), device=first.device)
        done = 0
        for own in zip(*(r.training_batches() for r in self._replicates), strict=True):
            if changes_by_step(self._recipe):
                set_learning_rate(self._stack.optimizer, first.learning_rate_after(done))
            done += own[0][1].shape[0]
            inputs = torch.stack([pair[0] for pair in own])
            targets = torch.stack([pair[1] for pair in own])
            with training_arithmetic(first.training, first.device):
                total += self._step(inputs, targets) * targets.shape[1]
        logits = self.predict(dataset.val)
        losses = (total / len(dataset.train)).tolist()
        rows = [
            replicate.end_epoch(loss, own, lr)
            for replicate, loss, own in zip(self._replicates, losses, logits, strict=True)
        ]
        share = (time.perf_counter() - started) / len(rows)
        return [{**row, "seconds": share} for row in rows]

    @torch.no_grad()
    def predict(self, split: Split) -> Tensor:
        """Return the logits [L, N, K] of a whole split, in evaluation mode."""
        self._shell.eval()
        size = max(1, PREDICTION_BATCH // len(self._replicates))
        return torch.cat(
            [self._forward(self._stack.weights, inputs, False) for inputs, _ in evaluation_batches(split, size)], 1
        )

    def _step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take one step on inputs [L, B, ...] and targets [L, B]; return the losses [L]."""
        stack = self._stack
        with ComposedNormalisation() if self._losses.regularises else nullcontext():
            logits = self._training_forward(stack.weights, inputs, True)
        values = self._losses.regularised(self._losses.values(logits, targets), stack.parameters)
        stack.optimizer.zero_grad(set_to_none=True)
        values.sum().backward()
        prepare_lane_gradients(list(stack.parameters.values()), self._recipe, targets.shape[1])
        stack.optimizer.step()
        return values.detach()


def prepare_lane_gradients(parameters: Sequence[Tensor], settings: Mapping[str, Any], batch: int) -> None:
    """Scale and clip gradients [L, ...] in place, every lane by its own norm: `prepare_gradients` of each lane."""
    clip = setting(settings, "gradient_clip")
    summed = setting(settings, "reduction") == "sum"
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    if summed:
        torch._foreach_mul_(gradients, float(batch))
    if clip is None:
        return
    lanes = len(gradients[0])
    norms = torch.stack([torch.linalg.vector_norm(g.reshape(lanes, -1), dim=1) for g in gradients])
    # The bound's ε is torch.nn.utils.clip_grad_norm_'s.
    factors = (clip / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))
