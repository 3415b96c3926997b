"""One replicate: one network trained with one seed. The loop reads top to bottom in `Replicate.train_epoch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from trainables.datasets.base import DataSet, batches, epoch_order
from trainables.losses import build_loss
from trainables.models import build_for
from trainables.registry import Configuration
from trainables.training.acceleration import (
    PLAIN,
    TrainingSettings,
    begin_network,
    laid_out,
    lay_out,
    training_arithmetic,
    training_forward,
)
from trainables.training.edge_of_stability import EdgeOfStability
from trainables.training.evaluation import END, Evaluation, EvaluationSettings, evaluate
from trainables.training.fine_tuning import (
    KeptWeights,
    Mixing,
    SharpnessAware,
    averaged_weights,
    freeze_layers,
    frozen_modules,
    mixes,
    radius_of,
    scale_by_depth,
)
from trainables.training.prediction import (
    EpochRow,
    State,
    TrajectorySettings,
    epoch_metrics,
    on_host,
    placed,
    predict,
    random_state,
    set_random_state,
    trajectory_row,
)
from trainables.training.recipe import (
    build_optimizer,
    changes_by_step,
    learning_rate,
    prepare_gradients,
    set_learning_rate,
    setting,
)


class OwnRandomness:
    """The state of torch's global generators as one replicate would have it alone in its process."""

    def __init__(self, seed: int, device: torch.device) -> None:
        """Begin with the state that seeding would give, without seeding the process."""
        self._device, self._inside = device, False
        self._state = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        if torch.cuda.is_available():
            self._state["cuda"] = torch.Generator("cuda").manual_seed(seed).get_state()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put this state in the place of the global one, and keep what becomes of it."""
        outside = random_state(self._device)
        set_random_state(self._state)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self._state = random_state(self._device)
            set_random_state(outside)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state by device, as it is now."""
        return random_state(self._device) if self._inside else self._state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict()`'s result."""
        self._state = {key: value.cpu() for key, value in state.items()}


@dataclass
class EpochProgress:
    """An epoch between its first batch and its last.

    Attributes:
        order: state of the generator of order and augmentation when the epoch began.
        loss_sum: of the losses of samples so far, a scalar on the device.
        batches: so far.
        samples: in them.
        loss_state: of a loss that continues, which the beginning of an epoch would reset; `None` in an epoch from its
            first batch.
    """

    order: Tensor
    loss_sum: Tensor
    batches: int = 0
    samples: int = 0
    loss_state: State | None = None

    def add(self, value: Tensor, samples: int) -> None:
        """Count a batch and its mean loss."""
        self.loss_sum += value * samples
        self.batches += 1
        self.samples += samples

    def state_dict(self) -> State:
        """Return what to save."""
        return {"loss_sum": self.loss_sum, "batches": self.batches, "samples": self.samples}

    @staticmethod
    def from_state(saved: State, device: torch.device) -> EpochProgress | None:
        """Return the epoch in whose midst a replicate was saved; `None` where it was saved between epochs.

        Args:
            saved: `Replicate.state_dict()`.
            device: where it continues.
        """
        progress = saved.get("progress")
        if progress is None:
            return None
        total = progress["loss_sum"].to(device, copy=True)
        return EpochProgress(saved["order"].cpu(), total, progress["batches"], progress["samples"], saved["loss"])


class Replicate:
    """A network, its optimiser and its loss on their way from epoch 0 to `max_epochs`.

    All randomness comes from `seed`: the initial weights, the order of the data, dropout. Two replicates in
    one process do not disturb each other, because each keeps the state of torch's global generator as its own
    and puts it in place only while it works.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        seed: int,
        dataset: DataSet,
        max_epochs: int,
        device: torch.device | str = "cpu",
        training: TrainingSettings = PLAIN,
        bins: int = EvaluationSettings.bins,
    ) -> None:
        """Build the network, its loss and its optimiser.

        Args:
            configuration: `loss`, `architecture` and `optimizer`, each with a `name` and its hyperparameters.
            seed: of everything random in this replicate.
            dataset: on `device` already.
            max_epochs: the epoch that schedules run to.
            device: where the network lives.
            training: how training steps are computed.
            bins: of an epoch's calibration error: those of its evaluations, so that both are one number.
        """
        self.dataset = dataset
        self.training = training
        self.seed = seed
        self.max_epochs = max_epochs
        self.bins = bins
        self.epoch = 0
        self.device = torch.device(device)
        self.recipe = dict(configuration["optimizer"])
        self._randomness = OwnRandomness(seed, self.device)
        self._order = torch.Generator().manual_seed(seed)
        with self.own_randomness():
            self.model = lay_out(build_for(dataset, configuration["architecture"]).to(self.device), training)
            self.loss = build_loss(**configuration["loss"])
        if hasattr(self.loss, "reseed"):
            self.loss.reseed(seed)
        if self.device.type != "cpu":  # where it would be copied in each step otherwise
            self.loss.load_state_dict(placed(self.loss.state_dict(), self.device))
        self._averaged: AveragedModel | None = None
        self._sharpness: SharpnessAware | None = None
        self._mixing = Mixing(configuration, seed, self.loss, dataset) if mixes(self.recipe) else None
        self.optimizer = self._fine_tuned()
        self._frozen = frozen_modules(self.model)
        if training.compile:
            begin_network(
                (configuration["architecture"], self.recipe["batch_size"], dataset.input_shape, dataset.classes)
            )
        self._forward = training_forward(self.model, training, self.device)
        self._kept = KeptWeights(self.recipe, max_epochs)
        self._edge = EdgeOfStability()
        self._progress: EpochProgress | None = None

    def _fine_tuned(self) -> torch.optim.Optimizer:
        """Return the recipe's optimiser; prepare for what the recipe says of layers, averages and sharpness."""
        if (frozen := setting(self.recipe, "freeze")) is not None:
            freeze_layers(self.model, frozen)
        optimizer = build_optimizer(self.model, self.recipe)
        if (decay := setting(self.recipe, "layer_decay")) is not None:
            scale_by_depth(self.model, optimizer, decay)
        if (kept := setting(self.recipe, "ema")) is not None:
            self._averaged = averaged_weights(self.model, kept)
        if radius_of(self.recipe) > 0:
            self._sharpness = SharpnessAware(self.model, self.loss, self.recipe, self.device)
        return optimizer

    @property
    def measured(self) -> torch.nn.Module:
        """The network that is measured: the one that trains, or the average of its weights."""
        return self.model if self._averaged is None else self._averaged.module

    def train_epoch(self, after_step: Callable[[], None] | None = None) -> EpochRow:
        """Train one epoch, or the rest of one; return its row of the `epochs` table (without the replicate's number).

        Args:
            after_step: called after each step; it may ask for `state_dict`.
        """
        started = time.perf_counter()
        lr = self.begin_epoch()
        total = self.train_batches(after_step)
        predicted = self.validation_logits()
        loss, logits, targets = on_host(total, predicted, self.dataset.val.targets)
        metrics = epoch_metrics(logits, targets, self.bins)
        row = self.end_epoch(float(loss) / len(self.dataset.train), predicted, lr, metrics)
        return {**row, "seconds": time.perf_counter() - started}

    def train_batches(self, after_step: Callable[[], None] | None = None) -> Tensor:
        """Take every step of the epoch that has begun, or the rest; return the sum of the samples' losses.

        In between the host asks the device for no value.
        """
        progress = self._progress = self._begun()
        with self.own_randomness(), training_arithmetic(self.training, self.device):
            for inputs, targets in self.training_batches(progress.batches):
                if changes_by_step(self.recipe):
                    set_learning_rate(self.optimizer, self.learning_rate_after(progress.samples))
                if self._mixing is not None:
                    inputs = self._mixing(inputs, self.epoch, progress.batches)
                progress.add(self._step(inputs, targets), len(targets))
                if after_step is not None:
                    after_step()
        self._progress = None
        return progress.loss_sum

    def begin_epoch(self) -> float:
        """Make network, optimiser and loss ready for the next epoch; return its learning rate."""
        lr = learning_rate(self.recipe, self.epoch, self.max_epochs)
        set_learning_rate(self.optimizer, lr)
        self.loss.begin_epoch(self.epoch, self.max_epochs)
        if not self.model.training:  # lanes are not set back: their predictions are not their networks' own
            self.model.train()
        for module in self._frozen:
            module.eval()
        return lr

    def _begun(self) -> EpochProgress:
        """Return the epoch that begins, or continues from a checkpoint in its midst."""
        if self._progress is None:
            return EpochProgress(self._order.get_state(), torch.zeros((), device=self.device))
        self._order.set_state(self._progress.order)
        if self._progress.loss_state is not None:
            self.loss.load_state_dict(placed(self._progress.loss_state, self.device))
        return self._progress

    def learning_rate_after(self, samples: int) -> float:
        """Return the learning rate after so many samples of the next epoch."""
        done = samples / len(self.dataset.train) if changes_by_step(self.recipe) else 0
        return learning_rate(self.recipe, self.epoch + done, self.max_epochs)

    def training_batches(self, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the next epoch's batches but for the first `skip`, in this replicate's order, augmented."""
        for inputs, targets in batches(self.dataset.train, self.recipe["batch_size"], self._order, skip):
            yield laid_out(inputs, self.training), targets

    def epoch_order(self) -> Tensor:
        """Return the order of the next epoch's samples, int64 [N] on the data's device, where nothing is augmented."""
        return epoch_order(self.dataset.train, self._order)

    def validation_logits(self) -> Tensor:
        """Return the validation logits [N, K] of the present weights."""
        return predict(self.measured, self.dataset.val)

    def end_epoch(self, train_loss: float, logits: Tensor, lr: float, metrics: Mapping[str, float]) -> EpochRow:
        """Count an epoch with these validation `logits` [N, K] and `metrics`; return its row, but for its seconds."""
        self.loss.end_epoch(logits, self.dataset.val.targets)
        self.epoch += 1
        self._kept.keep_if_better(self.measured, self.epoch, metrics)
        return {"epoch": self.epoch, "train_loss": train_loss, **metrics, "lr": lr}

    def evaluate(self, settings: EvaluationSettings, stage: str) -> Evaluation:
        """Return the full measurement; `stage` is `rung` (the current weights) or `end` (those the recipe keeps)."""
        network = self.measured
        with self.weights_of(stage):
            measured = (network, self.loss, self.dataset, settings)
            return evaluate(*measured, stage=stage, seed=self.seed)

    def weights_of(self, stage: str) -> AbstractContextManager[None]:
        """Return a context in which the measured network has the weights that an evaluation at `stage` measures."""
        return self._kept.in_place(self.measured) if stage == END else nullcontext()

    def trajectory_row(self, settings: TrajectorySettings) -> EpochRow:
        """Return what is measured after this epoch for curves against the epoch; `{}` where it is not its turn."""
        row = trajectory_row(self.measured, self.loss, self.dataset, settings, self.epoch)
        if settings.curvature is not None and self.epoch % settings.curvature.every == 0:
            row |= self._edge.row(self.model, self.loss, self.optimizer, self.dataset.train, settings.curvature)
        return row

    def state_dict(self) -> State:
        """Return everything that decides how training continues: weights, optimiser, loss, random states.

        In the midst of an epoch, where `after_step` may ask for it, also how far it has come.
        """
        progress = self._progress
        return {
            "epoch": self.epoch,
            "model": {name: _compact(tensor) for name, tensor in self.model.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "loss": self.loss.state_dict(),
            "order": self._order.get_state() if progress is None else progress.order,
            "random": self._randomness.state_dict(),
            **self._kept.state_dict(),
            **({"edge": edge} if (edge := self._edge.state_dict()) else {}),
            **({} if self._averaged is None else {"averaged": _averaged_state(self._averaged)}),
            **({} if progress is None else {"progress": progress.state_dict()}),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`'s result on any device: what follows is what would have followed then."""
        self.epoch = state["epoch"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss.load_state_dict(placed(state["loss"], self.device))
        self._order.set_state(state["order"].cpu())
        self._randomness.load_state_dict(state["random"])
        self._kept.load_state_dict(state, self.device)
        self._edge.load_state_dict(placed(state.get("edge", {}), self.device))
        if self._averaged is not None:
            self._averaged.module.load_state_dict(state["averaged"]["model"])
            self._averaged.n_averaged.fill_(state["averaged"]["steps"])
        self._progress = EpochProgress.from_state(state, self.device)

    def _step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take one step; return the batch's loss."""
        if self._sharpness is not None:
            value = self._sharpness(lambda: self._differentiate(inputs.clone(), targets))  # may change them in place
        else:
            value = self._differentiate(inputs, targets)
        prepare_gradients(self.model.parameters(), self.recipe, len(targets))
        self.optimizer.step()
        if self._averaged is not None:
            self._averaged.update_parameters(self.model)
        return value

    def _differentiate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Leave a batch's gradients in the parameters; return its loss."""
        value = self._loss_of(inputs, targets)
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()
        return value.detach()

    def _loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if getattr(self.loss, "needs_model", False):
            return self.loss(self.model, inputs, targets)  # type: ignore[call-arg, arg-type]
        outputs = self._forward(inputs)
        supervise = getattr(self.model, "supervised", None)
        nodes = supervise(inputs) if supervise is not None else None
        if nodes is None:
            return self.loss(outputs, targets) if self._mixing is None else self._mixing.loss(outputs, targets)
        # the sum over each tree's nodes and the mean over trees, as Tai et al. 2015 train
        return self.loss(outputs, nodes) * (len(nodes) / len(targets))

    def own_randomness(self) -> AbstractContextManager[None]:
        """Return a context with this replicate's random state in the place of torch's global one."""
        return self._randomness.in_place()


def _averaged_state(averaged: AveragedModel) -> State:
    return {"model": averaged.module.state_dict(), "steps": int(averaged.n_averaged)}


def _compact(tensor: Tensor) -> Tensor:
    """Return a tensor that shares no memory with others, which would be saved with it; itself where it does not."""
    return tensor if tensor.untyped_storage().nbytes() <= tensor.nbytes else tensor.clone()
