"""Controllers of a running sweep: asked by the driver on every turn, a controller answers with a directive.

A controller looks at the budget, at the cluster, at other sweeps or at the lease, and says what should follow; only the
driver acts. Projections (tables, MLflow, Prometheus, notifications) take records and say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Situation:
    """What controllers may know of a driver.

    Attributes:
        wants_more: it has trials that it would start if there were room.
        closing: why no trial starts any more; `None` while trials start.
    """

    wants_more: bool = False
    closing: str | None = None


@dataclass(frozen=True)
class Directive:
    """What a controller asks for, as of now. The defaults ask for nothing.

    Attributes:
        stop: why the sweep should end at once.
        wind_down: why no trial should start any more; those that run continue to their next rung.
        slots: how many trials run at once; `None` where that has not changed.
        yields_to: the sweep that goes first: while it is named no trial starts.
        alone: no other sweep shares the cluster.
    """

    stop: str | None = None
    wind_down: str | None = None
    slots: int | None = None
    yields_to: str | None = None
    alone: bool = True


class Controller(Protocol):
    """Something that steers."""

    def tick(self, situation: Situation) -> Directive:
        """Return what should follow now. Called on every turn: look at what is slow to ask only when it is due."""


def combined(directives: Iterable[Directive]) -> Directive:
    """Return one directive: the first reason of each kind, the last number of slots, alone if all say so."""
    found = list(directives)
    return Directive(
        stop=next((each.stop for each in found if each.stop), None),
        wind_down=next((each.wind_down for each in found if each.wind_down), None),
        slots=next((each.slots for each in reversed(found) if each.slots is not None), None),
        yields_to=next((each.yields_to for each in found if each.yields_to), None),
        alone=all(each.alone for each in found),
    )
