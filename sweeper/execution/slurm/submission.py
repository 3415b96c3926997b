"""Submit a sweep to Slurm from a login node, show its jobs, stop them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import search_spaces
from sweeper.core.display import CommandResult
from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.ids import SweepPaths
from sweeper.core.labels import near_path, plural
from sweeper.execution.cluster.submission import Request, submit
from sweeper.execution.slurm.jobs import (
    Exchange,
    SlurmJobs,
    cancel,
    described,
    folder_of,
    is_here,
    jobs_left,
    submit_scripts,
)
from sweeper.execution.slurm.settings import HEAD, SlurmSettings, read_settings
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.space.spec import MAXIMUM_CONFIGURATIONS, SweepSpec
from sweeper.storage.lease import holder
from sweeper.storage.places import split_name
from trainables.files.stores.base import is_store_address

#: Minutes that a driver waits for workers: a year, because queues are long and waiting costs only one core.
ON_COMPUTE_NODES = 525_600.0


@dataclass(frozen=True)
class SlurmSubmission:
    """A sweep submitted to Slurm, or only its scripts.

    Attributes:
        name: Name of the sweep.
        jobs: The head's job, then the workers'; empty if nothing was submitted.
        folder: Folder of scripts and logs.
        scripts: Batch scripts: file name → text.
        asked: File with the settings of Slurm; `None` if existing scripts were submitted again.
    """

    name: str
    jobs: Sequence[str]
    folder: Path
    scripts: dict[str, str]
    asked: Path | None

    def shown(self) -> CommandResult[None]:
        """Return the result that the command prints: jobs and next commands, or unsubmitted scripts."""
        if not self.jobs:
            text = "\n".join(f"# {self.folder / file}\n{script}" for file, script in self.scripts.items())
            made_from = near_path(self.asked or self.folder)
            return CommandResult(
                None, text, notes=[f"nothing was submitted: these are the scripts that {made_from} makes"]
            )
        where = f"--output {shlex.quote(str(self.folder.parent.parent))}"
        by = f", as {near_path(self.asked)} says" if self.asked is not None else ""
        commands = [f"  sweeper {words} {self.name} {where}" for words in ("status", "cluster logs", "results", "stop")]
        jobs = f"{plural(len(self.jobs), 'job')} {', '.join(self.jobs)}"
        return CommandResult(None, notes=[f"submitted {self.name} as {jobs}{by}", "next", *commands])


def submit_sweep(
    space: str, slurm_file: Path | None, name: str | None, request: Request, *, print_only: bool
) -> SlurmSubmission:
    """Submit a sweep; arguments and errors are those of `sweeper.api.clusters.submit`."""
    if is_store_address(request.output):
        raise SweeperError(
            f"--output {request.output} is a store, but Slurm jobs find each other through a folder",
            "give a folder that all nodes share; `sweeper manage archive` copies a finished sweep elsewhere",
        )
    settings, file = read_settings(search_spaces.locate(space), slurm_file)
    shared = Path(request.output).resolve()
    if name is not None and folder_of(shared, name).exists():
        remedy = f"continue it with `sweeper resume {name} --slurm`, or choose another --name"
        raise SweeperError(f"the name {name!r} is taken", remedy)
    spec = load_spec(search_spaces.locate(space), list(request.settings))
    jobs = SlurmJobs(_for_trials(settings, spec), shared, print_only)
    request = replace(request, output=str(shared), wait_for_nodes=ON_COMPUTE_NODES)
    name, _ = submit(jobs, space, name, lambda other: folder_of(shared, other).exists(), request)
    return SlurmSubmission(name, jobs.submitted, folder_of(shared, name), jobs.scripts, file)


def _for_trials(asked: SlurmSettings, spec: SweepSpec) -> SlurmSettings:
    """Return the settings with no more nodes or workers than trials can run at once."""
    most = min(len(configurations(spec)), spec.max_concurrent or MAXIMUM_CONFIGURATIONS)
    counts = {"nodes": asked.nodes, "workers": asked.workers}
    return asked.model_copy(update={key: min(count, most) for key, count in counts.items() if count is not None})


def submit_again(name: str, output: str) -> SlurmSubmission:
    """Submit the scripts of a stopped or given-up sweep again.

    Raises SweeperError if the sweep was not submitted to Slurm, or its jobs still wait or run.
    """
    folder = at_rest(name, output)
    if folder is None:
        raise SweeperError(f"{name!r} was not submitted to Slurm", f"`sweeper resume {name}` runs it on this machine")
    Exchange(folder).begin(anew=True)
    return SlurmSubmission(folder.name, submit_scripts(folder), folder, {}, None)


def at_rest(name: str, output: str) -> Path | None:
    """Return the folder of a sweep's scripts, `None` if it has none. Raises SweeperError if it has jobs."""
    folder = _folder_of(name, output)
    if folder is not None and is_here() and (jobs := jobs_left([folder])[folder]):
        raise SweeperError(f"Slurm has jobs of {name!r}: {described(jobs)}", f"run `sweeper stop {name}` first")
    return folder


def _folder_of(name: str, output: str) -> Path | None:
    """Return the folder of a sweep's scripts; `None` if it has none, or if it is a link to another folder."""
    name, output = split_name(name, output)
    if is_store_address(output):
        return None
    folder = folder_of(Path(output), name)
    return folder if (folder / HEAD).is_file() and folder.resolve() == folder else None


def asked_file(space: object, named: str | Path | None) -> Path:
    """Return the file with the Slurm settings of a search space. Raises SweeperError if there is none."""
    file = search_spaces.locate(str(space)) if isinstance(space, (str, Path)) else Path("space.yaml")
    return read_settings(file, None if named is None else Path(named))[1]


def stop_jobs(name: str, output: str) -> str | None:
    """Cancel a sweep's jobs if no driver runs; otherwise keep them from being requeued.

    Returns a sentence if the jobs were cancelled; `None` if a driver runs and must be asked to stop, or no job is left.
    """
    folder = _folder_of(name, output)
    if folder is None:
        return None
    exchange = Exchange(folder)
    if holder(SweepPaths(folder.parent.parent / folder.name).lease) is not None:
        with writing_to(exchange.stop, "ask its owner to stop it"):
            exchange.stop.touch()
        return None
    if not is_here() or not (numbers := list(dict.fromkeys(job.number for job in jobs_left([folder])[folder]))):
        return None
    cancel(numbers)
    with writing_to(exchange.folder, "free space there"):
        exchange.end("stopped while it waited")
    return f"cancelled the jobs {', '.join(numbers)} of {folder.name}, which waited"


def slurm_sweeps(output: str) -> list[str]:
    """Return the names of a folder's sweeps that were submitted to Slurm."""
    if is_store_address(output):
        return []
    try:
        return sorted(file.parent.name for file in folder_of(Path(output)).glob(f"*/{HEAD}"))
    except (OSError, RuntimeError, ValueError):  # not a valid folder name; the search for other sweeps reports it
        return []


def jobs_lines(output: str, name: str | None, *, left: bool = False) -> list[str]:
    """Return a line on the jobs of each Slurm sweep of a folder, or of the sweep `name`.

    Without `name`, sweeps that are over and have results are omitted. With `left`, only sweeps with jobs are listed.
    """
    folders = [folder_of(Path(output), sweep) for sweep in slurm_sweeps(output) if name in (None, sweep)]
    ended = {folder: why for folder in folders if (why := Exchange(folder).over) is not None}
    waited = [folder for folder in folders if folder not in ended and (is_here() or not left)]
    try:
        stand = {
            folder: described(jobs) or f"its jobs have ended; `sweeper resume {folder.name} --slurm` submits them again"
            for folder, jobs in (jobs_left(waited) if waited else {}).items()
            if jobs or not left
        }
    except SweeperError as error:
        return [f"Slurm: {error.message}"]
    stand |= {
        folder: why
        for folder, why in ended.items()
        if not left and (name is not None or not (Path(output) / folder.name).exists())
    }
    return [f"{folder.name} · Slurm: {text}" for folder, text in stand.items()]


def job_logs(output: str, name: str) -> list[Path]:
    """Return the logs of a sweep's jobs, workers first, the latest last; none if it was not submitted to Slurm."""
    folder = _folder_of(name, output)
    logs = folder.glob("*.log") if folder is not None else ()
    return sorted(logs, key=lambda path: ("_" not in path.stem, path.stat().st_mtime))
