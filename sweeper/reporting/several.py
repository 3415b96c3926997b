"""One page for several sweeps: the best of each loss side by side, and the first screen of each."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from sweeper.core.errors import SweeperError, writing_to
from sweeper.reporting.answers import Answers
from sweeper.reporting.first_screen import first_screen
from sweeper.reporting.matrix import Cell, cell_of
from sweeper.reporting.page import template
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.overview import headline, overview
from trainables.files.atomic import write_text

CAPTION = (
    "Each cell is the best configuration of a loss in a sweep by that sweep’s own objective, over all its networks. "
    "Values of different objectives, data sets or numbers of epochs are not comparable."
)


class Part(NamedTuple):
    """What one sweep contributes to the page."""

    name: str
    objective: str
    headline: str
    rehearsed: bool
    first: Answers


def write_several(members: Sequence[Results], file: Path) -> Path:
    """Write the page of several sweeps to `file` and return it.

    Raises:
        SweeperError: two of them have the same name, or the file cannot be written.
        QueryError: tables of one of them cannot be read.
    """
    names = [each.name for each in members]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SweeperError(f"{twice!r} was named twice", "name each sweep once")
    parts = [part_of(each) for each in members]
    page = template("several.html").render(
        sweeps=parts,
        table=side_by_side(parts),
        caption=CAPTION,
        style=Markup(resources.files("sweeper.reporting").joinpath("page.css").read_text("utf-8")),
    )
    with writing_to(file, "write the page elsewhere with --to FILE"):
        write_text(file, page)
    return file


def part_of(results: Results) -> Part:
    """Return what one sweep contributes."""
    with results.snapshot() as snapshot:
        board, counts = leaderboard(snapshot), overview(snapshot)
        first = first_screen(snapshot, board, counts)
        return Part(results.name, board.objective.label, headline(board, counts), bool(results.rehearsed), first)


def side_by_side(parts: Sequence[Part]) -> list[tuple[str, list[Cell | None]]]:
    """Return each loss with its best cell in each sweep, None where the sweep has none."""
    families = dict.fromkeys(f for part in parts if part.first.matrix is not None for f in part.first.matrix.families())
    return [(family, [best_cell(part, family) for part in parts]) for family in families]


def best_cell(part: Part, family: str) -> Cell | None:
    """Return the best cell of a loss in a sweep."""
    found = part.first.matrix
    key = next((key for key in found.cells if key[1] == family), None) if found is not None else None
    return cell_of(found, key) if found is not None and key is not None else None
