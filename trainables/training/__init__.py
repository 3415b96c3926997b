"""The training loop of one replicate, its recipe, and what is measured on the way."""

from trainables.training.loop import Replicate

__all__ = ["Replicate"]
