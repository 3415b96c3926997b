"""The commands that take results home: `export`, `figure`, `table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.common import RESULTS, Name, Output, Tracking, Trust

commands = typer.Typer()


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

    typer.echo(written_table(name, form=form, output=output))
