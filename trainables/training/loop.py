"""One replicate: one network trained with one seed. `Replicate.train_epoch` is the training loop."""

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
from trainables.training.evaluation import END, Evaluation, EvaluationSettings, Shared, evaluate
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
from trainables.training.weighting import weighted, weighting_fault


class OwnRandomness:
    """Keeps the state of torch's global generators for one replicate, as if no other replicate ran in its process."""

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start with the state that seeding would give, without seeding the process."""
        self._device, self._inside = device, False
        self._state = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        if torch.cuda.is_available():
            self._state["cuda"] = torch.Generator("cuda").manual_seed(seed).get_state()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context, torch's global generators have this state; the state after it is kept."""
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
        """Return the current state by device."""
        return random_state(self._device) if self._inside else self._state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict()`'s result."""
        self._state = {key: value.cpu() for key, value in state.items()}


@dataclass
class EpochProgress:
    """The progress within an epoch.

    Attributes:
        order: state at the epoch's start of the generator for order and augmentation.
        loss_sum: sum of the samples' losses so far, a scalar on the device.
        batches: number of batches so far.
        samples: number of samples in these batches.
        loss_state: state of a loss restored within the epoch, which `begin_epoch` would reset; `None` otherwise.
    """

    order: Tensor
    loss_sum: Tensor
    batches: int = 0
    samples: int = 0
    loss_state: State | None = None

    def add(self, value: Tensor, samples: int) -> None:
        """Add a batch with its mean loss."""
        self.loss_sum += value * samples
        self.batches += 1
        self.samples += samples

    def state_dict(self) -> State:
        """Return the progress for a checkpoint."""
        return {"loss_sum": self.loss_sum, "batches": self.batches, "samples": self.samples}

    @staticmethod
    def from_state(saved: State, device: torch.device) -> EpochProgress | None:
        """Return the progress of a replicate saved within an epoch, or `None` if it was saved between epochs.

        Args:
            saved: result of `Replicate.state_dict()`.
            device: device on which training continues.
        """
        progress = saved.get("progress")
        if progress is None:
            return None
        # A copy, because the sum is updated in place and must not change the saved state.
        total = progress["loss_sum"].to(device, copy=True)
        return EpochProgress(saved["order"].cpu(), total, progress["batches"], progress["samples"], saved["loss"])


class Replicate:
    """A network with its optimiser and loss, trained from epoch 0 to `max_epochs`.

    All randomness comes from `seed`: initial weights, order of the data, dropout. Replicates in one process do not
    disturb each other. Each has its own state of torch's global generators, and installs it only while it works.

    Example:
        >>> from trainables.datasets import load_dataset
        >>> optimizer = {"name": "sgd", "lr": 0.1, "batch_size": 512}
        >>> configuration = {"loss": {"name": "focal"}, "architecture": {"name": "mlp"}, "optimizer": optimizer}
        >>> replicate = Replicate(configuration, seed=0, dataset=load_dataset("digits"), max_epochs=2)
        >>> row = replicate.train_epoch()
        >>> row["epoch"], row["lr"]
        (1, 0.1)
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
            seed: seed for all randomness in this replicate.
            dataset: data set, already on `device`.
            max_epochs: last epoch, at which schedules end.
            device: device of the network.
            training: arithmetic of training steps, class weights and sampler.
            bins: number of bins for the epochs' calibration error; the same as in evaluations, so that both agree.

        Raises:
            ValueError: the configuration cannot be trained with weights, or a class weight names no class.
        """
        self.dataset = dataset = weighted(dataset, training)
        if (fault := weighting_fault(configuration, dataset)) is not None:
            raise ValueError(fault)
        self.training = training
        self.seed = seed
        self.max_epochs = max_epochs
        self.bins = bins
        self.epoch = 0
        self.device = torch.device(device)
        self.recipe = dict(configuration["optimizer"])
        self._randomness = OwnRandomness(seed, self.device)
        # A separate generator for order and augmentation, because dropout must not change the order of the data.
        self._order = torch.Generator().manual_seed(seed)
        with self.own_randomness():
            self.model = lay_out(build_for(dataset, configuration["architecture"]).to(self.device), training)
            self.loss = build_loss(**configuration["loss"])
        # Losses with probes of their own (`hessian_trace`) draw from a generator that the replicate must seed.
        if hasattr(self.loss, "reseed"):
            self.loss.reseed(seed)
        if self.device.type != "cpu":  # otherwise every step would copy the loss's tensors to the GPU
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
        self._progress: EpochProgress | None = None

    def _fine_tuned(self) -> torch.optim.Optimizer:
        """Build the recipe's optimiser, and set up frozen layers, layer-wise rates, averaging and sharpness."""
        # Freezing comes first, because the optimiser takes only trainable parameters.
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
        """The network to measure: the network in training, or a copy with the average of its weights."""
        return self.model if self._averaged is None else self._averaged.module

    def train_epoch(self, after_step: Callable[[], None] | None = None) -> EpochRow:
        """Train one epoch, or the rest of one, and return its row of the `epochs` table.

        Args:
            after_step: function called after each step, which may call `state_dict`.
        """
        started = time.perf_counter()
        lr = self.begin_epoch()
        total = self.train_batches(after_step)
        predicted = self.validation_logits()
        # One transfer per epoch: each one makes the host wait for the GPU.
        loss, logits, targets = on_host(total, predicted, self.dataset.val.targets)
        metrics = epoch_metrics(logits, targets, self.bins)
        row = self.end_epoch(float(loss) / len(self.dataset.train), predicted, lr, metrics)
        return {**row, "seconds": time.perf_counter() - started}

    def train_batches(self, after_step: Callable[[], None] | None = None) -> Tensor:
        """Take all remaining steps of the current epoch; return the sum of the samples' losses."""
        # No step reads a value from the device, so the host can queue steps ahead of the GPU.
        progress = self._progress = self._current_progress()
        with self.own_randomness(), training_arithmetic(self.training, self.device):
            for inputs, targets, *weights in self.training_batches(progress.batches):
                if changes_by_step(self.recipe):
                    set_learning_rate(self.optimizer, self.learning_rate_after(progress.samples))
                if self._mixing is not None:
                    inputs = self._mixing(inputs, self.epoch, progress.batches)
                progress.add(self._step(inputs, targets, *weights), len(targets))
                if after_step is not None:
                    after_step()
        self._progress = None
        return progress.loss_sum

    def begin_epoch(self) -> float:
        """Prepare network, optimiser and loss for the next epoch; return its learning rate."""
        lr = learning_rate(self.recipe, self.epoch, self.max_epochs)
        set_learning_rate(self.optimizer, lr)
        self.loss.begin_epoch(self.epoch, self.max_epochs)
        if not self.model.training:  # already set for lanes, whose predictions do not run this network
            self.model.train()
        for module in self._frozen:
            module.eval()
        return lr

    def _current_progress(self) -> EpochProgress:
        """Return the progress of a new epoch, or of one restored from a checkpoint."""
        if self._progress is None:
            return EpochProgress(self._order.get_state(), torch.zeros((), device=self.device))
        # The epoch's order is drawn again from its first state, and the batches already done are skipped.
        self._order.set_state(self._progress.order)
        if self._progress.loss_state is not None:
            self.loss.load_state_dict(placed(self._progress.loss_state, self.device))
        return self._progress

    def learning_rate_after(self, samples: int) -> float:
        """Return the learning rate after `samples` samples of the next epoch."""
        done = samples / len(self.dataset.train) if changes_by_step(self.recipe) else 0
        return learning_rate(self.recipe, self.epoch + done, self.max_epochs)

    def training_batches(self, skip: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Yield the next epoch's augmented batches in this replicate's order, without the first `skip`."""
        for inputs, *labels in batches(self.dataset.train, self.recipe["batch_size"], self._order, skip):
            yield laid_out(inputs, self.training), *labels

    def epoch_order(self) -> Tensor:
        """Return the next epoch's order, int64 [N] on the data's device, for a split without augmentation."""
        return epoch_order(self.dataset.train, self._order)

    def validation_logits(self) -> Tensor:
        """Return validation logits [N, K] for the current weights."""
        return predict(self.measured, self.dataset.val)

    def end_epoch(self, train_loss: float, logits: Tensor, lr: float, metrics: Mapping[str, float]) -> EpochRow:
        """Complete an epoch with validation `logits` [N, K] and `metrics`; return its row without `seconds`."""
        # AdaFocal updates its γ from the validation data after each epoch.
        self.loss.end_epoch(logits, self.dataset.val.targets)
        self.epoch += 1
        self._kept.keep_if_better(self.measured, self.epoch, metrics)
        return {"epoch": self.epoch, "train_loss": train_loss, **metrics, "lr": lr}

    def evaluate(self, settings: EvaluationSettings, stage: str, shared: Shared | None = None) -> Evaluation:
        """At stage `rung`, measure the current weights; at stage `end`, the weights that the recipe keeps.

        `shared` are measurements of these weights that exist already.
        """
        network = self.measured
        with self.weights_of(stage):
            measured = (network, self.loss, self.dataset, settings)
            return evaluate(*measured, stage=stage, seed=self.seed, shared=shared)

    def weights_of(self, stage: str) -> AbstractContextManager[None]:
        """Return a context in which the measured network has the weights for an evaluation at `stage`."""
        return self._kept.in_place(self.measured) if stage == END else nullcontext()

    def trajectory_row(self, settings: TrajectorySettings) -> EpochRow:
        """Return the measurements for curves against the epoch; `{}` if none is due after this epoch."""
        return trajectory_row(self.measured, self.loss, self.dataset, settings, self.epoch)

    def state_dict(self) -> State:
        """Return all state that determines how training continues: weights, optimiser, loss, random states.

        Within an epoch, when `after_step` calls it, the state includes the progress.
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
            **({} if self._averaged is None else {"averaged": _averaged_state(self._averaged)}),
            **({} if progress is None else {"progress": progress.state_dict()}),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`'s result on any device, exactly as if training had not been interrupted."""
        self.epoch = state["epoch"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss.load_state_dict(placed(state["loss"], self.device))
        self._order.set_state(state["order"].cpu())
        self._randomness.load_state_dict(state["random"])
        self._kept.load_state_dict(state, self.device)
        if self._averaged is not None:
            self._averaged.module.load_state_dict(state["averaged"]["model"])
            self._averaged.n_averaged.fill_(state["averaged"]["steps"])
        self._progress = EpochProgress.from_state(state, self.device)

    def _step(self, inputs: Tensor, targets: Tensor, *weights: Tensor) -> Tensor:
        """Take one step and return the batch's loss."""
        if self._sharpness is not None:
            value = self._sharpness(
                lambda: self._differentiate(inputs.clone(), targets, *weights)
            )  # a network can change inputs in place
        else:
            value = self._differentiate(inputs, targets, *weights)
        prepare_gradients(self.model.parameters(), self.recipe, len(targets))
        self.optimizer.step()
        if self._averaged is not None:
            self._averaged.update_parameters(self.model)
        return value

    def _differentiate(self, inputs: Tensor, targets: Tensor, *weights: Tensor) -> Tensor:
        """Write a batch's gradients to the parameters and return its loss."""
        value = self._loss_of(inputs, targets, *weights)
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()
        return value.detach()

    def _loss_of(self, inputs: Tensor, targets: Tensor, *weights: Tensor) -> Tensor:
        # `hessian_trace` differentiates the network itself, so logits are not enough.
        if getattr(self.loss, "needs_model", False):
            return self.loss(self.model, inputs, targets, *weights)  # type: ignore[arg-type]
        outputs = self._forward(inputs)
        supervise = getattr(self.model, "supervised", None)
        nodes = supervise(inputs) if supervise is not None else None
        if nodes is None:
            return (
                self.loss(outputs, targets, *weights) if self._mixing is None else self._mixing.loss(outputs, targets)
            )
        # Sum over each tree's nodes and mean over trees, as in Tai et al. 2015.
        return self.loss(outputs, nodes) * (len(nodes) / len(targets))

    def own_randomness(self) -> AbstractContextManager[None]:
        """Return a context in which torch's global generators have this replicate's state."""
        return self._randomness.in_place()


def _averaged_state(averaged: AveragedModel) -> State:
    return {"model": averaged.module.state_dict(), "steps": int(averaged.n_averaged)}


def _compact(tensor: Tensor) -> Tensor:
    """Return `tensor`, or a copy if it is a view of a larger storage."""
    # `torch.save` writes whole storages, and a lane's weights are views into the storage of all lanes.
    return tensor if tensor.untyped_storage().nbytes() <= tensor.nbytes else tensor.clone()
