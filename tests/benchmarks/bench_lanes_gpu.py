"""Replicates on a card: samples/s of fused lanes, one after the other, and as processes that each take a fraction.

For resnet20 and ResNet-18 at 32×32 and K = 1, 2, 5, 10, 20 replicates: the same networks on the same data, ready
before the clock starts; ways alternate in every round and the median counts. Processes are capped at their share of
the card's memory, as trials of a sweep are. With it the card's utilisation while it was busy (nvidia-smi, where it is
installed) and the most memory that torch's allocator held.

`--device cpu --smoke` runs the same code on tiny networks without a card; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.benchmarks.bench_replicates import configuration, data_for
from tests.packs import pack
from trainables.training.acceleration import TrainingSettings
from trainables.training.lanes.packing import FUSED, SEQUENTIAL, Packed
from trainables.training.loop import Replicate

NETWORKS = ("resnet20", "resnet18")
COUNTS = (1, 2, 5, 10, 20)
FRACTIONS = "fractions"


@dataclass(frozen=True)
class Job:
    """What to train: a network, replicates by seed, batches and arithmetic."""

    network: str
    seeds: tuple[int, ...]
    packing: str
    steps: int
    batch_size: int
    device: str
    training: TrainingSettings
    options: dict[str, Any] = field(default_factory=dict)
    share: float = 1.0


_held: dict[str, Packed] = {}


def prepare(job: Job) -> None:
    """Build the job's replicates in this process and train an epoch of them."""
    if job.device == "cuda" and job.share < 1:
        torch.cuda.set_per_process_memory_fraction(job.share)
    torch.set_num_threads(1)
    data = data_for("cifar", job.steps, job.batch_size).to(job.device)
    values = configuration(job.network, job.batch_size)
    values["architecture"] |= job.options
    settings = {"dataset": data, "max_epochs": 10_000, "device": job.device, "training": job.training}
    _held.clear()
    _held["group"] = pack([Replicate(values, seed=seed, **settings) for seed in job.seeds], job.packing)
    train(job.device)


def train(device: str, epochs: int = 1) -> float:
    """Train what this process holds; return the most memory that was held, in MiB."""
    for _ in range(epochs):
        _held["group"].train_epoch()
    if device != "cuda":
        return 0.0
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20


class Utilisation:
    """What nvidia-smi says of the card while it is entered: the mean utilisation in percent and power in watts."""

    def __init__(self, device: str) -> None:
        """Ask nothing where there is no card or no nvidia-smi."""
        self._asks = device == "cuda" and shutil.which("nvidia-smi") is not None
        self._samples: list[tuple[float, float]] = []
        self._end = threading.Event()

    def __enter__(self) -> Utilisation:
        """Begin to ask."""
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ask no more."""
        self._end.set()
        self._thread.join()

    @property
    def text(self) -> str:
        """The means, or that they are unknown."""
        if not self._samples:
            return "unknown"
        busy, watts = (statistics.mean(each) for each in zip(*self._samples, strict=True))
        return f"{busy:3.0f} % busy, {watts:.0f} W"

    def _watch(self) -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu,power.draw", "--format=csv,noheader,nounits", "--id=0"]
        while self._asks and not self._end.wait(0.2):
            answer = subprocess.run(command, capture_output=True, text=True)
            with contextlib.suppress(ValueError):  # a virtual machine's card may not tell its power
                busy, watts = map(float, answer.stdout.split(","))
                self._samples.append((busy, watts))


def jobs(way: str, count: int, common: dict[str, Any]) -> list[Job]:
    """Return the processes' jobs of one way."""
    if way != FRACTIONS:
        return [Job(seeds=tuple(range(count)), packing=way, **common)]
    return [Job(seeds=(seed,), packing=SEQUENTIAL, share=1 / count, **common) for seed in range(count)]


def measure(way: str, count: int, common: dict[str, Any], rounds: int, epochs: int) -> str:
    """Return the row of one way."""
    ready = jobs(way, count, common)
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn)) for _ in ready]
        try:
            for running in [pool.submit(prepare, job) for pool, job in zip(pools, ready, strict=True)]:
                running.result()
            seconds, held = _rounds(pools, ready[0].device, rounds, epochs)
        except (RuntimeError, NotImplementedError) as error:  # out of memory, or what torch cannot map
            return f"{way:<12}{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    samples = count * epochs * common["steps"] * common["batch_size"]
    rates = [samples / taken for taken in seconds[0]]
    spread = f"{min(rates):.0f} to {max(rates):.0f}, n = {len(rates)}"
    return f"{way:<12}{statistics.median(rates):10.0f} samples/s ({spread})   {held:8.0f} MiB   {seconds[1]}"


def _rounds(
    pools: Sequence[ProcessPoolExecutor], device: str, rounds: int, epochs: int
) -> tuple[tuple[list[float], str], float]:
    seconds, held = [], 0.0
    with Utilisation(device) as utilisation:
        for _ in range(rounds):
            started = time.perf_counter()
            running = [pool.submit(train, device, epochs) for pool in pools]
            held = sum(job.result() for job in running)
            seconds.append(time.perf_counter() - started)
    return (seconds, utilisation.text), held


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny networks, to see that the command works")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--counts", nargs="+", type=int, default=[*COUNTS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="in a round")
    parser.add_argument("--steps", type=int, default=20, help="in an epoch")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "bench-lanes-gpu needs a CUDA card, and torch sees none; to see the command work without one: "
            "python -m tests.benchmarks.bench_lanes_gpu --device cpu --smoke"
        )
    width: dict[str, Any] = {}
    if options.smoke:
        options.counts, options.rounds, options.epochs, options.steps, options.batch_size = [1, 2], 2, 1, 1, 4
        width = {"width": 0.25}
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, batch {options.batch_size}, {options.precision}{', smoke: figures mean nothing' * options.smoke}")
    for network in options.networks:
        common = {
            "network": network,
            "steps": options.steps,
            "batch_size": options.batch_size,
            "device": options.device,
            "training": TrainingSettings(precision=options.precision),
            "options": width,
        }
        for count in options.counts:
            for way in (FUSED, SEQUENTIAL, FRACTIONS):
                row = measure(way, count, common, options.rounds, options.epochs)
                print(f"{network:<10}{count:3d} replicates   {row}", flush=True)


if __name__ == "__main__":
    main()
