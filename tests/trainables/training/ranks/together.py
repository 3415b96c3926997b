"""Real ranks on this machine: processes that meet over gloo and train the same configurations, in float64.

float32 rounds differently where sums are split, and training amplifies it: after three epochs losses differ by 1e-6 to
1e-2. In float64 they agree, which shows that ranks compute what one process computes.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.patience import patient
from tests.trainables.small_data import small_digits
from trainables.datasets.base import DataSet, Split
from trainables.datasets.image_stream import CropAndFlip
from trainables.training.acceleration import TrainingSettings
from trainables.training.loop import Replicate
from trainables.training.ranks.replicate import RankedReplicate
from trainables.worker.ranks import LOOPBACK, Meeting, join, open_store

EPOCHS = 3
SEED = 7

Configuration = Mapping[str, Any]


@dataclass(frozen=True)
class Trained:
    """What a training gave: its epochs' rows, the weights, and the loss's state."""

    rows: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]
    state: dict[str, Any]


def small_data(train: int = 97) -> DataSet:
    """Return augmented digits in float64: with batches of 32 the last one has a single sample."""

    def double(split: Split) -> Split:
        return replace(split, inputs=split.prepare(split.inputs).double(), preprocessing=None)

    digits = small_digits(train, held_out=90).with_splits(double)
    return replace(digits, train=replace(digits.train, augmentation=CropAndFlip(1, flip=False)))


def train(replicate: Replicate) -> Trained:
    """Train a replicate in float64."""
    for network in (replicate.model, replicate.measured):
        network.double()
    rows = [replicate.train_epoch() for _ in range(EPOCHS)]
    state = dict(replicate.loss.state_dict())
    return Trained(
        [{k: v for k, v in row.items() if k != "seconds"} for row in rows], replicate.model.state_dict(), state
    )


def alone(configuration: Configuration, data: DataSet, device: str = "cpu", **training: Any) -> Trained:
    """Train in this process, as one rank."""
    settings = TrainingSettings(**training)
    return train(Replicate(configuration, seed=SEED, dataset=data, max_epochs=EPOCHS, device=device, training=settings))


def by_ranks(
    configurations: Sequence[Configuration], size: int, device: str = "cpu", **training: Any
) -> list[list[Trained]]:
    """Train each configuration by `size` ranks; return what every rank has in the end, rank by rank.

    On `cuda` each rank has a card to itself.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    store = open_store(LOOPBACK, size)
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = []
    for rank, (_, ours) in enumerate(pipes):
        meeting = Meeting(LOOPBACK, store.port, rank, size)
        processes.append(
            context.Process(target=_rank, args=(meeting, device, configurations, training, ours), daemon=True)
        )
        processes[-1].start()
        ours.close()
    found = []
    for theirs, _ in pipes:
        assert theirs.poll(patient(200)), "a rank does not answer"
        found.append([Trained(*parts) for parts in theirs.recv()])
    for process in processes:
        process.join(patient(30))
        assert process.exitcode == 0
    return found


def _rank(
    meeting: Meeting, device: str, configurations: Sequence[Configuration], training: Mapping[str, Any], told: Any
) -> None:
    if device == "cuda":  # before anything asks for a card
        os.environ["CUDA_VISIBLE_DEVICES"] = str(meeting.rank)
    torch.set_num_threads(1)
    ranks, data = join(meeting, device, LOOPBACK), small_data().to(device)
    settings = TrainingSettings(**training)
    found = []
    for configuration in configurations:
        twin = RankedReplicate(
            configuration, seed=SEED, dataset=data, max_epochs=EPOCHS, ranks=ranks, device=device, training=settings
        )
        done = train(twin)
        # numpy's arrays, since tensors would be sent as shared memory, which ends with this process
        weights = {name: tensor.cpu().numpy() for name, tensor in done.weights.items()}
        state = {name: v.cpu().numpy() if isinstance(v, torch.Tensor) else v for name, v in done.state.items()}
        found.append((done.rows, weights, state))
    told.send(found)
