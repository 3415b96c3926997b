"""Sharpness-aware minimisation: each step descends along the gradient at the worst weights nearby.

SAM (Foret et al. 2021, arXiv:2010.01412, Eq. 2 and Alg. 1) looks within the ball of radius ρ around the weights w,

    ε = ρ·g / ‖g‖,                                  g = ∇L(w),

ASAM (Kwon et al. 2021, arXiv:2102.11600, Eq. 4 and Alg. 1) within one scaled by the weights, T = |w| + η:

    ε = ρ·T²g / ‖Tg‖.

The base optimiser then takes its step at w with ∇L(w + ε). Both passes are of one function: the same batch, the same
dropout, the same state of the loss. Batch norms normalise by the batch in both, and their running statistics take in
the first pass alone: those of w, not of w + ε. Clipping is of the second gradient, whose step is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainables.losses import Loss
from trainables.training.recipe import setting

SAM, ASAM = "sam", "asam"

RADIUS = {SAM: 0.05, ASAM: 0.5}
"""Defaults of ρ: Foret et al. 2021, section 3.1 (ImageNet); Kwon et al. 2021, section 5.2 (CIFAR-10)."""

ETA = 0.01
"""Kwon et al. 2021, section 5.2. As in their released code, parameters called bias are not scaled: T = 1."""

TINY = 1e-12
"""Keeps a gradient of zero from dividing zero by zero."""


def radius_of(recipe: Mapping[str, Any]) -> float:
    """Return ρ of a recipe; 0 where it takes plain steps."""
    kind = setting(recipe, "sharpness")
    if kind is None:
        return 0.0
    given = setting(recipe, "rho")
    return RADIUS[kind] if given is None else float(given)


class SharpnessAware:
    """Leaves the gradient at w + ε in the parameters, and the weights as they were."""

    def __init__(self, model: nn.Module, loss: Loss, recipe: Mapping[str, Any], device: torch.device) -> None:
        """Prepare for steps of `model` on `loss`, as `sharpness` and `rho` of the recipe say."""
        self._model, self._loss, self._device = model, loss, device
        self._adaptive, self._rho = setting(recipe, "sharpness") == ASAM, radius_of(recipe)

    def __call__(self, differentiate: Callable[[], Tensor]) -> Tensor:
        """Return the loss at w.

        Args:
            differentiate: leaves a batch's gradients in the parameters and returns its loss.
        """
        random, state = self._random(), self._loss_state()
        value = differentiate()
        drawn, seen = self._random(), self._loss_state()
        statistics = [buffer.detach().clone() for buffer in self._model.buffers()]
        before = self._ascend()
        self._set_random(random)
        if state is not None:
            self._loss.load_state_dict(state)
        try:
            differentiate()
        finally:
            with torch.no_grad():
                for parameter, weights in before:
                    parameter.copy_(weights)
                for buffer, kept in zip(self._model.buffers(), statistics, strict=True):
                    buffer.copy_(kept)
        self._set_random(drawn)
        if seen is not None:
            self._loss.load_state_dict(seen)
        return value

    @torch.no_grad()
    def _ascend(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Move the weights by ε; return each parameter that moved with its weights before."""
        held = [(name, p, p.grad) for name, p in self._model.named_parameters() if p.grad is not None]
        scales = [p.abs() + ETA if self._adaptive and not _is_bias(name) else None for name, p, _ in held]
        scaled = [g if t is None else g * t for (_, _, g), t in zip(held, scales, strict=True)]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in scaled]))
        factor = self._rho / (norm + TINY)
        before = []
        for (_, parameter, _), direction, scale in zip(held, scaled, scales, strict=True):
            before.append((parameter, parameter.detach().clone()))
            parameter.add_(factor * (direction if scale is None else direction * scale))
        return before

    def _loss_state(self) -> dict[str, Any] | None:
        if not self._loss.stateful:
            return None
        state = self._loss.state_dict()
        return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}

    def _random(self) -> list[Tensor]:
        own = [torch.get_rng_state()]
        return own if self._device.type != "cuda" else [*own, torch.cuda.get_rng_state(self._device)]

    def _set_random(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], self._device)


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"
