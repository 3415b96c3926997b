"""A LightningModule and its DataModule, which the last class turns into a sweep."""

import lightning
import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


class Wine(lightning.LightningDataModule):
    def setup(self, stage):
        inputs, targets = (torch.tensor(part) for part in load_wine(return_X_y=True))
        data = TensorDataset(((inputs - inputs.mean(0)) / inputs.std(0)).float(), targets)
        # The split has its own seed, so that every trial and seed sees the same validation samples.
        self.parts = torch.utils.data.random_split(data, [98, 40, 40], torch.Generator().manual_seed(0))
        self.train_dataloader = lambda: DataLoader(self.parts[0], 16, shuffle=True)
        self.val_dataloader, self.test_dataloader = (lambda n=n: DataLoader(self.parts[n], 64) for n in (1, 2))


class Loop(LightningLoop):
    module, data = (lambda self, configuration: Net(**configuration)), (lambda self, configuration: Wine())
