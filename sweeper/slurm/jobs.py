"""Slurm itself, through its commands: submit, look, cancel; its own words where it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.slurm.script import WORKERS, scripts
from sweeper.slurm.settings import SlurmSettings
from trainables.files.atomic import write_text

FOLDER, JOBS, WORK = ".slurm", "jobs.json", "work"
ANSWER_SECONDS = 60
"""How long a busy controller may take to answer."""

REMEDIES = {
    "partition": "see `sinfo` for the partitions that you may use",
    "account": "see `sacctmgr show associations user=$USER` for your accounts",
    "qos": "see `sacctmgr show associations user=$USER format=account,qos` for what you may use",
    "time limit": "see `sinfo --format='%P %l'` for the limits of partitions",
    "than permitted": "ask for fewer in slurm.yaml; see `sinfo --Node --long` for what the nodes have",
    "memory specification": "ask for less in slurm.yaml; see `sinfo --Node --long` for what the nodes have",
    "node configuration": "ask for less in slurm.yaml; see `sinfo --Node --long` for what the nodes have",
    "contact slurm controller": "try again in a minute, or ask the cluster's administrators",
    "quota": "free space, or give --output in a folder with a larger quota",
    "space left": "free space, or give --output on another file system",
}
"""What to do by a word of what Slurm says."""


def folder_of(output: Path, name: str) -> Path:
    """Return where the jobs of a sweep keep their scripts, logs and what they say to each other."""
    return output / FOLDER / name


@dataclass
class SlurmJobs:
    """Takes sweeps in as jobs; see `sweeper.remote.submission.Jobs`.

    Attributes:
        settings: the site's.
        output: the folder of results, shared by all nodes.
    """

    settings: SlurmSettings
    output: Path

    def scripts(self, name: str, command: Sequence[str]) -> dict[str, str]:
        """Return the batch scripts of a sweep whose driver is `command`, by file name."""
        return scripts(self.settings, name, folder_of(self.output, name), [*command[3:], "--continue"])

    def submit(
        self, name: str, command: Sequence[str], metadata: dict[str, str], folder: Path, modules: Sequence[Path]
    ) -> str:
        """Write the scripts of a sweep beside its future results and submit them; return the head's job.

        Raises SweeperError with Slurm's own words where it refuses; nothing of the sweep is left then.
        """
        if shutil.which("sbatch") is None:
            raise SweeperError(
                "sbatch was not found", "run this on a login node of the cluster, or load Slurm's module"
            )
        own = folder_of(self.output, name)
        jobs: list[str] = []
        try:
            own.mkdir(parents=True)
            shutil.copytree(folder, own / WORK)
            written = self.scripts(name, command)
            for file, text in written.items():
                (own / file).write_text(text, "utf-8")
                jobs.append(_submitted(own, file))
            write_text(own / JOBS, json.dumps(jobs))
        except (SweeperError, OSError) as error:
            for job in jobs:
                _said("scancel", job)
            shutil.rmtree(own, ignore_errors=True)
            if isinstance(error, OSError):
                raise SweeperError(
                    f"{own} cannot be written: {error.strerror or error}", _remedy(str(error))
                ) from error
            raise
        return jobs[0]


def jobs_of(output: Path, name: str) -> list[str]:
    """Return the jobs of a sweep, the head's first; none where it was not submitted to Slurm."""
    try:
        found = json.loads((folder_of(output, name) / JOBS).read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return [job for job in found if isinstance(job, str) and job.isdigit()] if isinstance(found, list) else []


def workers_of(folder: Path) -> list[str]:
    """Return the jobs of a sweep's workers, whose folder this is; none where they are steps of the head's job."""
    return jobs_of(folder.parent.parent, folder.name)[1:]


def ensure_workers(folder: Path) -> None:
    """Submit a sweep's workers again where none is left, neither waiting nor running."""
    workers = workers_of(folder)
    if not workers:
        return
    try:
        left = _said("squeue", "--noheader", f"--jobs={','.join(workers)}", "--format=%A")
    except SweeperError as error:
        if "Invalid job id" not in error.message:
            return  # the controller does not answer: they are looked for at the next start
        left = ""
    if not left:
        jobs = jobs_of(folder.parent.parent, folder.name)
        write_text(folder / JOBS, json.dumps([jobs[0], _submitted(folder, WORKERS)]))


def _submitted(folder: Path, script: str) -> str:
    return _said("sbatch", "--parsable", "--chdir", str(folder / WORK), str(folder / script)).partition(";")[0]


def described(jobs: Sequence[str]) -> str:
    """Return where jobs stand: `head running on n1; workers: 3 running, 5 pending (Resources, start 14:20)`."""
    try:
        lines = _said("squeue", "--noheader", "--array", f"--jobs={','.join(jobs)}", "--format=%A|%F|%T|%r|%S|%N")
    except SweeperError as error:
        if "Invalid job id" in error.message:  # squeue forgets a job minutes after its end
            return "its jobs have ended"
        raise
    states: dict[str, Counter[str]] = {job: Counter() for job in jobs}
    for line in lines.splitlines():
        _, first, state, reason, start, nodes = line.split("|")
        words = state.lower()
        if state == "PENDING":
            known = start[:16].replace("T", " ") if start not in ("N/A", "") else ""
            words += f" ({reason}{', estimated start ' + known if known else ''})"
        elif first == jobs[0] and nodes:
            words += f" on {nodes}"
        states.get(first, Counter())[words] += 1
    parts = []
    for job, counts in states.items():
        who = "head" if job == jobs[0] else "workers"
        parts.append(f"{who} {job}: {', '.join(_counted(counts, alone=who == 'head')) or 'ended'}")
    return "; ".join(parts)


def _counted(counts: Counter[str], *, alone: bool) -> list[str]:
    return [words if alone else f"{count} {words}" for words, count in sorted(counts.items())]


def cancel(jobs: Sequence[str]) -> None:
    """End jobs, those that wait and those that run, which get SIGTERM first."""
    _said("scancel", *jobs)


def requeue(job: str) -> None:
    """Put a running job back into the queue."""
    _said("scontrol", "requeue", job)


def _said(*command: str) -> str:
    """Run one of Slurm's commands; return what it printed. Raises SweeperError with what it said when it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SweeperError(f"{command[0]}: {error}", "is Slurm running? try `sinfo`") from error
    if done.returncode != 0:
        lines = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if line.strip()]
        said = "; ".join(lines) or f"exit status {done.returncode}"
        raise SweeperError(f"{command[0]}: {said}", _remedy(said))
    return done.stdout.strip()


def _remedy(said: str) -> str:
    words, otherwise = said.lower(), "see slurm.yaml, and the script by --print"
    return next((remedy for key, remedy in REMEDIES.items() if key in words), otherwise)
