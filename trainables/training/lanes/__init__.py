"""Replicates as lanes: networks that differ in their numbers alone, trained as one batched network.

Imports losses, data, recipes and curvature as `trainables.training.loop` does; `trainables.worker.trial` chooses
between the two.
"""

from trainables.training.lanes.training import Lanes

__all__ = ["Lanes"]
