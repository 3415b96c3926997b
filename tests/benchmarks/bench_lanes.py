"""What cohorts save: sweeps of small networks as lanes, beside a bare loop, one by one, and on Ray.

For 256 mlps of 10 epochs on digits, one replicate each, at batch sizes 16 to 128; for asynchronous halving at 3, 9 and
27 epochs over 512 configurations; and for resnet8, whose convolutions lose as lanes on a CPU, so that `auto` should
decline them. All sinks on. Efficiency is that of `bench_overhead`: (time of the trials in a plain loop ÷ cores) ÷ the
sweep's, steady from the first trial's end to the last. Loop and sequential sweep are run on fewer trials where they
are slow, and compared by the time a trial takes. Last, what a lane costs in an epoch by width: where products of
matrices fill a core, more lanes gain nothing more.

    make bench-lanes                                  # about ten minutes on two quiet cores
    python -m tests.benchmarks.bench_lanes --only widths
"""

import argparse
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.storage.metadata import hardware
from tests.benchmarks.bench_overhead import SPACE, loop_seconds, measured
from trainables.datasets import load_dataset
from trainables.training.lanes.cohort import Cohort
from trainables.training.loop import Replicate

BATCHES = (16, 32, 64, 128)
WIDTHS = (1, 4, 8, 16, 32, 64)
PACKINGS = ("sequential", "lanes", "auto")
BESIDE = (("sequential", "local"), ("lanes", "local"), ("lanes", "ray"))
"""Packings and executors that are compared at each batch size."""
HALVING = ("scheduler: {name: none, max_epochs: 10}", "scheduler: {name: asha, max_epochs: 27, grace_epochs: 3}")
RESNET = ("architecture: mlp", "architecture: resnet8")


@dataclass(frozen=True)
class Run:
    """One sweep. Where trials are stopped early, an epoch's seconds stand for a trial's.

    Attributes:
        trial_seconds: wall seconds a trial, from the first trial's end on.
        started_seconds: the same, from the sweep's start on.
        wall: seconds of the whole command.
        processor: its processor seconds, all processes together.
        epochs: how many were trained.
    """

    trial_seconds: float
    started_seconds: float
    wall: float
    processor: float
    epochs: int


def space_of(folder: Path, samples: int, batch: int, packing: str, *changes: tuple[str, str]) -> Path:
    """Write a search space."""
    text = SPACE % {"samples": samples, "replicates": f"{{count: 1, packing: {packing}}}"}
    text = text.replace("batch_size: 128", f"batch_size: {batch}")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / f"space-{time.time_ns()}.yaml"
    path.write_text(text)
    return path


