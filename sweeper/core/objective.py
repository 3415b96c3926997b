"""What a sweep optimises: a metric, measured on a split, that should be small or large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trainables.registry.names import measured_as

Mode: TypeAlias = Literal["min", "max"]


@dataclass(frozen=True)
class Objective:
    """What a sweep optimises.

    Attributes:
        metric: as the search space says it, e.g. `val_nll`.
        mode: `min` or `max`.
    """

    metric: str
    mode: Mode = "min"

    @property
    def split(self) -> str:
        """The split it is measured on: `train`, `val` or `test`."""
        return measured_as(self.metric)[0]

    @property
    def column(self) -> str:
        """The column of `evaluations` that holds it, e.g. `nll`."""
        return measured_as(self.metric)[1]

    @property
    def direction(self) -> str:
        """SQL's word for best first."""
        return "DESC" if self.mode == "max" else "ASC"

    def cost(self, value: float) -> float:
        """Return a value with smaller meaning better."""
        return value if self.mode == "min" else -value


def score(value: float, mode: Mode) -> float:
    """Return an objective's value with larger meaning better; its own inverse."""
    return value if mode == "max" else -value
