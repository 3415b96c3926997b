"""A paper on one page: its tables and figures with our numbers beside the printed ones, and verdicts on its claims.

`items` are the tables, figures and statements of all papers. `search_spaces/papers/items.csv` names each with its
counterparts: `cells:TABLE` of published numbers, `drawn:FIGURE` that is computed, `picture:FUNCTION` of a page,
`claim:NAME`, `check:TEST`, or `none`; a note names the parts that are not the paper's. `deviations.csv` quotes the
paper's words from which an item departs, or which it completes, with our choice and its reason.
"""

from __future__ import annotations

import base64
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from operator import itemgetter
from pathlib import Path

import jinja2
from rich.console import Group
from rich.table import Table

from search_spaces.papers.claims import CLAIMS
from search_spaces.papers.claims.base import Verdict
from search_spaces.papers.published_numbers import read_published
from search_spaces.papers.recipes import recipes_of
from search_spaces.papers.tables import PaperTable, caption, grid
from search_spaces.papers.trained_pictures import trained_pictures, trajectories
from sweeper.core.cells import grouped
from sweeper.core.errors import writing_to
from sweeper.reporting.figures.base import Figure
from sweeper.reporting.figures.drawing import svg_text
from sweeper.results import Results
from trainables.files.atomic import write_text

MARK = "REHEARSAL: these numbers show that every experiment works and every cell can be filled, nothing else."


@dataclass(frozen=True)
class PaperPage:
    """A written page and its content.

    Attributes:
        path: path of the HTML file.
        paper: short name of the paper.
        tables: the tables, filled in.
        verdicts: sweep → verdicts on its claims.
        scaled: rehearsal → sentences on what it scaled down.
    """

    path: Path
    paper: str
    tables: Sequence[PaperTable]
    verdicts: Mapping[str, Sequence[Verdict]]
    scaled: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def filled(self) -> tuple[int, int]:
        """Numbers of filled cells and of all cells."""
        return sum(table.filled for table in self.tables), sum(len(table.cells) for table in self.tables)

    def lines(self) -> list[str]:
        """Return the page in a few lines: cells by table, verdicts by claim."""
        filled, cells = self.filled
        said = [f"{table.name}: {table.filled} of {len(table.cells)} cells" for table in self.tables]
        for sweep, verdicts in self.verdicts.items():
            word = "no verdict, a rehearsal" if sweep in self.scaled else None
            said += [f"{v.claim} on {sweep}: {word or v.verdict}" for v in verdicts]
        return [*said, f"{filled} of {cells} cells filled; {self.path}"]


def write_paper_page(
    path: Path,
    paper: str,
    tables: Sequence[PaperTable],
    verdicts: Mapping[str, Sequence[Verdict]],
    sweeps: Iterable[Results],
) -> PaperPage:
    """Write a paper's page, which opens offline and has no script.

    Args:
        path: path of the file.
        paper: short name of the paper.
        tables: filled tables, in the order of the page.
        verdicts: sweep → verdicts on its claims.
        sweeps: sweeps whose trajectories and pictures are drawn; rehearsals say what they scaled down.

    Raises:
        SweeperError: the file cannot be written.
    """
    # Read twice below, and an iterator can be read only once.
    held = list(sweeps)
    scaled = {results.name: results.rehearsed for results in held if results.rehearsed}
    page = PaperPage(path, paper, tables, verdicts, scaled)
    pictures = [figure for results in held for figure in trained_pictures(results)]
    curves = [figure for results in held for figure in trajectories(results)]
    with writing_to(path, "give --to another path"):
        write_text(path, _html(page, {"Pictures": pictures, "Trajectories": curves}))
    return page


def _html(page: PaperPage, pictures: Mapping[str, Sequence[Figure]]) -> str:
    """Return the page's HTML; `pictures` are figures by heading."""
    filled, cells = page.filled
    text = resources.files("search_spaces.papers").joinpath("page.html").read_text("utf-8")
    # Names of sweeps come from users, so everything is escaped.
    template = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    title = f"The {page.paper} paper: {filled} of {cells} numbers"
    shown = {"page": page, "title": title, "mark": MARK, "claims": CLAIMS, "pictures": pictures}
    return template.render(**shown, grid=grid, caption=caption, image=_image)


def _image(figure: Figure) -> str:
    """Return a figure as the data URL of an image."""
    # Inline SVGs share one namespace: ids of two figures would collide.
    return f"data:image/svg+xml;base64,{base64.b64encode(svg_text(figure).encode()).decode()}"


FOLDER = Path(__file__).resolve().parent

#: Fields of a deviation: the paper's words, ours, and the reason.
DEVIATION = ("quote", "ours", "decision")


@dataclass(frozen=True)
class Item:
    """A table, figure or statement.

    Attributes:
        paper: short name of the paper.
        item: name in the paper.
        counterparts: pairs of kind and name; empty if there is none.
        note: parts that are missing, or not the paper's.
        deviations: departures from the paper's words, or decisions that they leave open, with the fields of
            DEVIATION.
    """

    paper: str
    item: str
    counterparts: tuple[tuple[str, str], ...]
    note: str
    deviations: tuple[dict[str, str], ...] = ()

    @property
    def status(self) -> str:
        """The counterparts in words."""
        return "; ".join(_words(kind, name) for kind, name in self.counterparts) or "none"

    def to_dict(self) -> dict[str, object]:
        """Return the item for JSON."""
        said = {"paper": self.paper, "item": self.item, "status": self.status, "note": self.note}
        return {**said, "deviations": list(self.deviations)}


def items(paper: str = "") -> list[Item]:
    """Return the items of a paper; of all papers by default."""
    departures = grouped(_rows("deviations.csv"), itemgetter("paper", "item"))
    listed = []
    for row in _rows("items.csv"):
        if paper in ("", row["paper"]):
            parts = [counterpart.partition(":") for counterpart in row["counterpart"].split() if counterpart != "none"]
            quoted = departures.get((row["paper"], row["item"]), ())
            deviations = tuple({key: departure[key] for key in DEVIATION} for departure in quoted)
            pairs = tuple((kind, name) for kind, _, name in parts)
            listed.append(Item(row["paper"], row["item"], pairs, row["note"], deviations))
    return listed


def _rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def items_table(listed: Sequence[Item]) -> Group:
    """Return tables for a terminal: the items, and below them the deviations."""
    table = Table("item", "status", "note", box=None, pad_edge=False)
    departures = Table("item", "the paper", "here", "why", box=None, pad_edge=False)
    for item in listed:
        table.add_row(item.item, item.status, item.note)
        for departure in item.deviations:
            departures.add_row(item.item, f"“{departure['quote']}”", departure["ours"], departure["decision"])
    return Group(table, "", departures)


def _words(kind: str, name: str) -> str:
    if kind == "drawn":
        return f"drawn by sweeper paper {name}"
    if kind == "picture":
        return "a picture on the page"
    if kind in ("claim", "check"):
        return f"{kind} {name}"
    numbers, spaces = read_published(name), [recipe.space for recipe in recipes_of(name)]
    count = f"{len(numbers)} cells" if len(numbers) > 1 else "1 cell"
    trained = any(number.dataset for number in numbers)
    return f"{count} of {', '.join(spaces)}" if trained else f"{count} by formula"
