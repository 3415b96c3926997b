"""A worker's job: a node of the sweep's Ray cluster for as long as there is a head to work for.

    python -m sweeper.execution.slurm.worker FOLDER

It may come before its head, outlive one head and join the next, and be preempted at any time: what it trained since
the last checkpoint is trained again elsewhere.
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
from sweeper.execution.slurm.jobs import Exchange, Head, Notice, requeue

END_SECONDS = 10.0
#: Trials send rows and numbers; data sets are read from files. Ray would take a third of the node's memory.
OBJECT_STORE_BYTES = 200 * 2**20


class RayNode:
    """A raylet, of a head or a worker."""

    def __init__(self, options: Sequence[str], environment: Mapping[str, str], said: Path) -> None:
        """Start it; what Ray says goes to the file `said`."""
        ray = str(Path(sys.executable).with_name("ray"))
        common = [
            "--block", "--disable-usage-stats", f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--include-log-monitor=false",  # trials write to the sweep's log themselves
        ]  # fmt: skip
        with said.open("ab") as file:
            self._process = subprocess.Popen(
                [ray, "start", *options, *common], env=environment, stdout=file, stderr=file
            )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def end(self, *, needed: bool) -> None:
        """End it with everything it started; where it is still `needed`, its head is told first, and it drains."""
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
    """Return where this machine's nodes of the cluster with this token keep sockets and logs; its parent is made.

    Ray's sockets need a short path, and Ray opens its folder to everybody, so it lies in one that is this user's alone,
    with a name that nobody else can foretell. Raises SweeperError where somebody else made that.
    """
    name = hashlib.sha256(token.read_bytes()).hexdigest()[:12]
    folder = Path(f"/tmp/sweeper-{os.getuid()}-{name}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SweeperError(f"{folder} is somebody else's", "remove it, or submit the sweep again")
    return folder / "ray"


def answers(address: str) -> bool:
    """Return whether somebody accepts connections at `host:port`, of this machine."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def environment(token: Path) -> dict[str, str]:
    """Return the environment of a node and of what joins it: its token, and the node's own folder for data."""
    values = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        values.pop(name, None)
    scratch = os.environ.get("SWEEPER_SLURM_SCRATCH")
    if scratch and os.access(scratch, os.W_OK):
        values["TMPDIR"] = scratch
    return values


def address_here() -> str:
    """Return this machine's address on the network interface that the script names, or that of its name.

    Raises SweeperError where there is no such interface.
    """
    interface = os.environ.get("SWEEPER_SLURM_INTERFACE")
    if not interface:
        with suppress(OSError):
            return socket.gethostbyname(socket.gethostname())
        return "127.0.0.1"
    known = psutil.net_if_addrs()
    for each in known.get(interface, []):
        if each.family == socket.AF_INET:
            return str(each.address)
    raise SweeperError(f"interface {interface!r}: this machine has {', '.join(sorted(known))}", "correct slurm.yaml")


def free_port(address: str) -> int:
    """Return a port on which nothing listens at an address."""
    with socket.socket() as made:
        made.bind((address, 0))
        return int(made.getsockname()[1])


POLL_SECONDS = 1.0
#: How long a worker waits for a head before it gives its node back; a head that comes later asks for workers again.
PATIENCE_SECONDS = 900.0

#: A node that lived longer had joined its head. On a busy machine Ray gives up after half a minute: it tries again.
JOINED_SECONDS = 60.0


class WorkerJob:
    """One start of a worker's job."""

    def __init__(self, exchange: Exchange) -> None:
        """Prepare to work for the heads that announce themselves here."""
        self._exchange, self._notice = exchange, Notice()

    def run(self) -> int:
        """Work for one head after the other until the sweep is over; return the exit status."""
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
        """Be a node of this head's cluster until it is gone, another takes its place, or the job is asked to end."""
        cpus = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE", "1")
        options = [f"--address={head.address}", f"--node-ip-address={address_here()}", f"--num-cpus={cpus}"]
        folder = ray_folder(self._exchange.token).parent  # Ray makes there what the head says
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
    """Return this job as `scontrol` names it; `None` for a step of the head's own job, which requeues itself."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else None


if __name__ == "__main__":
    try:
        sys.exit(WorkerJob(Exchange(Path(sys.argv[1]))).run())
    except SweeperError as error:
        sys.exit(f"worker: {error}")
