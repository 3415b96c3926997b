"""The domain `grid`."""

from collections.abc import Sequence
from typing import ClassVar

from sweeper.core.domains.base import domain
from sweeper.core.domains.nodes import Members
from sweeper.core.domains.values import Plain, repeats
from sweeper.core.errors import Fault


@domain("grid")
class Grid(Members):
    """Every member in turn."""

    in_turn: ClassVar[bool] = True

    @classmethod
    def list_faults(cls, members: Sequence[Plain], path: str) -> list[Fault]:
        """Return a fault for each member that stands twice, which would be trained twice."""
        return repeats(members, path)
