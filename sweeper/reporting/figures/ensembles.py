"""Ensembles of a sweep's networks: test NLL against the number of greedily selected members."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.core.labels import label
from sweeper.reporting.figures.base import Figure, Panel, curves, mark, paint, quantity
from sweeper.results.predictive import AFTER, GREEDY, TEMPERATURES, EnsembleRow


def draw_ensembles(rows: Sequence[EnsembleRow]) -> Figure:
    """Return the figure of ensembles: greedy ensembles are lines, the others are horizontal levels."""
    lines = {
        f"greedy, temperature {where}": [
            (row.members, row.metrics["nll"]) for row in rows if (row.ensemble, row.temperature) == (GREEDY, where)
        ]
        for where in TEMPERATURES
    }

    others = [
        {"y": row.metrics["nll"], "words": row.ensemble}
        for row in rows
        if row.ensemble != GREEDY and row.temperature == AFTER
    ]
    right = {"align": "left", "dy": -5}  # above its line, at the left edge
    layers = [
        mark("rule", others, look={"strokeDash": [2, 3]}, x=None),
        mark("text", others, look=right, x={"value": 4}, text={"field": "words"}, color=paint("soft")),
        *curves(lines, [*lines]),
    ]
    panel = Panel("", layers, quantity("x", "members"), quantity("y", f"test {label('nll')}"))
    caption = "Test NLL of greedy ensembles by their members; dotted: other ensembles after temperature scaling."
    return Figure("Ensembles", caption, [], [panel], legend=[*lines])
