"""What a sweep of 100,000 trials on 1,000 GPUs asks of driver, journal, MLflow, tables and head.

Run with `make simulate-cluster`. The sweep is simulated with an injected clock through the scheduler's real decisions
(tests/sweeper/simulated_cluster.py). Sizes come from a small real sweep, run first: bytes of a journal record, rows and
bytes a row of every table (in memory, so Parquet is smaller), points in MLflow. What a report costs the driver is what
DRIVER_SECONDS says.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds

from sweeper.core.ids import TABLES, SweepPaths
from sweeper.core.labels import duration
from sweeper.journal.journal import read_journal
from sweeper.journal.segments import SEALED
from sweeper.journal.state import SweepState
from sweeper.scheduling.asha import Halving
from tests.sweeper.records import fields, record_names
from tests.sweeper.simulated_cluster import SimulatedCluster, Traffic, simulate

DRIVER_SECONDS = 0.006
"""Processor time of a driver on Ray a report: 5.6 ms, of which Ray Tune's loop takes 3.1 and the driver's own work 2.5
(400 reports more of one sweep, with both executors, on two loaded cores of an AMD EPYC)."""

CHECKPOINT_MB = 188
"""Of one replicate of a ResNet-50 under SGD with momentum: 23.5 million parameters, twice, of 4 bytes."""

LISTED = 1000
"""Objects that one request lists."""

MLFLOW_POINTS_A_SECOND = 960 / 0.148
"""In batches of 960 over HTTP to one server, measured on two cores (MLflow 3.17)."""

SPACE = """
dataset: {name: digits}
scheduler: {name: asha, max_epochs: 9, grace_epochs: 3, reduction_factor: 3}
samples: 9
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 10]}}]}
  architecture: {name: mlp, width: 32}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, momentum: 0.9, batch_size: 128, schedule: cosine}
resources: {cpu: 1, gpu: 0}
evaluation: {bins: 15, posthoc: [temperature], curvature: {samples: 32, lanczos_steps: 3, trace_probes: 2}}
"""


@dataclass(frozen=True)
class Sizes:
    """What a real sweep of one replicate leaves behind."""

    record_bytes: float
    rows: dict[str, float]
    row_bytes: dict[str, float]
    points: float
    trial_bytes: float


def measured() -> Sizes:
    """Run a small real sweep and measure what it left; rows are per epoch (`epochs`), trial, or evaluation (others)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small.yaml").write_text(SPACE)
        subprocess.run(
            [sys.executable, "-m", "sweeper", "run", "small.yaml"], cwd=folder, check=True, capture_output=True
        )
        paths = SweepPaths(folder / "results" / "small")
        records = list(read_journal(paths.journal))
        bodies = [fields(record) for record in records if record.kind == "report"]
        evaluations = sum(bool(body["evaluations"]) for body in bodies)
        epochs = sum(len(body["epochs"]) for body in bodies)
        sizes = [(paths.journal / name).stat().st_size for name in record_names(paths.journal) if "-report" in name]
        rows, row_bytes = {}, {}
        for table in TABLES:
            found = ds.dataset(paths.tables / table, format="parquet").to_table()
            per = {"epochs": epochs, "trials": 9}.get(table, evaluations)
            rows[table], row_bytes[table] = found.num_rows / per, found.nbytes / max(1, found.num_rows)
        with closing(sqlite3.connect(folder / "results" / "mlflow.db")) as store:
            points = store.execute("SELECT count(*) FROM metrics").fetchone()[0] / epochs
    return Sizes(statistics.mean(sizes), rows, row_bytes, points, trial_bytes())


def trial_bytes(count: int = 500) -> float:
    """Return the memory that one trial takes in the driver: Ray Tune's record of it and the sweep's own."""
    from ray.tune.experiment import Trial

    config = {"key": "[0]", "assignment": "x" * 600}
    tracemalloc.start()
    kept = [Trial("PPO", config=dict(config), trial_id=f"{i:08x}", stub=True) for i in range(count)], SweepState(count)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept
    return size / count


