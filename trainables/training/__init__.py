"""The training loop of one replicate, its recipe, and the measurements during training."""

from trainables.training.loop import Replicate

__all__ = ["Replicate"]
