"""Training losses by name; `trainables.losses.base` explains how to add one.

Losses import the registry and, if they need second derivatives, `trainables.curvature`; they import no data sets,
networks or training loop.
"""

from trainables.losses.base import LOSSES, Loss, build_loss

LOSSES.discover(__name__)

__all__ = ["LOSSES", "Loss", "build_loss"]
