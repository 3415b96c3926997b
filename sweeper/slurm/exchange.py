"""What a sweep's jobs say to each other, in a folder that all nodes share: who is head, and that it is over."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from trainables.files.atomic import write_text


@dataclass(frozen=True)
class Head:
    """A head that takes workers in: its Ray address, and what tells it from those before it."""

    address: str
    job: str
    attempt: int


@dataclass(frozen=True)
class Exchange:
    """The folder of one sweep's jobs.

    Attributes:
        folder: `<output>/.slurm/<sweep>`.
    """

    folder: Path

    @property
    def token(self) -> Path:
        """The file with the token of the sweep's own Ray cluster; its owner alone can read it."""
        return self.folder / "token"

    @property
    def stop(self) -> Path:
        """Exists once somebody asked the sweep to stop, and says why if it was the head: nothing is requeued then."""
        return self.folder / "stop"

    @property
    def head(self) -> Head | None:
        """The head that takes workers in; `None` before there is one."""
        try:
            return Head(**json.loads((self.folder / "head.json").read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def announce(self, head: Head) -> None:
        """Tell workers where the head is."""
        write_text(self.folder / "head.json", json.dumps(asdict(head)))

    @property
    def over(self) -> str | None:
        """Why the sweep needs no workers any more; `None` while it does."""
        try:
            return (self.folder / "over").read_text("utf-8")
        except OSError:
            return None

    def end(self, why: str) -> None:
        """Say that the sweep is over, and why."""
        write_text(self.folder / "over", why)

    def begin(self, *, anew: bool) -> None:
        """Say that it is not over; `anew` where somebody submitted it, who wants it whatever happened before."""
        for name in ("over", "stop", "starts") if anew else ("over",):
            (self.folder / name).unlink(missing_ok=True)

    def starts(self) -> list[int]:
        """Return how many journal records there were at each start of a head so far."""
        try:
            return [int(line) for line in (self.folder / "starts").read_text("ascii").split()]
        except (OSError, ValueError):
            return []

    def add_start(self, records: int) -> None:
        """Note that a head starts with so many journal records."""
        with (self.folder / "starts").open("a", encoding="ascii") as file:
            file.write(f"{records}\n")
