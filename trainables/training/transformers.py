"""A Hugging Face Trainer as the training loop of a sweep.

    class Loop(trainables.training.transformers.TrainerLoop):
        def trainer(self, configuration, arguments):
            arguments = TrainingArguments(**arguments, learning_rate=configuration["lr"])
            return Trainer(model, arguments, train_dataset=train, eval_dataset=val)
        def data(self, split):
            return {"val": val, "test": test}[split]

Each epoch is one `Trainer.train` that continues from the previous epoch's checkpoint: the Trainer's own folder, with
optimiser, schedule, random states and its own state. A sweep's checkpoint contains the files of that folder. The
Trainer's logged values become columns.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint

from trainables.registry import Configuration
from trainables.training.own_loop import TrainingLoop

#: Logged value of a training step → column.
LOGGED = {"loss": "train_loss", "learning_rate": "lr", "grad_norm": "grad_norm"}

#: Weights file that a Trainer reads if there is no `model.safetensors`.
WEIGHTS = "pytorch_model.bin"

#: Checkpoint files that a Trainer never reads.
LEFT_OUT = ("training_args.bin",)


class _EpochByEpoch(TrainerCallback):
    """Stops training after one epoch and its checkpoint, and collects the logged values."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        self.logged |= {LOGGED[key]: float(value) for key, value in (logs or {}).items() if key in LOGGED}

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        control.should_log = control.should_save = control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Write the weights under the model's own parameter names."""
        # transformers 5 saves some models (ViT) under older names, which its Trainer does not find when it resumes: it
        # warns of missing keys and continues from new random weights.
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if (folder / "model.safetensors").exists():
            (folder / "model.safetensors").unlink()
            torch.save(model.state_dict(), folder / WEIGHTS)


def _without_times(state: bytes) -> bytes:
    """Return a Trainer's state without run times."""
    # Run times differ between runs, so with them equal checkpoints would have different bytes.
    values = json.loads(state)
    for logged in values["log_history"]:
        for name in [name for name in logged if name.endswith(("_runtime", "_per_second", "_preparation_time"))]:
            del logged[name]
    return json.dumps(values, indent=2).encode()


class TrainerLoop(TrainingLoop):
    """Trains a Trainer's model one epoch at a time; subclasses implement `trainer` and `data` (see the module).

    There is no `network` for curvature: curvature needs one input tensor, but a Trainer's model takes named inputs.
    """

    def __init__(self, configuration: Configuration, *, seed: int, device: torch.device, max_epochs: int) -> None:
        """Build the Trainer for a configuration."""
        self.folder = tempfile.TemporaryDirectory(prefix="sweeper-trainer-")
        arguments = {
            "output_dir": self.folder.name,
            "num_train_epochs": max_epochs,
            "seed": seed % 2**32,  # the Trainer also seeds numpy, which accepts seeds below 2³² only
            "save_strategy": "no",  # the callback requests each checkpoint
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

    def trainer(self, configuration: Configuration, arguments: dict[str, Any]) -> Trainer:
        """Return a Trainer whose `TrainingArguments` include `arguments`."""
        raise NotImplementedError

    def data(self, split: str) -> Any:
        """Return the data set of a split for the Trainer's `predict`."""
        raise NotImplementedError

    def train_epoch(self) -> dict[str, float]:
        """Train one epoch and return the mean loss and the last learning rate and gradient norm."""
        self.callback.logged = {}
        self.hugging_face.train(resume_from_checkpoint=get_last_checkpoint(self.folder.name))
        return self.callback.logged

    def predict(self, split: str) -> tuple[Tensor, Tensor]:
        """Return logits [N, K] and labels [N] of a split."""
        output = self.hugging_face.predict(self.data(split))
        # Some models also return hidden states; the logits come first.
        logits = output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions
        return torch.from_numpy(logits), torch.from_numpy(np.asarray(output.label_ids))

    def state_dict(self) -> dict[str, Any]:
        """Return the files of the Trainer's newest checkpoint as byte tensors."""
        newest = get_last_checkpoint(self.folder.name)
        if newest is None:
            return {"name": None, "files": {}}
        files = {path.name: path.read_bytes() for path in sorted(Path(newest).iterdir()) if path.name not in LEFT_OUT}
        files |= {name: _without_times(content) for name, content in files.items() if name == TRAINER_STATE_NAME}
        # `frombuffer` refuses empty files, which a Trainer does not need.
        held = {
            name: torch.frombuffer(bytearray(content), dtype=torch.uint8) for name, content in files.items() if content
        }
        return {"name": Path(newest).name, "files": held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, with its weights loaded for predictions before the next epoch."""
        if state["name"] is None:
            return
        # A checkpoint from elsewhere could name files outside of the folder.
        if outside := [name for name in (state["name"], *state["files"]) if Path(name).name != name]:
            raise ValueError(
                f"the checkpoint names {outside[0]!r}, which is outside its folder: it is not a Trainer's checkpoint"
            )
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

    def close(self) -> None:
        """Remove the Trainer's checkpoints; the sweep has its own copies."""
        self.folder.cleanup()
