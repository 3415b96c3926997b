"""The commands for sweeps on a remote cluster: `submit`, `logs`, `token`; and the `--address` of other commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.common import AllowNotify, Settings, Space, WaitForNodes
from sweeper.core.errors import SweeperError
from sweeper.remote.reach import connect

if TYPE_CHECKING:
    from sweeper.monitoring.status import Look
    from sweeper.remote.cluster import Cluster

ClusterAddress = Annotated[
    str | None,
    typer.Option("--address", envvar="SWEEPER_ADDRESS", help="Dashboard of a Ray cluster, e.g. http://head:8265."),
]

commands = typer.Typer()


@commands.command()
def submit(
    space: Space,
    address: Annotated[
        str,
        typer.Option(
            "--address", envvar="SWEEPER_ADDRESS", help="Dashboard of the Ray cluster, e.g. http://head:8265."
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            envvar="SWEEPER_OUTPUT",
            help="Where results go: s3://…, gs://…, az://…, a shared directory.",
        ),
    ],
    settings: Settings = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the sweep.", show_default="the file's name, numbered")
    ] = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            "--tracking-uri",
            envvar="MLFLOW_TRACKING_URI",
            help="MLflow server, as seen from the cluster.",
            show_default="the cluster's MLFLOW_TRACKING_URI",
        ),
    ] = None,
    no_mlflow: Annotated[bool, typer.Option("--no-mlflow", help="Write Parquet tables only, no MLflow runs.")] = False,
    ship_code: Annotated[
        bool, typer.Option(help="Ship the local code with the job, or run the code in the cluster's image.")
    ] = True,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow the log until the sweep ends, and exit with its status.")
    ] = False,
    wait_for_nodes: WaitForNodes = 30.0,
    allow_notify: AllowNotify = False,
) -> None:
    """Run a sweep on a remote cluster. Results go to an object store or a shared directory."""
    from sweeper.api import commands

    submitted = commands.submit(
        space, address, output=output, set=settings, name=name, tracking_uri=tracking_uri, mlflow=not no_mlflow,
        ship_code=ship_code, wait_for_nodes=wait_for_nodes, allow_notify=allow_notify,
    )  # fmt: skip
    cluster, job = submitted.cluster, submitted.job
    _say_submitted(cluster, submitted.name, job)
    if wait:
        raise typer.Exit(_follow(cluster, job))


@commands.command()
def logs(
    name: Annotated[str, typer.Argument(help="Name of the sweep.")],
    address: ClusterAddress = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the sweep ends.")] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", envvar="SWEEPER_OUTPUT", help="Directory of local results.")
    ] = ("results"),
) -> None:
    """Print a sweep's log: the driver's log on a cluster (--address), the log of Ray and torch on this machine."""
    if address is None:
        from sweeper.monitoring.status import local_log

        for text in local_log(name, output, follow=follow):
            sys.stdout.write(text)
            sys.stdout.flush()
        return
    cluster = connect(address)
    sweep = cluster.sweep(name)
    if follow:
        raise typer.Exit(_follow(cluster, sweep.job))
    sys.stdout.write(cluster.logs(sweep.job))


@commands.command()
def token(file: Annotated[Path, typer.Argument(help="File to write; only you can read it.")]) -> None:
    """Create a token for a Ray cluster. It is never printed; copy the file to the cluster and its users."""
    from sweeper.remote.tokens import create_token

    create_token(file)
    typer.echo(f"wrote a new token to {file}; every machine of the cluster and every user needs it:", err=True)
    typer.echo(f"  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={file.resolve()}", err=True)


def resume_remotely(
    name: str,
    address: str,
    *,
    failed: bool,
    settings: list[str],
    wait_for_nodes: float,
    trust: bool = False,
    allow_notify: bool = False,
) -> None:
    """Submit a driver that resumes a sweep, with the output and tracking store it was submitted with."""
    from sweeper.remote.submission import Request, submit_resume, submitter

    cluster = connect(address)
    sweep = cluster.sweep(name)
    if not sweep.ended:
        raise SweeperError(f"the sweep {name!r} is already {sweep.state}", f"see `sweeper status --address {address}`")
    own = sweep.submitter == submitter()
    request = Request(
        sweep.output, sweep.tracking_uri, sweep.no_mlflow, settings=settings, wait_for_nodes=wait_for_nodes,
        trust=trust or own, allow_notify=allow_notify or own,
    )  # fmt: skip
    _say_submitted(cluster, sweep.name, submit_resume(cluster, sweep.name, request, failed=failed))


def remote_look(address: str, name: str | None) -> Callable[[], Look]:
    """Return a function that checks a cluster's sweeps, or one, through its Jobs API until all drivers ended."""
    from sweeper.monitoring.status import Look
    from sweeper.remote.cluster import progress_of, sweeps_table

    cluster = connect(address)

    def look() -> Look:
        sweeps = cluster.sweeps() if name is None else [cluster.sweep(name)]
        lines = [f"{sweep.name} · {sweep.state} · {progress_of(sweep, cluster.logs)}" for sweep in sweeps]
        over = all(sweep.ended for sweep in sweeps)
        return Look(sweeps_table(sweeps, cluster.logs), "\n".join(lines), over, all(s.exit_code == 0 for s in sweeps))

    return look


def _say_submitted(cluster: Cluster, sweep: str, job: str) -> None:
    typer.echo(f"submitted {sweep} as job {job}", err=True)
    typer.echo("next", err=True)
    for command in ("status", f"logs {sweep} --follow", f"results {sweep}", f"stop {sweep}"):
        verb, _, rest = command.partition(" ")
        typer.echo(f"  sweeper {verb}{' ' + rest if rest else ''} --address {cluster.address}", err=True)


def _follow(cluster: Cluster, job: str) -> int:
    """Print a driver's log until it ends; return its exit status, 1 where it was killed."""
    for text in cluster.follow(job):
        sys.stdout.write(text)
        sys.stdout.flush()
    ended = cluster.sweep(job)
    if ended.exit_code is None and ended.state != "finished":
        typer.echo(f"the job {job} {ended.state}: {ended.message.strip()}", err=True)
    return ended.exit_code if ended.exit_code is not None else int(ended.state != "finished")
