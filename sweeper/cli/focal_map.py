"""The command `sweeper focal-map`: figures of the focal map that need no training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer(rich_markup_mode=None)


@commands.command("focal-map")
def focal_map(
    figure: Annotated[str, typer.Argument(help="temperatures, bounds or confidence.")],
    gamma: Annotated[
        list[float] | None, typer.Option(help="Of the focal map; repeatable; the papers' if unset.")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes; the papers' if unset.")] = None,
    kind: Annotated[str, typer.Option("--format", help="table, json, csv or parquet.")] = "table",
    picture: Annotated[Path | None, typer.Option(help="Also draw it into this HTML file.")] = None,
) -> None:
    """Compute how near the focal map is to temperature scaling, and what it does to confidences.

    temperatures is properness Figs. 2 and 6, bounds its Fig. 3, confidence is posterior Fig. 2. Nothing is trained.
    """
    import pyarrow as pa

    from sweeper.analysis.papers.focal_map_figures import map_figure, write_picture
    from sweeper.text.tables import format_table

    found = map_figure(figure, gamma or (), classes)
    text = format_table(pa.Table.from_pylist(found.rows), kind)
    if picture is not None:
        write_picture(found, picture)
    if isinstance(text, bytes):
        sys.stdout.buffer.write(text)
    else:
        typer.echo(text)
    for remark in found.remarks:
        typer.echo(remark, err=True)
