"""The commands for search spaces, folders and the machine: `init`, `validate`, `spaces`, `doctor`, `list` …"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.common import DONE, INCOMPLETE, PLAIN_WIDTH, RESULTS, Name, Output, Rehearse, Settings, Space, show
from sweeper.core.errors import SweeperError, writing_to

commands = typer.Typer()


@commands.command()
def init(
    file: Annotated[Path, typer.Argument(help="Search space file to write, e.g. mine.yaml.")],
    dataset: Annotated[str, typer.Option(help="Data set (`sweeper spaces --datasets` lists all).")] = "digits",
    loss: Annotated[
        list[str] | None,
        typer.Option(help="Loss family; repeatable.", show_default="cross_entropy and focal"),
    ] = None,
    network: Annotated[list[str] | None, typer.Option(help="Network; repeatable.", show_default="mlp")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Values to try, e.g. loss.gamma=1,2,5 or dataset.label_noise=0,0.1; repeatable.",
            metavar="PATH=VALUES",
            show_default="none",
        ),
    ] = None,
    objective: Annotated[str, typer.Option(help="Metric that trials are compared by.")] = "val_nll",
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of a trial that is not stopped.")] = 27,
    replicates: Annotated[int, typer.Option(min=1, help="Seeds of each configuration.")] = 2,
) -> None:
    """Write a commented search space to start from."""
    from sweeper.space.loading import load_spec
    from sweeper.space.template import TemplateOptions, template
    from trainables.files.atomic import write_text

    if file.exists():
        raise SweeperError(f"{file} already exists", "name another file")
    values = {}
    for text in grid or ():
        path, equals, written = text.partition("=")
        if not equals or not written:
            raise SweeperError(f"--grid {text!r} is not of the form PATH=VALUES", "write e.g. --grid loss.gamma=1,2,5")
        values[path.strip()] = [value.strip() for value in written.split(",")]
    usual = TemplateOptions()
    options = TemplateOptions(
        dataset, loss or usual.losses, network or usual.architectures, values, objective, epochs, replicates
    )
    with writing_to(file, "name another file"):
        write_text(file, template(options))
    try:
        load_spec(file)
    except SweeperError:
        typer.echo(f"wrote {file}, which has errors", err=True)
        raise
    typer.echo(f"wrote {file}\nnext\n  sweeper plan {file}\n  sweeper run {file}", err=True)


@commands.command()
def validate(space: Space, settings: Settings = None, rehearse: Rehearse = False) -> None:
    """Check a search space and report all errors at once. Nothing is loaded or trained."""
    from sweeper.space.configurations import configurations, varying_columns
    from sweeper.space.loading import load_spec
    from sweeper.text.labels import plural, short

    spec = load_spec(space, settings or [], rehearse=rehearse)
    count = spec.samples if spec.searcher.learns else len(configurations(spec))
    varying = ", ".join(dict.fromkeys(short(name) for name in varying_columns(spec.space))) or "nothing"
    typer.echo(f"{space} is valid: {plural(count, 'configuration')} × {spec.replicates.count} seeds; varies {varying}")


@commands.command("list")
def list_sweeps(output: Output = RESULTS) -> None:
    """List the sweeps in the directory of results, latest first."""
    from rich.table import Table

    from sweeper.storage.lookup import entries
    from sweeper.storage.places import local_copies

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("sweep", "began (UTC)", "data set", "size", ""):
        table.add_column(heading, no_wrap=heading != "sweep", justify="right" if heading == "size" else "left")
    found = entries(local_copies(output))
    for each in found:
        running = "running" if each.running else ""
        table.add_row(each.name, each.began, each.dataset, f"{each.size / 2**20:,.1f} MiB", running)
    if found:
        show(table, PLAIN_WIDTH)
    else:
        typer.echo(f"no sweeps in {output}; start one with `sweeper run quickstart`", err=True)


@commands.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Output = RESULTS,
) -> None:
    """Delete a sweep's results folder. Its MLflow runs stay."""
    from sweeper.storage import lookup

    root = lookup.at_rest(name, output).root
    if not yes:
        typer.confirm(f"Delete {root} ({lookup.size_of(root) / 2**20:,.1f} MiB)?", abort=True, err=True)
    size = lookup.delete(name, output)
    typer.echo(f"deleted {root}, {size / 2**20:,.1f} MiB", err=True)


@commands.command()
def rename(
    name: Name,
    new: Annotated[str, typer.Argument(help="New name.", show_default=False)],
    output: Output = RESULTS,
) -> None:
    """Rename a sweep. MLflow keeps the old name until `sweeper sync` logs it under the new one."""
    from sweeper.storage import lookup

    typer.echo(f"renamed to {lookup.rename(name, new, output)}", err=True)


@commands.command()
def archive(
    name: Name,
    to: Annotated[Path | None, typer.Option(help="File to write.", show_default="NAME.tar.gz beside the sweep")] = None,
    output: Output = RESULTS,
) -> None:
    """Pack a sweep's results folder into a .tar.gz file. The folder stays."""
    from sweeper.storage import lookup

    file = lookup.archive(name, output, to)
    typer.echo(f"wrote {file}, {file.stat().st_size / 2**20:,.1f} MiB", err=True)


@commands.command()
def spaces(
    losses: Annotated[bool, typer.Option("--losses", help="List loss families.")] = False,
    architectures: Annotated[bool, typer.Option("--architectures", help="List architectures.")] = False,
    datasets: Annotated[bool, typer.Option("--datasets", help="List data sets.")] = False,
    optimizers: Annotated[bool, typer.Option("--optimizers", help="List optimisers and their recipes.")] = False,
    posthoc: Annotated[bool, typer.Option("--posthoc", help="List post-hoc methods.")] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="List optional metrics and their settings.")] = False,
    schedulers: Annotated[bool, typer.Option("--schedulers", help="List schedulers and their settings.")] = False,
    searchers: Annotated[bool, typer.Option("--searchers", help="List searchers and their settings.")] = False,
) -> None:
    """List the shipped search spaces, or the components that a search space may name."""
    from sweeper.space import catalogue

    asked: dict[str, bool] = {
        "losses": losses,
        "architectures": architectures,
        "datasets": datasets,
        "optimizers": optimizers,
        "posthoc": posthoc,
        "metrics": metrics,
        "schedulers": schedulers,
        "searchers": searchers,
    }
    chosen = [kind for kind, wanted in asked.items() if wanted]
    for kind in chosen:
        show(catalogue.components_table(kind))
    if not chosen:
        show(catalogue.spaces_table())


@commands.command()
def doctor() -> None:
    """Check that this machine can run sweeps, and suggest a fix for every problem."""
    from sweeper.planning.doctor import checks

    found = checks()
    for check in found:
        typer.echo(f"{'ok  ' if check.ok else 'FAIL'} {check.subject}: {check.finding}")
        if not check.ok:
            typer.echo(f"     {check.remedy}")
    raise typer.Exit(DONE if all(check.ok for check in found) else INCOMPLETE)
