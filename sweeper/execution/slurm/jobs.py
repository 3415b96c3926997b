"""Slurm itself, through its commands: submit, look, cancel; its own words where it refuses; what jobs tell each other.

They tell it in a folder that all nodes share: who is head, and that the sweep is over.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path

import yaml

from sweeper.core.errors import SweeperError, writing_to
from sweeper.execution.slurm.settings import HEAD, OF_WORKERS, PREFIX, WORKERS, SlurmSettings, scripts
from trainables.files.atomic import write_text
from trainables.files.regular import read_text


@dataclass(frozen=True)
class Head:
    """A head that takes workers in: its Ray address, and what tells it from those before it."""

    address: str
    job: str
    attempt: int


@dataclass(frozen=True)
class Exchange:
    """The folder of one sweep's jobs.

    Attributes:
        folder: `<output>/.slurm/<sweep>`.
    """

    folder: Path

    @property
    def token(self) -> Path:
        """The file with the token of the sweep's own Ray cluster; its owner alone can read it."""
        return self.folder / "token"

    @property
    def stop(self) -> Path:
        """Exists once somebody asked the sweep to stop, and says why if it was the head: nothing is requeued then."""
        return self.folder / "stop"

    @property
    def head(self) -> Head | None:
        """The head that takes workers in; `None` before there is one."""
        try:
            return Head(**json.loads(read_text(self.folder / "head.json")))
        except (OSError, ValueError, TypeError):
            return None

    def announce(self, head: Head) -> None:
        """Tell workers where the head is."""
        write_text(self.folder / "head.json", json.dumps(asdict(head)))

    @property
    def over(self) -> str | None:
        """Why the sweep needs no workers any more; `None` while it does."""
        try:
            return read_text(self.folder / "over")
        except OSError:
            return None

    def end(self, why: str) -> None:
        """Say that the sweep is over, and why."""
        write_text(self.folder / "over", why)

    def begin(self, *, anew: bool) -> None:
        """Say that it is not over; `anew` where somebody submitted it, who wants it whatever happened before."""
        for name in ("over", "stop", "starts") if anew else ("over",):
            (self.folder / name).unlink(missing_ok=True)

    def starts(self) -> list[int]:
        """Return how many journal records there were at each start of a head so far."""
        try:
            return [int(line) for line in read_text(self.folder / "starts").split()]
        except (OSError, ValueError):
            return []

    def add_start(self, records: int) -> None:
        """Note that a head starts with so many journal records."""
        with (self.folder / "starts").open("a", encoding="ascii") as file:
            file.write(f"{records}\n")


FOLDER, WORK = ".slurm", "work"
#: How long a busy controller may take to answer.
ANSWER_SECONDS = 60

_SAID = yaml.safe_load(resources.files("sweeper.execution.slurm").joinpath("remedies.yaml").read_text("utf-8"))

#: What to do by a word of what Slurm says; the first that occurs.
REMEDIES: Mapping[str, str] = _SAID["refused"]

#: What ends the waiting of a job that does not start however long it waits, by squeue's reason for it (squeue(1)).
STUCK: Mapping[str, str] = _SAID["stuck"]

ROOM = "free space, or give --output on another file system"


def folder_of(output: Path, name: str = "") -> Path:
    """Return where the jobs of a sweep keep scripts, logs and what they say to each other; of all, without a name."""
    return output.resolve() / FOLDER / name


def is_here() -> bool:
    """Return whether this machine has Slurm's commands; results are read elsewhere, too."""
    return shutil.which("squeue") is not None


@dataclass
class SlurmJobs:
    """Takes sweeps in as jobs; see `sweeper.execution.cluster.submission.Jobs`.

    Attributes:
        settings: the site's.
        output: the folder of results, shared by all nodes.
        print_only: write the scripts of a sweep into `scripts`, and submit nothing.
        scripts: the batch scripts of the sweep that was taken in, by file name.
        submitted: its jobs, the head's first.
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

        Raises SweeperError with Slurm's own words where it refuses; nothing of the sweep is left then.
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
                for file in sorted(folder.rglob("*")):  # `copytree` would wrap what went wrong in an error of its own
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

    Raises SweeperError with Slurm's own words where it refuses one.
    """
    jobs: list[str] = []
    for script in (HEAD, WORKERS):
        if (folder / script).exists():
            try:
                jobs.append(_submitted(folder, script))
            except SweeperError:
                if jobs:
                    cancel(jobs)
                raise
    return jobs


