"""What several workers a trial give: samples a second of ranks beside one process, and how near they compute the same.

On a CPU: two ranks of one thread beside one process of two threads and one of one, which take turns in every round;
the median counts, with the spread. What two ranks do twice (the loss of the whole batch, the optimiser's step) and
what they exchange (gradients, statistics of batch normalisation) is in their time. On cards (`--device cuda`, or
`make check-many-gpus`): 1, 2, 4, 8 ranks, a card each, as many as there are; a batch is the same for all, so that
efficiency is that of strong scaling. `--weak` lets it grow with the ranks.

The processors' time is that of all ranks and threads, without what waits at the exchanges: it stands where other
programs disturb the clock. The difference is that of the first epoch's training loss, relative.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from sweeper.storage.metadata import hardware
from tests.benchmarks.bench_replicates import configuration, data_for
from trainables.training.acceleration import TrainingSettings
from trainables.training.loop import Replicate
from trainables.training.ranks.replicate import RankedReplicate
from trainables.worker.ranks import LOOPBACK, Meeting, join, open_store


@dataclass(frozen=True)
class Way:
    """How a network is trained: by how many ranks, of how many threads each."""

    ranks: int
    threads: int

    @property
    def text(self) -> str:
        """It in words."""
        return f"{self.ranks} rank{'s' * (self.ranks > 1)} × {self.threads} thread{'s' * (self.threads > 1)}"


@dataclass(frozen=True)
class Row:
    """What is trained: a network on images of CIFAR's shape (or digits), batches of one size, so many a round."""

    network: str
    data: str
    batch_size: int
    steps: int
    device: str
    precision: str


def _work(row: Row, way: Way, meeting: Meeting, told: Connection) -> None:
    """Train an epoch for each word that comes; answer with its seconds and its training loss."""
    if row.device == "cuda":  # before anything asks for a card
        os.environ["CUDA_VISIBLE_DEVICES"] = str(meeting.rank)
    torch.set_num_threads(way.threads)
    data = data_for(row.data, row.steps, row.batch_size).to(row.device)
    settings: dict[str, Any] = {
        "seed": 0,
        "dataset": data,
        "max_epochs": 10_000,
        "device": row.device,
        "training": TrainingSettings(precision=row.precision),
    }
    values = configuration(row.network, row.batch_size)
    values["optimizer"]["lr"] = 0.01
    if way.ranks == 1:
        replicate = Replicate(values, **settings)
    else:
        replicate = RankedReplicate(values, ranks=join(meeting, row.device, LOOPBACK), **settings)
    while told.recv():
        started, worked = time.perf_counter(), time.process_time()
        loss = replicate.train_epoch()["train_loss"]  # a number, for which a card has finished
        told.send((time.perf_counter() - started, time.process_time() - worked, loss))


class Running:
    """The processes of one way, which wait for their turn."""

    def __init__(self, row: Row, way: Way) -> None:
        """Start them."""
        self.way, self.first_loss = way, float("nan")
        self.seconds: list[float] = []
        self.work: list[float] = []
        context = multiprocessing.get_context("spawn")
        self._store = open_store(LOOPBACK, way.ranks)
        self._pipes = []
        for rank in range(way.ranks):
            ours, theirs = context.Pipe()
            meeting = Meeting(LOOPBACK, self._store.port, rank, way.ranks)
            context.Process(target=_work, args=(row, way, meeting, theirs), daemon=True).start()
            theirs.close()
            self._pipes.append(ours)
        self.first_loss = self._epoch()[2]  # it warms up, too

    def turn(self) -> None:
        """Train an epoch and note its time."""
        seconds, work, _ = self._epoch()
        self.seconds.append(seconds)
        self.work.append(work)

    def end(self) -> None:
        """Let the processes end."""
        for pipe in self._pipes:
            pipe.send(False)

    def _epoch(self) -> tuple[float, float, float]:
        """Return an epoch's time, the processors' seconds of all ranks, and the training loss."""
        for pipe in self._pipes:
            pipe.send(True)
        seconds, work, losses = zip(*[pipe.recv() for pipe in self._pipes], strict=True)
        return max(seconds), sum(work), losses[0]


def measure(row: Row, ways: list[Way], rounds: int) -> None:
    """Print one network's table."""
    running = [Running(row, way) for way in ways]
    for _ in range(rounds):
        for each in running:
            each.turn()
    samples = row.steps * row.batch_size
    base = samples / statistics.median(running[0].seconds)
    for each in running:
        speeds = sorted(samples / seconds for seconds in each.seconds)
        speed = statistics.median(speeds)
        difference = abs(each.first_loss / running[0].first_loss - 1)
        named = f"  {row.network:<10}{row.precision:<10}batch {row.batch_size:<6}{each.way.text:<22}"
        spread = f"{speed:>9,.0f} samples/s ({speeds[0]:,.0f} to {speeds[-1]:,.0f})"
        work = 1e3 * statistics.median(each.work) / samples
        ratios = f"{speed / base:.2f} times the first, {work:.3g} ms of processors a sample"
        print(f"{named}{spread}, {ratios}, loss differs by {difference:.1e}", flush=True)
        each.end()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--networks", nargs="*")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--weak", action="store_true", help="the batch grows with the ranks")
    asked = parser.parse_args()
    print(f"{hardware()}, {asked.rounds} rounds")
    if asked.device == "cpu":
        ways = [Way(1, 1), Way(1, 2), Way(2, 1)]
        for network in asked.networks or ["mlp", "resnet8", "resnet20"]:
            size = asked.batch_size or 128
            data = "digits" if network in ("mlp", "resnet8") else "cifar"
            measure(Row(network, data, size, 8 if data == "digits" else 2, "cpu", "float32"), ways, asked.rounds)
        return
    counts = [count for count in (1, 2, 4, 8) if count <= torch.cuda.device_count()]
    for network in asked.networks or ["resnet18", "resnet50"]:
        for precision in ("float32", "bfloat16"):
            size = asked.batch_size or 1024
            if not asked.weak:
                measure(Row(network, "cifar", size, 20, "cuda", precision), [Way(n, 1) for n in counts], asked.rounds)
                continue
            for n in counts:
                measure(Row(network, "cifar", size * n, 20, "cuda", precision), [Way(n, 1)], asked.rounds)


if __name__ == "__main__":
    main()
