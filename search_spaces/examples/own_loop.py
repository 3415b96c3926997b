"""A plain PyTorch loop with its own data: it trains an epoch, predicts, and saves and loads its state."""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import sweeper
from trainables.losses import build_loss


class Loop(sweeper.TrainingLoop):
    def __init__(self, configuration, *, seed, max_epochs):
        inputs, targets = map(torch.tensor, load_breast_cancer(return_X_y=True))
        inputs, width = ((inputs - inputs.mean(0)) / inputs.std(0)).float(), configuration["width"]
        parts = torch.randperm(569, generator=torch.Generator().manual_seed(0)).split([341, 114, 114])
        self.data = {n: (inputs[rows], targets[rows]) for n, rows in zip(("train", "val", "test"), parts, strict=True)}
        self.model = nn.Sequential(nn.Linear(30, width), nn.ReLU(), nn.Linear(width, 2))
        self.loss = build_loss(**configuration["loss"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=configuration["lr"])
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, max_epochs)

    def train_epoch(self):
        for rows in torch.randperm(341).split(32):
            inputs, targets = (part[rows] for part in self.data["train"])
            self.optimizer.zero_grad()
            (value := self.loss(self.model(inputs), targets)).backward()
            self.optimizer.step()
        self.schedule.step()
        return {"train_loss": value.item(), "weight_norm": self.model[0].weight.norm().item()}

    @torch.no_grad()
    def predict(self, split):
        return self.model(self.data[split][0]), self.data[split][1]

    def state_dict(self):
        return {name: vars(self)[name].state_dict() for name in ("model", "optimizer", "schedule")}

    def load_state_dict(self, state):
        for name, part in state.items():
            vars(self)[name].load_state_dict(part)
