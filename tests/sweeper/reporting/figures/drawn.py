"""What a chart draws, as rows."""

from __future__ import annotations

from typing import Any

from sweeper.reporting.figures.base import Panel
from sweeper.reporting.figures.drawing import chart


def layers(drawn: Panel | dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the layers of a chart whose mark is of a kind: `point`, `line`, `rule` …"""
    found: dict[str, Any] = chart(drawn) if isinstance(drawn, Panel) else drawn
    return [part for part in found["layer"] if part["mark"]["type"] == kind]


def marks(drawn: Panel | dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the rows that marks of a kind draw."""
    return [row for part in layers(drawn, kind) for row in part["data"]["values"]]
