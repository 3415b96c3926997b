"""What every page of the program is made of: templates, data that no text can break, and links to rows.

Style, script, plots and data are all inside a page; Vega's script comes after everything a reader sees first.
"""

from __future__ import annotations

import base64
import functools
import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from sweeper.core.display import as_html, format_table
from sweeper.core.errors import writing_to
from sweeper.core.labels import STATUS_WORDS, plural
from sweeper.reporting.figures import on_paper
from sweeper.reporting.figures.base import DASHES, Figure
from sweeper.reporting.figures.drawing import CONFIG, chart, javascript, json_text
from sweeper.reporting.figures.on_paper import SUFFIXES, require_format
from sweeper.reporting.sentences import SHOWN, cells, glossary, lead, objective_words, remedy, settings, words_of
from sweeper.results import Results
from trainables.files.atomic import write_text

#: Characters of JSON from which it is compressed in the page: a page of small data can be read by any browser, and
#: one of large data is a fifth of its size and is not parsed before it is needed.
PACKED_FROM = 200_000


FILES = resources.files("sweeper.reporting")


@functools.cache
def _environment() -> jinja2.Environment:
    """Return what fills in the templates of this folder."""
    loader = jinja2.FunctionLoader(lambda each: FILES.joinpath(each).read_text("utf-8"))
    made = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader
    )
    made.filters |= {"pretty": pretty, "json": json_text, "chart": chart, "as_html": as_html}
    made.globals.update(
        data_script=data_script, words=STATUS_WORDS, served=False, theme=CONFIG, dashes=DASHES,
        lead=lead, remedy=remedy, cells=cells, settings=settings, objective_words=objective_words, words_of=words_of,
        glossary=glossary(), shown=SHOWN,
        style=Markup(FILES.joinpath("page.css").read_text("utf-8")),
        script=Markup(FILES.joinpath("page.js").read_text("utf-8")),
        libraries=javascript,
    )  # fmt: skip
    return made


def page_text(template: str, **shown: object) -> str:
    """Return a template of this folder filled in: the text of a page, or of a part of one.

    Args:
        template: its file name.
        shown: by the names that the template has for it; `served` where a server has style and scripts at hand.
    """
    return _environment().get_template(template).render(**shown)


def write_page(template: str, file: Path, remedy: str, **shown: object) -> Path:
    """Fill in a template of this folder, write it to `file` and return that.

    The page is written under a temporary name and renamed, so a browser never opens half of it.

    Args:
        template: its file name.
        file: the page; one that exists is replaced.
        remedy: what to do where the file cannot be written.
        shown: as for `page_text`.

    Raises:
        SweeperError: the file cannot be written.
    """
    whole = page_text(template, **shown)
    with writing_to(file, remedy):
        write_text(file, whole)
    return file


def write_figure(figure: Figure, file: Path) -> None:
    """Write a figure into a file whose suffix says the format: a page that opens offline, or one for paper.

    Raises:
        SweeperError: another suffix, or the file cannot be written.
    """
    require_format(file, (".html", *SUFFIXES))
    if file.suffix.lower() == ".html":
        write_page("figure.html", file, "give another path", figure=figure)
    else:
        on_paper.write_figure(figure, file)


def data_script(identifier: str, text: str) -> Markup:
    """Return JSON text as an inert script element that no `</script>` or `<!--` in it can end; large text packed."""
    if len(text) >= PACKED_FROM:
        packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
        return Markup(f'<script type="application/gzip" id="{escape(identifier)}">{packed}</script>')
    safe = text.replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{escape(identifier)}">{safe}</script>')


def pretty(text: str) -> Markup:
    """Return text as HTML: λ_max with its subscript, code between backticks, no line broken at a `=` or `±`."""
    unbroken = re.sub(r" ([=±]) ", "\u00a0\\1\u00a0", text)
    coded = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(unbroken)))
    return Markup(coded.replace("λ_max", "λ<sub>max</sub>"))


#: Rows of a query that take more than this in memory, 1 MiB, are not put into the page: it is to stay quick to open.
#: Of figures over 1,000 trials all are; 10,000 trials took 18 MiB in a dozen files, and the query gives them from the
#: sweep's tables.
MOST_BYTES = 2**20


@dataclass(frozen=True)
class Sources:
    """What says where numbers come from, for all parts of one page: rows of the same query are held once.

    Attributes:
        results: what the queries are asked of.
        held: query → the link's identifier.
    """

    results: Results
    held: dict[str, str] = field(default_factory=dict)

    def links(self, key: str, sql: Sequence[str]) -> list[Markup]:
        """Return a link for the rows of each query of the figure or table `key`."""
        names = [f"{key}-{at + 1}" if len(sql) > 1 else key for at in range(len(sql))]
        return [self.link(name, query) for name, query in zip(names, sql, strict=True)]

    def link(self, name: str, query: str) -> Markup:
        """Return a link that saves the rows of a query as CSV, held compressed in the page itself."""
        if query in self.held:
            return Markup('<a href="#{}">same CSV as above</a>').format(self.held[query])
        table = self.results.sql(query)
        size = plural(table.num_rows, "row")
        if table.nbytes > MOST_BYTES:
            command = f"sweeper results {self.results.name} --format csv --sql …"
            return escape(f"{size}, too many for this page; export: `{command}`")
        text = format_table(table, "csv")
        assert isinstance(text, str)
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        self.held[query] = f"data-{name}"
        saved = Markup('<a id="{}" href="data:application/gzip;base64,{}" download="{}" class="data-link">{}</a>')
        return saved.format(self.held[query], packed, f"{self.results.name}-{name}.csv.gz", f"CSV ({size})")
