"""A cohort: up to W networks with different configurations, trained together epoch by epoch.

Lanes share only the calls that compute them. On one thread, a lane's bits depend on its own configuration, seed and
epoch. If convolutions are mapped, the bits also depend on the width. They do not depend on the lane's index, or on its
neighbours' configurations, epochs or numbers, even if these numbers are not finite. Up to rounding, a lane equals the
same network trained alone. In float64 the two agree to 1e-8 after epochs. In float32 they differ as much as two
networks whose weights differ in a last digit.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from trainables.datasets.base import WHOLE_COPY_BYTES, Split, evaluation_batches
from trainables.losses.base import is_zero
from trainables.losses.hessian_trace import HessianTrace
from trainables.registry import Options
from trainables.training.acceleration import training_arithmetic
from trainables.training.lanes.losses import LaneLosses, with_trace
from trainables.training.lanes.networks import LaneStore, differentiable, networks_of
from trainables.training.loop import Replicate
from trainables.training.prediction import EpochRow, epoch_metrics_of_lanes
from trainables.training.recipe import changes_by_step, setting

#: The constant in torch.nn.utils.clip_grad_norm_, so that lanes clip exactly as networks trained alone.
CLIP_EPSILON = 1e-6


class Rule(ABC):
    """The update rule of one kind of optimiser, for all lanes.

    Attributes:
        memories: names of the tensors that torch's optimiser keeps for each parameter, with the parameter's shape.
        hyperparameters: names of the optimiser's hyperparameters besides the learning rate.
        counts: whether torch's optimiser counts its steps.
    """

    memories: tuple[str, ...] = ()
    hyperparameters: tuple[str, ...] = ()
    counts = True

    def __init__(self, store: LaneStore) -> None:
        """Prepare to update the lanes of `store`."""
        self._store = store
        self._numbers: dict[str, Tensor] = {}
        store.memories.update({key: torch.zeros_like(store.values) for key in self.memories})

    def set(self, recipes: Sequence[Options], rates: Sequence[float], steps: Sequence[int]) -> None:
        """Set every lane's hyperparameters for an epoch.

        Args:
            recipes: `optimizer` part per lane.
            rates: learning rate per lane in this epoch.
            steps: number of steps taken per lane.
        """
        self._numbers = {
            key: self.columns([float(setting(recipe, key)) for recipe in recipes]) for key in self.hyperparameters
        }
        self.set_rates(self.columns(rates))
        self._steps = self.columns(steps)
        # Lanes without clipping get an infinite bound, so that one computation suffices for all lanes.
        clips = [setting(recipe, "gradient_clip") or torch.inf for recipe in recipes]
        self._clip = None if min(clips) == torch.inf else self.columns(clips)
        summed = [setting(recipe, "reduction") == "sum" for recipe in recipes]
        self._summed = self.columns([float(flag) for flag in summed]) if any(summed) else None

    def set_rates(self, rates: Tensor) -> None:
        """Set every lane's learning rate [L, 1]."""
        self._numbers["lr"] = rates

    @abstractmethod
    def update(self, values: Tensor, gradients: Tensor, memories: Mapping[str, Tensor]) -> None:
        """Take a step in place, possibly overwriting `gradients`."""

    def step(self, lanes: int, batch: int) -> None:
        """Scale and clip the first lanes' gradients of mean losses over `batch` samples, and take a step."""
        values, gradients = self._store.values[:lanes], self._store.gradients[:lanes]
        if self._summed is not None:
            gradients.mul_(1 + self._summed * (batch - 1))
        if self._clip is not None:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((self._clip / (norms + CLIP_EPSILON)).clamp(max=1.0))
        self._steps += 1
        self.update(values, gradients, {key: flat[:lanes] for key, flat in self._store.memories.items()})

    def columns(self, values: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
        """Return numbers per lane [..., L] as a tensor [..., L, 1] that broadcasts over parameters."""
        return torch.tensor(values, dtype=self._store.values.dtype, device=self._store.values.device).unsqueeze(-1)


class _Sgd(Rule):
    memories = ("momentum_buffer",)
    hyperparameters = ("momentum", "weight_decay")
    counts = False
    nesterov = False

    def update(self, values: Tensor, gradients: Tensor, memories: Mapping[str, Tensor]) -> None:
        # torch starts its buffer with the first gradient; starting from zeros gives the same without dampening.
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


#: Optimiser name and whether it uses Nesterov momentum → update rule.
RULES: dict[tuple[str, bool], type[Rule]] = {
    ("sgd", False): _Sgd,
    ("sgd", True): _NesterovSgd,
    ("adam", False): _Adam,
    ("adamw", False): _AdamW,
    ("adagrad", False): _Adagrad,
}


def rule_of(recipe: Options) -> tuple[str, bool]:
    """Return the key in `RULES` for a configuration's `optimizer` part.

    Example:
        >>> rule_of({"name": "sgd", "nesterov": True})
        ('sgd', True)
    """
    return recipe["name"], bool(recipe.get("nesterov", False))


PREDICTION_BATCH = 1024  # samples per pass over all lanes, as many as a single network predicts at a time


class Cohort:
    """Trains replicates of configurations with the same `cohort_key` as lanes of one network.

    The replicates stay complete. Their networks are views of the lanes' parameters. Their generators order the data,
    and draw augmentation and dropout. Their losses keep their state. Evaluate them as usual; save them after `settle`.

    Attributes:
        width: number of lanes.
        lanes: replicates that train here, by lane.
    """

    def __init__(self, first: Replicate, width: int) -> None:
        """Allocate `width` lanes for networks like the network of `first`. The replicate `first` does not join yet.

        Raises ValueError if samples have weights, which lanes ignore.
        """
        if first.dataset.train.loss_weights is not None:
            raise ValueError("replicates with weights of samples or classes cannot train as lanes; train them alone")
        self.width = width
        self.lanes: list[Replicate] = []
        self._dataset, self._device, self._training = first.dataset, first.device, first.training
        self._batch_size: int = first.recipe["batch_size"]
        self._turns: list[Callable[[], AbstractContextManager[None]]] = [_spare_turn] * width
        # A copy that provides the architecture; computations use the store's parameters instead of its own.
        shell = copy.deepcopy(first.model)
        self._shell, self._store = shell, LaneStore(shell, width)
        self._networks = networks_of(shell, self._store, self._turns, first.training)
        self._rule = RULES[rule_of(first.recipe)](self._store)
        self._regularised = isinstance(first.loss, HessianTrace)

    def join(self, replicate: Replicate) -> None:
        """Add a replicate between two epochs; it can be at any epoch. Raises IndexError if the cohort is full."""
        if len(self.lanes) == self.width:
            raise IndexError(f"the cohort is full: all {self.width} lanes are taken")
        lane = len(self.lanes)
        own = {name: dict(replicate.optimizer.state.get(p, {})) for name, p in replicate.model.named_parameters()}
        self._store.take(lane, replicate.model)
        for name, state in own.items():
            for key in self._rule.memories:
                if isinstance(state.get(key), Tensor):
                    self._store.remember(lane, name, key, state[key])
        self.lanes.append(replicate)
        self._turns[lane] = replicate.own_randomness

    def leave(self, replicate: Replicate) -> None:
        """Remove a replicate. It can continue alone, exactly as it would here."""
        # The last lane moves into the gap: computations run over the first lanes only.
        self.settle(replicate)
        lane, last = self.lanes.index(replicate), len(self.lanes) - 1
        self._store.release(replicate.model)
        if lane != last:
            moved = self.lanes[last]
            self._store.move(last, lane, moved.model)
            self.lanes[lane], self._turns[lane] = moved, moved.own_randomness
        self.lanes.pop()
        self._turns[last] = _spare_turn

    def settle(self, replicate: Replicate | None = None) -> None:
        """Write the optimiser state of a replicate, or of every lane, as if it had trained alone."""
        for own in self.lanes if replicate is None else [replicate]:
            lane, steps = self.lanes.index(own), self._steps_taken(own)
            # torch's SGD without momentum keeps no buffer.
            keeps = [k for k in self._rule.memories if k != "momentum_buffer" or own.recipe.get("momentum", 0.9)]
            for name in self._store.parameters if steps else ():
                state: dict[str, Any] = self._store.memory_of(lane, name, keeps)
                if self._rule.counts:
                    state["step"] = torch.tensor(float(steps))
                if state:
                    own.optimizer.state[own.model.get_parameter(name)] = state

    def train_epoch(self) -> list[EpochRow]:
        """Train every lane's next epoch and return a row per lane, with `seconds` in equal shares."""
        started, lanes = time.perf_counter(), self.lanes
        rates = [replicate.begin_epoch() for replicate in lanes]
        total = self.train_batches(rates)
        logits = self.predict(self._dataset.val)
        means = (total / len(self._dataset.train)).tolist()
        metrics = epoch_metrics_of_lanes(logits, self._dataset.val.targets, lanes[0].bins)
        rows = [
            replicate.end_epoch(mean, own, rate, measured)
            for replicate, mean, own, rate, measured in zip(lanes, means, logits, rates, metrics, strict=True)
        ]
        share = (time.perf_counter() - started) / len(rows)
        return [{**row, "seconds": share} for row in rows]

    def train_batches(self, rates: Sequence[float]) -> Tensor:
        """Take all steps of the lanes' current epoch; return the sums of their losses [L]."""
        # No step reads a value from the device, so the host can queue steps ahead of the GPU.
        lanes = self.lanes
        self._rule.set([r.recipe for r in lanes], rates, [self._steps_taken(r) for r in lanes])
        losses = LaneLosses([getattr(replicate.loss, "base", replicate.loss) for replicate in lanes], self._device)
        total = torch.zeros(len(lanes), device=self._device, dtype=torch.get_default_dtype())
        by_step = self._rates_by_step()
        with training_arithmetic(self._training, self._device):
            for step, (inputs, targets) in enumerate(self._batches()):
                if by_step is not None:
                    self._rule.set_rates(by_step[step])
                total += self._step(inputs, targets, losses) * targets.shape[1]
        return total

    def predict(self, split: Split) -> Tensor:
        """Return logits [L, N, K] for a whole split, in evaluation mode."""
        lanes = len(self.lanes)
        # The batch size does not depend on the number of lanes, because products of other shapes round differently.
        size = PREDICTION_BATCH if self._networks.elastic else max(1, PREDICTION_BATCH // self.width)
        parts = [self._networks.predict(inputs, lanes) for inputs, _ in evaluation_batches(split, size)]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def _rates_by_step(self) -> Tensor | None:
        """Return learning rates [S, L, 1] for each step of an epoch, or `None` if no lane's rate changes within it."""
        if not any(changes_by_step(lane.recipe) for lane in self.lanes):
            return None
        before = range(0, len(self._dataset.train), self._batch_size)
        return self._rule.columns([[lane.learning_rate_after(done) for lane in self.lanes] for done in before])

    def _steps_taken(self, replicate: Replicate) -> int:
        return replicate.epoch * -(-len(self._dataset.train) // self._batch_size)

    def _step(self, inputs: Tensor, targets: Tensor, losses: LaneLosses) -> Tensor:
        """Take one step on inputs [L, B, ...] and targets [L, B]; return the losses [L]."""
        losses_taken: list[Tensor] = []

        def slopes(logits: Tensor) -> Tensor:
            lanes = len(targets)
            values, gradients = losses.gradients(logits[:lanes], targets)
            losses_taken.append(values)
            if len(logits) == lanes:
                return gradients
            return torch.cat([gradients, gradients.new_zeros((len(logits) - lanes, *gradients.shape[1:]))])

        if self._regularised:
            losses_taken.append(self._third_order(inputs, targets, losses))
        elif self._networks.elastic:
            self._networks.backward(inputs, slopes)
        else:
            # The rounding of mapped convolutions depends on the number of lanes, so idle lanes compute zeros to keep it
            # constant.
            idle = inputs.new_zeros((self.width - len(inputs), *inputs.shape[1:]))
            self._networks.backward(torch.cat([inputs, idle]), slopes)
        with torch.no_grad():
            self._rule.step(len(targets), targets.shape[1])
        return losses_taken[0]

    def _third_order(self, inputs: Tensor, targets: Tensor, losses: LaneLosses) -> Tensor:
        """Write the gradients of losses with a Hessian trace to the store; return the losses [L]."""
        own = [lane.loss for lane in self.lanes if isinstance(lane.loss, HessianTrace)]  # all lanes, by `cohort_key`
        traced = not any(is_zero(loss.weight) for loss in own)
        logits, leaves = differentiable(self._shell, self._store, self._turns, inputs, thrice=traced)
        values = losses.values(logits, targets)
        if traced:
            values = with_trace(values, leaves, own)
        self._store.take_gradients(torch.autograd.grad(values.sum(), leaves, allow_unused=True))
        return values.detach()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the lanes' next batches, inputs [L, B, ...] and targets [L, B].

        Every lane has its own order of samples.
        """
        split = self._dataset.train
        # One reordered copy of a small data set per epoch replaces an index operation per batch and lane.
        whole = split.inputs.nbytes * len(self.lanes) <= WHOLE_COPY_BYTES * self.width
        if split.augmentation is not None or split.streamed or not whole or split.inputs.nbytes > WHOLE_COPY_BYTES:
            for own in zip(*(replicate.training_batches() for replicate in self.lanes), strict=True):
                yield torch.stack([pair[0] for pair in own]), torch.stack([pair[1] for pair in own])
            return
        orders = [replicate.epoch_order() for replicate in self.lanes]
        inputs = torch.stack([split.inputs.index_select(0, order) for order in orders])
        targets = torch.stack([split.targets.index_select(0, order) for order in orders])
        for start in range(0, len(split), self._batch_size):
            rows = slice(start, start + self._batch_size)
            yield _prepared(split, inputs[:, rows]), targets[:, rows]


class Lanes(Cohort):
    """A cohort of replicates with one configuration; each replicate takes the same steps as when trained alone.

    In float64 the weights agree after epochs. In float32 only one step agrees up to rounding. Within three epochs,
    batch normalisation amplifies a difference in a last digit to about 1e-2 of the weights. The same happens between
    two networks that are trained alone. Compare distributions over seeds, not weights.
    """

    def __init__(self, replicates: Sequence[Replicate]) -> None:
        """Make a cohort with one lane for each replicate; all must be at the same epoch.

        Raises CannotCompileError if compilation is requested and each lane draws its own random numbers.
        """
        super().__init__(replicates[0], len(replicates))
        for replicate in replicates:
            self.join(replicate)


def _prepared(split: Split, stored: Tensor) -> Tensor:
    """Convert stored inputs [L, B, ...] to network inputs."""
    if split.preprocessing is None:
        return stored
    inputs = split.prepare(stored.flatten(0, 1))
    return inputs.view(*stored.shape[:2], *inputs.shape[1:])


def _spare_turn() -> AbstractContextManager[None]:
    """Return a context that restores the global generator after an idle lane's draws."""
    turn: AbstractContextManager[None] = torch.random.fork_rng(devices=[])
    return turn
