"""Optimisers over lanes: torch's update rules with a learning rate, momentum and decay of each lane's own.

One call updates all lanes: values, gradients and memories are [L, P], hyperparameters [L, 1]. Formulas and their order
are torch.optim's, so that a lane takes the steps that its own optimiser would take, rounded otherwise at most.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainables.registry import Options
from trainables.training.lanes.networks import LaneStore
from trainables.training.recipe import setting

CLIP_EPSILON = 1e-6
"""torch.nn.utils.clip_grad_norm_'s."""


class Rule(ABC):
    """The update rule of one kind of optimiser.

    Attributes:
        memories: names of what torch's optimiser keeps of each parameter, each shaped like it.
        hyperparameters: of the optimiser, but for the learning rate, which lanes have each their own.
        counts: whether torch's optimiser counts its steps.
    """

    memories: tuple[str, ...] = ()
    hyperparameters: tuple[str, ...] = ()
    counts = True

    def __init__(self, store: LaneStore) -> None:
        """Update the lanes of `store`."""
        self._store = store
        self._numbers: dict[str, Tensor] = {}
        for key in self.memories:
            store.memory(key)

    def set(self, recipes: Sequence[Options], rates: Sequence[float], steps: Sequence[int]) -> None:
        """Set every lane's hyperparameters for an epoch.

        Args:
            recipes: the lanes' `optimizer` parts.
            rates: the lanes' learning rates in this epoch.
            steps: how many steps each lane has taken.
        """
        self._numbers = {
            key: self._column([float(setting(recipe, key)) for recipe in recipes]) for key in self.hyperparameters
        }
        self.set_rates(rates)
        self._steps = self._column(steps)
        clips = [setting(recipe, "gradient_clip") for recipe in recipes]
        self._clip = (
            None if all(c is None for c in clips) else self._column([torch.inf if c is None else c for c in clips])
        )
        summed = [setting(recipe, "reduction") == "sum" for recipe in recipes]
        self._summed = self._column([float(each) for each in summed]) if any(summed) else None

    def set_rates(self, rates: Sequence[float]) -> None:
        """Set every lane's learning rate."""
        self._numbers["lr"] = self._column(rates)

    @abstractmethod
    def update(self, values: Tensor, gradients: Tensor, memories: Mapping[str, Tensor]) -> None:
        """Take a step in place; `gradients` may be overwritten."""

    def step(self, lanes: int, batch: int) -> None:
        """Scale and clip the gradients of mean losses over `batch` samples of the first lanes, and take a step."""
        values, gradients = self._store.values[:lanes], self._store.gradients[:lanes]
        if self._summed is not None:
            gradients.mul_(1 + self._summed * (batch - 1))
        if self._clip is not None:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((self._clip / (norms + CLIP_EPSILON)).clamp(max=1.0))
        self._steps += 1
        self.update(values, gradients, {key: flat[:lanes] for key, flat in self._store.memories.items()})

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=self._store.values.dtype, device=self._store.values.device).unsqueeze(1)


class _Sgd(Rule):
    memories = ("momentum_buffer",)
    hyperparameters = ("momentum", "weight_decay")
    counts = False
    nesterov = False

    def update(self, values: Tensor, gradients: Tensor, memories: Mapping[str, Tensor]) -> None:
        momentum, buffer = self._numbers["momentum"], memories["momentum_buffer"]
        gradients.addcmul_(values, self._numbers["weight_decay"])
        buffer.mul_(momentum).add_(gradients)
        values.addcmul_(gradients.addcmul_(buffer, momentum) if self.nesterov else buffer, -self._numbers["lr"])


class _NesterovSgd(_Sgd):
    nesterov = True


class _Adam(Rule):
    memories = ("exp_avg", "exp_avg_sq")
    hyperparameters = ("beta1", "beta2", "epsilon", "weight_decay")
    decoupled = False

    def update(self, values: Tensor, gradients: Tensor, memories: Mapping[str, Tensor]) -> None:
        rate, decay = self._numbers["lr"], self._numbers["weight_decay"]
        beta1, beta2 = self._numbers["beta1"], self._numbers["beta2"]
        if self.decoupled:
            values.mul_(1 - rate * decay)
        else:
            gradients.addcmul_(values, decay)
        mean, square = memories["exp_avg"], memories["exp_avg_sq"]
        mean.lerp_(gradients, 1 - beta1)
        square.mul_(beta2).addcmul_(gradients.mul(1 - beta2), gradients)
        size = rate / (1 - beta1**self._steps)
        root = square.sqrt().div_((1 - beta2**self._steps).sqrt()).add_(self._numbers["epsilon"])
        values.sub_(mean.div(root).mul_(size))


class _AdamW(_Adam):
    decoupled = True


class _Adagrad(Rule):
    memories = ("sum",)
    hyperparameters = ("weight_decay",)
    epsilon = 1e-10  # torch's default

    def update(self, values: Tensor, gradients: Tensor, memories: Mapping[str, Tensor]) -> None:
        gradients.addcmul_(values, self._numbers["weight_decay"])
        total = memories["sum"].addcmul_(gradients, gradients)
        values.sub_(gradients.div_(total.sqrt().add_(self.epsilon)).mul_(self._numbers["lr"]))


RULES: dict[tuple[str, bool], type[Rule]] = {
    ("sgd", False): _Sgd,
    ("sgd", True): _NesterovSgd,
    ("adam", False): _Adam,
    ("adamw", False): _AdamW,
    ("adagrad", False): _Adagrad,
}
"""Optimiser's name and whether its momentum is Nesterov's → its rule over lanes."""


def rule_of(recipe: Options) -> tuple[str, bool]:
    """Return the key into `RULES` of a configuration's `optimizer` part."""
    return recipe["name"], bool(recipe.get("nesterov", False))
