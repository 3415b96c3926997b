"""The numbers that the papers print: one tidy CSV per table or figure in `search_spaces/papers/published/`.

>>> from search_spaces.papers.published_numbers import read_published
>>> first = read_published("mukhoti-1")[0]
>>> first.dataset, first.metric, first.printed
('cifar10', 'ece', '4.35')

A row is one printed number. `dataset`, `architecture`, `loss` and `posthoc` are names that a search space file uses;
`options` refines them (`gamma=3` of the loss, `architecture.width=2`, `dataset.class_fraction=0.1`,
`posthoc.objective=ece`; `epoch` and `after_epoch` say where a figure is read); `metric` is a column of the results or
one of the quantities that a figure shows (`search_spaces.papers.figures`) or a formula gives (`tables.formula_value`
there). `value` is in this project's unit (shares, not per cent), `printed` the characters in the paper, `spread` one
standard deviation over `n` runs. `source` names table, row and column, and marks doubtful cells. The recipe behind a
number is the search space that names its table and trains its configuration (`search_spaces.papers.recipes`).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "published"


@dataclass(frozen=True)
class PublishedNumber:
    """One number that a paper prints; the module describes the fields. Absent numbers are `None`."""

    table: str
    dataset: str
    architecture: str
    loss: str
    options: dict[str, str]
    posthoc: str
    split: str
    metric: str
    value: float
    printed: str
    spread: float | None
    n: int | None
    source: str

    @property
    def is_doubtful(self) -> bool:
        """Whether the paper contradicts itself about this number; `source` explains how."""
        return "doubtful" in self.source


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(PublishedNumber))


def published_tables() -> dict[str, Path]:
    """Return the files by the name that a search space's header uses: `{"mukhoti-1": …/mukhoti_table_1.csv}`.

    Figures have the prefix `fig` (`curvature-fig2`), an appendix's tables `a` (`selective-a4`), and numbers in a
    section's text `section`.
    """
    return {table_name(path): path for path in sorted(FOLDER.glob("*.csv"))}


def table_name(path: Path) -> str:
    """Return the name of a file's table: `mukhoti_table_1.csv` is `mukhoti-1`, `…_figure_2.csv` is `…-fig2`."""
    paper, kind, number = path.stem.split("_")
    before = {"table": "", "figure": "fig"}.get(kind, kind)
    return f"{paper}-{before}{number}"


def read_published(table: str) -> list[PublishedNumber]:
    """Return the numbers of one table, in the paper's order.

    Args:
        table: name of the table, e.g. `mukhoti-1`.

    Raises:
        KeyError: there is no such table; the message lists the known ones.
    """
    known = published_tables()
    if table not in known:
        raise KeyError(f"no published table {table!r}; known: {', '.join(known)}")
    with known[table].open(newline="", encoding="utf-8") as file:
        return [_number(row) for row in csv.DictReader(file)]


def _number(row: dict[str, str]) -> PublishedNumber:
    texts = {name: row[name] for name in COLUMNS if name not in ("options", "value", "spread", "n")}
    # `partition`, since a value may itself contain an equals sign.
    pairs = (option.partition("=")[::2] for option in row["options"].split(";") if option)
    return PublishedNumber(
        **texts,
        options=dict(pairs),
        value=float(row["value"]),
        spread=float(row["spread"]) if row["spread"] else None,
        n=int(row["n"]) if row["n"] else None,
    )
