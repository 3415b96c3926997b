"""The commands of a sweep's life: `run`, `resume`, `plan`, `stop`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli import remote as cli_remote
from sweeper.cli.common import (
    RESULTS,
    AllowNotify,
    Name,
    Notify,
    Output,
    Rehearse,
    Settings,
    Space,
    Timed,
    Trust,
    WaitForNodes,
    finish,
    show,
)
from sweeper.cli.remote import ClusterAddress
from sweeper.cli.run_options import Running, runs_trials
from sweeper.core.errors import SweeperError

if TYPE_CHECKING:
    from sweeper.space.spec import SweepSpec

commands = typer.Typer()


@commands.command()
@runs_trials
def run(
    space: Space,
    settings: Settings = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the sweep.", show_default="the file's name, numbered")
    ] = None,
    *,
    running: Running,
    rehearse: Rehearse = False,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Reuse trials that other sweeps in --output have already trained.")
    ] = False,
    reuse_from: Annotated[
        list[str] | None,
        typer.Option(help="Reuse trials of this sweep only; repeatable.", show_default="none", metavar="NAME"),
    ] = None,
    wait_for_nodes: WaitForNodes = 30.0,
    notify: Notify = None,
    allow_notify: AllowNotify = False,
    timings: Timed = False,
) -> None:
    """Run a sweep: train the search space's configurations and write tables and a report."""
    from sweeper.api import commands

    done = commands.run(
        space,
        set=settings,
        name=name,
        **running,
        rehearse=rehearse,
        reuse=reuse,
        reuse_from=reuse_from or (),
        wait_for_nodes=wait_for_nodes,
        notify=notify or (),
        allow_notify=allow_notify,
    )
    finish(done, timings)


@commands.command()
@runs_trials
def resume(
    name: Name,
    failed: Annotated[bool, typer.Option("--failed", help="Also retry failed trials.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the budget or other limits, e.g. budget.gpu_hours=20; repeatable."),
    ] = None,
    discard_damaged: Annotated[
        bool, typer.Option("--discard-damaged", help="Quarantine damaged journal records and all records after them.")
    ] = False,
    *,
    running: Running,
    wait_for_nodes: WaitForNodes = 30.0,
    notify: Notify = None,
    allow_notify: AllowNotify = False,
    trust: Trust = False,
    timings: Timed = False,
) -> None:
    """Resume an interrupted sweep. Finished trials are kept; the others continue from their checkpoints."""
    from sweeper.api import commands

    address = running["address"]
    if address is not None and address.startswith("http"):
        if notify:
            raise SweeperError(
                "--notify works only for sweeps driven from this machine", "put it into the sweep: --set 'notify=[…]'"
            )
        cli_remote.resume_remotely(
            name, address, failed=failed, settings=settings or [], wait_for_nodes=wait_for_nodes,
            trust=trust, allow_notify=allow_notify,
        )  # fmt: skip
        return
    done = commands.resume(
        name,
        failed=failed,
        set=settings,
        discard_damaged=discard_damaged,
        **running,
        wait_for_nodes=wait_for_nodes,
        notify=notify or (),
        allow_notify=allow_notify,
        trust=trust,
    )
    finish(done, timings)


@commands.command()
def plan(
    space: Space,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    rehearse: Rehearse = False,
    cluster: Annotated[
        Path | None,
        typer.Option(help="Ray launcher file or KubeRay manifest: also estimate nodes, hours and price there."),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="Price table for --cluster.", show_default="sweeper/planning/prices.yaml")
    ] = None,
) -> None:
    """Estimate trials, time and cost of a search space before any training."""
    from sweeper.planning.costs import measured_plan
    from sweeper.space.loading import load_spec

    spec = load_spec(space, settings or [], rehearse=rehearse)
    if cluster is not None:
        _plan_on_cluster(spec, cluster, prices, as_json)
        return
    planned = measured_plan(spec)
    if as_json:
        typer.echo(json.dumps(planned.to_dict(), indent=2))
    else:
        show(planned)
    if planned.obstacle:
        raise SweeperError(f"the sweep cannot start here: {planned.obstacle}")


def _plan_on_cluster(spec: SweepSpec, cluster: Path, prices: Path | None, as_json: bool) -> None:
    from sweeper.planning.on_cluster import cluster_plan

    planned, there = cluster_plan(spec, cluster, prices)
    if as_json:
        typer.echo(json.dumps({**planned.to_dict(), "cluster": there.to_dict()}, indent=2))
    else:
        show(planned)
        show(there)


@commands.command()
def stop(name: Name, output: Output = RESULTS, address: ClusterAddress = None) -> None:
    """Ask a running sweep to stop. Results are kept; `sweeper resume` continues it."""
    from sweeper.execution.stopping import ask_to_stop

    typer.echo(cli_remote.stop_remotely(name, address) if address else ask_to_stop(name, output), err=True)
