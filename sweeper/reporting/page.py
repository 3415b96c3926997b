"""The report's page: what `page.html` shows, gathered from the tables, and rendered into one file.

Style, script, plots and data are all inside; plotly's script comes after everything a reader sees first.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from sweeper.analysis.claims import CLAIMS
from sweeper.analysis.claims.base import Claim
from sweeper.analysis.judging import judge_claims, named_claims
from sweeper.analysis.selection import best_set_line, confirmed_value
from sweeper.reporting.figure_parts.figure import Figure, colour, folded, symbol
from sweeper.reporting.figures import FIGURES
from sweeper.reporting.first_screen import first_screen, heading, legend
from sweeper.reporting.matrix import grid
from sweeper.reporting.tables import decisions_table, failures_table, posthoc_tables, trials_table
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.overview import Overview, details, headline, overview
from sweeper.results.pareto import front
from sweeper.text.display import format_table
from sweeper.text.labels import STATUS_WORDS, duration, plural

PACKED_FROM = 200_000
"""Characters of JSON from which it is compressed in the page: a page of small data can be read by any browser, and
one of large data is a fifth of its size and is not parsed before it is needed."""

FILTERS = {
    "finished": ("completed",),
    "stopped early": ("early_stopped",),
    "others": ("failed", "running", "waiting", "interrupted"),
}
"""The statuses behind each button of the filter."""


def render(results: Results) -> str:
    """Return the whole page of a sweep. `results` should be a snapshot, so that all parts see the same rows."""
    board, counts, pareto = leaderboard(results), overview(results), front(results)
    drawings = [folded(module.draw(results), module.ABSENT) for module in FIGURES]
    figures = [figure for figure in drawings if isinstance(figure, Figure)]
    files = resources.files("sweeper.reporting")
    return template("page.html").render(
        results=results,
        counts=counts,
        facts=facts(results, counts),
        filters=FILTERS,
        words=STATUS_WORDS,
        headline=headline(board, counts, confirmed_value(results, board)),
        first=first_screen(results, board, counts),
        details=[*details(board), *filter(None, [best_set_line(results, board)])],
        claims=claims(results),
        tiles=tiles(counts),
        figures=figures,
        findings=[*(pareto.lines() if pareto else ()), *(s for figure in figures for s in figure.findings)],
        absent=[sentence for sentence in drawings if isinstance(sentence, str)],
        posthoc=posthoc_tables(results),
        tables=[trials_table(board), decisions_table(results), failures_table(results)],
        sources=Sources(results),
        manifest=flat(results.manifest),
        space=results.paths.sweep_file.read_text("utf-8") if results.paths.sweep_file.exists() else "",
        style=Markup(files.joinpath("page.css").read_text("utf-8")),
        script=Markup(files.joinpath("page.js").read_text("utf-8")),
        plotly=Markup(get_plotlyjs()),
    )


def template(name: str) -> jinja2.Template:
    """Return a template of this folder, with what all of them use."""
    files = resources.files("sweeper.reporting")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda each: files.joinpath(each).read_text("utf-8")),
    )
    environment.filters |= {"pretty": pretty, "json": json_text}
    environment.globals.update(colour=colour, symbol=symbol, data_script=data_script)
    environment.globals.update(grid=grid, heading=heading, legend=legend)
    return environment.get_template(name)


def facts(results: Results, counts: Overview) -> list[str]:
    """Return what the sweep ran on, for the line below its name; what is not known is empty."""
    space = results.specification
    return [
        f"data set {space['dataset']['name']}" if "dataset" in space else "",
        f"{plural(counts.trials, 'configuration')} × {plural(counts.replicates // max(1, counts.trials), 'replicate')}",
        f"scheduler {space['scheduler']['name']}" if "name" in space.get("scheduler", {}) else "",
        f"started {started(results.manifest['created'])}" if "created" in results.manifest else "",
    ]


def started(created: str) -> str:
    """Return a time of ISO 8601 to the minute, in UTC where it has a zone."""
    moment = datetime.fromisoformat(created)
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else f"{moment:%Y-%m-%d %H:%M}"


def claims(results: Results) -> list[tuple[Claim, str, str]]:
    """Return each claim that the sweep's header names, its verdict and the sentence behind it."""
    names = named_claims(results)
    judged = judge_claims(results, names) if names else []
    word = "rehearsal: no verdict" if results.rehearsed else None
    return [(CLAIMS[v.claim], (word or v.verdict).capitalize(), begun(v.sentence)) for v in judged]


