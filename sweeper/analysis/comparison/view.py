"""The view of a comparison in a terminal: differences in settings, then in results, on one screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.analysis.comparison.compare import Comparison, Difference, MetricComparison
from sweeper.analysis.statistics.paired import SIGNIFICANT, p_text
from sweeper.text.labels import label, plural

SHOWN = 12
"""Differing values listed at most; the files have the rest."""


def view(comparison: Comparison) -> RenderableType:
    """Return the comparison as text for a terminal."""
    first, second = comparison.names
    parts: list[RenderableType] = [Text(f"{first} and {second}", style="bold")]
    parts += _differing("settings", comparison.asked) + _differing("environment", comparison.ran_on)
    parts += [Text(), Text(count_sentence(comparison))]
    if comparison.metrics:
        parts += [_table(comparison)]
        parts += [Text(verdict(comparison, entry)) for entry in comparison.metrics if entry.difference.p < SIGNIFICANT]
    best = [f"best of {name}: {text}" for name, text in zip(comparison.names, comparison.best, strict=True) if text]
    parts += [Text(), *map(Text, best)] if best else []
    parts += [Text(f"{label(name)} not compared: {why}", style="dim") for name, why in comparison.left_out.items()]
    return Group(*parts)


def count_sentence(comparison: Comparison) -> str:
    """Return how many configurations are in both, and what a pair is."""
    first, second = comparison.names
    sentence = (
        f"{plural(comparison.shared, 'configuration')} in both, {comparison.only[0]} only in {first}, "
        f"{comparison.only[1]} only in {second}; {comparison.finished} finished in both"
    )
    if not comparison.metrics:
        return sentence + "; no pairs to compare"
    seeds = "with equal seeds" if comparison.equal_seeds else "with different seeds"
    return f"{sentence}, paired by {comparison.unit} {seeds}"


def verdict(comparison: Comparison, entry: MetricComparison) -> str:
    """Return in words which sweep has more of a metric."""
    higher = comparison.names[1] if entry.difference.mean > 0 else comparison.names[0]
    return f"{label(entry.split)} {label(entry.metric)} is higher in {higher}: {entry.difference.text()}"


def _differing(title: str, found: Sequence[Difference]) -> list[RenderableType]:
    if not found:
        return [Text(f"{title}: identical", style="dim")]
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, a, b in found[:SHOWN]:
        table.add_row(f"  {key}", _shown(a), "→", _shown(b))
    more = [Text(f"  … and {len(found) - SHOWN} more", style="dim")] if len(found) > SHOWN else []
    return [Text(title), table, *more]


def _shown(value: object) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("metric", no_wrap=True)
    for heading in (*comparison.names, "difference", "95 %", "n", "p (Holm)"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in comparison.metrics:
        difference = entry.difference
        limits = "" if difference.interval is None else f"{difference.interval[0]:+.3g} … {difference.interval[1]:+.3g}"
        table.add_row(
            f"{label(entry.split)} {label(entry.metric)}",
            *(f"{mean:.4g}" for mean in entry.means),
            f"{difference.mean:+.3g}",
            limits,
            str(difference.n),
            p_text(difference.p, difference.smallest_p).removeprefix("p ").removeprefix("= "),
        )
    return table
