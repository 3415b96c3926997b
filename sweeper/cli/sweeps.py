"""The commands of a sweep's life: `run`, `resume`, `plan`, `stop`, `status`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli import remote as cli_remote
from sweeper.cli.common import (
    DONE,
    INCOMPLETE,
    RESULTS,
    AllowNotify,
    Name,
    Notify,
    Output,
    Rehearse,
    Running,
    Settings,
    Space,
    Timed,
    Trust,
    WaitForNodes,
    answer,
    finish,
    runs_trials,
    show,
)
from sweeper.cli.completion import complete_sweep
from sweeper.cli.remote import ClusterAddress, remote_look
from sweeper.core.errors import SweeperError
from sweeper.remote.reach import local_sweep, remote_output
from sweeper.text.display import SafeConsole, printable
from trainables.files.stores.base import StoreError

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
    from sweeper.api import commands

    if cluster is not None:
        _plan_on_cluster(space, settings, rehearse, cluster, prices, as_json)
        return
    planned = commands.plan(space, set=settings, rehearse=rehearse)
    answer(planned, as_json=as_json)
    if planned.obstacle:
        raise SweeperError(f"the sweep cannot start here: {planned.obstacle}")


def _plan_on_cluster(
    space: str, settings: list[str] | None, rehearse: bool, cluster: Path, prices: Path | None, as_json: bool
) -> None:
    from sweeper.planning.on_cluster import cluster_plan
    from sweeper.space.loading import load_spec

    planned, there = cluster_plan(load_spec(space, settings or [], rehearse=rehearse), cluster, prices)
    if as_json:
        typer.echo(json.dumps({**planned.to_dict(), "cluster": there.to_dict()}, indent=2))
    else:
        show(planned)
        show(there)


@commands.command()
def stop(name: Name, output: Output = RESULTS, address: ClusterAddress = None) -> None:
    """Ask a running sweep to stop. Results are kept; `sweeper resume` continues it."""
    from sweeper.api import commands

    typer.echo(commands.stop(name, output=output, address=address), err=True)


@commands.command()
def status(
    name: Annotated[
        str | None, typer.Argument(help="Name of the sweep.", show_default="all", autocompletion=complete_sweep)
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Recompute every decision from the journal and report differences.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Watch until the sweep ends; Ctrl-C only stops watching.")
    ] = False,
    output: Output = RESULTS,
    address: ClusterAddress = None,
) -> None:
    """Show the progress of sweeps."""
    if watch and audit:
        raise SweeperError(
            "--watch and --audit exclude each other", "run --audit without --watch, or after the sweep has ended"
        )
    if watch:
        raise typer.Exit(_watch(name, output, address))
    if name is None or not audit:
        from sweeper.api import commands

        show(commands.status(name, output=output, address=address if not audit else None))
        return
    from sweeper.monitoring.status import audit_sweep

    name, folder = local_sweep(name, output, tables=False)
    said, differences = audit_sweep(name, folder)
    for sentence in (*said, *(f"  {difference}" for difference in differences)):
        typer.echo(printable(sentence))
    raise typer.Exit(INCOMPLETE if differences else DONE)


def _watch(name: str | None, output: str, address: str | None) -> int:
    """Show one sweep, or all, until they end; return the exit status: 1 if trials failed or are unfinished."""
    from sweeper.monitoring.status import FAR_LOOK_SECONDS, LOOK_SECONDS, SweepWatch, look_at_all, watch

    console = SafeConsole()
    if name is None and address is None:
        seconds, look = LOOK_SECONDS, look_at_all(output)
    elif name is None or (watched := _results_of(name, output, address)) is None:
        assert address is not None
        seconds, look = FAR_LOOK_SECONDS, remote_look(address, name)
    else:
        assert isinstance(watched, SweepWatch)
        seconds, look = watched.seconds, watched.look
    seen = watch(look, seconds, console)
    if seen is None:
        typer.echo("stopped watching; sweeps keep running", err=True)
        return DONE
    return DONE if seen.complete else INCOMPLETE


def _results_of(name: str, output: str, address: str | None) -> object | None:
    """Return a watch of a sweep through its journal; `None` if only the cluster knows the sweep."""
    from sweeper.monitoring.status import SweepWatch

    try:
        return SweepWatch(*remote_output(name, output, address))
    except (SweeperError, StoreError):
        if address is None:
            raise
        return None
