"""The commands to use before a sweep: `spaces` lists what is available, `doctor` checks the machine."""

from __future__ import annotations

from typing import Annotated

import typer

from sweeper.cli.common import DONE, INCOMPLETE, show

commands = typer.Typer()


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
