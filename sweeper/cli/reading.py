"""The commands that show results or take them home: `results`, `show`, `report`, `export`, `figure` … and MLflow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.common import PLAIN_WIDTH, RESULTS, Name, Output, Tracking, Trust, show
from sweeper.cli.completion import complete_format, complete_sweep
from sweeper.cli.remote import ClusterAddress
from sweeper.core.errors import SweeperError
from sweeper.remote.reach import all_here, local_sweep, local_tracking
from sweeper.text.display import printable

SHOWN_SWEEPS = 5
"""Sweeps whose links `sweeper ui` prints, the newest."""

commands = typer.Typer()


@commands.command()
def results(
    names: Annotated[
        list[str], typer.Argument(help="Names or paths of one or more sweeps.", autocompletion=complete_sweep)
    ],
    sql: Annotated[
        str | None, typer.Option(help="SQL query over the tables and the view `final`.", show_default="the best trials")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Print all trials, not the best ten.")] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            help="Columns to print, e.g. test_nll,loss_gamma; repeatable.",
            show_default="the summary's",
            metavar="NAMES",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(help="Column to sort by; -NAME for the largest first.", show_default="best first", metavar="NAME"),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="Output format: table, json, csv or parquet.", autocompletion=complete_format
        ),
    ] = "table",
    output: Output = RESULTS,
    address: ClusterAddress = None,
) -> None:
    """Print the best trials, or the rows of an SQL query. Over several sweeps, the column `sweep` names the source.

    A table shows the best ten trials; json, csv and parquet contain all trials, unrounded.
    """
    from sweeper.results import load
    from sweeper.results.leaderboard import leaderboard
    from sweeper.results.listing import best_trials, listed
    from sweeper.results.results import load_several
    from sweeper.text.display import format_table
    from sweeper.text.labels import plural

    if len(names) > 1 and sql is None:
        raise SweeperError("several sweeps need a query", "give --sql, or use `sweeper compare A B`")
    if sql is not None and (everything or columns or sort is not None):
        raise SweeperError("--sql excludes --all, --columns and --sort", "write them into the query")
    names, folder = all_here(names, output, address)
    found = load(names[0], folder) if len(names) == 1 else load_several(names, folder)
    if sql is None and form == "table":
        board = leaderboard(load(names[0], folder))
        table = listed(board, columns or (), sort, everything=everything)
        show(table, PLAIN_WIDTH)
        if len(table.rows) < len(board.rows):
            typer.echo(f"{len(table.rows)} of {plural(len(board.rows), 'trial')}; --all prints every one", err=True)
        return
    rows = found.sql(sql) if sql is not None else best_trials(load(names[0], folder), columns or (), sort)
    text = format_table(rows, form)
    if isinstance(text, bytes):
        sys.stdout.buffer.write(text)
    else:
        typer.echo(printable(text) if sys.stdout.isatty() else text)


@commands.command("show")
def show_trial(
    name: Name,
    trial: Annotated[
        str | None, typer.Argument(help="Trial, e.g. c00039, or its number.", show_default="the best")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="HTML file to write instead, with learning curves and diagrams.", show_default="none"),
    ] = None,
    output: Output = RESULTS,
    address: ClusterAddress = None,
) -> None:
    """Show one trial: configuration, rungs and decisions, metrics with intervals, files."""
    from sweeper.results import load

    names, folder = all_here([name], output, address)
    found = load(names[0], folder)
    if page is not None:
        from sweeper.reporting.page import write_trial_page

        typer.echo(write_trial_page(found, trial, page))
        return
    from sweeper.results.trial_facts import trial_view

    show(trial_view(found, trial), PLAIN_WIDTH)


@commands.command()
def report(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name or path of the sweep. [default with --table: all sweeps]", autocompletion=complete_sweep
        ),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Argument(help="More sweeps to put on the same page.", show_default="none", autocompletion=complete_sweep),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Table of a paper to fill in from sweeps, e.g. mukhoti-1.", show_default="none")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", "-f", help="Format of --table: markdown, latex or csv.", show_default="markdown"),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="HTML file to write instead.", show_default="report.html of the sweep")
    ] = None,
    output: Output = RESULTS,
    address: ClusterAddress = None,
) -> None:
    """Rewrite a sweep's report.html, put several sweeps on one page, or print a paper's table (--table)."""
    from sweeper.api import analyses
    from sweeper.results import load, sweep_names

    if table is not None:
        from sweeper.analysis.papers.tables import format_paper_table, paper_table

        named = [name, *(more or ())] if name is not None else []
        places = [local_sweep(each, output) for each in named] or [
            (found, Path(output)) for found in sweep_names(output)
        ]
        filled = paper_table(table, [load(*place) for place in places])
        typer.echo(printable(format_paper_table(filled, form or "markdown")))
        return
    if form is not None:
        raise SweeperError(f"--format {form} only applies to --table", "add --table mukhoti-1, or omit --format")
    if name is None:
        raise SweeperError("no sweep was named", "give a name, or --table to fill in a paper's table")
    typer.echo(analyses.report(name, more or (), to=to, output=output, address=address))


@commands.command()
def sync(name: Name, output: Output = RESULTS, tracking_uri: Tracking = None) -> None:
    """Update MLflow from a sweep's journal. Safe to repeat."""
    from sweeper.storage.lookup import find_sweep
    from sweeper.tracking.sync import sync as synchronise

    paths = find_sweep(*local_sweep(name, output))
    typer.echo(synchronise(paths.root, local_tracking(tracking_uri, paths.root.parent)), err=True)


