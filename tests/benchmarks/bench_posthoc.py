"""The full focal-temperature grid (9 γ × 500 T, equal-mass ECE and NLL) beside a plain double loop over its cells.

`python -m tests.benchmarks.bench_posthoc [--samples 10000] [--classes 100] [--rounds 3] [--cells 45]` times, in turn
in each round, the whole grid and a stratified sample of cells of the double loop, whose time is multiplied up to
all 4,500 cells; a ratio is taken within a round, so drifts of the machine cancel. Where both computed a cell, the
values must agree. Peak memory is that of a fresh process that computes the grid alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import resource
import statistics
import time
from pathlib import Path

import numpy as np

from tests.trainables.posthoc.reference_grid import map_cell, score_cell
from trainables.posthoc.focal_grid import GridValues, focal_grid
from trainables.posthoc.focal_temperature import GAMMAS
from trainables.posthoc.temperature import TEMPERATURE_GRIDS

TEMPERATURES = TEMPERATURE_GRIDS["properness"]
TOLERANCE = 1e-9


def example(samples: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 logits [samples, classes] that are right about three times in four, and targets."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, classes, samples)
    logits = random.normal(size=(samples, classes)) * 2
    logits[np.arange(samples), targets] += 7 + 3 * random.normal(size=samples)
    return logits.astype(np.float32), targets


def sampled_cells(count: int, seed: int) -> list[tuple[int, int]]:
    """Return `count` cells, every γ equally often, T evenly over the grid with a random offset."""
    random = np.random.default_rng(seed)
    places = (np.arange(count) + random.random()) * len(TEMPERATURES) / count
    gammas = random.permutation(np.arange(count) % len(GAMMAS))
    return list(zip(gammas.tolist(), places.astype(int).tolist(), strict=True))


def time_double_loop(
    logits: np.ndarray, targets: np.ndarray, cells: list[tuple[int, int]], grid: GridValues
) -> tuple[float, float]:
    """Return wall and processor seconds of the whole double loop, from `cells`, once they agree with `grid`."""
    started, processor_started = time.perf_counter(), time.process_time()
    found = [score_cell(map_cell(logits, GAMMAS[g], TEMPERATURES[t]), targets) for g, t in cells]
    seconds, processor_seconds = time.perf_counter() - started, time.process_time() - processor_started
    # below T = 1 the double loop's 1 − p has lost digits of its own: there only the ECE, which has not, is compared
    worst = max(
        max(abs(ece - grid.ada_ece[g, t]), abs(nll / grid.nll[g, t] - 1) if TEMPERATURES[t] >= 1 else 0.0)
        for (g, t), (ece, nll) in zip(cells, found, strict=True)
    )
    if not worst < TOLERANCE:
        raise SystemExit(f"the grid and the double loop differ by {worst:g}, more than {TOLERANCE:g}")
    print(f"  largest difference on {len(cells)} cells: {worst:.1e}")
    whole = len(GAMMAS) * len(TEMPERATURES) / len(cells)
    return seconds * whole, processor_seconds * whole


def peak_memory(samples: int, classes: int) -> None:
    """Print this process's peak memory before and after one grid; run in a fresh process."""
    logits, targets = example(samples, classes)
    before = peak_gibibytes()
    focal_grid(logits, targets, np.array(GAMMAS), TEMPERATURES)
    after = peak_gibibytes()
    print(f"peak memory of a process that computes the grid: {after:.2f} GiB ({before:.2f} GiB before it starts)")


def peak_gibibytes() -> float:
    """Return this process's largest resident size so far. (Linux's ru_maxrss would count its parent's too.)"""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**20


def processor() -> str:
    """Return the processor's name and number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def main() -> None:
    """Run the rounds and print times, ratios and their spread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=90)
    options = parser.parse_args()
    logits, targets = example(options.samples, options.classes)
    accuracy = (logits.argmax(1) == targets).mean()
    print(f"{options.samples} × {options.classes} float32 logits, accuracy {accuracy:.3f}; {processor()}")
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    ratios, processor_ratios = [], []
    for round_ in range(options.rounds):
        started, processor_started = time.perf_counter(), time.process_time()
        grid = focal_grid(logits, targets, np.array(GAMMAS), TEMPERATURES)
        fast, processor_fast = time.perf_counter() - started, time.process_time() - processor_started
        slow, processor_slow = time_double_loop(logits, targets, sampled_cells(options.cells, round_), grid)
        ratios.append(slow / fast)
        processor_ratios.append(processor_slow / processor_fast)
        print(
            f"round {round_ + 1}: grid {fast:.2f} s (processor {processor_fast:.2f} s), "
            f"double loop {slow:.0f} s (processor {processor_slow:.0f} s), ratio {slow / fast:.1f}"
        )
    print(f"double loop timed on {options.cells} of {len(GAMMAS) * len(TEMPERATURES)} cells and multiplied up")
    for name, values in (("wall time", ratios), ("processor time, cores apart", processor_ratios)):
        spread = f"{min(values):.1f} to {max(values):.1f}, n = {len(values)}"
        print(f"ratio of {name}: median {statistics.median(values):.1f}, {spread}")
    print(f"load average after: {os.getloadavg()[0]:.1f}")
    child = multiprocessing.get_context("spawn").Process(target=peak_memory, args=(options.samples, options.classes))
    child.start()
    child.join()


if __name__ == "__main__":
    main()
