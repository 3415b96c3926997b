"""Cohorts on a card: what a lane's epoch costs by width, and whole sweeps as lanes, as processes that share, and plain.

First one process: milliseconds a lane of an epoch of mlps and of resnet8 on digits, alone,
and as lanes. Then sweeps of mlps of 10 epochs with every sink but MLflow: as cohorts, and one by one, in processes that
each take a share of the card, beside the same trials in a plain loop on it. A sweep counts steadily, from the first
trial's end to the last. What nvidia-smi says of the card is beside each. With `--mps`, under which `CUDA_MPS_*` must be
set already, only processes that share are run.

    make bench-lanes-gpu
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.storage.metadata import hardware
from tests.benchmarks.bench_lanes import space_of, widths
from tests.benchmarks.bench_overhead import measured

WIDTHS = (1, 4, 16, 64, 256)
NETWORKS = ("mlp", "resnet8")
BATCHES = (128, 16)
PROCESSES = (1, 4, 8)


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


def swept(folder: Path, packing: str, samples: int, batch: int, gpu: float, cores: int) -> tuple[float, float, str]:
    """Run a sweep; return seconds a trial, steady and from the start, and what nvidia-smi said meanwhile."""
    resources = ("resources: {cpu: 1}", f"resources: {{cpu: 1, gpu: {gpu:g}}}")
    space, name = space_of(folder, samples, batch, packing, resources), f"cohorts-{time.time_ns()}"
    command = [sys.executable, "-m", "sweeper", "run", str(space), "--name", name, "--output", str(folder / "results")]
    with Utilisation("cuda" if gpu else "cpu") as card:
        done = subprocess.run([*command, "--no-mlflow", "--cpus", str(cores)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    whole, steady, counted = measured(list(read_journal(SweepPaths(folder / "results" / name).journal)))
    if not counted:
        raise SystemExit(f"all {samples} trials ended together: ask for more of them (--samples)")
    return steady / counted, whole / samples, card.text


def loop_seconds(space: Path, device: str) -> tuple[float, str]:
    """Return the time that all trials take one after the other in a fresh process, and what nvidia-smi said."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_overhead", "--loop", str(space), "--device", device]
    with Utilisation(device) as card:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1]), card.text


def sweeps(
    device: str, batches: Sequence[int], samples: int, fewer: int, shares: Sequence[int], rounds: int, *, lanes: bool
) -> None:  # fmt: skip
    """Print what a trial costs in a loop, as a lane, and in processes that share the card."""
    print(
        f"mlps of 10 epochs on digits, ms a trial, steady (with start-up), median of {rounds}; gain over a plain loop"
    )
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for batch in batches:
            seconds, card = loop_seconds(space_of(folder, fewer, batch, "sequential"), device)
            print(f"  batch {batch}, plain loop: {1000 * seconds / fewer:.1f} ({card})", flush=True)
            ways = [("lanes", count, count * samples) for count in shares] if lanes else []
            ways += [("sequential", count, 2 * fewer) for count in shares]
            for packing, count, trials in ways:
                gpu = 1 / count if device == "cuda" else 0
                runs = [swept(folder, packing, trials, batch, gpu, count) for _ in range(rounds)]
                steady, whole = (statistics.median(run[place] for run in runs) for place in (0, 1))
                each = seconds / fewer
                cells = f"{1000 * steady:.1f} ({1000 * whole:.1f}), {each / steady:.1f}× ({each / whole:.1f}×)"
                way = f"batch {batch}, {packing}, {count} × 1/{count}, {trials} trials"
                print(f"  {way}: {cells}; {runs[-1][2]}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--samples", type=int, default=1024, help="trials of each process of a sweep of cohorts")
    parser.add_argument("--fewer", type=int, default=32, help="trials of the loop; twice as many of the slow sweeps")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--batches", type=int, nargs="+", default=[*BATCHES])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--widths", type=int, nargs="+", default=[*WIDTHS])
    parser.add_argument("--processes", type=int, nargs="+", default=[*PROCESSES])
    parser.add_argument("--only", choices=("widths", "sweeps"))
    parser.add_argument("--mps", action="store_true", help="only processes that share the card")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("bench-lanes-gpu needs a CUDA card, and torch sees none; --device cpu shows that it works")
    print(torch.cuda.get_device_name() if options.device == "cuda" else hardware()["processor"], flush=True)
    if options.only != "sweeps" and not options.mps:
        widths(options.device, options.networks, options.batches, options.widths, max(2, options.rounds))
    if options.only != "widths":
        sweeps(
            options.device, options.batches, options.samples, options.fewer, options.processes, options.rounds,
            lanes=not options.mps,
        )  # fmt: skip


if __name__ == "__main__":
    main()
