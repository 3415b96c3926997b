"""When bfloat16, channels-last and torch.compile pay: the time of training steps beside plain float32.

Each network's ways alternate in every round, in one process of one thread; the ratio is of medians, with the spread
over rounds. On a CPU the processor's seconds count, so that other programs disturb less; on a card, the clock. What
compiling takes once is told apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import torch

from sweeper.storage.metadata import hardware
from tests.benchmarks.bench_replicates import ROWS, configuration, data_for
from trainables.training.acceleration import CannotCompileError, TrainingSettings
from trainables.training.loop import Replicate

WAYS = {
    "float32": TrainingSettings(),
    "tf32": TrainingSettings(precision="tf32"),
    "bfloat16": TrainingSettings(precision="bfloat16"),
    "channels_last": TrainingSettings(memory_format="channels_last"),
    "bfloat16+channels_last": TrainingSettings("bfloat16", "channels_last"),
    "compile": TrainingSettings(compile=True),
    "bfloat16+compile": TrainingSettings("bfloat16", compile=True),
}


def seconds_of(replicate: Replicate) -> float:
    """Train an epoch; return the time it took."""
    on_card = replicate.device.type == "cuda"
    clock = time.perf_counter if on_card else time.process_time
    started = clock()
    replicate.train_epoch()
    if on_card:
        torch.cuda.synchronize()
    return clock() - started


def measure(row: str, ways: list[str], rounds: int, device: str) -> None:
    """Print one network's table."""
    kind, steps, batch_size = ROWS[row]
    data = data_for(kind, steps, batch_size).to(device)
    # One sample to validate on: validation is plain whatever the way.
    data = replace(data, val=replace(data.val, inputs=data.val.inputs[:1], targets=data.val.targets[:1]))
    values = configuration(row, batch_size)
    held, first = {}, {}
    for way in ways:
        replicate = Replicate(values, seed=0, dataset=data, max_epochs=10_000, device=device, training=WAYS[way])
        started = time.perf_counter()
        try:
            replicate.train_epoch()
        except CannotCompileError as error:
            print(f"  {row:<10}{way:<24}{error}")
            continue
        held[way], first[way] = replicate, time.perf_counter() - started
    times: dict[str, list[float]] = {way: [] for way in held}
    for _ in range(rounds):
        for way, replicate in held.items():
            times[way].append(seconds_of(replicate))
    plain = times["float32"]
    for way, taken in times.items():
        ratios = [a / b for a, b in zip(plain, taken, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}, n = {rounds}"
        print(
            f"  {row:<10}{way:<24}{1000 * statistics.median(taken) / steps:9.1f} ms a step"
            f"{statistics.median(plain) / statistics.median(taken):7.2f}× ({spread})   first epoch {first[way]:.1f} s",
            flush=True,
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("bench-training --device cuda needs a CUDA card, and torch sees none; choose --device cpu")
    torch.set_num_threads(1)
    ways = ["float32", *(way for way in options.ways if way != "float32")]
    print(f"speed of training steps beside float32 (above 1: faster), {options.device}, {hardware()['processor']}")
    for row in options.rows:
        measure(row, ways, options.rounds, options.device)


if __name__ == "__main__":
    main()