def begun(sentence: str) -> str:
    """Return the sentence with a capital, unless it begins with a symbol: ρ is no Ρ."""
    return sentence[0].upper() + sentence[1:] if sentence[0].isascii() else sentence


def tiles(counts: Overview) -> list[tuple[str, str, str]]:
    """Return the counts, each with label, value and note: trials by status and rung, epochs saved, time."""
    stops = [f"{row['stopped']} of {row['judged']} at rung {row['rung']}" for row in counts.rungs]
    others = [f"{counts.count(name)} {STATUS_WORDS[name]}" for name in ("running", "waiting", "interrupted")]
    others = [text for text in others if not text.startswith("0 ")]
    share = f"{counts.trained / counts.full:.0%}" if counts.full else "–"
    spent = f"{counts.trained:,} of {counts.full:,} epochs (full-training budget)"
    if counts.saved:
        spent += f"; early stopping saved {counts.saved:,}"
    elapsed = f"elapsed {duration(counts.elapsed)}" if counts.elapsed else "sum over trials"
    return [
        ("Trials", f"{counts.trials:,}", ", ".join(others) or f"{counts.replicates:,} training runs"),
        ("Finished", f"{counts.count('completed'):,}", f"trained {counts.limit} epochs"),
        ("Stopped early", f"{counts.count('early_stopped'):,}", ", ".join(stops)),
        ("Failed", f"{counts.count('failed'):,}", "see Failures below" if counts.count("failed") else ""),
        ("Epochs trained", share, spent),
        ("Trial time", duration(counts.worked), elapsed),
    ]


def flat(value: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the manifest as readable pairs: nested groups as `name value, name value`."""
    return [(key.replace("_", " "), words(item)) for key, item in value.items() if item not in (None, {}, [])]


def words(value: object) -> str:
    """Return a nested value as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return str(value)


def data_script(identifier: str, text: str) -> Markup:
    """Return JSON text as an inert script element that no `</script>` or `<!--` in it can end; large text packed."""
    if len(text) >= PACKED_FROM:
        packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
        return Markup(f'<script type="application/gzip" id="{escape(identifier)}">{packed}</script>')
    safe = text.replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{escape(identifier)}">{safe}</script>')


def json_text(value: object) -> str:
    """Return compact JSON; NaN and infinities, which JSON lacks, become null."""
    return json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"), default=str)


def finite(value: object) -> object:
    """Return the value with every NaN and infinity in it replaced by None."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def pretty(text: str) -> Markup:
    """Return text as HTML: λ_max with its subscript, and no line broken at a `=` or `±`."""
    unbroken = re.sub(r" ([=±]) ", "\u00a0\\1\u00a0", text)
    return Markup(str(escape(unbroken)).replace("λ_max", "λ<sub>max</sub>"))


MOST_BYTES = 2**20
"""Rows of a query that take more than this in memory, 1 MiB, are not put into the page: it is to stay quick to open.
Of figures over 1,000 trials all are; 10,000 trials took 18 MiB in a dozen files, and the query gives them from the
sweep's tables."""


class Link(NamedTuple):
    """A link to rows: its text; its address, where there is something to link to; id and name of a file it saves."""

    text: str
    address: str = ""
    id: str = ""
    file: str = ""


@dataclass(frozen=True)
class Sources:
    """What says where numbers come from, for all parts of one page: rows of the same query are held once.

    Attributes:
        results: what the queries are asked of.
        held: query → the link's identifier.
    """

    results: Results
    held: dict[str, str] = field(default_factory=dict)

    def links(self, key: str, sql: Sequence[str]) -> list[Link]:
        """Return a link for the rows of each query of the figure or table `key`."""
        names = [f"{key}-{at + 1}" if len(sql) > 1 else key for at in range(len(sql))]
        return [self.link(name, query) for name, query in zip(names, sql, strict=True)]

    def link(self, name: str, query: str) -> Link:
        """Return a link that saves the rows of a query as CSV, held compressed in the page itself."""
        if query in self.held:
            return Link("same CSV as above", f"#{self.held[query]}")
        table = self.results.sql(query)
        size = plural(table.num_rows, "row")
        if table.nbytes > MOST_BYTES:
            command = f"sweeper results {self.results.name} --format csv --sql …"
            return Link(f"{size}, too many for this page; export: `{command}`")
        text = format_table(table, "csv")
        assert isinstance(text, str)
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        self.held[query] = f"data-{name}"
        address = f"data:application/gzip;base64,{packed}"
        return Link(f"CSV ({size})", address, self.held[query], f"{self.results.name}-{name}.csv.gz")
