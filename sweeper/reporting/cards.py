"""The cards of the page: headline, claims, counts, figures, tables, what is left out, manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweeper.analysis.claims import CLAIMS
from sweeper.analysis.judging import judge_claims, named_claims
from sweeper.reporting.figure_parts.figure import Figure, Panel, colour, symbol
from sweeper.reporting.markup import Markup, data_script, join, json_text, pretty, tag
from sweeper.reporting.sources import Sources
from sweeper.reporting.tables import DataTable
from sweeper.results import Results
from sweeper.results.leaderboard import Leaderboard
from sweeper.results.overview import Overview, details, headline
from sweeper.results.several_objectives import Front
from sweeper.text.durations import duration
from sweeper.text.labels import STATUS_WORDS

MARKS = {
    "circle": '<circle cx="5.5" cy="5.5" r="4" fill="currentColor"/>',
    "circle-open": '<circle cx="5.5" cy="5.5" r="3.6" fill="none" stroke="currentColor" stroke-width="1.6"/>',
    "x-thin-open": '<path d="M2 2l7 7M9 2l-7 7" fill="none" stroke="currentColor" stroke-width="1.6"/>',
    "diamond-open": '<path d="M5.5 1l4.5 4.5-4.5 4.5L1 5.5z" fill="none" stroke="currentColor" stroke-width="1.5"/>',
}
"""The markers of `figure.SYMBOLS` as 11 × 11 drawings for the legend."""


def mark(status: str) -> Markup:
    """Return the marker of a status as a small drawing."""
    return Markup(f'<svg class="mark" viewBox="0 0 11 11" aria-hidden="true">{MARKS[symbol(status)]}</svg>')


def summary(board: Leaderboard, counts: Overview, figures: Sequence[Figure], pareto: Front | None = None) -> Markup:
    """Return the card with the headline, its particulars, the Pareto front if any, and what the figures found."""
    sentences = [*(pareto.lines() if pareto is not None else ()), *(s for figure in figures for s in figure.findings)]
    findings = [tag("p", pretty(sentence)) for sentence in sentences]
    return tag(
        "section",
        tag("p", pretty(headline(board, counts)), class_="lead"),
        tag("div", *(tag("p", pretty(sentence)) for sentence in details(board)), class_="more"),
        tag("div", *findings, class_="findings") if findings else "",
        class_="card headline",
        id="summary",
    )


def claims_section(results: Results) -> Markup:
    """Return a card with the verdict on each claim that the sweep's header names; nothing where it names none."""
    names = named_claims(results)
    if not names:
        return Markup("")
    cards = []
    for verdict in judge_claims(results, names):
        claim = CLAIMS[verdict.claim]
        word = "rehearsal: no verdict" if results.rehearsed else verdict.verdict
        cards += [
            tag("h3", f"{claim.statement} ({claim.paper})"),
            tag("p", tag("strong", word.capitalize()), f". {begun(verdict.sentence)}."),
            tag("details", tag("summary", "Rule, fixed in advance"), tag("p", claim.rule), class_="rule"),
        ]
    return tag("section", tag("h2", "Claims"), *cards, class_="card claims", id="claims")


def begun(sentence: str) -> str:
    """Return the sentence with a capital, unless it begins with a symbol: ρ is no Ρ."""
    return sentence[0].upper() + sentence[1:] if sentence[0].isascii() else sentence


def tiles(counts: Overview) -> Markup:
    """Return the counts: trials by status and rung, epochs saved, time."""
    stops = [f"{row['stopped']} of {row['judged']} at rung {row['rung']}" for row in counts.rungs]
    others = [f"{counts.count(name)} {STATUS_WORDS[name]}" for name in ("running", "waiting", "interrupted")]
    others = [text for text in others if not text.startswith("0 ")]
    share = f"{counts.trained / counts.full:.0%}" if counts.full else "–"
    spent = f"{counts.trained:,} of {counts.full:,} epochs (full-training budget)"
    if counts.saved:
        spent += f"; early stopping saved {counts.saved:,}"
    elapsed = f"elapsed {duration(counts.elapsed)}" if counts.elapsed else "sum over trials"
    longest = f"trained {counts.limit} epochs"
    return tag(
        "section",
        tile("Trials", f"{counts.trials:,}", ", ".join(others) or f"{counts.replicates:,} training runs"),
        tile("Finished", f"{counts.count('completed'):,}", longest),
        tile("Stopped early", f"{counts.count('early_stopped'):,}", ", ".join(stops)),
        tile("Failed", f"{counts.count('failed'):,}", "see Failures below" if counts.count("failed") else ""),
        tile("Epochs trained", share, spent),
        tile("Trial time", duration(counts.worked), elapsed),
        class_="tiles",
        aria_label="Counts",
    )


