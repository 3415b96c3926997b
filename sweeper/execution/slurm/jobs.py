"""Slurm's commands (submit, query, cancel) with its error messages, and the files by which jobs communicate.

These files lie in a folder that all nodes share: which job is the head, and whether the sweep is over.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path

import yaml

from sweeper.core.errors import SweeperError, writing_to
from sweeper.execution.slurm.settings import HEAD, OF_WORKERS, PREFIX, WORKERS, SlurmSettings, scripts
from trainables.files.atomic import read_text, write_text


@dataclass(frozen=True)
class Head:
    """A head that accepts workers.

    Attributes:
        address: Address of its Ray cluster, `host:port`.
        job: Number of the head's Slurm job.
        attempt: Number of the head's start, which distinguishes it from earlier heads of the same job.
    """

    address: str
    job: str
    attempt: int


@dataclass(frozen=True)
class Exchange:
    """The shared folder of one sweep's jobs.

    Attributes:
        folder: `<output>/.slurm/<sweep>`.
    """

    folder: Path

    @property
    def token(self) -> Path:
        """File with the token of the sweep's Ray cluster; only its owner can read it."""
        return self.folder / "token"

    @property
    def stop(self) -> Path:
        """File that exists once a stop was requested, with the reason if the head did so; nothing is requeued then."""
        return self.folder / "stop"

    @property
    def head(self) -> Head | None:
        """The head that accepts workers; `None` before there is one."""
        try:
            return Head(**json.loads(read_text(self.folder / "head.json")))
        except (OSError, ValueError, TypeError):
            return None

    def announce(self, head: Head) -> None:
        """Publish the head's address to workers."""
        write_text(self.folder / "head.json", json.dumps(asdict(head)))

    @property
    def over(self) -> str | None:
        """Reason why the sweep needs no more workers; `None` while it does."""
        try:
            return read_text(self.folder / "over")
        except OSError:
            return None

    def end(self, why: str) -> None:
        """Declare the sweep over for the reason `why`."""
        write_text(self.folder / "over", why)

    def begin(self, *, anew: bool) -> None:
        """Declare the sweep not over; `anew`, after a user's submission, also clears earlier stop requests."""
        for name in ("over", "stop", "starts") if anew else ("over",):
            (self.folder / name).unlink(missing_ok=True)

    def starts(self) -> list[int]:
        """Return the number of journal records at each start of a head so far."""
        try:
            return [int(line) for line in read_text(self.folder / "starts").split()]
        except (OSError, ValueError):
            return []

    def add_start(self, records: int) -> None:
        """Note the start of a head, with the number of journal records."""
        with (self.folder / "starts").open("a", encoding="ascii") as file:
            file.write(f"{records}\n")


FOLDER, WORK = ".slurm", "work"
#: Seconds that a busy controller has to answer.
ANSWER_SECONDS = 60

_TEXTS = yaml.safe_load(resources.files("sweeper.execution.slurm").joinpath("remedies.yaml").read_text("utf-8"))

#: Words of Slurm's error message → remedy; the first match counts.
REMEDIES: Mapping[str, str] = _TEXTS["refused"]

#: squeue's reason (squeue(1)) for a job that would wait for ever → remedy.
STUCK: Mapping[str, str] = _TEXTS["stuck"]

ROOM = "free space, or give --output on another file system"


def folder_of(output: Path, name: str = "") -> Path:
    """Return the folder of a sweep's scripts, logs and shared files; without a name, the folder of all sweeps."""
    return output.resolve() / FOLDER / name


def is_here() -> bool:
    """Return whether this machine has Slurm's commands; results can also be read on machines without them."""
    return shutil.which("squeue") is not None


@dataclass
class SlurmJobs:
    """Submits sweeps as Slurm jobs; see `sweeper.execution.cluster.submission.Jobs`.

    Attributes:
        settings: Settings of the site.
        output: Folder of results, shared by all nodes.
        print_only: Only generate `scripts`; submit nothing.
        scripts: Batch scripts of the submitted sweep: file name → text.
        submitted: Jobs of the submitted sweep; the head's job comes first.
    """

    settings: SlurmSettings
    output: Path
    print_only: bool
    scripts: dict[str, str] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)

    def submit(
        self, name: str, command: Sequence[str], metadata: dict[str, str], folder: Path, modules: Sequence[Path]
    ) -> str:
        """Write the scripts of a sweep beside its future results and submit them; return the head's job.

        Raises SweeperError with Slurm's message if Slurm refuses; the scripts are then removed.
        """
        own = folder_of(self.output, name)
        self.scripts = scripts(self.settings, name, own, [*command[3:], "--continue"])
        if self.print_only:
            return ""
        with writing_to(own, ROOM):
            own.mkdir(parents=True)
        try:
            with writing_to(own, ROOM):
                (own / WORK).mkdir()
                for file in sorted(folder.rglob("*")):  # `copytree` would hide a full disk in its own error type
                    copy = own / WORK / file.relative_to(folder)
                    copy.mkdir() if file.is_dir() else shutil.copyfile(file, copy)
                for script, text in self.scripts.items():
                    (own / script).write_text(text, "utf-8")
            self.submitted = submit_scripts(own)
        except SweeperError:
            shutil.rmtree(own, ignore_errors=True)
            raise
        return self.submitted[0]


