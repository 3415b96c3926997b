"""The commands. Data goes to stdout, progress and errors to stderr; the only module that prints.

Exit status: 0 done; 1 the sweep has failed trials or was stopped; 2 bad input.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sweeper.cli import analysis as cli_analysis
from sweeper.cli import focal_map as cli_focal_map
from sweeper.cli import remote as cli_remote
from sweeper.cli import status as cli_status
from sweeper.cli.common import (
    DONE,
    INCOMPLETE,
    RESULTS,
    Address,
    Cpus,
    Name,
    NoMlflow,
    Notify,
    Output,
    Rehearse,
    Space,
    Tracking,
    WaitForNodes,
    finish,
    show,
)
from sweeper.cli.completion import complete_sweep
from sweeper.cli.remote import ClusterAddress
from sweeper.errors import SweeperError
from sweeper.remote.reach import all_here, here, local_tracking
from trainables.storage import StoreError

app = typer.Typer(
    name="sweeper",
    help="Sweep loss families, γ, coverage, ν and architectures; measure calibration and curvature at every rung.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cli_status.commands)
app.add_typer(cli_remote.commands)
app.add_typer(cli_focal_map.commands)
app.add_typer(cli_analysis.commands)


def main() -> None:
    """Run the command line; every `SweeperError` becomes its message and exit status, never a traceback."""
    try:
        app()
    except (SweeperError, StoreError) as error:
        sys.stdout.flush()
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:
        # The reader of a pipe (head, less) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(DONE) from None


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"sweeper {version('calibration-sweeper')}")
        raise typer.Exit(DONE)


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Take the options that come before a command."""


@app.command()
def run(
    space: Space,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Override, e.g. seed=1; repeatable.")] = None,
    name: Annotated[str | None, typer.Option(help="The sweep's name; the file's name, numbered, if unset.")] = None,
    output: Output = RESULTS,
    tracking_uri: Tracking = None,
    no_mlflow: NoMlflow = False,
    address: Address = None,
    cpus: Cpus = None,
    rehearse: Rehearse = False,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Take over trials that other sweeps in --output have trained already.")
    ] = False,
    reuse_from: Annotated[
        list[str] | None, typer.Option(help="Take them over from this sweep; repeatable.", metavar="NAME")
    ] = None,
    wait_for_nodes: WaitForNodes = 30.0,
    notify: Notify = None,
) -> None:
    """Run a sweep from a search space file to its report."""
    from sweeper import api

    done = api.run(
        space,
        set=settings,
        name=name,
        output=output,
        tracking_uri=tracking_uri,
        mlflow=not no_mlflow,
        address=address,
        cpus=cpus,
        rehearse=rehearse,
        reuse=reuse,
        reuse_from=reuse_from or (),
        wait_for_nodes=wait_for_nodes,
        notify=notify or (),
    )
    finish(done)


@app.command()
def resume(
    name: Name,
    failed: Annotated[bool, typer.Option("--failed", help="Run failed trials again, too.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A larger budget, other limits: budget.gpu_hours=20; repeatable.")
    ] = None,
    discard_damaged: Annotated[
        bool, typer.Option("--discard-damaged", help="Set damaged journal records, and all after them, aside.")
    ] = False,
    output: Output = RESULTS,
    tracking_uri: Tracking = None,
    no_mlflow: NoMlflow = False,
    address: Address = None,
    cpus: Cpus = None,
    wait_for_nodes: WaitForNodes = 30.0,
    notify: Notify = None,
) -> None:
    """Take up a sweep that was interrupted: finished trials stay, the others continue from their checkpoints."""
    from sweeper import api

    if address is not None and address.startswith("http"):
        if notify:
            raise SweeperError("--notify is for sweeps driven from here", "name it in the sweep: --set 'notify=[…]'")
        cli_remote.resume_remotely(name, address, failed=failed, settings=settings or [], wait_for_nodes=wait_for_nodes)
        return
    done = api.resume(
        name,
        failed=failed,
        set=settings,
        discard_damaged=discard_damaged,
        output=output,
        tracking_uri=tracking_uri,
        mlflow=not no_mlflow,
        address=address,
        cpus=cpus,
        wait_for_nodes=wait_for_nodes,
        notify=notify or (),
    )
    finish(done)


@app.command()
def plan(
    space: Space,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Override, e.g. samples=96.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    rehearse: Rehearse = False,
    cluster: Annotated[
        Path | None, typer.Option(help="A Ray launcher file or KubeRay manifest: nodes, hours and price there, too.")
    ] = None,
    prices: Annotated[Path | None, typer.Option(help="A price table, with --cluster; examples ship.")] = None,
) -> None:
    """Say what a search space will cost, before any training: trials, rungs, epochs, time."""
    from sweeper.planning.costs import measured_plan
    from sweeper.spec.loading import load_spec

    spec = load_spec(space, settings or [], rehearse=rehearse)
    if cluster is not None:
        _plan_on_cluster(spec, cluster, prices, as_json)
        return
    planned = measured_plan(spec)
    if as_json:
        typer.echo(json.dumps(planned.to_dict(), indent=2))
    else:
        show(planned)


def _plan_on_cluster(spec: Any, cluster: Path, prices: Path | None, as_json: bool) -> None:
    from sweeper.planning.on_cluster import cluster_plan

    planned, there = cluster_plan(spec, cluster, prices)
    if as_json:
        typer.echo(json.dumps({**planned.to_dict(), "cluster": there.to_dict()}, indent=2))
    else:
        show(planned)
        show(there)