def tile(label: str, value: str, note: str) -> Markup:
    """Return one count."""
    return tag(
        "div",
        tag("div", label, class_="label"),
        tag("div", value, class_="figure"),
        tag("div", note, class_="note"),
        class_="tile",
    )


def figure_section(sources: Sources, figure: Figure) -> Markup:
    """Return a figure's card: caption, legend, panels, the SQL and the data."""
    groups = [
        tag(
            "button", tag("span", class_="swatch", style=f"background:{colour(at)}"), name,
            class_="chip", type="button", aria_pressed="true", data_group=name,
        )
        for at, name in enumerate(figure.legend)
    ]  # fmt: skip
    marks = [tag("span", mark(name), STATUS_WORDS[name], class_="chip still") for name in figure.statuses]
    alone = len(figure.panels) == 1
    panels = [panel_figure(f"{figure.key}-{at}", panel, alone) for at, panel in enumerate(figure.panels)]
    return tag(
        "section",
        tag("h2", pretty(figure.title)),
        tag("p", pretty(figure.caption), class_="caption"),
        tag("div", *groups, *marks, class_="key") if groups or marks else "",
        tag("div", *panels, class_="panels"),
        sources.section(figure.key, figure.sql, figure.tables),
        class_="card",
        id=figure.key,
    )


def panel_figure(identifier: str, panel: Panel, alone: bool) -> Markup:
    """Return one plot with its heading and remark; the plot itself as data that the page draws when it is near."""
    plot = panel.plot.to_json()
    shape = "panel wide" if panel.width else "panel alone" if alone else "panel"
    width = f"min-width:{panel.width}px" if panel.width else None
    return tag(
        "figure",
        tag("figcaption", tag("h3", pretty(panel.heading))) if panel.heading else "",
        tag(
            "div", class_="plot", data_plot=identifier, role="img", aria_label=panel.heading or identifier, style=width
        ),
        tag("div", *(tag("p", pretty(remark)) for remark in panel.remarks), class_="remark") if panel.remarks else "",
        data_script(identifier, plot),
        class_=shape,
    )


def table_section(sources: Sources, table: DataTable) -> Markup:
    """Return a table's card; its rows are data that the page draws as they are scrolled to."""
    heads = [
        tag("th", tag("button", pretty(column["label"]), type="button"), class_=alignment(column), scope="col")
        for column in table.columns
    ]
    data = {"columns": table.columns, "rows": table.rows, "status": table.status}
    rows = join(
        tag("div", tag("input", type="search", placeholder="Filter rows", aria_label=f"Filter {table.title}"),
            tag("span", class_="count"), class_="finder"),
        tag("div", tag("table", tag("thead", tag("tr", *heads)), tag("tbody")), class_="scroll", tabindex="0"),
        data_script(f"{table.key}-rows", json_text(data)),
        sources.section(table.key, [table.sql], table.tables),
    )  # fmt: skip
    return tag(
        "section",
        tag("h2", table.title),
        tag("p", table.caption, class_="caption"),
        rows if table.rows else "",
        class_="card data",
        id=table.key,
        data_table=f"{table.key}-rows" if table.rows else None,
    )


def alignment(column: dict[str, str]) -> str | None:
    """Return the class of a column's heading: numbers stand to the right."""
    return None if column["kind"] in ("text", "status", "time") else "right"


def left_out(sentences: Sequence[str]) -> Markup:
    """Return the figures that do not apply, one sentence each."""
    if not sentences:
        return Markup("")
    items = tag("ul", *(tag("li", pretty(sentence)) for sentence in sentences), class_="left-out")
    return tag("section", tag("h2", "Not shown"), items, class_="card")


def manifest_section(results: Results) -> Markup:
    """Return with what the sweep was run, and the resolved search space."""
    pairs = [join(tag("dt", key), tag("dd", value)) for key, value in flat(results.manifest)]
    space = results.paths.sweep_file.read_text("utf-8") if results.paths.sweep_file.exists() else ""
    return tag(
        "section",
        tag("h2", "Manifest"),
        tag("p", "Versions, hardware, command and seeds of this sweep.", class_="caption") if pairs else "",
        tag("dl", *pairs, class_="pairs"),
        tag("div", tag("details", tag("summary", "Resolved search space"), tag("pre", space)), class_="sources"),
        class_="card",
        id="manifest",
    )


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
