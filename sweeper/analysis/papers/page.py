"""A paper on one page: its tables and figures filled in beside what is printed, and the verdicts on its claims."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.analysis.claims import CLAIMS
from sweeper.analysis.claims.base import Verdict
from sweeper.analysis.papers.tables import PaperTable, caption, grid
from sweeper.analysis.papers.trained_pictures import trained_pictures, trajectories
from sweeper.core.errors import writing_to
from sweeper.figures.base import Figure
from sweeper.figures.on_paper import svg_text
from sweeper.results import Results
from trainables.files.atomic import write_text

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1f; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .15rem .6rem; border-bottom: 1px solid #e3e3e8; text-align: left; vertical-align: top; }
tr.paper td { color: #63636b; }
.scroll { overflow-x: auto; }
.mark { background: #fff3d6; padding: .5rem .8rem; border-radius: .4rem; }
.holds { color: #1a7f37; } .fails { color: #b42318; } .undecided { color: #63636b; }
figure { margin: 1rem 1rem 1rem 0; display: inline-block; } figcaption { font-size: 13px; color: #63636b; }
"""

MARK = "REHEARSAL: these numbers show that every experiment works and every cell can be filled, nothing else."


@dataclass(frozen=True)
class PaperPage:
    """A page and what it holds.

    Attributes:
        path: of the HTML file.
        paper: its short name.
        tables: filled in.
        verdicts: sweep → what it says of its claims.
        scaled: rehearsal → what it scaled down, a sentence each.
    """

    path: Path
    paper: str
    tables: Sequence[PaperTable]
    verdicts: Mapping[str, Sequence[Verdict]]
    scaled: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def filled(self) -> tuple[int, int]:
        """How many cells are filled, and how many there are."""
        return sum(table.filled for table in self.tables), sum(len(table.cells) for table in self.tables)

    def lines(self) -> list[str]:
        """Return the page in a few lines: cells by table, verdicts by claim."""
        filled, cells = self.filled
        said = [f"{table.name}: {table.filled} of {len(table.cells)} cells" for table in self.tables]
        for sweep, found in self.verdicts.items():
            word = "no verdict, a rehearsal" if sweep in self.scaled else None
            said += [f"{v.claim} on {sweep}: {word or v.verdict}" for v in found]
        return [*said, f"{filled} of {cells} cells filled; {self.path}"]


def write_paper_page(
    path: Path,
    paper: str,
    tables: Sequence[PaperTable],
    verdicts: Mapping[str, Sequence[Verdict]],
    sweeps: Iterable[Results],
) -> PaperPage:
    """Write a paper's page; it opens offline and holds no script.

    Args:
        path: of the file.
        paper: its short name.
        tables: filled in, in the order to be shown.
        verdicts: sweep → what it says of its claims.
        sweeps: those whose trajectories and pictures are drawn; rehearsals say what they scaled down.

    Raises:
        SweeperError: the file cannot be written.
    """
    held = list(sweeps)
    scaled = {results.name: results.rehearsed for results in held if results.rehearsed}
    page = PaperPage(path, paper, tables, verdicts, scaled)
    curves = [found for results in held for found in trajectories(results)]
    pictures = [found for results in held for found in trained_pictures(results)]
    with writing_to(path, "give --to another path"):
        write_text(path, _html(page, curves, pictures))
    return page


def _html(page: PaperPage, curves: Sequence[Figure], pictures: Sequence[Figure]) -> str:
    filled, cells = page.filled
    title = html.escape(f"The {page.paper} paper: {filled} of {cells} numbers")
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>",
        f"<h1>{title}</h1>",
        *_marks(page),
        "<h2>Claims</h2>",
        *(_claims(page) or ["<p>There is no sweep of this paper to judge them on.</p>"]),
        "<h2>Tables and figures</h2>",
        *map(_table, page.tables),
    ]
    if pictures:
        parts += ["<h2>Pictures</h2>", *map(_picture, pictures)]
    if curves:
        parts += ["<h2>Trajectories</h2>", *map(_picture, curves)]
    return "\n".join(parts)


def _marks(page: PaperPage) -> list[str]:
    """Return the warning above a page of rehearsals, and what each scaled down."""
    if not any(table.rehearsed for table in page.tables):
        return []
    said = [f"{sweep}: {'; '.join(sentences)}" for sweep, sentences in page.scaled.items()]
    items = [f"<li>{html.escape(each)}</li>" for each in said]
    return [f"<div class='mark'><p>{MARK}</p><ul>", *items, "</ul></div>"]


def _picture(figure: Figure) -> str:
    """Return a figure as an image with its caption: as one of its own file, whose names cannot meet another's."""
    said = html.escape(figure.caption)
    shown = html.escape(": ".join(filter(None, (figure.caption, ", ".join(figure.legend)))))
    data = base64.b64encode(svg_text(figure).encode()).decode()
    image = f"<img alt='{shown}' src='data:image/svg+xml;base64,{data}'>"
    return f"<figure>{image}<figcaption>{said}</figcaption></figure>"


def _claims(page: PaperPage) -> list[str]:
    found = []
    for sweep, judged in page.verdicts.items():
        items = [
            f"<li><strong>{html.escape(CLAIMS[v.claim].statement)}</strong> {_verdict(v, sweep in page.scaled)}: "
            f"{html.escape(v.sentence)}.</li>"
            for v in judged
        ]
        found += [f"<h3>{html.escape(sweep)}</h3><ul>", *items, "</ul>"]
    return found


def _verdict(verdict: Verdict, rehearsed: bool) -> str:
    if rehearsed:
        return "<span class='undecided'>No verdict: a rehearsal</span>"
    kind = {"holds": "holds", "does not hold": "fails"}.get(verdict.verdict, "undecided")
    return f"<span class='{kind}'>{html.escape(verdict.verdict.capitalize())}</span>"


def _table(table: PaperTable) -> str:
    header, rows = grid(table)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    lines = [
        f"<tr class='{'paper' if 'paper' in row[:4] else 'ours'}'>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    ]
    notes = [cell.published.source for cell in table.cells if cell.published.is_doubtful]
    doubts = f"<p>Doubtful: {html.escape('; '.join(dict.fromkeys(notes)))}.</p>" if notes else ""
    return (
        f"<h3>{html.escape(table.name)}</h3><p>{html.escape(caption(table))}</p><div class='scroll'><table>"
        f"<tr>{head}</tr>{''.join(lines)}</table></div>{doubts}"
    )
