"""Which tables, figures and statements of the papers have a counterpart here, by the files that hold it.

`search_spaces/paper_items.csv` names every item of every paper and its counterparts: `cells:TABLE` of published
numbers, `drawn:FIGURE` that is computed, `picture:FUNCTION` of a page, `claim:NAME`, `check:TEST`, or `none`, and says
what is not the paper's.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

import search_spaces
from search_spaces.published_numbers import read_published
from sweeper.analysis.papers.recipes import recipes_of

FILE = Path(search_spaces.__file__).parent / "paper_items.csv"


@dataclass(frozen=True)
class Item:
    """A table, figure or statement.

    Attributes:
        paper: short name.
        item: as the paper calls it.
        counterparts: pairs of kind and name; empty where there is none.
        note: what is missing, or not the paper's.
    """

    paper: str
    item: str
    counterparts: tuple[tuple[str, str], ...]
    note: str

    @property
    def status(self) -> str:
        """The counterparts in words."""
        return "; ".join(_words(kind, name) for kind, name in self.counterparts) or "none"

    def to_dict(self) -> dict[str, str]:
        """Return the item for JSON."""
        return {"paper": self.paper, "item": self.item, "status": self.status, "note": self.note}


def items(paper: str = "") -> list[Item]:
    """Return the items of a paper, of all of them by default."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if paper in ("", row["paper"])]
    found = []
    for row in rows:
        parts = [each.partition(":") for each in row["counterpart"].split() if each != "none"]
        found.append(Item(row["paper"], row["item"], tuple((kind, name) for kind, _, name in parts), row["note"]))
    return found


def items_table(held: Sequence[Item]) -> Table:
    """Return the items for a terminal."""
    table = Table("item", "status", "note", box=None, pad_edge=False)
    for each in held:
        table.add_row(each.item, each.status, each.note)
    return table


def _words(kind: str, name: str) -> str:
    if kind == "drawn":
        return f"drawn by sweeper focal-map {name}"
    if kind == "picture":
        return "a picture on the page"
    if kind in ("claim", "check"):
        return f"{kind} {name}"
    numbers, spaces = read_published(name), [recipe.space for recipe in recipes_of(name)]
    count = f"{len(numbers)} cells" if len(numbers) > 1 else "1 cell"
    trained = any(number.dataset for number in numbers)
    return f"{count} of {', '.join(spaces)}" if trained else f"{count} by formula"
