"""Five replicates as lanes, one after the other, and as separate trials: wall time, throughput, and what auto takes.

Each row trains the replicates of one configuration a core, for the same steps on the same data, in as many processes
as there are cores, one thread each, as a sweep does: `lanes` and `sequential` with all replicates of a configuration
in one process, `trials` with each replicate for itself. Processes, networks and data are ready before the clock
starts. The ways alternate in every round; the median counts. The processor's seconds are those of work alone, so that
they stand where other programs disturb the wall clock. Validation is one batch, so that steps are what
is timed. Nothing of this is about quality: lanes end where the same seeds end alone, which tests hold.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any

import torch

from sweeper.storage.metadata import hardware
from tests.packs import Packed, pack
from tests.trainables.small_data import small_digits
from trainables.datasets.base import DataSet, Split
from trainables.datasets.image_stream import CropAndFlip, ImagePreprocessing
from trainables.training.lanes.packing import LANES, SEQUENTIAL, chosen_packing
from trainables.training.loop import Replicate

# architecture → data, steps of an epoch, batch size
ROWS: dict[str, tuple[str, int, int]] = {
    "mlp": ("digits", 8, 128),
    "resnet8": ("digits", 8, 128),
    "resnet20": ("cifar", 2, 64),
    "resnet18": ("cifar", 1, 16),
}
EPOCHS_A_ROUND = {"mlp": 20}


def data_for(kind: str, steps: int, batch_size: int) -> DataSet:
    """Return the digits, or images of CIFAR's shape, cut to `steps` batches."""
    samples = steps * batch_size
    if kind == "digits":
        return small_digits(samples, batch_size)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (samples, 3, 32, 32), generator=generator, dtype=torch.uint8)
    targets = torch.randint(0, 10, (samples,), generator=generator)
    preprocessing = ImagePreprocessing((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    train = Split(images, targets, preprocessing, CropAndFlip())
    held = Split(images[:batch_size], targets[:batch_size], preprocessing)
    return DataSet("cifar_shaped", train, held, held, 10, (3, 32, 32), "")


def configuration(architecture: str, batch_size: int) -> dict[str, Any]:
    """Return a published recipe around an architecture."""
    recipe = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": batch_size}
    return {"loss": {"name": "cross_entropy"}, "architecture": {"name": architecture}, "optimizer": recipe}


def build(architecture: str, seed: int, data: DataSet, device: str) -> Replicate:
    """Return one replicate on its device."""
    values = configuration(architecture, ROWS[architecture][2])
    return Replicate(values, seed=seed, dataset=data, max_epochs=1000, device=device)


_held: dict[tuple[str, str, tuple[int, ...]], Packed] = {}


def train(architecture: str, seeds: tuple[int, ...], way: str, epochs: int, device: str) -> float:
    """Train a group of replicates in this process, which keeps it between rounds; return the processor's seconds."""
    torch.set_num_threads(1)
    key = (architecture, way, seeds)
    if key not in _held:
        data = data_for(*ROWS[architecture]).to(device)
        _held[key] = pack([build(architecture, seed, data, device) for seed in seeds], way)
    started = time.process_time()
    for _ in range(epochs):
        _held[key].train_epoch()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.process_time() - started


def choice(architecture: str, count: int, device: str) -> tuple[str, float]:
    """Return what `auto` takes in this process and the seconds it needs to find out."""
    torch.set_num_threads(1)
    data = data_for(*ROWS[architecture]).to(device)
    values = configuration(architecture, ROWS[architecture][2])
    started = time.perf_counter()
    taken = chosen_packing(
        "auto", lambda seed, few: build(architecture, seed, few, device), values, range(count), data, device
    )
    return taken, time.perf_counter() - started


def jobs(count: int, workers: int) -> dict[str, list[tuple[tuple[int, ...], str]]]:
    """Return each way's jobs, seeds and packing: one configuration of `count` replicates a worker in all ways."""
    groups = [tuple(range(w * count, (w + 1) * count)) for w in range(workers)]
    return {
        LANES: [(seeds, LANES) for seeds in groups],
        SEQUENTIAL: [(seeds, SEQUENTIAL) for seeds in groups],
        "trials": [((seed,), SEQUENTIAL) for seeds in groups for seed in seeds],
    }


def measure(
    architecture: str, count: int, rounds: int, device: str, pools: Sequence[Any]
) -> dict[str, list[tuple[float, float]]]:
    """Return each way's wall seconds and mean processor seconds a core, one pair a round, after one to warm up."""
    epochs = EPOCHS_A_ROUND.get(architecture, 1)
    seconds: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds + 1):
        for way, ready in jobs(count, len(pools)).items():
            started = time.perf_counter()
            running = [
                pools[number % len(pools)].submit(train, architecture, seeds, packing, epochs, device)
                for number, (seeds, packing) in enumerate(ready)
            ]
            spent = sum(job.result() for job in running) / len(pools)
            seconds.setdefault(way, []).append((time.perf_counter() - started, spent))
    return {way: times[1:] for way, times in seconds.items()}


def megabytes_a_lane(architecture: str) -> float:
    """Return the weights, gradients and momentum of one lane."""
    replicate = build(architecture, 0, data_for(*ROWS[architecture]), "cpu")
    return 3 * sum(p.numel() * p.element_size() for p in replicate.model.parameters()) / 2**20


def print_row(architecture: str, count: int, rounds: int, device: str, pools: Sequence[Any]) -> None:
    """Measure and print one architecture."""
    _, steps, batch_size = ROWS[architecture]
    samples = len(pools) * count * steps * batch_size * EPOCHS_A_ROUND.get(architecture, 1)
    seconds = measure(architecture, count, rounds, device, pools)
    medians = {way: statistics.median(wall for wall, _ in times) for way, times in seconds.items()}
    busy = {way: statistics.median(spent for _, spent in times) for way, times in seconds.items()}
    taken, spent = pools[0].submit(choice, architecture, count, device).result()
    print(f"{architecture}, batch {batch_size}, {count} replicates, {megabytes_a_lane(architecture):.1f} MB a lane")
    for way, times in seconds.items():
        spread = f"{min(times)[0]:.3f} to {max(times)[0]:.3f}, n = {len(times)}"
        print(
            f"  {way:<11}{medians[way]:8.3f} s ({spread}){samples / medians[way]:9.0f} samples/s"
            f"{medians[SEQUENTIAL] / medians[way]:7.2f}×   processor {busy[way]:7.3f} s"
            f"{busy[SEQUENTIAL] / busy[way]:7.2f}×"
        )
    behind = [times[taken] / min(times.values()) - 1 for times in (medians, busy)]
    print(
        f"  auto takes {taken} in {spent:.1f} s, behind the fastest of the three by {behind[0]:.0%} of wall time, "
        f"{behind[1]:.0%} of the processor's",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS])
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, help="processes that train at once; as many as there are cores")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    workers = options.workers or cores
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn)) for _ in range(workers)]
        for row in options.rows:
            print_row(row, options.count, options.rounds, options.device, pools)
    print(f"{workers} processes of one thread, {cores} cores, {options.device}, {hardware()['processor']}")


if __name__ == "__main__":
    main()