def submit_scripts(folder: Path) -> list[str]:
    """Submit a sweep's scripts, all or none, and return its jobs, the head's first.

    Raises SweeperError with Slurm's message if it refuses one.
    """
    jobs: list[str] = []
    for script in (HEAD, WORKERS):
        if (folder / script).exists():
            try:
                jobs.append(_submitted(folder, script))
            except SweeperError:
                if jobs:  # a head without workers would wait for nothing
                    cancel(jobs)
                raise
    return jobs


def ensure_workers(folder: Path) -> bool:
    """Submit a sweep's workers again if none waits or runs; return whether they were submitted."""
    if not (folder / WORKERS).exists():
        return False  # workers are steps of the head's own job
    try:
        if any(job.worker for job in jobs_left([folder])[folder]):
            return False
        _submitted(folder, WORKERS)
    except SweeperError:
        return False  # the controller does not answer: try again at the next check
    return True


def _submitted(folder: Path, script: str) -> str:
    # --parsable prints "job;cluster" where Slurm federates several clusters.
    return _output_of("sbatch", "--parsable", "--chdir", str(folder / WORK), str(folder / script)).partition(";")[0]


@dataclass(frozen=True)
class Job:
    """A waiting or running job, or a task of an array.

    Attributes:
        number: Number of the job, or of the whole array.
        worker: Whether the job is a worker; otherwise it is a head.
        words: State of the job: `running`, `waiting in partition gpu (Resources), estimated start 2026-11-24 14:20`.
        nodes: Nodes on which it runs.
    """

    number: str
    worker: bool
    words: str
    nodes: str


def jobs_left(folders: Iterable[Path]) -> dict[Path, list[Job]]:
    """Return the waiting and running jobs of each sweep, heads first, by the folder of its scripts.

    Jobs are matched by Slurm's own data, the job's name and the folder of submission, because anybody could have
    written job numbers into a folder's files. Raises SweeperError if Slurm does not answer.
    """
    left: dict[Path, list[Job]] = {folder: [] for folder in folders}
    # The sweep may be another user's; without --user, squeue would list the whole cluster.
    owners = {os.getuid(), *(folder.stat().st_uid for folder in left if folder.exists())}
    listing = _output_of(
        "squeue", "--noheader", "--array", f"--user={','.join(map(str, owners))}", "--format=%F|%j|%T|%P|%r|%S|%N|%Z"
    )
    # The folder (%Z) comes last and takes the rest of the line, because it may contain the separator.
    rows = [line.split("|", 7) for line in listing.splitlines()]
    for folder, jobs in left.items():
        for worker, called in ((False, f"{PREFIX}{folder.name}"), (True, f"{PREFIX}{folder.name}{OF_WORKERS}")):
            jobs += [
                Job(number, worker, _words(*rest), nodes)
                for number, its_name, *rest, nodes, where in rows
                if (its_name, where) == (called, str(folder / WORK))
            ]
    return left


def _words(state: str, partition: str, reason: str, start: str) -> str:
    if state != "PENDING":
        return state.lower()
    known = "" if start in ("N/A", "") else f", estimated start {start[:16].replace('T', ' ')}"
    never = f", will not start: {STUCK[reason]}" if reason in STUCK else ""
    return f"waiting in partition {partition} ({reason}){known}{never}"


def described(jobs: Sequence[Job]) -> str:
    """Describe the state of a sweep's jobs: `head 17: running on n1; workers 18: 3 running, 5 waiting in …`."""
    parts, states = list[str](), dict[str, Counter[str]]()
    for job in jobs:
        if job.worker:
            states.setdefault(job.number, Counter())[job.words] += 1
        else:
            parts.append(f"head {job.number}: {job.words}{' on ' + job.nodes if job.nodes else ''}")
    for number, counts in states.items():
        parts.append(f"workers {number}: {', '.join(f'{count} {words}' for words, count in sorted(counts.items()))}")
    return "; ".join(parts)


def cancel(jobs: Sequence[str]) -> None:
    """Cancel waiting and running jobs, which get SIGTERM first; `jobs` can contain options of scancel."""
    _output_of("scancel", *jobs)


def requeue(job: str) -> None:
    """Put a running job back into the queue."""
    # Slurm may end the job, and `scontrol` with it, before `scontrol` has returned.
    _output_of("scontrol", "requeue", job, accepted=(0, -signal.SIGTERM))


class Notice:
    """Receives the signals by which Slurm asks this job to end.

    Attributes:
        number: The first such signal, SIGUSR1 or SIGTERM; `None` before there is one.
    """

    def __init__(self) -> None:
        """Install the handlers."""
        self.number: int | None = None
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._received)

    def _received(self, number: int, frame: object) -> None:
        # SIGTERM follows SIGUSR1 at the time limit; the first one decides whether the job requeues itself.
        self.number = self.number or number


def _output_of(*command: str, accepted: Collection[int] = (0,)) -> str:
    """Run one of Slurm's commands; return its output. Raises SweeperError unless its exit status is `accepted`."""
    if shutil.which(command[0]) is None:
        raise SweeperError(
            f"{command[0]} was not found", "run this on a login node of the cluster, or load Slurm's module"
        )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SweeperError(f"{command[0]}: {error}", "is Slurm running? try `sinfo`") from error
    if done.returncode not in accepted:
        lines = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if line.strip()]
        message = "; ".join(lines) or f"exit status {done.returncode}"
        known = (remedy for key, remedy in REMEDIES.items() if key in message.lower())
        raise SweeperError(f"{command[0]}: {message}", next(known, "see slurm.yaml, and the script by --print"))
    return done.stdout.strip()
