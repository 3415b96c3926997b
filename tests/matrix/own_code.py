"""The users' own code of the matrix: three loops, a LightningModule, and a network that fails while a file is there."""

LOOPS = """
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from torch import nn

import sweeper


class Loop(sweeper.TrainingLoop):
    data, outputs = staticmethod(load_wine), 3

    def __init__(self, configuration, *, seed):
        self.predicts = configuration.get("predicts", "logits")
        inputs, targets = map(torch.tensor, self.data(return_X_y=True))
        inputs = ((inputs - inputs.mean(0)) / inputs.std(0)).float()
        splits = ("train", "val", "test")
        self.parts = {split: (inputs[at::3], targets[at::3]) for at, split in enumerate(splits)}
        self.model = nn.Linear(inputs.shape[1], self.outputs)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=configuration.get("lr", 0.3))

    def value(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)

    def train_epoch(self):
        inputs, targets = self.parts["train"]
        self.optimizer.zero_grad()
        (value := self.value(self.model(inputs), targets)).backward()
        self.optimizer.step()
        return {"train_loss": value.item()}

    @torch.no_grad()
    def predict(self, split):
        outputs, targets = self.model(self.parts[split][0]), self.parts[split][1]
        return outputs.softmax(1) if self.predicts == "probabilities" else outputs, targets

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class OneLogit(Loop):
    data, outputs = staticmethod(load_breast_cancer), 1

    def value(self, outputs, targets):
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.float())


class Measures(sweeper.TrainingLoop):
    measures = ("nll", "accuracy", "ece")

    def __init__(self, configuration):
        self.lr, self.epochs = configuration["lr"], 0

    def train_epoch(self):
        self.epochs += 1
        return {}

    def measure(self, split, stage):
        return {"nll": self.lr / self.epochs + (split == "test"), "accuracy": 1 - self.lr, "ece": self.lr / 2}

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]
"""

LIGHTNING = """
import lightning
import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainables.training.lightning import LightningLoop


class Net(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr, self.layer = lr, nn.Linear(13, 3)

    def forward(self, inputs):
        return self.layer(inputs)

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Wine(lightning.LightningDataModule):
    def setup(self, stage):
        inputs, targets = map(torch.tensor, load_wine(return_X_y=True))
        inputs, part = ((inputs - inputs.mean(0)) / inputs.std(0)).float(), torch.arange(178) % 3
        self.parts = [TensorDataset(inputs[part == at], targets[part == at]) for at in range(3)]

    def train_dataloader(self):
        return DataLoader(self.parts[0], 30, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], 60)

    def test_dataloader(self):
        return DataLoader(self.parts[2], 60)


class Loop(LightningLoop):
    def module(self, configuration):
        return Net(**configuration)

    def data(self, configuration):
        return Wine()
"""

NETWORK = '''
from pathlib import Path

from torch import nn


class Fragile(nn.Module):
    """A network that fails in its fourth step if it has 12 hidden units and the file `missing` is there.

    Args:
        missing: a path.
        width: number of hidden units, "[1, inf)".
    """

    def __init__(self, input_shape, classes, missing: str = "", width: int = 8):
        super().__init__()
        features = 1
        for size in input_shape:
            features *= size
        self.missing, self.width, self.steps = Path(missing), width, 0
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(features, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, inputs):
        if self.training:
            self.steps += 1
            if self.width == 12 and self.steps > 3 and self.missing.exists():
                raise OSError("what this network needs is missing")
        return self.layers(inputs)
'''
