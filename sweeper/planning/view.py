"""How plans show themselves: subjects beside what there is to say of each, and what the figures rest on below."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class PlanView(ABC):
    """A plan of any kind: a dataclass that says its lines, and is shown as a table or as JSON."""

    def warnings(self) -> Iterator[str]:
        """Yield what a reader has to know before the figures; nothing by default."""
        yield from ()

    @abstractmethod
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield subjects and what the plan says of each, in order."""

    @abstractmethod
    def grounds(self) -> Iterator[str]:
        """Yield what the figures rest on, a sentence each."""

    def to_dict(self: DataclassInstance) -> dict[str, object]:
        """Return the plan as plain JSON values."""
        return asdict(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show warnings, the table, and its grounds."""
        yield from self.warnings()
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="bold")
        table.add_column()
        for subject, said in self.lines():
            table.add_row(subject, said)
        yield table
        yield from self.grounds()
