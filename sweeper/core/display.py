"""Output of commands: results that look the same in a console and a notebook, and tables in every format.

Names, reasons and paths come from files that someone else may have written. Everything that prints them uses
`SafeConsole` or `printable`, so they cannot add markup or control a terminal. `redact` keeps secrets (passwords in
addresses, tokens in arguments) out of everything that is written.
"""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sweeper.core.errors import SweeperError

if TYPE_CHECKING:
    import pyarrow as pa


#: Width of text outside a terminal, in characters. A notebook cell shows this width without scrolling.
WIDTH = 120

FRAME = '<pre style="white-space:pre;overflow-x:auto;line-height:1.35;margin:0">{code}</pre>'

_UNUSUAL = re.compile("[^\n\t -~]")

#: Unicode's categories of characters that are not seen but change what is seen: control, format (among them the
#: bidirectional marks and characters without width), line and paragraph separators.
_HIDDEN = {"Cc", "Cf", "Zl", "Zp"}

#: Joiners are needed inside emoji and words of some scripts (Persian, Hindi). Between other characters, or at their
#: edge, they only make two names look alike.
_JOINERS, _JOINED = "\u200c\u200d", re.compile("[\u0590-\u1fff\u2190-\U0010ffff]")

T = TypeVar("T")


def printable(text: str) -> str:
    r"""Escape characters that control a terminal or hide in a text, as Python's `unicode_escape` does.

    Example:
        >>> print(printable("loss \x1b[31mred"))
        loss \x1b[31mred
    """
    return _UNUSUAL.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    character, (start, end) = match[0], match.span()
    around = match.string[max(0, start - 1) : start], match.string[end : end + 1]
    if unicodedata.category(character) not in _HIDDEN or (
        character in _JOINERS and all(map(_JOINED.fullmatch, around))
    ):
        return character
    return character.encode("unicode_escape").decode()


class SafeConsole(Console):
    """A console that prints texts literally: no markup, emoji codes or control characters take effect.

    Outside a terminal no table cell is cut; a table can then be wider than the console, while prose is wrapped.
    """

    def __init__(self, **options: Any) -> None:
        """Make a console; `options` are those of `rich.console.Console`."""
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with texts made `printable`; rich's own control codes stay."""
        if isinstance(renderable, Table) and not self.is_terminal:
            options = options or self.options
            options = options.update(width=max(options.max_width, _uncut_width(renderable, self, options)))
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def _uncut_width(table: Table, console: Console, options: ConsoleOptions) -> int:
    """Return a width at which each cell is complete: cells that may be wrapped need only their longest word."""
    wide, width = options.update(width=100_000), 0
    for column in table.columns:
        width += table.padding[1] + table.padding[3]
        sizes = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
        is_whole = column.no_wrap or column.overflow == "fold"
        width += max(column.min_width or 0, *(size.maximum if is_whole else size.minimum for size in sizes))
    return width


