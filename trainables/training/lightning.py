"""A LightningModule and its DataModule as the training loop of a sweep.

    class Loop(trainables.training.lightning.LightningLoop):
        def module(self, configuration):
            return MyModule(lr=configuration["lr"])
        def data(self, configuration):
            return MyData(batch_size=configuration["batch_size"])

Each epoch is one `Trainer.fit` that continues from the previous epoch's Lightning checkpoint, held in memory, with
optimisers, schedulers, loops, callbacks and the DataModule's state. `trainer.max_epochs` and
`trainer.estimated_stepping_batches` are those of the whole run. A `validation_step` runs as in any fit, so schedulers
and callbacks can monitor its metrics. EarlyStopping has no effect, because the sweep's scheduler stops trials.
Everything that the module logs becomes a column.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import lightning
import torch
from lightning.pytorch.plugins import CheckpointIO
from torch import Tensor, nn

from trainables.registry import Configuration
from trainables.training.own_loop import TrainingLoop

#: Columns that the sweep measures itself and a module's logging must not overwrite.
MEASURED_HERE = ("val_nll", "val_accuracy", "val_ece", "epoch", "seconds", "step")

#: Keys of a Lightning checkpoint that determine how training continues, besides the DataModule's and the version.
KEPT = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "epoch", "global_step")


class _InMemory(CheckpointIO):
    """Keeps one checkpoint in memory and ignores its path."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: object, storage_options: object = None) -> None:
        self.held = checkpoint

    def load_checkpoint(
        self, path: object, map_location: object = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return self.held

    def remove_checkpoint(self, path: object) -> None:
        self.held = {}


class _OneEpoch(lightning.Callback):
    """Ends each fit after one epoch; for schedules, `max_epochs` is still the length of training."""

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        trainer.should_stop = True


class LightningLoop(TrainingLoop):
    """Trains a LightningModule one epoch at a time; subclasses implement `module` and `data` (see the module)."""

    def __init__(self, configuration: Configuration, *, seed: int, device: torch.device, max_epochs: int) -> None:
        """Build module, data and trainer for a configuration."""
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # silences the messages of every Trainer.fit
        self.model, self.datamodule = self.module(configuration), self.data(configuration)
        self.memory = _InMemory()
        options = {**QUIET, **self.trainer_options(configuration)}
        plugins, callbacks = options.pop("plugins", None) or (), options.pop("callbacks", None) or ()
        self.trainer = lightning.Trainer(
            accelerator="gpu" if torch.device(device).type == "cuda" else "cpu",
            devices=1,
            max_epochs=max_epochs,
            **options,
            plugins=[*_listed(plugins), self.memory],
            callbacks=[*_listed(callbacks), _OneEpoch()],
        )
        # Lightning ignores `should_stop` until `min_epochs` and `min_steps` are reached.
        self.trainer.fit_loop.min_epochs = self.trainer.fit_loop.epoch_loop.min_steps = None
        self.epochs, self.ready = 0, set[str]()

    def module(self, configuration: Configuration) -> lightning.LightningModule:
        """Return the module, whose forward pass returns logits [N, K]."""
        raise NotImplementedError

    def data(self, configuration: Configuration) -> lightning.LightningDataModule:
        """Return the DataModule, whose batches begin with (inputs, targets)."""
        raise NotImplementedError

    def trainer_options(self, configuration: Configuration) -> dict[str, Any]:
        """Return options for `lightning.Trainer`, such as `gradient_clip_val`."""
        return {}

    def logits(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return logits [B, K] and targets [B] for a batch."""
        return self.model(batch[0]), batch[1]

    def train_epoch(self) -> dict[str, float]:
        """Train one epoch and return the module's logged metrics."""
        self.trainer.fit(self.model, datamodule=self.datamodule, ckpt_path="memory" if self.epochs else None)
        self.trainer.save_checkpoint("memory")
        self.epochs += 1
        metrics = self.trainer.callback_metrics
        # Logged names such as `train/loss` become column names that need no quotes in SQL.
        logged = {re.sub(r"\W+", "_", name).lower(): float(value) for name, value in metrics.items()}
        return {name: value for name, value in logged.items() if name not in MEASURED_HERE}

    @torch.no_grad()
    def predict(self, split: str) -> tuple[Tensor, Tensor]:
        """Return logits [N, K] and targets [N] from the DataModule's `val` or `test` batches."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        pairs = [self.logits([part.to(self.model.device) for part in batch]) for batch in self._loader(split)]
        for module, mode in modes:  # `Trainer.fit` trains every module in its current mode
            module.training = mode
        return torch.cat([logits for logits, _ in pairs]), torch.cat([targets for _, targets in pairs])

    def _loader(self, split: str) -> Iterable[Any]:
        stage = {"train": "fit", "val": "validate"}.get(split, "test")
        # `setup` runs once per stage: it may load or split the data, which takes time.
        if stage not in self.ready:
            self.ready.add(stage)
            self.datamodule.prepare_data()
            self.datamodule.setup(stage)
        loader: Iterable[Any] = getattr(self.datamodule, f"{split}_dataloader")()
        return loader

    def state_dict(self) -> dict[str, Any]:
        """Return the Lightning checkpoint."""
        # Lightning stores the DataModule's state under its class name.
        own = type(self.datamodule).__qualname__
        kept = {key: value for key, value in self.memory.held.items() if key in (*KEPT, own)}
        return {"epochs": self.epochs, "checkpoint": {**kept, "pytorch-lightning_version": lightning.__version__}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, with its weights loaded for predictions before the next epoch."""
        self.epochs, self.memory.held = state["epochs"], dict(state["checkpoint"])
        self.model.load_state_dict(state["checkpoint"]["state_dict"])

    def network(self) -> nn.Module:
        """Return the module, for curvature."""
        return self.model

    def batches(self, split: str) -> Iterable[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of a split, batch by batch."""
        return ((batch[0].to(self.model.device), batch[1].to(self.model.device)) for batch in self._loader(split))


def _listed(given: object) -> list[Any]:
    """Return an option as a list; Lightning accepts a list or a single value."""
    return [*given] if isinstance(given, list | tuple) else [given]


QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}
