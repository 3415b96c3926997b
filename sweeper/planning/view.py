"""How plans are shown: a table of quantities, and the assumptions behind them."""

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
    """A plan of any kind: a dataclass shown as a table or as JSON."""

    def warnings(self) -> Iterator[str]:
        """Yield warnings to show above the table; none by default."""
        yield from ()

    @abstractmethod
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield (quantity, value) rows, in order."""

    @abstractmethod
    def grounds(self) -> Iterator[str]:
        """Yield the assumptions, a sentence each."""

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
