"""A worker's job: it runs a node of the sweep's Ray cluster while there is a head.

    python -m sweeper.execution.slurm.worker FOLDER

It can start before its head, outlive it and join the next one, and be preempted at any time. After a preemption, epochs
since the last checkpoint are trained again elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from sweeper.core.errors import SweeperError
from sweeper.core.processes import PATIENT_START
from sweeper.execution.slurm.jobs import Exchange, Head, Notice, requeue

#: Seconds that a node's processes have to end before they are killed.
END_SECONDS = 10.0

#: Bytes of Ray's object store. Trials send only rows and read data from files; by default Ray would take a third of the
#: node's memory.
OBJECT_STORE_BYTES = 200 * 2**20


class RayNode:
    """A Ray node, of a head or a worker."""

    def __init__(self, options: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the node; append Ray's output to the file `log`."""
        ray = str(Path(sys.executable).with_name("ray"))
        common = [
            "--block", "--disable-usage-stats", f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--include-log-monitor=false",  # trials write to the sweep's log themselves
        ]  # fmt: skip
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [ray, "start", *options, *common], env={**PATIENT_START, **environment}, stdout=file, stderr=file
            )

    @property
    def alive(self) -> bool:
        """Whether the node runs."""
        return self._process.poll() is None

    def end(self, *, needed: bool) -> None:
        """End the node and its processes; if its cluster is still `needed`, let it drain first."""
        with suppress(psutil.NoSuchProcess):
            itself = psutil.Process(self._process.pid)
            left = [itself, *itself.children(recursive=True)]
            if needed:
                self._process.send_signal(signal.SIGTERM)
                left = psutil.wait_procs(left, timeout=END_SECONDS)[1]
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()


def ray_folder(token: Path) -> Path:
    """Return the folder for sockets and logs of this machine's nodes of a cluster; create its parent.

    Ray's sockets need a short path, and Ray opens its folder to everybody. So it lies in a folder that only this user
    can open, with a name that others cannot guess. Raises SweeperError if another user created that folder.
    """
    name = hashlib.sha256(token.read_bytes()).hexdigest()[:12]
    folder = Path(f"/tmp/sweeper-{os.getuid()}-{name}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SweeperError(f"{folder} belongs to another user", "remove it, or submit the sweep again")
    return folder / "ray"


def answers(address: str) -> bool:
    """Return whether a process on this machine accepts connections at `host:port`."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def environment(token: Path) -> dict[str, str]:
    """Return the environment of a node and its processes: the cluster's token, and the node's folder for data."""
    values = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    # The user's own variables would override the token file, and join the user's cluster instead.
    for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        values.pop(name, None)
    scratch = os.environ.get("SWEEPER_SLURM_SCRATCH")
    if scratch and os.access(scratch, os.W_OK):
        values["TMPDIR"] = scratch
    return values


def address_here() -> str:
    """Return this machine's address on the interface that the script names, or the address of its host name.

    Raises SweeperError if there is no such interface.
    """
    interface = os.environ.get("SWEEPER_SLURM_INTERFACE")
    if not interface:
        with suppress(OSError):
            return socket.gethostbyname(socket.gethostname())
        return "127.0.0.1"
    known = psutil.net_if_addrs()
    for entry in known.get(interface, []):
        if entry.family == socket.AF_INET:
            return str(entry.address)
    raise SweeperError(f"interface {interface!r}: this machine has {', '.join(sorted(known))}", "correct slurm.yaml")


def free_port(address: str) -> int:
    """Return a port on which nothing listens at an address."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


POLL_SECONDS = 1.0
#: Seconds that a worker waits for a head before it ends; a later head submits workers again.
PATIENCE_SECONDS = 900.0

#: A node that ran for more seconds than this had joined its head. On a busy machine Ray gives up joining after half a
#: minute; the worker then tries again.
JOINED_SECONDS = 60.0


class WorkerJob:
    """One start of a worker's job."""

    def __init__(self, exchange: Exchange) -> None:
        """Prepare to work for the heads that are announced in `exchange`."""
        self._exchange, self._notice = exchange, Notice()

    def run(self) -> int:
        """Work for one head after another until the sweep is over; return the exit status."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._goes_on and time.monotonic() < deadline:
            head = self._exchange.head
            began = time.monotonic()
            if head is not None:
                self._work(head)
            if time.monotonic() - began > JOINED_SECONDS:
                deadline = time.monotonic() + PATIENCE_SECONDS
            time.sleep(POLL_SECONDS)
        if self._notice.number == signal.SIGUSR1 and self._exchange.over is None and (job := own_job()):
            requeue(job)
        return 0

    @property
    def _goes_on(self) -> bool:
        return self._notice.number is None and self._exchange.over is None

    def _work(self, head: Head) -> None:
        """Run a node of this head's cluster until the head is gone or replaced, or the job is asked to end."""
        cpus = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE", "1")
        options = [f"--address={head.address}", f"--node-ip-address={address_here()}", f"--num-cpus={cpus}"]
        folder = ray_folder(self._exchange.token).parent  # Ray uses the head's path on every node
        job = own_job() or f"{head.job}-{os.environ.get('SLURM_PROCID', '0')}"
        node = RayNode(options, environment(self._exchange.token), self._exchange.folder / f"ray-{job}.txt")
        try:
            while node.alive and self._goes_on and self._exchange.head == head:
                time.sleep(POLL_SECONDS)
        finally:
            over = self._exchange.over is not None
            node.end(needed=not over and self._exchange.head == head)
            if over:
                shutil.rmtree(folder, ignore_errors=True)


def own_job() -> str | None:
    """Return this job's name for `scontrol`; `None` for a step of the head's job, which requeues itself."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else None


if __name__ == "__main__":
    try:
        sys.exit(WorkerJob(Exchange(Path(sys.argv[1]))).run())
    except SweeperError as error:
        sys.exit(f"worker: {error}")
