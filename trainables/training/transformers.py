"""A Hugging Face Trainer as the training loop of a sweep.

    class Loop(trainables.training.transformers.TrainerLoop):
        def trainer(self, configuration, arguments):
            arguments = TrainingArguments(**arguments, learning_rate=configuration["lr"])
            return Trainer(model, arguments, train_dataset=train, eval_dataset=val)
        def data(self, split):
            return {"val": val, "test": test}[split]

Each epoch is one `Trainer.train`, which continues from the checkpoint of the one before: the Trainer's own folder, with
optimiser, schedule, random states and its own state. A sweep's checkpoint holds that folder's files. What the Trainer
logs becomes columns.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint

from trainables.training.own_loop import TrainingLoop

#: What the Trainer logs of a training step, and the columns for it.
LOGGED = {"loss": "train_loss", "learning_rate": "lr", "grad_norm": "grad_norm"}

#: The file of weights that a Trainer looks for where there is no `model.safetensors`.
WEIGHTS = "pytorch_model.bin"

#: Files of a checkpoint that a Trainer does not read again.
LEFT_OUT = ("training_args.bin",)


class _EpochByEpoch(TrainerCallback):
    """Stops training after the epoch, once its checkpoint is written; keeps what was logged."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        self.logged |= {LOGGED[key]: float(value) for key, value in (logs or {}).items() if key in LOGGED}

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        control.should_log = control.should_save = control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Write the weights under the names that the model has for them.

        transformers 5 saves some models (ViT) under older names, which its Trainer does not find when it resumes: it
        warns of missing keys and goes on from fresh weights.
        """
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if (folder / "model.safetensors").exists():
            (folder / "model.safetensors").unlink()
            torch.save(model.state_dict(), folder / WEIGHTS)


def _without_times(state: bytes) -> bytes:
    """Return a Trainer's state without how long its evaluations took, which decides nothing and is never the same."""
    values = json.loads(state)
    for logged in values["log_history"]:
        for name in [name for name in logged if name.endswith(("_runtime", "_per_second", "_preparation_time"))]:
            del logged[name]
    return json.dumps(values, indent=2).encode()


class TrainerLoop(TrainingLoop):
    """Trains a Trainer's model one epoch at a time; a subclass says which."""

    def __init__(self, configuration: Mapping[str, Any], *, seed: int, device: torch.device, max_epochs: int) -> None:
        """Build the Trainer."""
        self.folder = tempfile.TemporaryDirectory(prefix="sweeper-trainer-")
        arguments = {
            "output_dir": self.folder.name,
            "num_train_epochs": max_epochs,
            "seed": seed % 2**32,
            "save_strategy": "no",  # the callback asks for it
            "save_total_limit": 1,
            "logging_strategy": "epoch",
            "eval_strategy": "no",  # a sweep measures validation data itself
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": torch.device(device).type == "cpu",
        }
        self.hugging_face = self.trainer(configuration, arguments)
        self.callback = _EpochByEpoch()
        self.hugging_face.add_callback(self.callback)

    def trainer(self, configuration: Mapping[str, Any], arguments: dict[str, Any]) -> Trainer:
        """Return the Trainer, whose `TrainingArguments` begin with `arguments`."""
        raise NotImplementedError

    def data(self, split: str) -> Any:
        """Return the data set of a split, as the Trainer's `predict` takes it."""
        raise NotImplementedError

    def train_epoch(self) -> dict[str, float]:
        """Train one epoch; return the mean loss and the last learning rate and gradient norm."""
        self.callback.logged = {}
        self.hugging_face.train(resume_from_checkpoint=get_last_checkpoint(self.folder.name))
        return self.callback.logged

    def predict(self, split: str) -> tuple[Tensor, Tensor]:
        """Return logits and labels of a split."""
        found = self.hugging_face.predict(self.data(split))
        logits = found.predictions[0] if isinstance(found.predictions, tuple) else found.predictions
        return torch.from_numpy(logits), torch.from_numpy(np.asarray(found.label_ids))

    def state_dict(self) -> dict[str, Any]:
        """Return the files of the Trainer's newest checkpoint, as bytes."""
        newest = get_last_checkpoint(self.folder.name)
        if newest is None:
            return {"name": None, "files": {}}
        files = {path.name: path.read_bytes() for path in sorted(Path(newest).iterdir()) if path.name not in LEFT_OUT}
        files |= {name: _without_times(content) for name, content in files.items() if name == TRAINER_STATE_NAME}
        held = {
            name: torch.frombuffer(bytearray(content), dtype=torch.uint8) for name, content in files.items() if content
        }
        return {"name": Path(newest).name, "files": held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from it; what is predicted before the next epoch is of its weights."""
        if state["name"] is None:
            return
        if outside := [name for name in (state["name"], *state["files"]) if Path(name).name != name]:
            raise ValueError(f"a checkpoint names {outside[0]!r}, which is outside its folder: it is not a Trainer's")
        folder = Path(self.folder.name) / state["name"]
        folder.mkdir(exist_ok=True)
        for name, content in state["files"].items():
            (folder / name).write_bytes(content.numpy().tobytes())
        if (folder / WEIGHTS).exists():
            weights = torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True)
            model = self.hugging_face.model
            assert model is not None
            model.load_state_dict(weights)
        else:  # adapters, which Trainer loads as `train(resume_from_checkpoint=…)` does
            self.hugging_face._load_from_checkpoint(str(folder))

    def network(self) -> nn.Module | None:
        """Return nothing: the model takes named inputs, and curvature needs one tensor of them."""
        return None

    def batches(self, split: str) -> Iterable[tuple[Tensor, Tensor]] | None:
        """Return nothing, likewise."""
        return None

    def close(self) -> None:
        """Remove the checkpoints; the sweep has them."""
        self.folder.cleanup()
