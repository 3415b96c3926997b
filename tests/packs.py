"""Replicates as a group that trains in one of the two ways that are compared."""

from collections.abc import Sequence

from trainables.training.lanes.cohort import Lanes
from trainables.training.lanes.packing import FUSED, Packed, Sequential
from trainables.training.loop import Replicate


def pack(replicates: Sequence[Replicate], packing: str) -> Packed:
    """Return `replicates` as a group that trains as `packing` says: `fused` or `sequential`."""
    return Lanes(replicates) if packing == FUSED else Sequential(replicates)
