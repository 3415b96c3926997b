"""The commands that show results: `results`, `report`, and MLflow's `sync` and `ui`."""

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
        list[str], typer.Argument(help="Names or paths of one or more sweeps.", autocompletion=complete_sweep)
    ],
    sql: Annotated[
        str | None, typer.Option(help="SQL query over the tables and the view `final`.", show_default="the best trials")
    ] = None,
    form: Annotated[str, typer.Option("--format", "-f", help="Output format: table, json, csv or parquet.")] = "table",
    output: Output = RESULTS,
    address: ClusterAddress = None,
) -> None:
    """Print the best trials, or the rows of an SQL query. Over several sweeps, the column `sweep` names the source."""
    from sweeper.reporting.summary import best_trials_sql, with_headings
    from sweeper.results import load
    from sweeper.results.multi_sweep import load_several
    from sweeper.text.tables import format_table

    if len(names) > 1 and sql is None:
        raise SweeperError("several sweeps need a query", "give --sql, or use `sweeper compare A B`")
    names, folder = all_here(names, output, address)
    found = load(names[0], folder) if len(names) == 1 else load_several(names, folder)
    if sql is None:
        single = load(names[0], folder)
        table = found.sql(best_trials_sql(single))
        table = with_headings(table, single) if form == "table" else table
    else:
        table = found.sql(sql)
    text = format_table(table, form)
    if isinstance(text, bytes):
        sys.stdout.buffer.write(text)
    else:
        typer.echo(text)


@commands.command()
def report(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name or path of the sweep. [default with --table: all sweeps]", autocompletion=complete_sweep
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Table of a paper to fill in from sweeps, e.g. mukhoti-1.", show_default="none")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", "-f", help="Format of --table: markdown, latex or csv.")
    ] = "markdown",
    output: Output = RESULTS,
    address: ClusterAddress = None,
) -> None:
    """Rewrite a sweep's report.html, or print a paper's table next to the sweeps' numbers (--table)."""
    from sweeper.api import commands
    from sweeper.results import load, sweep_names

    if table is not None:
        from sweeper.analysis.papers.table_formats import format_paper_table
        from sweeper.analysis.papers.tables import paper_table

        places = [here(name, output)] if name is not None else [(found, output) for found in sweep_names(output)]
        typer.echo(format_paper_table(paper_table(table, [load(*place) for place in places]), form))
        return
    if name is None:
        raise SweeperError("no sweep was named", "give a name, or --table to fill in a paper's table")
    typer.echo(commands.report(name, output=output, address=address))


@commands.command()
def sync(name: Name, output: Output = RESULTS, tracking_uri: Tracking = None) -> None:
    """Update MLflow from a sweep's journal. Safe to repeat."""
    from sweeper.storage.lookup import find_sweep
    from sweeper.tracking.sync import sync as synchronise

    paths = find_sweep(*here(name, output))
    typer.echo(synchronise(paths.root, local_tracking(tracking_uri, paths.root.parent)), err=True)


@commands.command()
def ui(
    output: Output = RESULTS,
    tracking_uri: Tracking = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Browse sweeps in MLflow. It listens on this machine only (127.0.0.1)."""
    from sweeper.storage.places import READING, place_of
    from sweeper.tracking.questions import as_lines, questions
    from sweeper.tracking.server import serve

    typer.echo("filters for the search box of an experiment:", err=True)
    for line in as_lines(questions()):
        typer.echo(f"  {line}", err=True)
    typer.echo(f"MLflow runs at http://127.0.0.1:{port} (Ctrl-C to stop)", err=True)
    raise typer.Exit(serve(local_tracking(tracking_uri, place_of(output, READING).folder), port))