def ensure_workers(folder: Path) -> bool:
    """Submit a sweep's workers again where none is left, neither waiting nor running; return whether that was so."""
    if not (folder / WORKERS).exists():
        return False  # they are steps of the head's own job
    try:
        if any(job.worker for job in jobs_left([folder])[folder]):
            return False
        _submitted(folder, WORKERS)
    except SweeperError:
        return False  # the controller does not answer: they are looked for again
    return True


def _submitted(folder: Path, script: str) -> str:
    return _said("sbatch", "--parsable", "--chdir", str(folder / WORK), str(folder / script)).partition(";")[0]


@dataclass(frozen=True)
class Job:
    """A job, or a task of an array, that waits or runs.

    Attributes:
        number: the job's, or the whole array's.
        worker: whether it is a worker's; else a head's.
        words: where it stands: `running`, `waiting in partition gpu (Resources), estimated start 2026-11-24 14:20`.
        nodes: on which it runs.
    """

    number: str
    worker: bool
    words: str
    nodes: str


def jobs_left(folders: Iterable[Path]) -> dict[Path, list[Job]]:
    """Return the jobs of each sweep that wait or run, heads first, by the folder of its scripts.

    A job is a sweep's by what Slurm says, its name and the folder that it was submitted in: what a folder says of jobs,
    anybody may have written. Raises SweeperError where Slurm does not answer.
    """
    found: dict[Path, list[Job]] = {folder: [] for folder in folders}
    owners = {os.getuid(), *(folder.stat().st_uid for folder in found if folder.exists())}
    said = _said(
        "squeue", "--noheader", "--array", f"--user={','.join(map(str, owners))}", "--format=%F|%j|%T|%P|%r|%S|%N|%Z"
    )
    rows = [line.split("|", 7) for line in said.splitlines()]
    for folder, jobs in found.items():
        for worker, called in ((False, f"{PREFIX}{folder.name}"), (True, f"{PREFIX}{folder.name}{OF_WORKERS}")):
            jobs += [
                Job(number, worker, _words(*rest), nodes)
                for number, its_name, *rest, nodes, where in rows
                if (its_name, where) == (called, str(folder / WORK))
            ]
    return found


def _words(state: str, partition: str, reason: str, start: str) -> str:
    if state != "PENDING":
        return state.lower()
    known = "" if start in ("N/A", "") else f", estimated start {start[:16].replace('T', ' ')}"
    never = f", will not start: {STUCK[reason]}" if reason in STUCK else ""
    return f"waiting in partition {partition} ({reason}){known}{never}"


def described(jobs: Sequence[Job]) -> str:
    """Return where a sweep's jobs stand: `head 17: running on n1; workers 18: 3 running, 5 waiting in …`."""
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
    """End jobs, those that wait and those that run, which get SIGTERM first; options of scancel may be among them."""
    _said("scancel", *jobs)


def requeue(job: str) -> None:
    """Put a running job back into the queue."""
    _said("scontrol", "requeue", job)


class Notice:
    """The first signal by which Slurm asks this job to end, SIGUSR1 or SIGTERM; `None` before there is one."""

    def __init__(self) -> None:
        """Hear them from now on."""
        self.number: int | None = None
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: object) -> None:
        self.number = self.number or number


def _said(*command: str) -> str:
    """Run one of Slurm's commands; return what it printed. Raises SweeperError with what it said when it failed."""
    if shutil.which(command[0]) is None:
        raise SweeperError(
            f"{command[0]} was not found", "run this on a login node of the cluster, or load Slurm's module"
        )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SweeperError(f"{command[0]}: {error}", "is Slurm running? try `sinfo`") from error
    if done.returncode != 0:
        lines = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if line.strip()]
        said = "; ".join(lines) or f"exit status {done.returncode}"
        known = (remedy for key, remedy in REMEDIES.items() if key in said.lower())
        raise SweeperError(f"{command[0]}: {said}", next(known, "see slurm.yaml, and the script by --print"))
    return done.stdout.strip()
