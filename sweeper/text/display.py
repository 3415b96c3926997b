"""What a command prints, as an object: the same text in a console, a table in a notebook, and the values themselves."""

from __future__ import annotations

import io
from typing import Any, Generic, TypeVar

from rich.console import Console, RenderableType

WIDTH = 120
"""Columns of text outside a terminal, as wide as a notebook's cell shows without scrolling."""

FRAME = '<pre style="white-space:pre;overflow-x:auto;line-height:1.35;margin:0">{code}</pre>'

T = TypeVar("T")


class Shown(Generic[T]):
    """An answer with its values and how it looks; attributes of the values are attributes of the answer."""

    def __init__(self, value: T, look: RenderableType) -> None:
        """Hold `value`, and what a terminal shows of it."""
        self.value = value
        self._look = look

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "value":
            raise AttributeError(name)
        return getattr(self.value, name)

    def __repr__(self) -> str:
        return as_text(self._look)

    def _repr_html_(self) -> str:
        return as_html(self._look)


def as_text(look: RenderableType) -> str:
    """Return what a terminal would show, without colours."""
    # In a notebook a console would show what is printed by itself, and colour it, besides what is returned here.
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False, force_jupyter=False, force_terminal=False)
    with console.capture() as capture:
        console.print(look)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def as_html(look: RenderableType) -> str:
    """Return what a terminal would show as HTML, in the page's own colours but for emphasis."""
    console = Console(
        file=io.StringIO(), width=WIDTH, highlight=False, record=True, force_jupyter=False, force_terminal=False
    )
    console.print(look)
    return console.export_html(inline_styles=True, code_format=FRAME)
