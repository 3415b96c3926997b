"""Real MLflow servers and databases of a test's own, and what a store must hold of a journal, the plain way."""

import contextlib
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.tracking.mlflow.pages import NO_JOBS
from tests.patience import patient
from tests.sweeper.records import fields

POSTGRESQL = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/usr/bin"))
EPOCH_METRICS = ("train_loss", "val_nll", "val_accuracy", "val_ece", "lr", "seconds")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A real `mlflow server` of its own process group, on loopback."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.port, self._backend, self._folder = free_port(), backend, folder
        self.uri, self.log = f"http://127.0.0.1:{self.port}", folder / "server.log"

    def start(self) -> None:
        """Start it and wait until it takes connections; a second time, at the same address."""
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", self._backend, "--workers", "1",
                   "--host", "127.0.0.1", "--port", str(self.port),
                   "--artifacts-destination", str(self._folder / "served")]  # fmt: skip
        environment = {**os.environ, **NO_JOBS, "MLFLOW_DISABLE_TELEMETRY": "true"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
        until = time.monotonic() + patient(240)
        while time.monotonic() < until and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        self.signal(signal.SIGKILL)
        raise TimeoutError(self.log.read_text())

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.wait()


HOW = ("_matvecs", "_residual", "_samples", "_converged", "_at_bound")
"""Ends of columns that say how a number was computed, which are not logged."""


def expected_points(records: list[Any]) -> dict[int, dict[str, set[tuple[int, int, float]]]]:
    """Return configuration → metric → {(step, timestamp, value)}, the plain way."""
    groups: dict[tuple[int, str, int, int], list[float]] = {}
    seen: set[tuple[Any, ...]] = set()
    for record in records:
        for table in ("epochs", "evaluations") if record.kind == "report" else ():
            for row in fields(record)[table]:
                index, split = fields(record)["configuration"], row.get("split")
                key = (index, row["replicate"], row["epoch"], split)
                if key in seen:
                    continue
                seen.add(key)
                for column, value in row.items():
                    if column in ("replicate", "epoch", "split", "stage") or column.endswith(HOW) or value is None:
                        continue
                    name = column if split is None or column.startswith("hessian") else f"{split}_{column}"
                    if split is None or name not in EPOCH_METRICS:
                        place = (index, name, row["epoch"], round(record.time * 1000))
                        groups.setdefault(place, []).append(float(value))
    found: dict[int, dict[str, set[tuple[int, int, float]]]] = {}
    for (index, name, epoch, timestamp), values in groups.items():
        metrics = found.setdefault(index, {})
        metrics.setdefault(name, set()).add((epoch, timestamp, rounded(float(np.mean(values)))))
        if len(values) > 1 and name != "lr":
            spread = rounded(float(np.std(values, ddof=1)))
            metrics.setdefault(f"{name}_std", set()).add((epoch, timestamp, spread))
    return found


def by_column(keys: Iterable[str]) -> dict[str, str]:
    """Return the keys of metrics by what stands after their group, without those of trials that ran to the end."""
    kept = [key for key in keys if not key.startswith("finished/")]
    found = {key.rpartition("/")[2]: key for key in kept}
    assert len(found) == len(kept)
    return found


def rounded(value: float) -> float:
    return -1.0 if math.isnan(value) else round(value, 9)


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """Run a database server of our own and give its address; root may not run one, so it is `postgres` then."""
    folder, port = Path(tempfile.mkdtemp(prefix="postgresql-")), free_port()
    become = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    if become:
        shutil.chown(folder, "postgres")
    data, control = folder / "data", str(POSTGRESQL / "pg_ctl")
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c fsync=off"

    def command(*words: str) -> None:
        subprocess.run([*become, *words], check=True, cwd=folder, stdout=subprocess.DEVNULL)

    command(str(POSTGRESQL / "initdb"), "-D", str(data), "-U", "mlflow", "--auth=trust")
    command(control, "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        command(str(POSTGRESQL / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "mlflow", "mlflow")
        yield f"postgresql://mlflow@127.0.0.1:{port}/mlflow"
    finally:
        command(control, "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder)
