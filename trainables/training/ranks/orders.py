"""What rank 0 tells the other ranks to do: plain values, each about one replicate by a number of its own.

Every rank has a twin of each of rank 0's replicates. Between two orders the others wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from trainables.training.ranks.group import Ranks


@dataclass(frozen=True)
class Build:
    """Build the twin of a replicate at its epoch 0; the fields are those of `Replicate`, and `dataset` its name.

    Attributes:
        replicate: its number from now on.
        dataset: the data set that its configuration names; `None` for the sweep's own.
    """

    replicate: int
    configuration: Mapping[str, Any]
    seed: int
    dataset: Mapping[str, Any] | None


@dataclass(frozen=True)
class Load:
    """Continue from a state, as `torch.save` writes it."""

    replicate: int
    state: bytes


@dataclass(frozen=True)
class Train:
    """Train one epoch together."""

    replicate: int


@dataclass(frozen=True)
class Predict:
    """Predict this rank's rows of a split together, with the weights that an evaluation at `stage` measures."""

    replicate: int
    split: str
    stage: str


@dataclass(frozen=True)
class Forget:
    """Let go of all twins: another trial begins."""


Order = Build | Load | Train | Predict | Forget


class Crew(Protocol):
    """The other ranks, as rank 0 sees them."""

    @property
    def ranks(self) -> Ranks:
        """The group, seen from rank 0."""

    def number(self) -> int:
        """Return a number that no replicate has had."""

    def tell(self, order: Order) -> None:
        """Send an order to every rank, without waiting."""

    def together(self, order: Order) -> AbstractContextManager[None]:
        """Send an order; what runs inside is rank 0's part of it. Raises RankLostError when a rank ends meanwhile."""