class CommandResult(Generic[T]):
    """The values a command returns and how they are shown; attributes of the values are attributes of the result.

    Attributes:
        value: the values.
        rendered: the output for a terminal (text is printed unchanged), or bytes for a file or a pipe; `None` for
            nothing.
        json: the values that `--format json` prints, where they differ from `value`.
        notes: further lines, which the command writes to standard error.
        width: width outside a terminal, in characters.
        wrap: whether longer lines are wrapped.
        fault: the error that the command raises after it has printed the result.
        exit_code: the command's exit status.
    """

    def __init__(
        self,
        value: T,
        rendered: RenderableType | bytes | None = None,
        *,
        json: object = None,
        notes: Sequence[str] = (),
        width: int = 140,
        wrap: bool = True,
        fault: SweeperError | None = None,
        exit_code: int = 0,
    ) -> None:
        """Hold a result."""
        self.value, self.rendered, self.json, self.notes = value, rendered, json, notes
        self.width, self.wrap, self.fault, self.exit_code = width, wrap, fault, exit_code

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` ask for these before `value` is set: looking it up would call this without end.
        if name.startswith("_") or name == "value":
            raise AttributeError(name)
        return getattr(self.value, name)

    def __rich__(self) -> RenderableType:
        """Return the renderable that the command of the same name prints."""
        if self.rendered is None:
            return Text("\n".join(self.notes))
        return "" if isinstance(self.rendered, bytes) else self.rendered

    def __repr__(self) -> str:
        return as_text(self.__rich__())

    def _repr_html_(self) -> str:
        return as_html(self.__rich__())


def as_data(answer: object) -> object:
    """Convert a result to JSON values: fields by their names, paths as text, NaN and infinities as None.

    Example:
        >>> as_data({"nll": float("nan"), "epochs": (3, 9)})
        {'nll': None, 'epochs': [3, 9]}
    """
    if isinstance(answer, CommandResult):
        return as_data(answer.json if answer.json is not None else answer.value)
    if isinstance(answer, Mapping):
        return {str(key): as_data(value) for key, value in answer.items()}
    for method in ("to_dict", "to_pylist", "resolved", "tolist"):  # results, Arrow, search spaces, numpy
        if hasattr(answer, method):
            return as_data(getattr(answer, method)())
    if is_dataclass(answer):
        return {field.name: as_data(getattr(answer, field.name)) for field in fields(answer)}
    if isinstance(answer, (list, tuple, set, frozenset)):
        return [as_data(value) for value in answer]
    return json_value(answer) if isinstance(answer, (str, int, float, NoneType)) else str(answer)


def as_text(rendered: RenderableType) -> str:
    """Render as plain text, without colours."""
    # Otherwise rich would display the output itself in a notebook, in colour, in addition to the returned text.
    console = SafeConsole(file=io.StringIO(), width=WIDTH, force_jupyter=False, force_terminal=False)
    with console.capture() as capture:
        console.print(rendered, crop=False)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def as_html(rendered: RenderableType) -> str:
    """Render as HTML; only emphasis is coloured, everything else takes the page's colours."""
    console = SafeConsole(file=io.StringIO(), width=WIDTH, record=True, force_jupyter=False, force_terminal=False)
    console.print(rendered, crop=False)
    return console.export_html(inline_styles=True, code_format=FRAME)


def plain_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str], note: str = ""
) -> RenderableType:
    """Return a terminal table that truncates nothing.

    Args:
        headings: column headings.
        rows: texts, one per column.
        left: headings of the columns that are aligned to the left; numbers are aligned to the right.
        note: text below the table; empty for none.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return Group(table, Text(), Text(note)) if note else table


FORMATS = ("table", "json", "csv", "parquet")


def format_table(table: pa.Table, kind: str = "table") -> str | bytes:
    """Format a table as text (`table`, `csv`, or `json`: a list with one object per row) or as bytes (`parquet`).

    Raises:
        SweeperError: the format is unknown.

    Example:
        >>> import pyarrow as pa
        >>> print(format_table(pa.table({"trial": ["c00000"], "nll": [0.25]}), "csv"), end="")
        trial,nll
        c00000,0.25
    """
    if kind == "parquet":
        import pyarrow.parquet as pq  # takes 0.1 s, which most commands need not spend

        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()
    rows = [{key: json_value(value) for key, value in row.items()} for row in table.to_pylist()]
    if kind == "json":
        return json.dumps(rows, indent=1, ensure_ascii=False)
    if kind == "csv":
        return csv_text([table.column_names, *([*row.values()] for row in rows)])
    if kind == "table":
        return text_table(table.column_names, rows)
    raise SweeperError(f"unknown format {kind!r}", f"formats: {', '.join(FORMATS)}")


def json_value(value: object) -> object:
    """Convert a value to one that JSON and CSV can hold: times as ISO 8601 text, NaN and infinities as None."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def text_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Format rows as aligned plain text: numbers to the right with six digits, an empty cell for null."""
    cells = [[shown(row[column]) for column in columns] for row in rows]
    widths = [max([len(column), *(len(line[i]) for line in cells)]) for i, column in enumerate(columns)]
    numeric = [any(isinstance(row[column], (int, float)) for row in rows) for column in columns]

    def line(values: Sequence[str]) -> str:
        aligned = [v.rjust(w) if right else v.ljust(w) for v, w, right in zip(values, widths, numeric, strict=True)]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(columns), line(["─" * width for width in widths]), *map(line, cells)])


def shown(value: object) -> str:
    """Format a value as the text of a table cell."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value)).replace("\n", "\\n")


# A valid address escapes @ and / in a password. An invalid one can have an @, or a / after `user:`.
_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?:[^/\s]+|[^/:@\s]+:[^@\s]+)@")
_SECRET_VALUE = re.compile(
    r"(?i)(?P<name>[A-Za-z0-9_.-]*"
    r"(?:token|secret|password|passwd|api[-_]?key|access[-_]?key|credential|authorization)[A-Za-z0-9_-]*)"
    r"(?P<sign>[\"']?\s*[=:]\s*[\"']?(?:bearer |basic )?)(?P<value>[^\s&,;\"']+)"
)

# A server that refuses a request may repeat the authorization header without the header's name.
_SENT_HEADER = re.compile(r"(?i)\b(?P<kind>basic|bearer) [A-Za-z0-9+/=_.~-]{16,}")


def redact(text: str) -> str:
    """Replace credentials by `***`: users and passwords in addresses, sent headers, values of secret-like names.

    Example:
        >>> redact("postgresql://ann:secret@db/mlflow?token=abc")
        'postgresql://***@db/mlflow?token=***'
    """
    text = _USER_INFO.sub(r"\g<scheme>***@", text)
    text = _SENT_HEADER.sub(r"\g<kind> ***", text)
    return _SECRET_VALUE.sub(r"\g<name>\g<sign>***", text)


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Redact a command line's arguments."""
    # A secret may be an argument by itself, after the option that names it.
    names = ["", *(argument if argument.startswith("-") and "=" not in argument else "" for argument in arguments)]
    return [
        "***" if name and not argument.startswith("-") and redact(f"{name}=x") != f"{name}=x" else redact(argument)
        for name, argument in zip(names, arguments, strict=False)
    ]


PAPER_FORMATS = ("latex", "markdown", "csv", "json")

DAGGER = "†"

_TEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
    | {"±": r"$\pm$", DAGGER: r"$\dagger$", "…": r"\dots{}", "–": "--", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}
)


class NumberCell(NamedTuple):
    """A number in a table.

    Attributes:
        text: mean ± standard deviation over replicates.
        best: whether the number is the best of its column.
        worse: whether the number is worse than the best by more than the variation between seeds (90 %); None if
            unknown.
    """

    text: str
    best: bool
    worse: bool | None

    def latex(self) -> str:
        """Format as LaTeX mathematics: the best in bold, worse values with a dagger."""
        text = self.text.replace(" ± ", r" \pm ").replace("–", r"\text{--}")
        return rf"$\mathbf{{{text}}}$" if self.best else rf"${text}^{{\dagger}}$" if self.worse else f"${text}$"

    def markdown(self) -> str:
        """Format as Markdown with the same marks."""
        return f"**{self.text}**" if self.best else self.text + (DAGGER if self.worse else "")

    def verdict(self) -> str:
        """Return the comparison in a word: `best`, `worse`, `alike` or `unknown`."""
        return "best" if self.best else {True: "worse", False: "alike", None: "unknown"}[self.worse]


@dataclass(frozen=True)
class TableText:
    """A table for a paper.

    Attributes:
        header: column headings.
        rows: cells; a row that begins with an empty text ends a group.
        words: number of text columns, which come first; the other columns have numbers.
        caption: text below the table, or above it in LaTeX.
        records: all values, header first, for CSV and JSON.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str | NumberCell]]
    words: int
    caption: str
    records: Iterable[Sequence[object]]

    def written(self, form: str) -> str:
        """Format the table as text. Raises SweeperError for an unknown format."""
        if form not in PAPER_FORMATS:
            raise SweeperError(f"unknown table format {form!r}", f"formats: {', '.join(PAPER_FORMATS)}")
        if form == "csv":
            return csv_text(self.records).rstrip("\n")
        if form == "json":
            head, *rows = self.records
            return json.dumps(
                [dict(zip(head, row, strict=True)) for row in rows], indent=1, ensure_ascii=False, default=str
            )
        return self._latex() if form == "latex" else self._markdown()

    def _latex(self) -> str:
        def line(cells: Sequence[str | NumberCell]) -> str:
            return " & ".join(latex(cell) if isinstance(cell, str) else cell.latex() for cell in cells) + r" \\"

        columns = "l" * self.words + "r" * (len(self.header) - self.words)
        begin = rf"\begin{{tabular}}{{{columns}}}"
        above = [r"% needs \usepackage{amsmath,booktabs}", r"\begin{table}", rf"\caption{{{latex(self.caption)}}}"]
        body = [line(row) + (r" \addlinespace" if row[0] == "" else "") for row in self.rows]
        inside = [begin, r"\toprule", line(self.header), r"\midrule", *body, r"\bottomrule"]
        return "\n".join([*above, *inside, r"\end{tabular}", r"\end{table}"])

    def _markdown(self) -> str:
        rows = [[cell if isinstance(cell, str) else cell.markdown() for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(row)} |" for row in (self.header, ["---"] * len(self.header), *rows)]
        return "\n".join([*lines, "", self.caption])


def csv_text(records: Iterable[Sequence[object]]) -> str:
    """Format records as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(records)
    return text.getvalue()


def latex(text: str) -> str:
    r"""Escape a text for LaTeX.

    Example:
        >>> print(latex("50 % of cross_entropy"))
        50 \% of cross\_entropy
    """
    return text.translate(_TEX)
