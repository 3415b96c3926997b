"""Replicates as lanes: networks that differ in their numbers alone, trained as one batched network."""

from trainables.lanes.training import Lanes

__all__ = ["Lanes"]