def swept(space: Path, folder: Path, executor: str = "local") -> Run:
    """Run a sweep on all cores."""
    name = f"cohorts-{time.time_ns()}"
    command = [sys.executable, "-m", "sweeper", "run", str(space), "--name", name, "--output", str(folder / "results")]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([*command, "--executor", executor], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    records = list(read_journal(SweepPaths(folder / "results" / name).journal))
    reports = [record for record in records if record.kind == "report"]
    epochs = sum(len(record.body.report.epochs) for record in reports)  # type: ignore[attr-defined]  # reports have one
    if any(record.body.status == "early_stopped" for record in reports):  # type: ignore[attr-defined]
        began = next(record.time for record in records if record.kind == "attempt")
        first, last = reports[0].time, reports[-1].time
        return Run((last - first) / epochs, (last - began) / epochs, wall, _spent(before, after), epochs)
    whole, steady, counted = measured(records)
    ended = sum(record.body.status == "completed" for record in reports)  # type: ignore[attr-defined]  # reports have one
    return Run(steady / max(1, counted), whole / ended, wall, _spent(before, after), epochs)


def _spent(before: resource.struct_rusage, after: resource.struct_rusage) -> float:
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_batch(folder: Path, batches: Sequence[int], samples: int, fewer: int, cores: int, rounds: int) -> None:
    """Print sweep efficiency by batch size."""
    print(f"{samples} mlps of 10 epochs, 1 replicate; efficiency steady against a bare loop (median of {rounds})")
    for batch in batches:
        loops, found = [], dict[str, list[Run]]()
        for _ in range(rounds):
            loops.append(loop_seconds(space_of(folder, fewer, batch, "sequential")) / fewer)
            for packing, executor in BESIDE:
                count = samples if packing != "sequential" else 2 * fewer
                run = swept(space_of(folder, count, batch, packing), folder, executor)
                found.setdefault(f"{packing} ({executor})", []).append(run)
        loop = statistics.median(loops)
        parts = []
        for packing, runs in found.items():
            each = sorted(loop_each / cores / run.trial_seconds for loop_each, run in zip(loops, runs, strict=True))
            spread = f" ({each[0]:.2f} to {each[-1]:.2f})" if rounds > 1 else ""
            started = statistics.median(run.trial_seconds / run.started_seconds for run in runs)
            parts.append(
                f"{packing} {statistics.median(each):.2f}{spread}, {1000 * runs[-1].trial_seconds:.0f} ms a trial, "
                f"with start-up {started:.2f} of that"
            )
        print(f"  batch {batch:3d}: loop {1000 * loop:.0f} ms a trial; {'; '.join(parts)}", flush=True)


def several(folder: Path, title: str, make: Callable[[str], Path], packings: tuple[str, ...], rounds: int) -> None:
    """Print a sweep's time in several packings, in turns."""
    found = dict[str, list[Run]]()
    for _ in range(rounds):
        for packing in packings:
            found.setdefault(packing, []).append(swept(make(packing), folder))
    best = min(statistics.median(run.wall for run in runs) for runs in found.values())
    print(title)
    for packing, runs in found.items():
        wall, spent = (statistics.median(getattr(run, key) for run in runs) for key in ("wall", "processor"))
        print(
            f"  {packing:<11}{wall:7.1f} s wall ({wall / best - 1:+.0%} of the best), processor {spent:7.1f} s, "
            f"{statistics.median(run.epochs for run in runs):.0f} epochs",
            flush=True,
        )


def widths(device: str, networks: Sequence[str], batches: Sequence[int], counts: Sequence[int], rounds: int) -> None:
    """Print what a lane costs in an epoch, by network, batch size and width: the processor's time, or a card's."""
    torch.set_num_threads(1)
    data = load_dataset("digits").to(device)
    print("an epoch on digits, ms a lane (gain over alone), by lanes of the cohort")
    with tempfile.TemporaryDirectory() as folder:
        drawn = configurations(load_spec(space_of(Path(folder), max(counts), 128, "lanes")))
    for network, batch in itertools.product(networks, batches):

        def build(number: int, network: str = network, batch: int = batch) -> Replicate:
            values = {**drawn[number], "architecture": {"name": network}}
            values["optimizer"] = {**values["optimizer"], "batch_size": batch}
            return Replicate(values, seed=number, dataset=data, max_epochs=1000, device=device)

        alone = _fastest(build(0).train_epoch, device, rounds)
        cells = [f"alone {1000 * alone:.2f}"]
        for width in counts:
            cohort = Cohort(build(0), width)
            for number in range(width):
                cohort.join(build(number))
            each = _fastest(cohort.train_epoch, device, rounds) / width
            cells.append(f"{width}: {1000 * each:.2f} ({alone / each:.1f}×)")
        print(f"  {network}, batch {batch}: {', '.join(cells)}", flush=True)


def _fastest(train: Callable[[], object], device: str, rounds: int) -> float:
    clock = time.process_time if device == "cpu" else time.perf_counter
    times = []
    for _ in range(rounds + 1):
        began = clock()
        train()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - began)
    return min(times[1:])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--fewer", type=int, default=32, help="trials of the loop; twice as many of the slow sweep")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--only", choices=("batches", "halving", "resnet", "widths"))
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    wanted = [options.only] if options.only else ["widths", "batches", "halving", "resnet"]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if "widths" in wanted:
            widths("cpu", ["mlp"], BATCHES, WIDTHS, max(3, options.rounds))
        if "batches" in wanted:
            by_batch(folder, options.batches, options.samples, options.fewer, cores, options.rounds)
        if "halving" in wanted:
            several(
                folder,
                f"halving at 3, 9 and 27 epochs over {2 * options.samples} mlps, batch 128",
                lambda packing: space_of(folder, 2 * options.samples, 128, packing, HALVING),
                PACKINGS,
                options.rounds,
            )
        if "resnet" in wanted:
            several(
                folder,
                f"{options.samples // 16} resnet8 of 10 epochs, batch 128",
                lambda packing: space_of(folder, options.samples // 16, 128, packing, RESNET),
                PACKINGS,
                options.rounds,
            )
    load = os.getloadavg()[1]
    print(f"{cores} cores, {hardware()['processor']}, load average {load:.1f}")


if __name__ == "__main__":
    main()
