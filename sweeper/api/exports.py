"""Commands that show and export results: tables, pages, figures, servers, exported networks, and MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le
from cyclopts import Parameter

from sweeper.api import analyses, arguments
from sweeper.api.arguments import opened, output_folder, remote_output
from sweeper.api.finished import DrawnFigure, ReportPage
from sweeper.core.display import CommandResult, format_table
from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.labels import plural
from sweeper.storage.lookup import find_sweep, is_sweep
from sweeper.storage.places import READING, local_copy, place_of, publish, split_name
from sweeper.tracking.choice import mlflow_of, tracker_beside, tracker_of
from sweeper.tracking.mlflow import pages
from trainables.files.atomic import write_text

if TYPE_CHECKING:
    import pyarrow as pa

    from sweeper.exporting.folder import Exported
    from sweeper.exporting.model import ExportedModel
    from sweeper.results import Results
    from sweeper.results.listing import TrialsTable

#: Width in characters of listings outside a terminal.
WIDTH = 100

#: Most rows of a query that are printed as a table; the other formats write all.
MOST_ROWS = 10_000

#: Number of newest sweeps whose links `sweeper ui` prints.
SHOWN_SWEEPS = 5


def results_(
    name: arguments.Name,
    *,
    sql: str | None = None,
    everything: Annotated[bool, Parameter("--all")] = False,
    columns: Annotated[Sequence[str] | None, Parameter(metavar="NAMES", consume_multiple=(0, 1))] = None,
    sort: Annotated[str | None, Parameter(metavar="NAME")] = None,
    by: arguments.By = None,
    form: arguments.Form = "table",
    output: arguments.Output = None,
    address: arguments.ClusterAddress = None,
) -> CommandResult[TrialsTable] | CommandResult[pa.Table]:
    """Print the best trials, or the rows of an SQL query.

    A table shows the best ten trials, or at most 10,000 rows; json, csv and parquet contain everything, unrounded.

    Args:
        sql: SQL query over the tables and the view `final`. (default: the best trials)
        everything: Print all trials, not the best ten.
        columns: Columns to print, e.g. test_nll,loss_gamma; repeatable. Without names, a description of every column
            of every table. (default: the summary's)
        sort: Column to sort by; -NAME for the largest first. (default: best first)
        form: Output format: table, json, csv or parquet.

    Returns:
        The best trials, or the rows of the query as an Arrow table.

    Examples:
        >>> import sweeper
        >>> [row["trial"] for row in sorted(sweeper.results_("example").value.rows, key=lambda row: row["trial"])]
        ['c00000', 'c00001']
        >>> query = "select trial, count(*) as n from final where split = 'test' group by trial order by trial"
        >>> sweeper.results_("example", sql=query).value.to_pylist()
        [{'trial': 'c00000', 'n': 2}, {'trial': 'c00001', 'n': 2}]
    """
    from sweeper.results.listing import best_trials, columns_table, count_of_listed, listed

    if sql is not None and (everything or columns or sort is not None or by is not None):
        raise SweeperError("--sql excludes --all, --columns, --sort and --by", "write them into the query")
    sweep = opened(name, output, address)
    marks = [*sweep.marks]
    if columns is not None and not [*columns]:
        rows = columns_table(sweep)
    elif sql is not None:
        # One row more than is shown reveals that there are more.
        rows = sweep.sql(sql, most=MOST_ROWS + 1 if form == "table" else None)
        if form == "table" and rows.num_rows > MOST_ROWS:
            rows = rows.slice(0, MOST_ROWS)
            marks.append(f"the first {MOST_ROWS:,} rows; --format csv, json or parquet writes all")
    elif form != "table":
        rows = best_trials(sweep, columns or (), sort, by)
    else:
        with sweep.snapshot() as frozen:  # a running sweep may replace its tables between two queries
            table = listed(frozen, columns or (), sort, by, everything=everything)
            count = len(table.rows) if everything else count_of_listed(frozen)
        note = f"{len(table.rows)} of {plural(count, 'trial')}; --all prints every one"
        notes = [
            *([note] if len(table.rows) < count else []),
            *([f"best by {table.board.objective.label}"] if by else []),
        ]
        return CommandResult(table, table, notes=[*notes, *marks], width=WIDTH)
    return CommandResult(rows, format_table(rows, form), notes=marks)


def show(
    name: arguments.Name,
    trial: str | None = None,
    *,
    page: Annotated[str | Path | None, Parameter("--to")] = None,
    output: arguments.Output = None,
    address: arguments.ClusterAddress = None,
) -> CommandResult[Results] | Path:
    """Show one trial.

    Prints its configuration, rungs and decisions, and metrics with intervals.

    Args:
        trial: Trial, e.g. c00039, or its number. (default: the best)
        page: HTML file to write instead, with learning curves and diagrams. (default: none)

    Returns:
        The sweep's results, displayed as the trial; or the path of the page written.

    Examples:
        >>> import sweeper
        >>> sweeper.show("example", "c00001").json.trial
        'c00001'
    """
    results = opened(name, output, address)
    if page is not None:
        from sweeper.reporting.page import write_trial_page

        return write_trial_page(results, trial, Path(page))
    from sweeper.results.trial_facts import trial_facts, trial_view

    with results.snapshot() as frozen:  # a running sweep may replace its tables between two queries
        facts = trial_facts(frozen, trial)
    return CommandResult(results, trial_view(facts), json=facts, width=WIDTH)


def report(
    name: arguments.OptionalName = None,
    more: arguments.Names = (),
    *,
    to: str | Path | None = None,
    output: arguments.Output = None,
    address: arguments.ClusterAddress = None,
) -> ReportPage:
    """Rewrite a sweep's report.html, or put several sweeps on one page.

    Args:
        name: Name or path of the sweep.
        more: More sweeps to put on the same page. (default: none)
        to: HTML file to write instead. (default: report.html of the sweep)

    Returns:
        The page, which a notebook shows.

    Raises:
        SweeperError: There is no such sweep, it was named twice, or the page cannot be written.

    Examples:
        >>> import sweeper
        >>> sweeper.report("example", to="example.html").path.name
        'example.html'
    """
    from sweeper.reporting.page import write_report, write_several

    place = output_folder(output)
    if name is None:
        raise SweeperError("no sweep was named", "give a name")
    if more:
        members = [opened(member, place, address) for member in (name, *more)]
        folder = local_copy(*remote_output(name, place, address))[1]
        beside = folder / f"report-{'-'.join(member.name for member in members)}.html"
        return ReportPage(write_several(members, beside if to is None else Path(to)))
    name, place = remote_output(name, place, address)
    root = find_sweep(*local_copy(name, place)).root
    page = write_report(root, None if to is None else Path(to))
    if to is None:  # the report in a store's local copy belongs to the store; a file elsewhere is the user's
        publish(name, place)
    return ReportPage(page)


def sync(
    name: arguments.Name, *, output: arguments.Output = None, tracking_uri: arguments.Tracking = None
) -> CommandResult[None]:
    """Update MLflow from a sweep's journal.

    Safe to repeat: existing points are not written again.

    Returns:
        Nothing; the notes say how much was written.

    Examples:
        >>> import sweeper
        >>> sweeper.sync("missing")
        Traceback (most recent call last):
        ...
        sweeper.storage.lookup.UnknownSweepError: there is no sweep 'missing' in results
        ...
    """
    from sweeper.tracking.sync import sync as synchronise

    paths = find_sweep(*local_copy(name, output_folder(output)))
    return CommandResult(None, notes=[str(synchronise(paths.root, tracker_of(paths, tracking_uri)))])


def ui(
    name: arguments.OptionalName = None,
    *,
    output: arguments.Output = None,
    tracking_uri: arguments.Tracking = None,
    port: Annotated[int, Ge(1), Le(65535)] = 5000,
    host: str = "127.0.0.1",
    say: arguments.Say = lambda line: None,
) -> CommandResult[None]:
    """Browse sweeps in MLflow.

    Prints the addresses of the experiments, and search filters for them.

    Args:
        name: Sweep to open. (default: the newest)
        port: Port of this machine.
        host: Address to listen on; 0.0.0.0 accepts connections from every machine that reaches this one.
        say: Callback for the addresses and search filters.

    Returns:
        Nothing, once the server has ended.

    Example:
        >>> sweeper.ui("quickstart", say=print)  # doctest: +SKIP
    """
    say("search filters for an MLflow experiment:")
    for line in pages.as_lines(pages.questions()):
        say(f"  {line}")
    place = place_of(output_folder(output), READING)
    known = name is not None and place.store is None and is_sweep(place.folder / name)
    uri = mlflow_of(place.find(str(name)), tracking_uri) if known else tracker_beside(place.folder, tracking_uri)
    # A remote MLflow server shows its own pages; a local store is served from this machine.
    server = uri if uri.startswith("http") else f"http://{host}:{port}"
    experiments = pages.experiments(uri, name)
    for sweep, identifier in experiments[:SHOWN_SWEEPS]:
        say(f"{sweep}: {pages.address(server, identifier)}")
    if len(experiments) > SHOWN_SWEEPS:
        say(f"and {len(experiments) - SHOWN_SWEEPS} more: sweeper ui NAME, or {server}")
    say(f"MLflow runs at {server} (Ctrl-C to stop)")
    return CommandResult(None, exit_code=pages.serve(uri, port, host))


def serve(
    *,
    output: arguments.Output = None,
    port: Annotated[int, Ge(0), Le(65535)] = 8337,
    say: arguments.Say = lambda line: None,
) -> CommandResult[None]:
    """Show all sweeps in a browser, live.

    The page is read-only, and only this machine can open it.

    Args:
        port: Port of this machine; 0 for any free port.
        say: Callback for the server's address.

    Returns:
        Nothing, once the server has ended.

    Raises:
        SweeperError: The port is taken, or the extra `serve` is not installed.

    Example:
        >>> sweeper.serve(port=0, say=print)  # doctest: +SKIP
    """
    try:
        from sweeper.serving.app import listen, serve as serve_pages
    except ModuleNotFoundError as error:
        raise _lacks("serve", error) from error
    place = output_folder(output)
    with listen(port) as socket:
        say(f"sweeps of {place}: http://127.0.0.1:{socket.getsockname()[1]} (Ctrl-C to stop)")
        serve_pages(place, socket, analyses.compare)
    return CommandResult(None)


def mcp(*, allow_run: bool = False, output: arguments.Output = None) -> CommandResult[None]:
    """Offer commands to an agent, over the Model Context Protocol.

    The server uses standard input and output. The commands only read.

    Args:
        allow_run: Also let the agent start and stop sweeps.

    Returns:
        Nothing, once the agent has disconnected.

    Raises:
        SweeperError: The extra `mcp` is not installed.

    Example:
        >>> sweeper.mcp(output="results")  # doctest: +SKIP
    """
    try:
        from sweeper.api.agent import serve_tools
    except ModuleNotFoundError as error:
        raise _lacks("mcp", error) from error
    serve_tools(output_folder(output), allow_run=allow_run)
    return CommandResult(None)


def _lacks(extra: str, error: ModuleNotFoundError) -> SweeperError:
    return SweeperError(
        f"`sweeper {extra}` needs {error.name}, which is not installed", f"pip install 'calibration-sweeper[{extra}]'"
    )


def export(
    name: arguments.Name,
    to: str | Path,
    *,
    trial: str = "best",
    by: arguments.By = None,
    replicate: str | int | None = None,
    posthoc: str = "temperature",
    onnx: bool = False,
    retrain: bool = False,
    mlflow: bool = False,
    register: str | None = None,
    tracking_uri: arguments.Tracking = None,
    trust: arguments.Trust = False,
    output: arguments.Output = None,
    say: arguments.Say = lambda line: None,
) -> Exported:
    """Export a trained network as a calibrated program.

    Writes the weights, a torch.export program that takes raw inputs, and a model card.

    Args:
        to: Folder to create.
        trial: Trial, e.g. c00039.
        replicate: Number of a replicate, or all for their ensemble. (default: the first whose weights are kept)
        posthoc: Post-hoc method that the sweep measured, or none.
        onnx: Also write an ONNX file (needs the extra onnx).
        retrain: Retrain replicates whose weights are gone.
        mlflow: Log the model in MLflow with its trial's run.
        register: Register the model in MLflow under this name, with the alias best. (default: none)
        say: Callback for the progress of retraining.

    Returns:
        The folder, and the largest difference of its probabilities from the sweep's.

    Raises:
        SweeperError: The trial cannot be exported; nothing was written.

    Examples:
        >>> import sweeper
        >>> exported = sweeper.export("example", "exported", trial="c00001")
        >>> import torch
        >>> sweeper.load_model(exported.folder).predict(torch.zeros(1, 1, 8, 8)).shape
        torch.Size([1, 10])
    """
    from sweeper.exporting.folder import export_model
    from sweeper.tracking.mlflow.logged_model import log_model

    place = output_folder(output)
    sweep, parent = split_name(name, place)
    store = place_of(parent, READING).store
    local = local_copy(name, place)
    done = export_model(
        *local,
        Path(to),
        trial=trial,
        by=by,
        replicate=None if replicate is None else str(replicate),
        posthoc=posthoc,
        store=store.child(sweep).uri if store is not None else None,
        trust=trust,
        retrain=retrain,
        onnx=onnx,
        say=say,
    )
    if mlflow or register is not None:
        uri = mlflow_of(find_sweep(*local), tracking_uri)
        done = replace(done, logged=log_model(done.folder, *local, uri, register))
    return done


def load_model(path: str | Path) -> ExportedModel:
    """Load an exported model, whose `predict` returns calibrated probabilities.

    Args:
        path: Folder that `export` wrote.

    Returns:
        The model; `predict(inputs)` returns probabilities [N, K] of raw inputs: pixels, rows of a table, texts.

    Raises:
        SweeperError: The folder has no model, or the model is damaged.

    Examples:
        >>> import sweeper
        >>> sweeper.load_model("missing")
        Traceback (most recent call last):
        ...
        sweeper.core.errors.SweeperError: missing has no model.json
        ...
    """
    from sweeper.exporting.model import load_model as load

    return load(path)


def figure(
    name: arguments.Name,
    figure: str,
    to: str | Path | None = None,
    *,
    form: arguments.Form = "markdown",
    output: arguments.Output = None,
) -> Path | DrawnFigure | str:
    """Draw a figure of a sweep's report, or print its table.

    The table has the best configuration of each loss on each network, as markdown, latex, csv or json.

    Args:
        figure: Figure of the report, e.g. learning_curves, or table.
        to: File to write: .pdf, .svg or .png; for a table any.
        form: Format of the table: markdown, latex, csv or json.

    Returns:
        The file; without one, the figure, which a notebook draws, or the table as text.

    Raises:
        SweeperError: The figure or format is unknown or does not apply to the sweep, or nothing was evaluated.

    Examples:
        >>> import sweeper
        >>> print(sweeper.figure("example", "table").partition(" | accuracy")[0])
        | loss | network | trial
    """
    from sweeper.reporting.figures.drawing import report_figure, svg_text, write_report_figure

    results = opened(name, output)
    if figure == "table":
        from sweeper.reporting.tables import paper_table

        text = paper_table(results, form)
        if to is None:
            return text
        with writing_to(Path(to), "name another file"):
            write_text(Path(to), text)
    elif to is None:
        return DrawnFigure(svg_text(report_figure(results, figure)))
    else:
        write_report_figure(results, figure, Path(to))
    return Path(to)