@commands.command()
def ui(
    name: Annotated[
        str | None, typer.Argument(help="Sweep to open. [default: the newest]", autocompletion=complete_sweep)
    ] = None,
    output: Output = RESULTS,
    tracking_uri: Tracking = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Browse sweeps in MLflow, each in a view with all its trials. It listens on this machine only (127.0.0.1)."""
    from sweeper.storage.places import READING, place_of
    from sweeper.tracking.mlflow.pages import address, as_lines, experiments, questions, serve

    typer.echo("search filters for an MLflow experiment:", err=True)
    for line in as_lines(questions()):
        typer.echo(f"  {line}", err=True)
    uri = local_tracking(tracking_uri, place_of(output, READING).folder)
    server = uri if uri.startswith("http") else f"http://127.0.0.1:{port}"
    found = experiments(uri, name)
    for sweep, identifier in found[:SHOWN_SWEEPS]:
        typer.echo(f"{sweep}: {address(server, identifier)}", err=True)
    if len(found) > SHOWN_SWEEPS:
        typer.echo(f"and {len(found) - SHOWN_SWEEPS} more: sweeper ui NAME, or {server}", err=True)
    typer.echo(f"MLflow runs at {server} (Ctrl-C to stop)", err=True)
    raise typer.Exit(serve(uri, port))


@commands.command()
def export(
    name: Name,
    to: Annotated[Path, typer.Option(help="Folder to create.")],
    trial: Annotated[str, typer.Option(help="Trial, e.g. c00039.")] = "best",
    replicate: Annotated[str, typer.Option(help="Number of a replicate, or all for their ensemble.")] = "0",
    posthoc: Annotated[str, typer.Option(help="Post-hoc method that the sweep measured, or none.")] = "temperature",
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write an ONNX file (needs the extra onnx).")] = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="Retrain the trial if its weights are gone.")] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Log the model in MLflow with its trial's run.")] = False,
    register: Annotated[
        str | None, typer.Option(help="Register it in MLflow under this name, alias best.", show_default="none")
    ] = None,
    tracking_uri: Tracking = None,
    trust: Trust = False,
    output: Output = RESULTS,
) -> None:
    """Export a trained network as a calibrated program: weights, torch.export program, model card."""
    from sweeper.api.exports import export as export_network

    done = export_network(
        name,
        to,
        trial=trial,
        replicate=replicate,
        posthoc=posthoc,
        trust=trust,
        retrain=retrain,
        onnx=onnx,
        mlflow=mlflow,
        register=register,
        tracking_uri=tracking_uri,
        say=lambda line: typer.echo(line, err=True),
        output=output,
    )
    typer.echo(done.sentence())


@commands.command()
def figure(
    name: Name,
    figure: Annotated[str, typer.Argument(help="Figure of the report, e.g. learning_curves.")],
    to: Annotated[Path, typer.Option(help="File to write: .pdf, .svg or .png.")],
    output: Output = RESULTS,
) -> None:
    """Draw a figure of the report for a paper: PDF, SVG or PNG."""
    from sweeper.api.exports import figure as draw_figure

    typer.echo(draw_figure(name, figure, to, output=output))


@commands.command()
def table(
    name: Name,
    form: Annotated[str, typer.Option("--format", help="latex, markdown or csv.")] = "markdown",
    output: Output = RESULTS,
) -> None:
    """Print the best of each loss on each network for a paper: LaTeX, Markdown or CSV."""
    from sweeper.api.exports import table as written_table

    typer.echo(printable(written_table(name, form=form, output=output)))