@app.command()
def stop(name: Name, output: Output = RESULTS, address: ClusterAddress = None) -> None:
    """Ask a running sweep to stop; what it has is kept, and `resume` continues it."""
    from sweeper.running.stopping import ask_to_stop

    typer.echo(cli_remote.stop_remotely(name, address) if address else ask_to_stop(name, output), err=True)


@app.command()
def results(
    names: Annotated[
        list[str], typer.Argument(help="One sweep or several, by name or path.", autocompletion=complete_sweep)
    ],
    sql: Annotated[str | None, typer.Option(help="A query over the tables and the view `final`.")] = None,
    form: Annotated[str, typer.Option("--format", "-f", help="table, json, csv or parquet.")] = "table",
    output: Output = RESULTS,
    address: ClusterAddress = None,
) -> None:
    """Print results: the best trials, or the answer to a query; of several sweeps, `sweep` says whose a row is."""
    from sweeper.results import load
    from sweeper.several import load_several
    from sweeper.summary import best_trials_sql
    from sweeper.table_formats import format_table

    if len(names) > 1 and sql is None:
        raise SweeperError("several sweeps need a question", "give --sql, or see `sweeper compare A B`")
    names, folder = all_here(names, output, address)
    found = load(names[0], folder) if len(names) == 1 else load_several(names, folder)
    text = format_table(found.sql(sql if sql is not None else best_trials_sql(load(names[0], folder))), form)
    if isinstance(text, bytes):
        sys.stdout.buffer.write(text)
    else:
        typer.echo(text)


@app.command()
def report(
    name: Annotated[
        str | None,
        typer.Argument(help="A sweep's name or path; with --table all sweeps if unset.", autocompletion=complete_sweep),
    ] = None,
    table: Annotated[str | None, typer.Option(help="A paper's table, e.g. mukhoti-1, filled in from sweeps.")] = None,
    form: Annotated[str, typer.Option("--format", "-f", help="Of --table: markdown, latex or csv.")] = "markdown",
    output: Output = RESULTS,
    address: ClusterAddress = None,
) -> None:
    """Write a sweep's report.html again; or print a paper's table with its numbers beside those of our sweeps."""
    from sweeper import api
    from sweeper.results import load, sweep_names

    if table is not None:
        from sweeper.papers.table_formats import format_paper_table
        from sweeper.papers.tables import paper_table

        places = [here(name, output)] if name is not None else [(found, output) for found in sweep_names(output)]
        typer.echo(format_paper_table(paper_table(table, [load(*place) for place in places]), form))
        return
    if name is None:
        raise SweeperError("no sweep was named", "give its name, or --table to fill in a paper's table")
    typer.echo(api.report(name, output=output, address=address))


@app.command()
def sync(name: Name, output: Output = RESULTS, tracking_uri: Tracking = None) -> None:
    """Make MLflow equal to a sweep's journal; safe to repeat."""
    from sweeper.sinks.mlflow import sync as synchronise
    from sweeper.sweep import find_sweep

    paths = find_sweep(*here(name, output))
    typer.echo(synchronise(paths.root, local_tracking(tracking_uri, paths.root.parent)), err=True)


@app.command()
def ui(
    output: Output = RESULTS,
    tracking_uri: Tracking = None,
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
) -> None:
    """Browse sweeps in MLflow, on this machine only (127.0.0.1)."""
    from sweeper.sinks.mlflow_questions import as_lines, questions
    from sweeper.sinks.server import serve
    from sweeper.store.places import READING, place_of

    typer.echo("filters for the search box of a sweep's page:", err=True)
    for line in as_lines(questions()):
        typer.echo(f"  {line}", err=True)
    typer.echo(f"MLflow is at http://127.0.0.1:{port} (end with Ctrl-C)", err=True)
    raise typer.Exit(serve(local_tracking(tracking_uri, place_of(output, READING).folder), port))


@app.command()
def spaces(
    losses: Annotated[bool, typer.Option("--losses", help="List loss families.")] = False,
    architectures: Annotated[bool, typer.Option("--architectures", help="List architectures.")] = False,
    datasets: Annotated[bool, typer.Option("--datasets", help="List data sets.")] = False,
    optimizers: Annotated[bool, typer.Option("--optimizers", help="List optimisers and their recipes.")] = False,
    posthoc: Annotated[bool, typer.Option("--posthoc", help="List post-hoc methods.")] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="List metrics that installed packages add.")] = False,
) -> None:
    """List the search spaces that ship, or what a search space may name."""
    from sweeper.spec import catalogue

    asked: dict[str, bool] = {
        "losses": losses,
        "architectures": architectures,
        "datasets": datasets,
        "optimizers": optimizers,
        "posthoc": posthoc,
        "metrics": metrics,
    }
    chosen = [kind for kind, wanted in asked.items() if wanted]
    for kind in chosen:
        show(catalogue.components_table(kind))
    if not chosen:
        show(catalogue.spaces_table())


@app.command()
def doctor() -> None:
    """Check that this machine has what a sweep needs, and say what to do where it has not."""
    from sweeper.doctor import checks

    found = checks()
    for check in found:
        typer.echo(f"{'ok  ' if check.ok else 'FAIL'} {check.subject}: {check.finding}")
        if not check.ok:
            typer.echo(f"     {check.remedy}")
    raise typer.Exit(DONE if all(check.ok for check in found) else INCOMPLETE)
