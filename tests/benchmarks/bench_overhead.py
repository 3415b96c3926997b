"""Sweep efficiency: what running trials as a sweep costs, beside the same trials in a plain loop.

efficiency = (time of the trials in a single-process, single-thread loop ÷ cores) ÷ wall time of the sweep

for 256 mlp configurations of 10 epochs on digits, no early stopping, metrics at the end, all sinks on. Printed
with worker start (from Ray's start to the last report journaled) and steady (from the first report to the last,
counting the trials that ended in between). Loop and sweep alternate in one run; the median counts.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sweeper.core.ids import SweepPaths, trial_name
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Record
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.storage.metadata import hardware
from tests.sweeper.records import fields
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import Assignment, TrialSettings, prepare_process

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: none, max_epochs: 10}
samples: %(samples)d
replicates: %(replicates)s
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 10]}}]}
  architecture: mlp
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, momentum: 0.9, weight_decay: 5.0e-4, batch_size: 128,
              schedule: cosine}
resources: {cpu: 1}
evaluation: {bins: 15, posthoc: [temperature], curvature: false}
"""


def loop_seconds(space: Path) -> float:
    """Return the time that all trials take one after the other in a fresh process with one thread."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_overhead", "--loop", str(space)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def run_loop(space: Path, device: str = "cpu") -> float:
    """Train and evaluate every trial of `space` here, without any sink; return the seconds it took."""
    spec = load_spec(space)
    settings = TrialSettings(
        dataset=spec.dataset,
        max_epochs=spec.scheduler.max_epochs,
        rungs=tuple(spec.schedule.rungs),
        objective=spec.objective.metric,
        evaluation=spec.evaluation.settings,
        packing="sequential",
        device=device,
        gpu=float(device != "cpu"),
    )
    prepare_process(settings)
    dataset = settings.load_dataset()
    began = time.perf_counter()
    for index, values in enumerate(configurations(spec)):
        seeds = spec.replicate_seeds.of(index)
        trial = Trial(Assignment(index, trial_name(index), values, seeds), settings, dataset)
        while not trial.finished:
            trial.advance()
    return time.perf_counter() - began


def sweep_times(space: Path, output: Path, cores: int) -> tuple[float, float, int]:
    """Run the sweep; return its time from Ray's start, its steady time, and the trials that the latter counts."""
    name = f"overhead-{time.time_ns()}"
    command = [sys.executable, "-m", "sweeper", "run", str(space), "--name", name, "--output", str(output)]
    done = subprocess.run([*command, "--cpus", str(cores)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    records = list(read_journal(SweepPaths(output / name).journal))
    return measured(records)


def measured(records: list[Record]) -> tuple[float, float, int]:
    """Return the times that a journal shows, see `sweep_times`; Ray runs when the attempt is journaled."""
    began = next(record.time for record in records if record.kind == "attempt")
    ends = [record.time for record in records if record.kind == "report" and fields(record)["status"] == "completed"]
    # Trials reported together with the first one ended before the clock of the steady time starts.
    first, last = min(ends), max(ends)
    together = sum(end < first + 0.5 for end in ends)
    starts = sorted(ends)[together - 1]
    return last - began, last - starts, len(ends) - together


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--replicates", default="1", help="a number, or {count: 5, packing: lanes}")
    options = parser.parse_args()
    if options.loop:
        print(run_loop(options.loop, options.device))
        return
    cores = len(os.sched_getaffinity(0))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        space = Path(folder) / "overhead.yaml"
        space.write_text(SPACE % {"samples": options.samples, "replicates": options.replicates})
        for number in range(options.runs):
            loop = loop_seconds(space)
            whole, steady, counted = sweep_times(space, Path(folder) / "results", cores)
            with_start = loop / cores / whole
            alone = loop * counted / options.samples / cores / steady
            rows.append((with_start, alone))
            print(f"run {number + 1}: loop {loop:.1f} s, sweep {whole:.1f} s (steady {steady:.1f} s for {counted})")
    for label, column in (("with worker start", 0), ("steady", 1)):
        values = [row[column] for row in rows]
        spread = f"{min(values):.2f} to {max(values):.2f}, n = {len(values)}"
        print(f"sweep efficiency {label}: {statistics.median(values):.2f} ({spread})")
    machine = hardware()
    print(f"{options.samples} mlp × 10 epochs, replicates {options.replicates}; {cores} cores, {machine['processor']}")


if __name__ == "__main__":
    main()
