"""The command `status`: the progress of sweeps, once or until they end."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from sweeper.cli.common import DONE, INCOMPLETE, RESULTS, Output, show
from sweeper.cli.completion import complete_sweep
from sweeper.cli.remote import ClusterAddress, remote_look, status_remotely
from sweeper.core.errors import SweeperError
from sweeper.remote.reach import here, remote_output
from trainables.worker.object_store import StoreError

commands = typer.Typer()


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
    if address is not None and not audit:
        show(status_remotely(address, name))
        return
    from sweeper.monitoring.status import audit_sweep, status_table
    from sweeper.storage.places import local_copies

    name, folder = here(name, output, tables=False) if name is not None else (None, local_copies(output))
    if name is None or not audit:
        show(status_table(folder, name))
        return
    said, differences = audit_sweep(name, folder)
    for sentence in (*said, *(f"  {difference}" for difference in differences)):
        typer.echo(sentence)
    raise typer.Exit(INCOMPLETE if differences else DONE)


def _watch(name: str | None, output: str, address: str | None) -> int:
    """Show one sweep, or all, until they end; return the exit status: 1 if trials failed or are unfinished."""
    from sweeper.monitoring.watch import FAR_LOOK_SECONDS, LOOK_SECONDS, SweepWatch, look_at_all, watch

    console = Console(highlight=False)
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
    from sweeper.monitoring.watch import SweepWatch

    try:
        return SweepWatch(*remote_output(name, output, address))
    except (SweeperError, StoreError):
        if address is None:
            raise
        return None
