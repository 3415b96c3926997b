"""Assembly of the report's page: one HTML file with style, script, plots and data."""

from __future__ import annotations

from importlib import resources

from plotly.offline import get_plotlyjs

from sweeper.reporting.cards import (
    claims_section,
    figure_section,
    left_out,
    manifest_section,
    summary,
    table_section,
    tiles,
)
from sweeper.reporting.figures import FIGURES
from sweeper.reporting.markup import Markup, data_script, join, json_text, tag
from sweeper.reporting.masthead import masthead, rehearsal_banner, toolbar
from sweeper.reporting.posthoc_table import posthoc_section
from sweeper.reporting.sources import Sources
from sweeper.reporting.tables import decisions_table, failures_table, trials_table
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.overview import overview
from sweeper.results.several_objectives import front
from sweeper.text.labels import STATUS_WORDS


def render(results: Results) -> str:
    """Return the whole page of a sweep. `results` should be a snapshot, so that all parts see the same rows."""
    board, counts = leaderboard(results), overview(results)
    drawings = [(module.draw(results), module.ABSENT) for module in FIGURES]
    figures = [figure for figure, _ in drawings if figure is not None]
    absent = [sentence for figure, sentence in drawings if figure is None]
    tables = [trials_table(board), decisions_table(results), failures_table(results)]
    sources = Sources(results)
    cards = [figure_section(sources, figure) for figure in figures]  # first: they stand first and hold shared rows
    posthoc = posthoc_section(results, sources)
    body = tag(
        "main",
        masthead(results, counts, figures, tables, posthoc),
        rehearsal_banner(results),
        toolbar(counts),
        summary(board, counts, figures, front(results)),
        claims_section(results),
        tiles(counts),
        *cards,
        posthoc,
        *(table_section(sources, table) for table in tables),
        left_out(absent),
        manifest_section(results),
    )
    return document(results.name, body)


def document(name: str, body: Markup) -> str:
    """Return the HTML document around the body; plotly's script comes after everything a reader sees first."""
    files = resources.files("sweeper.reporting")
    style = Markup(files.joinpath("page.css").read_text("utf-8"))
    script = Markup(files.joinpath("page.js").read_text("utf-8"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{name} · sweep report"),
        tag("link", rel="icon", href="data:,"),
        tag("style", style),
    )
    words = data_script("status-words", json_text(STATUS_WORDS))
    scripts = join(words, tag("script", Markup(get_plotlyjs())), tag("script", script))
    return f"<!doctype html>\n{tag('html', head, tag('body', body, scripts), lang='en', data_theme='light')}\n"
