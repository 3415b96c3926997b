"""The commands that show what sweeps found: `results`, `report`, and MLflow's `sync` and `ui`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sweeper.cli.common import RESULTS, Name, Output, Tracking
from sweeper.cli.completion import complete_sweep
from sweeper.cli.remote import ClusterAddress
from sweeper.core.errors import SweeperError
from sweeper.remote.reach import all_here, here, local_tracking

commands = typer.Typer()


@commands.command()
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
    from sweeper.reporting.summary import best_trials_sql
    from sweeper.results import load
    from sweeper.results.multi_sweep import load_several
    from sweeper.text.tables import format_table

    if len(names) > 1 and sql is None:
        raise SweeperError("several sweeps need a question", "give --sql, or see `sweeper compare A B`")
    names, folder = all_here(names, output, address)
    found = load(names[0], folder) if len(names) == 1 else load_several(names, folder)
    text = format_table(found.sql(sql if sql is not None else best_trials_sql(load(names[0], folder))), form)
    if isinstance(text, bytes):
        sys.stdout.buffer.write(text)
    else:
        typer.echo(text)


@commands.command()
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
    from sweeper.api import commands
    from sweeper.results import load, sweep_names

    if table is not None:
        from sweeper.analysis.papers.table_formats import format_paper_table
        from sweeper.analysis.papers.tables import paper_table

        places = [here(name, output)] if name is not None else [(found, output) for found in sweep_names(output)]
        typer.echo(format_paper_table(paper_table(table, [load(*place) for place in places]), form))
        return
    if name is None:
        raise SweeperError("no sweep was named", "give its name, or --table to fill in a paper's table")
    typer.echo(commands.report(name, output=output, address=address))


@commands.command()
def sync(name: Name, output: Output = RESULTS, tracking_uri: Tracking = None) -> None:
    """Make MLflow equal to a sweep's journal; safe to repeat."""
    from sweeper.storage.lookup import find_sweep
    from sweeper.tracking.sync import sync as synchronise

    paths = find_sweep(*here(name, output))
    typer.echo(synchronise(paths.root, local_tracking(tracking_uri, paths.root.parent)), err=True)


@commands.command()
def ui(
    output: Output = RESULTS,
    tracking_uri: Tracking = None,
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
) -> None:
    """Browse sweeps in MLflow, on this machine only (127.0.0.1)."""
    from sweeper.storage.places import READING, place_of
    from sweeper.tracking.questions import as_lines, questions
    from sweeper.tracking.server import serve

    typer.echo("filters for the search box of a sweep's page:", err=True)
    for line in as_lines(questions()):
        typer.echo(f"  {line}", err=True)
    typer.echo(f"MLflow is at http://127.0.0.1:{port} (end with Ctrl-C)", err=True)
    raise typer.Exit(serve(local_tracking(tracking_uri, place_of(output, READING).folder), port))
