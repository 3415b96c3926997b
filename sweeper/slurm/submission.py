"""From a login node: submit a sweep as jobs, say where they stand, stop them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import search_spaces
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.remote.submission import Request, submit
from sweeper.slurm.exchange import Exchange
from sweeper.slurm.jobs import FOLDER, SlurmJobs, cancel, described, folder_of, jobs_of
from sweeper.slurm.settings import read_settings
from sweeper.storage.lease import holder
from sweeper.storage.places import split_name
from trainables.files.stores.base import is_store_address

ON_COMPUTE_NODES = 525_600.0
"""Minutes that a driver waits for workers, a year: the queue may be long, and waiting costs one core."""


@dataclass(frozen=True)
class SlurmSubmission:
    """A sweep that was given to Slurm, or would be.

    Attributes:
        name: the sweep's.
        jobs: the head's job, then the workers'; none where nothing was submitted.
        folder: of scripts and logs.
        scripts: the batch scripts by file name.
    """

    name: str
    jobs: Sequence[str]
    folder: Path
    scripts: dict[str, str]


@dataclass
class _Printed:
    """Takes a sweep in and submits nothing."""

    jobs: SlurmJobs
    scripts: dict[str, str]

    def submit(
        self, name: str, command: Sequence[str], metadata: dict[str, str], folder: Path, modules: Sequence[Path]
    ) -> str:
        self.scripts = self.jobs.scripts(name, command)
        return ""


def submit_sweep(
    space: str,
    slurm_file: Path | None,
    output: str,
    settings: Sequence[str],
    name: str | None,
    tracking_uri: str | None,
    *,
    mlflow: bool,
    allow_notify: bool,
    print_only: bool,
) -> SlurmSubmission:
    """Submit a sweep; arguments and errors as of `sweeper.api.commands.submit`."""
    if is_store_address(output):
        raise SweeperError(
            f"--output {output} is a store, and the jobs find each other in a folder",
            "give a folder that all nodes share; `sweeper archive` copies a finished sweep elsewhere",
        )
    found, _ = read_settings(search_spaces.locate(space), slurm_file)
    shared = Path(output).resolve()
    jobs = SlurmJobs(found, shared)
    takes = _Printed(jobs, {}) if print_only else jobs
    request = Request(
        str(shared), tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"), not mlflow, settings=settings,
        wait_for_nodes=ON_COMPUTE_NODES, allow_notify=allow_notify,
    )  # fmt: skip
    name, _ = submit(takes, space, name, lambda each: folder_of(shared, each).exists(), request)
    folder = folder_of(shared, name)
    if isinstance(takes, _Printed):
        return SlurmSubmission(name, [], folder, takes.scripts)
    written = {file.name: file.read_text("utf-8") for file in sorted(folder.glob("*.sh"))}
    return SlurmSubmission(name, jobs_of(shared, name), folder, written)


def asked_file(space: object, named: str | Path | None) -> Path:
    """Return the file that says what is asked of Slurm for a search space. Raises SweeperError where there is none."""
    file = search_spaces.locate(str(space)) if isinstance(space, (str, Path)) else Path("space.yaml")
    return read_settings(file, None if named is None else Path(named))[1]


def stop_jobs(name: str, output: str) -> str | None:
    """End a sweep's jobs where no driver is at work; else keep them from being requeued.

    Return what was done where that is all, `None` where there is a driver to be asked, or the sweep is not Slurm's.
    """
    name, output = split_name(name, output)
    if is_store_address(output) or not (jobs := jobs_of(Path(output), name)):
        return None
    exchange = Exchange(folder_of(Path(output), name))
    exchange.stop.touch()
    if holder(SweepPaths(Path(output) / name).lease) is not None:
        return None
    cancel(jobs)
    exchange.set_over(over=True, why="stopped while it waited")
    return f"cancelled the jobs {', '.join(jobs)} of {name}, which waited"


def jobs_lines(output: str, name: str | None) -> list[str]:
    """Return a line for each sweep of a folder that is Slurm's and not over, or for one: where its jobs stand."""
    if is_store_address(output):
        return []
    names = sorted(path.name for path in (Path(output) / FOLDER).glob("*")) if name is None else [name]
    lines = []
    for each in names:
        folder = Path(output)
        jobs = jobs_of(folder, each)
        if jobs and not Exchange(folder_of(folder, each)).over:
            try:
                lines.append(f"{each} · Slurm: {described(jobs)}")
            except SweeperError as error:
                lines.append(f"{each} · Slurm: {error.message}")
    return lines


def job_logs(output: str, name: str) -> list[Path]:
    """Return the logs of a sweep's jobs, oldest first; none where it is not Slurm's."""
    if is_store_address(output):
        return []
    return sorted(folder_of(Path(output), name).glob("*.log"), key=lambda path: path.stat().st_mtime)
