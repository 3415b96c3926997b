"""What a budget tells of a driver."""

from __future__ import annotations

from typing import Protocol


class Bounded(Protocol):
    """What a budget tells of a driver: that is `sweeper.execution.driver.driver.Driver`."""

    winding_down: str | None
