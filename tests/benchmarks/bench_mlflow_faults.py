"""What a broken MLflow server costs a sweep: the wall time of `sweeper run`, beside the same sweep with a healthy one.

Sweeps alternate in one run, healthy and disturbed, each with a fresh server of its own on the same kind of store. What
befalls the disturbed one changes from pair to pair: the server is killed for good, paused for good, killed and started
again, or paused and continued, at a record drawn from the first half of the journal. Afterwards `sync` must find
every run, and a second `sync` nothing. Printed: seconds of each pair, and the ratio's median and range.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from mlflow.tracking import MlflowClient

from sweeper.core.ids import SweepPaths
from sweeper.storage.metadata import hardware
from sweeper.tracking.sync import sync
from tests.mlflow_stores import Server, postgresql
from tests.running import command, write_space
from tests.seeds import drawn_seed
from tests.sweeper.records import record_names

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: asha, max_epochs: 27, grace_epochs: 3, reduction_factor: 3}
samples: %(samples)d
replicates: 2
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 10]}}]}
  architecture: mlp
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, momentum: 0.9, batch_size: 128, schedule: cosine}
resources: {cpu: 1}
evaluation: {bins: 15, posthoc: [temperature], curvature: false}
"""

FAULTS = ("killed", "paused", "killed and started again", "paused and continued")

AWAY_SECONDS = 5.0


def befall(server: Server, fault: str) -> None:
    """Let a fault happen to a server; one that comes back is away for some seconds."""
    server.signal(signal.SIGKILL if fault.startswith("killed") else signal.SIGSTOP)
    if " and " in fault:
        time.sleep(AWAY_SECONDS)
        if fault.startswith("killed"):
            server.start()
        else:
            server.signal(signal.SIGCONT)


def disturb(paths: SweepPaths, server: Server, fault: str, record: int, over: threading.Event) -> None:
    """Let a fault happen once the journal has so many records."""
    while not over.wait(0.02):
        if len(record_names(paths.journal)) >= record:
            befall(server, fault)
            return


@contextlib.contextmanager
def served(backend: str, folder: Path) -> Iterator[Server]:
    """A healthy server on a new store."""
    folder.mkdir()
    with postgresql() if backend == "postgresql" else contextlib.nullcontext(f"sqlite:///{folder}/served.db") as store:
        server = Server(store, folder)
        server.start()
        try:
            yield server
        finally:
            server.signal(signal.SIGCONT)
            server.signal(signal.SIGKILL)


def sweep_seconds(space: Path, folder: Path, backend: str, fault: str | None, record: int) -> float:
    """Run a sweep beside a server that meets `fault`; check what `sync` makes of it; return the run's wall time."""
    paths, over = SweepPaths(folder / "results" / folder.name), threading.Event()
    with served(backend, folder) as server:
        words = ["run", space, "--name", paths.name, "--output", paths.root.parent, "--tracking-uri", server.uri]
        blow = threading.Thread(target=disturb, args=(paths, server, fault, record, over))
        if fault:
            blow.start()
        began = time.perf_counter()
        done = subprocess.run(command(*words), capture_output=True, text=True)
        seconds = time.perf_counter() - began
        over.set()
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
        if fault:
            blow.join()
            recover(server, fault)
        check_synced(paths, server.uri)
    return seconds


def recover(server: Server, fault: str) -> None:
    """Bring a server back that stayed away."""
    if fault == "paused":
        server.signal(signal.SIGCONT)
    elif fault == "killed":
        server.start()


def check_synced(paths: SweepPaths, uri: str) -> None:
    """Stop with an error unless MLflow has every run once after a sync, and a second sync finds no more."""
    sync(paths.root, uri)
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name(paths.name).experiment_id], max_results=1000)
    places = [run.data.tags["configuration"] for run in runs]
    if sync(paths.root, uri).points or len(set(places)) < len(places) or {r.info.status for r in runs} != {"FINISHED"}:
        raise SystemExit(f"MLflow is not complete: {sorted(places)}")


def main() -> None:
    """Print the pairs and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--backend", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seed", type=int, default=drawn_seed())
    options = parser.parse_args()
    draw, ratios = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as name:
        space = write_space(Path(name), SPACE % {"samples": options.samples})
        for pair in range(options.pairs):
            fault, record = FAULTS[pair % len(FAULTS)], draw.randrange(options.samples)
            # Which of the two comes first alternates, so that a machine that grows slower favours neither.
            seconds = {}
            for kind in ("healthy", "disturbed")[:: 1 if pair % 2 else -1]:
                folder = Path(name) / f"{kind}-{pair}"
                seconds[kind] = sweep_seconds(
                    space, folder, options.backend, fault if kind == "disturbed" else None, record
                )
            ratios.append(seconds["disturbed"] / seconds["healthy"])
            print(
                f"pair {pair + 1}: healthy {seconds['healthy']:.1f} s, {fault} at record {record} "
                f"{seconds['disturbed']:.1f} s, ratio {ratios[-1]:.3f}",
                flush=True,
            )
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}, n = {len(ratios)}"
    print(f"disturbed / healthy wall time: median {statistics.median(ratios):.3f} ({spread}), seed {options.seed}")
    cores = len(os.sched_getaffinity(0))
    print(f"{options.samples} mlp × 2, rungs 3, 9, 27; MLflow on {options.backend}; {cores} cores, "
          f"{hardware()['processor']}")  # fmt: skip


if __name__ == "__main__":
    main()
