"""Commands for clusters: submit a sweep to Ray or Slurm, follow its log, create a token."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sweeper.api import arguments
from sweeper.api.arguments import connect, output_folder, overrides
from sweeper.api.finished import Submitted
from sweeper.core.display import CommandResult, printable
from sweeper.core.errors import SweeperError
from sweeper.execution.cluster.submission import Request, submit as submit_sweep, submit_resume
from sweeper.reporting.status import local_log
from sweeper.storage.metadata import user_and_host
from trainables.files.atomic import read_text

if TYPE_CHECKING:
    from sweeper.execution.cluster.cluster import Cluster
    from sweeper.execution.slurm.submission import SlurmSubmission


def submit(
    space: arguments.Space,
    address: arguments.ClusterAddress = None,
    *,
    output: arguments.Output = None,
    slurm: bool = False,
    slurm_file: str | Path | None = None,
    print_only: Annotated[bool, Parameter("--print")] = False,
    set: arguments.Settings = None,
    name: str | None = None,
    tracking_uri: arguments.Tracking = None,
    mlflow: arguments.Mlflow = True,
    ship_code: Annotated[bool, Parameter(negative="--no-ship-code")] = True,
    wait_for_nodes: arguments.WaitForNodes = 30.0,
    wait: bool = False,
    say: arguments.Say = lambda line: None,
    write: arguments.Write = lambda text: None,
) -> Submitted | SlurmSubmission:
    """Run a sweep on a remote cluster.

    Results go to an object store or a shared directory.

    Args:
        address: Dashboard of the Ray cluster, e.g. http://head:8265.
        output: Where results go: s3://…, gs://…, az://…, a shared directory.
        slurm: Submit to Slurm from a login node; slurm.yaml has the resources to request.
        slurm_file: Resources to request from Slurm. (default: slurm.yaml beside the space)
        print_only: Print Slurm's scripts and submit nothing.
        name: Name of the sweep. (default: the file's name, numbered)
        tracking_uri: MLflow server, as seen from the cluster. (default: the cluster's MLFLOW_TRACKING_URI)
        ship_code: Ship the local code with the job, or run the code in the cluster's image.
        wait: Follow the log until the sweep ends, and exit with its status.
        say: Callback for the job and the next commands, before the log.
        write: Callback for the log's text as it arrives.

    Returns:
        The job, and the next commands.

    Raises:
        SweeperError: The cluster does not answer, or the search space is invalid; nothing was started.

    Examples:
        >>> import sweeper
        >>> sweeper.submit("quickstart")
        Traceback (most recent call last):
        ...
        sweeper.core.errors.SweeperError: no cluster was named
          give address, e.g. http://head:8265, or set SWEEPER_ADDRESS; --slurm submits to the Slurm of this machine
    """
    address = address or os.environ.get("SWEEPER_ADDRESS")
    if isinstance(space, Mapping):
        raise SweeperError("a remote cluster needs the search space as a file", "write it to a file, or run it here")
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    request = Request(output_folder(output), uri, not mlflow, ship_code, overrides(set), wait_for_nodes)
    if slurm:
        from sweeper.execution.slurm.submission import submit_sweep as submit_to_slurm

        file = None if slurm_file is None else Path(slurm_file)
        return submit_to_slurm(str(space), file, name, request, print_only=print_only)
    if slurm_file is not None or print_only:
        raise SweeperError("--slurm-file and --print go with --slurm", "add --slurm, or omit them")
    if address is None:
        raise SweeperError(
            "no cluster was named",
            "give address, e.g. http://head:8265, or set SWEEPER_ADDRESS; --slurm submits to the Slurm of this machine",
        )
    cluster = connect(address)
    # A name is taken as soon as its job exists, before the driver makes the results folder.
    known = {sweep.name for sweep in cluster.sweeps()}
    submitted = Submitted(cluster, *submit_sweep(cluster, str(space), name, known.__contains__, request))
    if wait:
        for line in submitted.lines():
            say(line)
        submitted.ended = followed(cluster, submitted.job, write)
    return submitted


def logs(
    name: str,
    *,
    address: arguments.ClusterAddress = None,
    follow: bool = False,
    output: arguments.Output = None,
    write: arguments.Write = lambda text: sys.stdout.write(text),  # looked up late: it may be closed
) -> CommandResult[None]:
    """Print a sweep's log.

    With --dashboard the driver's log on the cluster, otherwise the log of Ray and torch on this machine.

    Args:
        name: Name of the sweep.
        follow: Follow the log until the sweep ends.
        output: Directory of local results.
        write: Callback for the log's text as it arrives.

    Returns:
        Nothing; the log is printed.

    Examples:
        >>> import sweeper
        >>> sweeper.logs("example", write=lambda text: None).exit_code
        0
    """
    if address is None:
        from sweeper.execution.slurm.submission import job_logs

        place = output_folder(output)
        for file in (jobs := job_logs(place, name)):
            write(f"# {file}\n{printable(read_text(file, 'replace'))}")
        if jobs and not (Path(place) / name).exists():
            return CommandResult(None)  # the job waits in the queue: the sweep has no folder yet
        for text in local_log(name, output_folder(output), follow=follow):
            write(text)
        return CommandResult(None)
    cluster = connect(address)
    sweep = cluster.sweep(name)
    if follow:
        return followed(cluster, sweep.job, write)
    write(cluster.logs(sweep.job))
    return CommandResult(None)


def followed(cluster: Cluster, job: str, write: arguments.Write) -> CommandResult[None]:
    """Write a driver's log until the driver ends; the result has its exit status, or 1 if it was killed."""
    for text in cluster.follow(job):
        write(text)
    ended = cluster.sweep(job)
    # Ray reports no exit status for a driver that was killed, or whose node is gone.
    killed = ended.exit_code is None and ended.state != "finished"
    notes = [f"the job {job} {ended.state}: {ended.message.strip()}"] if killed else []
    return CommandResult(None, notes=notes, exit_code=ended.exit_code if ended.exit_code is not None else int(killed))


def token(file: str | Path) -> CommandResult[Path]:
    """Create a token for a Ray cluster.

    It is never printed; copy the file to the cluster and its users.

    Args:
        file: File to write; only you can read it.

    Returns:
        The file with the token.

    Examples:
        >>> import sweeper
        >>> sweeper.token("example.token").value.name
        'example.token'
    """
    from sweeper.execution.cluster.cluster import create_token

    create_token(Path(file))
    notes = [
        f"wrote a new token to {file}; every machine of the cluster and every user needs it:",
        f"  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={Path(file).resolve()}",
    ]
    return CommandResult(Path(file), notes=notes)


def resume_remotely(
    name: str, address: str, failed: bool, settings: list[str], wait_for_nodes: float, trust: bool
) -> Submitted:
    """Submit a driver that resumes a sweep, with the output and tracker of its first submission."""
    cluster = connect(address)
    sweep = cluster.sweep(name)
    if not sweep.ended:
        raise SweeperError(
            f"the sweep {name!r} is already {sweep.state}", f"see `sweeper status --dashboard {address}`"
        )
    # The user who submitted the sweep shipped its code, so that user need not approve it again.
    own = sweep.submitter == user_and_host()
    request = Request(
        sweep.output, sweep.tracking_uri, sweep.no_mlflow, settings=settings, wait_for_nodes=wait_for_nodes,
        trust=trust or own,
    )  # fmt: skip
    return Submitted(cluster, sweep.name, submit_resume(cluster, sweep.name, request, failed=failed))
