"""Common parts of all pages: templates, safe scripts with data, and links to rows.

A page contains its style, scripts, plots and data. Vega's script comes last, so that readers see the text first.
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
from sweeper.reporting.figures import drawing
from sweeper.reporting.figures.base import DASHES, Figure
from sweeper.reporting.figures.drawing import CONFIG, SUFFIXES, chart, javascript, json_text, require_format
from sweeper.reporting.sentences import (
    SHOWN,
    along_table,
    cells,
    deployment,
    glossaries,
    lead,
    nll_words,
    objective_words,
    remedy,
    settings,
    words_of,
)
from sweeper.results import Results
from trainables.files.atomic import write_text

#: JSON of at least this length is compressed in the page. It then takes a fifth of the size, and is not parsed before
#: it is needed. Smaller data are not compressed, so every browser can read them.
PACKED_FROM = 200_000


FILES = resources.files("sweeper.reporting")


@functools.cache
def _environment() -> jinja2.Environment:
    """Return the environment of this folder's templates."""
    loader = jinja2.FunctionLoader(lambda name: FILES.joinpath(name).read_text("utf-8"))
    # Everything is escaped. A misspelled variable is an error instead of an empty text in a report.
    made = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader
    )
    made.filters |= {"pretty": pretty, "json": json_text, "chart": chart, "as_html": as_html}
    made.globals.update(
        data_script=data_script, words=STATUS_WORDS, served=False, theme=CONFIG, dashes=DASHES,
        lead=lead, deployment=deployment, remedy=remedy, cells=cells, settings=settings, along_table=along_table,
        objective_words=objective_words, nll_words=nll_words, words_of=words_of,
        glossary=glossaries()[0], shown=SHOWN, further_words=glossaries()[1],
        style=Markup(FILES.joinpath("page.css").read_text("utf-8")),
        script=Markup(FILES.joinpath("page.js").read_text("utf-8")),
        libraries=javascript,
    )  # fmt: skip
    return made


def page_text(template: str, **shown: object) -> str:
    """Return the text of a page, or of a part of one, from a template of this folder.

    Args:
        template: file name of the template.
        shown: the template's variables; `served` if a server provides style and scripts.
    """
    return _environment().get_template(template).render(**shown)


def write_page(template: str, file: Path, remedy: str, **shown: object) -> Path:
    """Write a page from a template of this folder to `file`, and return `file`.

    The page is written under a temporary name and renamed, so a browser never opens half of it.

    Args:
        template: file name of the template.
        file: the page; an existing one is replaced.
        remedy: advice in the error if the file cannot be written.
        shown: as in `page_text`.

    Raises:
        SweeperError: the file cannot be written.
    """
    whole = page_text(template, **shown)
    with writing_to(file, remedy):
        write_text(file, whole)
    return file


def write_figure(figure: Figure, file: Path) -> None:
    """Write a figure to a file whose suffix gives the format: a page that opens offline, or a file for a paper.

    Raises:
        SweeperError: the suffix is unknown, or the file cannot be written.
    """
    require_format(file, (".html", *SUFFIXES))
    if file.suffix.lower() == ".html":
        write_page("figure.html", file, "give another path", figure=figure)
    else:
        drawing.write_figure(figure, file)


def data_script(identifier: str, text: str) -> Markup:
    """Return JSON text as an inert script element that `</script>` or `<!--` cannot end; large text is packed."""
    if len(text) >= PACKED_FROM:
        # With `mtime=0` there is no time in the gzip header, so equal data give equal pages.
        packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
        return Markup(f'<script type="application/gzip" id="{escape(identifier)}">{packed}</script>')
    safe = text.replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{escape(identifier)}">{safe}</script>')


def pretty(text: str) -> Markup:
    r"""Return text as HTML: λ_max with a subscript, backticks as code, no line break around `=` or `±`.

    Example:
        >>> str(pretty("λ_max = 3 by `sweeper run`"))
        'λ<sub>max</sub>\xa0=\xa03 by <code>sweeper run</code>'
    """
    # The text is escaped before tags are added, so only these tags are HTML.
    unbroken = re.sub(r" ([=±]) ", "\u00a0\\1\u00a0", text)
    coded = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(unbroken)))
    return Markup(coded.replace("λ_max", "λ<sub>max</sub>"))


#: Largest size in memory of a query's rows that are stored in the page, so that it opens quickly. Rows of figures with
#: 1,000 trials are smaller. With 10,000 trials they took 18 MiB in a dozen files. Larger rows can be read from the
#: sweep's tables by the query.
MOST_BYTES = 2**20


@dataclass(frozen=True)
class Sources:
    """Links to the rows behind a page's numbers. The rows of a query are stored only once.

    Attributes:
        results: the sweep that is queried.
        held: query → identifier of its link.
    """

    results: Results
    held: dict[str, str] = field(default_factory=dict)

    def links(self, key: str, sql: Sequence[str]) -> list[Markup]:
        """Return one link per query of the figure or table `key`."""
        names = [f"{key}-{at + 1}" if len(sql) > 1 else key for at in range(len(sql))]
        return [self.link(name, query) for name, query in zip(names, sql, strict=True)]

    def link(self, name: str, query: str) -> Markup:
        """Return a link that saves a query's rows as CSV. The rows are compressed in the page."""
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
