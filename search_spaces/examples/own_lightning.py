"""A LightningModule and its DataModule, which the last class turns into a sweep."""

import lightning
import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset, random_split

from trainables.losses import build_loss
from trainables.training.lightning import LightningLoop


class Net(lightning.LightningModule):
    def __init__(self, lr, loss):
        super().__init__()
        self.lr, self.loss = lr, build_loss(**loss)
        self.layers = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, inputs):
        return self.layers(inputs)

    def training_step(self, batch, _):
        loss = self.loss(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return [optimizer], [CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


class Wine(lightning.LightningDataModule):
    def setup(self, stage):
        inputs, targets = (torch.tensor(part) for part in load_wine(return_X_y=True))
        data = TensorDataset(((inputs - inputs.mean(0)) / inputs.std(0)).float(), targets)
        # The split has its own seed: every trial sees the same validation samples.
        self.train, self.val, self.test = random_split(data, [98, 40, 40], torch.Generator().manual_seed(0))

    def train_dataloader(self):
        return DataLoader(self.train, 16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, 64)

    def test_dataloader(self):
        return DataLoader(self.test, 64)


class Loop(LightningLoop):
    def module(self, configuration):
        return Net(**configuration)

    def data(self, configuration):
        return Wine()
