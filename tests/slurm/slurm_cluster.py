"""A real Slurm of two nodes on this machine, as root and without systemd, in a folder and on ports of its own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.patience import patient

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")

NODES = ("n1", "n2")

CONFIGURATION = """\
ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={controller}
SlurmdPort={first}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
JobRequeue=1
MinJobAge=60
KillWait=20
OverTimeLimit=0
EnforcePartLimits=ALL
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=4000 Gres=gpu:a100:1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=4000 Gres=gpu:a100:1 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PreemptMode=REQUEUE
PartitionName=small Nodes=n1 MaxTime=0:10:00 State=UP
"""


def missing() -> str:
    """Return why no Slurm can be started here; empty where one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: slurmctld, slurmd, slurm-client, munge)"
    return "" if os.geteuid() == 0 else "its nodes are started as root"


@dataclass
class SlurmCluster:
    """A running Slurm.

    Attributes:
        folder: of its configuration, logs and states.
    """

    folder: Path
    _waits_until: float = 0.0

    @property
    def configuration(self) -> str:
        """The file that Slurm's programs read."""
        return str(self.folder / "slurm.conf")

    @property
    def environment(self) -> dict[str, str]:
        """What a login node's shell has."""
        path = f"{os.environ['PATH']}:/usr/sbin"
        return {**os.environ, "SLURM_CONF": self.configuration, "PATH": path}

    def ask(self, *command: str) -> str:
        """Run one of Slurm's commands; return what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=patient(60))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        self.ask("slurmd", "-f", self.configuration, "-N", name)
        self._waits_until = time.monotonic() + patient(5)

    def start_controller(self) -> None:
        """Start the controller, with what it knew before."""
        self.ask("slurmctld", "-f", self.configuration)

    def kill(self, daemon: str) -> None:
        """SIGKILL a daemon, `slurmctld` or `slurmd-n1`."""
        file = self.folder / f"{daemon}.pid"
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)
        file.unlink()

    def kill_node(self, name: str) -> None:
        """SIGKILL a node: its daemon, and every process of its jobs; the controller would notice in five minutes."""
        self.kill(f"slurmd-{name}")
        here = {"SLURMD_NODENAME": name, "SLURM_CONF": self.configuration}
        doomed: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if here.items() <= process.environ().items():
                    above = process.parent()
                    # What waits for a job's processes first: it would report that they were killed.
                    doomed += [above, process] if above is not None and above.name() == "slurmstepd" else [process]
        for process in sorted(doomed, key=lambda each: each.name() != "slurmstepd"):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.ask("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=killed")

    def hurry(self) -> None:
        """Let requeued jobs start now; Slurm would leave them for two minutes.

        Not at once after a node has come back: what the controller could not tell it meanwhile arrives then, and its
        "end this job" meets the job's next start.
        """
        if time.monotonic() < self._waits_until:
            return
        with suppress(AssertionError):  # the controller is restarted, or a job has just begun
            for line in self.ask("squeue", "--noheader", "--array", "--states=PENDING", "--format=%i %r").splitlines():
                job, reason = line.split(maxsplit=1)
                if reason == "BeginTime":
                    self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")

    def pids(self) -> list[int]:
        """Return the ids of the daemons that run."""
        return [int(file.read_text()) for file in self.folder.glob("*.pid") if file.read_text().strip()]

    def idle(self) -> bool:
        """Whether all nodes are there and nothing runs."""
        return self.ask("sinfo", "--noheader", "--partition=main", "--format=%T") == "idle"

    def wait_until_idle(self, seconds: float = 60) -> None:
        """Wait until nothing runs."""
        deadline = time.monotonic() + patient(seconds)
        while not self.idle():
            assert time.monotonic() < deadline, self.ask("sinfo", "--Node", "--long")
            time.sleep(0.2)


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """A Slurm that lasts as long as the context; `folder` must be short, since sockets lie in it."""
    for name in ("state", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    names = ("controller", "first", "second")
    values = {
        "folder": folder,
        "host": socket.gethostname().partition(".")[0],
        **dict(zip(names, _free_ports(len(names)), strict=True)),
    }
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
    # Cards that are none: a job that asks for one is given this device.
    (folder / "gres.conf").write_text("NodeName=n[1-2] Name=gpu Type=a100 File=/dev/zero\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    cluster = SlurmCluster(folder)
    files = {"socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munge.seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    try:
        cluster.ask("munged", f"--key-file={key}", *options, "--force")
        cluster.start_controller()
        for node in NODES:
            cluster.start_node(node)
        cluster.wait_until_idle()
        yield cluster
    finally:
        with suppress(AssertionError, subprocess.TimeoutExpired):
            cluster.ask("scancel", "--user=root")
            cluster.wait_until_idle(30)
        daemons = [psutil.Process(pid) for pid in cluster.pids() if psutil.pid_exists(pid)]
        for daemon in daemons:
            daemon.terminate()
        for daemon in psutil.wait_procs(daemons, timeout=patient(20))[1]:  # the controller writes its state first
            daemon.kill()


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports
