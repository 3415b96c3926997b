"""From a login node: submit a sweep as jobs, say where they stand, stop them."""

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

#: Minutes that a driver waits for workers, a year: the queue may be long, and waiting costs one core.
ON_COMPUTE_NODES = 525_600.0


@dataclass(frozen=True)
class SlurmSubmission:
    """A sweep that was given to Slurm, or would be.

    Attributes:
        name: the sweep's.
        jobs: the head's job, then the workers'; none where nothing was submitted.
        folder: of scripts and logs.
        scripts: the batch scripts by file name.
        asked: the file that says what is asked of Slurm; `None` where the scripts are those of before.
    """

    name: str
    jobs: Sequence[str]
    folder: Path
    scripts: dict[str, str]
    asked: Path | None

    def shown(self) -> CommandResult[None]:
        """Return what the command prints: the jobs and the next commands; the scripts where nothing was submitted."""
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
    """Submit a sweep; arguments and errors as of `sweeper.api.commands.submit`."""
    if is_store_address(request.output):
        raise SweeperError(
            f"--output {request.output} is a store, and the jobs find each other in a folder",
            "give a folder that all nodes share; `sweeper manage archive` copies a finished sweep elsewhere",
        )
    found, file = read_settings(search_spaces.locate(space), slurm_file)
    shared = Path(request.output).resolve()
    if name is not None and folder_of(shared, name).exists():
        remedy = f"continue it with `sweeper resume {name} --slurm`, or choose another --name"
        raise SweeperError(f"the name {name!r} is taken", remedy)
    spec = load_spec(search_spaces.locate(space), list(request.settings))
    jobs = SlurmJobs(_for_trials(found, spec), shared, print_only)
    request = replace(request, output=str(shared), wait_for_nodes=ON_COMPUTE_NODES)
    name, _ = submit(jobs, space, name, lambda each: folder_of(shared, each).exists(), request)
    return SlurmSubmission(name, jobs.submitted, folder_of(shared, name), jobs.scripts, file)


def _for_trials(asked: SlurmSettings, spec: SweepSpec) -> SlurmSettings:
    """Return the settings with no more nodes or workers than trials can run at once."""
    most = min(len(configurations(spec)), spec.max_concurrent or MAXIMUM_CONFIGURATIONS)
    counts = {"nodes": asked.nodes, "workers": asked.workers}
    return asked.model_copy(update={key: min(count, most) for key, count in counts.items() if count is not None})


def submit_again(name: str, output: str) -> SlurmSubmission:
    """Submit the scripts of a sweep that was stopped, or given up, once more.

    Raises SweeperError where it was never Slurm's, or its jobs wait or run.
    """
    folder = at_rest(name, output)
    if folder is None:
        raise SweeperError(f"{name!r} was not submitted to Slurm", f"`sweeper resume {name}` runs it on this machine")
    Exchange(folder).begin(anew=True)
    return SlurmSubmission(folder.name, submit_scripts(folder), folder, {}, None)


def at_rest(name: str, output: str) -> Path | None:
    """Return the folder of a sweep's scripts, `None` where it has none. Raises SweeperError where its jobs are left."""
    folder = _folder_of(name, output)
    if folder is not None and is_here() and (jobs := jobs_left([folder])[folder]):
        raise SweeperError(f"Slurm has jobs of {name!r}: {described(jobs)}", f"run `sweeper stop {name}` first")
    return folder


def _folder_of(name: str, output: str) -> Path | None:
    """Return the folder of a sweep's scripts, `None` where it has none, or somebody's link to another's."""
    name, output = split_name(name, output)
    if is_store_address(output):
        return None
    folder = folder_of(Path(output), name)
    return folder if (folder / HEAD).is_file() and folder.resolve() == folder else None


def asked_file(space: object, named: str | Path | None) -> Path:
    """Return the file that says what is asked of Slurm for a search space. Raises SweeperError where there is none."""
    file = search_spaces.locate(str(space)) if isinstance(space, (str, Path)) else Path("space.yaml")
    return read_settings(file, None if named is None else Path(named))[1]


def stop_jobs(name: str, output: str) -> str | None:
    """End a sweep's jobs where no driver is at work; else keep them from being requeued.

    Return what was done where that is all, `None` where there is a driver to be asked, or no job of the sweep is left.
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
    except (OSError, RuntimeError, ValueError):  # no folder can have that name: whoever looks for other sweeps says so
        return []


def jobs_lines(output: str, name: str | None, *, left: bool = False) -> list[str]:
    """Return where the jobs stand of each sweep of a folder that is Slurm's, or of one, a line each.

    Of all sweeps, those that are over are left out where there are results to speak for them. With `left`, only those
    are told of which Slurm has jobs.
    """
    folders = [folder_of(Path(output), each) for each in slurm_sweeps(output) if name in (None, each)]
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
    told = [each for each in ended if not left and (name is not None or not (Path(output) / each.name).exists())]
    return [f"{each.name} · Slurm: {text}" for each, text in (stand | {each: ended[each] for each in told}).items()]


def job_logs(output: str, name: str) -> list[Path]:
    """Return the logs of a sweep's jobs, workers' first, the latest last; none where it is not Slurm's."""
    folder = _folder_of(name, output)
    logs = folder.glob("*.log") if folder is not None else ()
    return sorted(logs, key=lambda path: ("_" not in path.stem, path.stat().st_mtime))
