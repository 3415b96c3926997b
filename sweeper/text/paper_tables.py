"""Tables for papers: LaTeX, Markdown or CSV of the same rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeper.core.errors import SweeperError

FORMATS = ("latex", "markdown", "csv")

DAGGER = "†"

_TEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
    | {"±": r"$\pm$", DAGGER: r"$\dagger$", "…": r"\dots{}", "–": "--", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}
)


class NumberCell(NamedTuple):
    """A number of a table.

    Attributes:
        text: mean ± standard deviation over replicates.
        best: whether it is the best of its column.
        worse: whether it differs from the best beyond the variation between seeds (90 %); None where that is unknown.
    """

    text: str
    best: bool
    worse: bool | None

    def latex(self) -> str:
        """Return it as mathematics: the best bold, what is worse with a dagger."""
        text = self.text.replace(" ± ", r" \pm ").replace("–", r"\text{--}")
        return rf"$\mathbf{{{text}}}$" if self.best else rf"${text}^{{\dagger}}$" if self.worse else f"${text}$"

    def markdown(self) -> str:
        """Return it with the same marks as Markdown."""
        return f"**{self.text}**" if self.best else self.text + (DAGGER if self.worse else "")

    def verdict(self) -> str:
        """Return the marks in a word."""
        return "best" if self.best else {True: "worse", False: "alike", None: "unknown"}[self.worse]


@dataclass(frozen=True)
class TableText:
    """A table to be written.

    Attributes:
        header: of all columns.
        rows: of cells; one that begins with an empty text ends a group.
        words: how many columns are words, on the left; the others are numbers.
        caption: below it, or above in LaTeX.
        records: all there is to know, header first, for CSV.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str | NumberCell]]
    words: int
    caption: str
    records: Iterable[Sequence[object]]

    def written(self, form: str) -> str:
        """Return the table as text. Raises SweeperError for another format."""
        if form not in FORMATS:
            raise SweeperError(f"unknown format {form!r} of a table", f"formats: {', '.join(FORMATS)}")
        if form == "csv":
            return csv_text(self.records).rstrip("\n")
        return self._latex() if form == "latex" else self._markdown()

    def _latex(self) -> str:
        def line(cells: Sequence[str | NumberCell]) -> str:
            return " & ".join(latex(each) if isinstance(each, str) else each.latex() for each in cells) + r" \\"

        columns = "l" * self.words + "r" * (len(self.header) - self.words)
        above = [r"% needs \usepackage{amsmath,booktabs}", r"\begin{table}", rf"\caption{{{latex(self.caption)}}}"]
        body = [line(row) + (r" \addlinespace" if row[0] == "" else "") for row in self.rows]
        inside = [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            line(self.header),
            r"\midrule",
            *body,
            r"\bottomrule",
        ]
        return "\n".join([*above, *inside, r"\end{tabular}", r"\end{table}"])

    def _markdown(self) -> str:
        rows = [[each if isinstance(each, str) else each.markdown() for each in row] for row in self.rows]
        return "\n".join([*markdown_lines([self.header, ["---"] * len(self.header), *rows]), "", self.caption])


def markdown_lines(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines of a table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in rows]


def csv_text(records: Iterable[Sequence[object]]) -> str:
    """Return records as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(records)
    return text.getvalue()


def latex(text: str) -> str:
    """Return text as LaTeX shows it."""
    return text.translate(_TEX)
