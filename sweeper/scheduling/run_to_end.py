"""No early stopping, `none` in a search space: every trial runs to its last epoch, the only rung."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.journal.decision import Decision
from sweeper.scheduling.base import IGNORES_SETTINGS, MAX_EPOCHS, SCHEDULERS, RungState, Scheduler
from trainables.registry import Component


@dataclass(frozen=True)
class RunToEnd(Scheduler):
    """Stops no trial before `max_epochs`."""

    @property
    def rungs(self) -> tuple[int, ...]:
        """The last epoch alone."""
        return (self.max_epochs,)

    def begin(self) -> Arrivals:
        """Return the state before the first record."""
        return Arrivals(self)


class Arrivals(RungState):
    """Which configurations have reached the last epoch."""

    def __init__(self, scheduler: RunToEnd) -> None:
        """Start with none."""
        super().__init__(scheduler)
        self._arrived: set[int] = set()

    def add(self, rung: int, configuration: int, metric: float) -> None:
        """Count a configuration once."""
        self._arrived.add(configuration)

    def competitors(self, rung: int) -> int:
        """Return how many configurations have reached the last epoch."""
        return len(self._arrived)

    def compare(self, rung: int, configuration: int, metric: float) -> Decision:
        """Raise, for there is no rung before the last one."""
        raise ValueError(f"epoch {rung} is no rung: trials that run to the end are not compared")


SCHEDULERS.register(
    Component(
        "none",
        RunToEnd,
        (MAX_EPOCHS,),
        "every trial runs to the end; settings of other schedulers are ignored",
        tags=frozenset({IGNORES_SETTINGS}),
    )
)
