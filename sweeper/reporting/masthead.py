"""The top of the page: the sweep's name and facts, the contents, a rehearsal's warning, and the filter by status."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sweeper.reporting.cards import mark
from sweeper.reporting.figure_parts.figure import Figure
from sweeper.reporting.markup import Markup, pretty, tag
from sweeper.reporting.posthoc_table import KEY as POSTHOC_KEY
from sweeper.reporting.posthoc_table import TITLE as POSTHOC_TITLE
from sweeper.reporting.tables import DataTable
from sweeper.results import Results
from sweeper.results.overview import Overview
from sweeper.text.labels import plural

FILTERS = (
    ("finished", ("completed",)),
    ("stopped early", ("early_stopped",)),
    ("others", ("failed", "running", "waiting", "interrupted")),
)
"""The statuses behind each button of the filter."""


def masthead(
    results: Results, counts: Overview, figures: Sequence[Figure], tables: Sequence[DataTable], posthoc: Markup
) -> Markup:
    """Return the sweep's name, what it ran on, and the contents."""
    space = results.specification
    facts = [
        f"data set {space['dataset']['name']}" if "dataset" in space else "",
        f"{plural(counts.trials, 'configuration')} × {plural(counts.replicates // max(1, counts.trials), 'replicate')}",
        f"scheduler {space['scheduler']['name']}" if "name" in space.get("scheduler", {}) else "",
        f"started {started(results.manifest['created'])}" if "created" in results.manifest else "",
    ]
    places = [(item.key, item.title) for item in figures]
    places += [(POSTHOC_KEY, POSTHOC_TITLE)] if posthoc else []
    places += [(item.key, item.title) for item in tables]
    links = [tag("a", pretty(title), href=f"#{key}") for key, title in places]
    return tag(
        "header",
        tag("h1", results.name),
        tag("p", " · ".join(filter(None, facts)), class_="facts"),
        tag("noscript", tag("p", "Plots and tables need JavaScript, which is turned off.")),
        tag("nav", *links, tag("a", "Manifest", href="#manifest"), class_="contents"),
        class_="masthead",
    )


def rehearsal_banner(results: Results) -> Markup:
    """Return the warning above a rehearsal's page; nothing for the real thing."""
    if not results.rehearsed:
        return Markup("")
    changes = tag("ul", *(tag("li", pretty(sentence)) for sentence in results.rehearsed))
    words = "Rehearsal, not a result. These numbers only show that the sweep works. Changes:"
    return tag("section", tag("p", words), changes, class_="rehearsal", role="alert")


def started(created: str) -> str:
    """Return a time of ISO 8601 to the minute, in UTC where it has a zone."""
    moment = datetime.fromisoformat(created)
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else f"{moment:%Y-%m-%d %H:%M}"


def toolbar(counts: Overview) -> Markup:
    """Return the filter by status, for all plots and tables, and the switch between light and dark."""
    chips = [
        tag(
            "button",
            mark(names[0]),
            label,
            class_="chip",
            type="button",
            aria_pressed="true",
            data_status=" ".join(names),
        )
        for label, names in FILTERS
        if counts.count(*names)
    ]
    theme = tag("button", "Dark", id="theme", class_="chip push", type="button", title="Switch between light and dark")
    return tag("div", tag("span", "Trials shown", class_="word"), *chips, theme, class_="toolbar")