def lines(traffic: Traffic, sizes: Sizes, trials: int, replicates: int) -> list[str]:
    """Return the figures in words."""
    mean, peak = traffic.total_reports / traffic.seconds, max(traffic.reports.values()) / 60
    records = traffic.total_reports + traffic.starts
    journal = records * sizes.record_bytes * replicates
    points = traffic.epochs * sizes.points
    counts = {"epochs": traffic.epochs, "trials": trials}
    tables = {
        table: (
            n := counts.get(table, traffic.evaluations) * sizes.rows[table] * replicates,
            n * sizes.row_bytes[table],
        )
        for table in sizes.rows
    }
    reached, busy = dict(sorted(traffic.reached.items())), 100 * peak * DRIVER_SECONDS
    record, rate, memory = sizes.record_bytes * replicates, points / traffic.seconds, trials * sizes.trial_bytes
    saved = traffic.checkpoints / traffic.seconds
    writes = traffic.total_reports + 2 * records // SEALED + traffic.checkpoints + 3 * traffic.evaluations
    listings = (records // SEALED + SEALED + traffic.evaluations) // LISTED
    found = [
        f"wall time           {duration(traffic.seconds)}; trials at each rung {reached}",
        f"reports             {traffic.total_reports:,}: {mean:.1f} a second, {peak:.1f} in the busiest minute",
        f"driver              {busy:.0f} % of one core in that minute ({DRIVER_SECONDS * 1000:g} ms a report)",
        f"journal             {records:,} records, {journal / 1e9:.2f} GB ({record:,.0f} bytes each)",
        f"journal, segments   {records // SEALED:,} files of {SEALED:,} records each, and less than {SEALED:,} of one",
        f"checkpoints         {traffic.checkpoints:,}: {saved:.1f} a second; of {CHECKPOINT_MB} MB each "
        f"{saved * CHECKPOINT_MB / 1e3:.1f} GB/s (with every report it would be {mean * CHECKPOINT_MB / 1e3:.1f})",
        f"requests to a store {writes:,} that write, copy or list: an object for a report's records, checkpoints, two "
        f"tables of each evaluation, and a copy within the store; {traffic.evaluations:,} that read",
        f"  of a resume       at most {records // SEALED + SEALED:,} journal objects, one request each, and "
        f"{listings:,} for a listing",
        f"MLflow              {trials:,} runs, {points:,.0f} points: {rate:.0f} a second of the "
        f"{MLFLOW_POINTS_A_SECOND:,.0f} that one server takes",
        f"driver's memory     at least {memory / 1e9:.2f} GB ({sizes.trial_bytes / 1e3:.1f} kB a trial)",
    ]
    found += [f"table {t:13s} {n:,.0f} rows, at most {size / 1e9:.2f} GB" for t, (n, size) in tables.items()]
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--replicates", type=int, default=1)
    parser.add_argument("--a-card", type=int, nargs="*", default=[1, 4], help="trials that share a card")
    parser.add_argument("--epoch-seconds", type=float, default=60.0, help="of a trial that has a card to itself")
    asked = parser.parse_args()
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}")
    sizes = measured()
    schedule = Halving("val_nll", "min", 27, 3, 3)
    for a_card in asked.a_card:
        cluster = SimulatedCluster(asked.gpus * a_card, epoch_seconds=asked.epoch_seconds * a_card)
        began = time.perf_counter()
        traffic = simulate(schedule, asked.trials, cluster)
        took = time.perf_counter() - began
        what = f"{asked.trials:,} trials, {asked.gpus:,} GPUs, {a_card} a card, {cluster.epoch_seconds:g} s an epoch"
        print(f"\n{what}, rungs 3/9/27 (simulated in {took:.0f} s)")
        print("\n".join(f"  {line}" for line in lines(traffic, sizes, asked.trials, asked.replicates)))


if __name__ == "__main__":
    main()
