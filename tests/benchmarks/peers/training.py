"""The training function that all contenders share: this project's `Replicate`, one torch thread, val_nll each epoch."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.peers.plan import METRIC, Plan
from trainables.datasets import load_dataset
from trainables.datasets.base import DataSet
from trainables.training import Replicate

CHECKPOINT = "replicate.pt"


class Training:
    """One configuration of a plan between its first epoch and its last."""

    def __init__(self, plan: Plan, index: int) -> None:
        """Build configuration `index`."""
        torch.set_num_threads(1)
        self.plan = plan
        chosen: Any = plan.configurations[index]
        self.replicate = Replicate(
            chosen["values"], seed=chosen["seed"], dataset=_dataset(**plan.dataset), max_epochs=plan.max_epochs
        )

    @property
    def finished(self) -> bool:
        """Whether the last epoch is trained."""
        return self.replicate.epoch >= self.plan.max_epochs

    @property
    def saves(self) -> bool:
        """Whether a checkpoint is due."""
        return self.plan.checkpoints and self.replicate.epoch in self.plan.rungs

    def step(self) -> dict[str, float]:
        """Train an epoch and return what is reported of it."""
        row = self.replicate.train_epoch()
        return {"epoch": row["epoch"], METRIC: row[METRIC]}

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        torch.save(self.replicate.state_dict(), folder / CHECKPOINT)

    def load(self, folder: Path) -> None:
        """Continue from a checkpoint."""
        self.replicate.load_state_dict(torch.load(folder / CHECKPOINT))


@cache
def _dataset(name: str, **options: object) -> DataSet:
    return load_dataset(name, **options)
