"""Networks by name; `trainables.models.base` explains how to add one.

Networks import the registry and torch; timm and torchvision are imported inside the functions that use them. They
import no losses and no training loop.
"""

from trainables.models.base import ARCHITECTURES, build_for, build_model, fit_fault, step_fault

ARCHITECTURES.discover(__name__)

__all__ = ["ARCHITECTURES", "build_for", "build_model", "fit_fault", "step_fault"]
