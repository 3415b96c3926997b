"""Training losses by name; how one is added is said in `trainables.losses.base`.

They import scores, the registry and, for those that need second derivatives, `trainables.curvature`: neither data nor
networks nor the training loop.
"""

from trainables.losses.base import LOSSES, Loss, build_loss

LOSSES.discover(__name__)

__all__ = ["LOSSES", "Loss", "build_loss"]
