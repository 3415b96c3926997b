"""Replicates as a group that trains in one of the two ways that are compared."""

from collections.abc import Sequence
from typing import TypeAlias

from trainables.training.lanes.cohort import Lanes
from trainables.training.lanes.packing import LANES, Sequential
from trainables.training.loop import Replicate

Packed: TypeAlias = Lanes | Sequential


def pack(replicates: Sequence[Replicate], packing: str) -> Packed:
    """Return `replicates` as a group that trains as `packing` says: `lanes` or `sequential`."""
    return Lanes(replicates) if packing == LANES else Sequential(replicates)
