"""How long each phase of a run took, from the start of its process: what `--timings` prints."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil
from rich.table import Column, Table

from sweeper.journal.records import Attempt, Ended, Record, ReplicateReported, Reported


def process_began() -> float:
    """Return when this process began, in seconds since the epoch."""
    return float(psutil.Process(os.getpid()).create_time())


@dataclass
class Timings:
    """Phases by the moment at which each ended.

    Attributes:
        began: start of the clock, in seconds since the epoch.
        ends: phase → the moment at which it ended, in seconds since the epoch.
    """

    began: float = field(default_factory=time.time)
    ends: dict[str, float] = field(default_factory=dict)

    def note(self, phase: str) -> None:
        """Note that a phase has ended."""
        self.ends[phase] = time.time()

    def read(self, records: Iterable[Record]) -> None:
        """Take what the journal of this run says: when trials began, the first and last report, the recorded end."""
        for record in records:
            if record.time < self.began:
                continue
            if isinstance(record.body, Attempt):
                self.ends["ready for trials"] = record.time
            elif isinstance(record.body, Reported | ReplicateReported):
                self.ends.setdefault("first report", record.time)
                self.ends["last report"] = record.time
            elif isinstance(record.body, Ended):
                self.ends["end recorded"] = record.time

    @property
    def phases(self) -> list[tuple[str, float, float]]:
        """Each phase with the seconds from the start to its end, and those it took, in order of time."""
        order = sorted(self.ends.items(), key=lambda item: item[1])
        before = [self.began, *(moment for _, moment in order)]
        return [(name, end - self.began, end - last) for (name, end), last in zip(order, before, strict=False)]

    def table(self) -> Table:
        """Return the phases as a table."""
        numbers = (Column(heading, justify="right") for heading in ("seconds", "at"))
        table = Table("phase", *numbers, box=None, title="timings", title_justify="left")
        for name, end, took in self.phases:
            table.add_row(name, f"{took:.2f}", f"{end:.2f}")
        return table
