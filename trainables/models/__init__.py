"""Networks by name; how one is added is said in `trainables.models.base`.

They import the registry and torch, and timm and torchvision inside the functions that build with them; neither losses
nor the training loop.
"""

from trainables.models.base import ARCHITECTURES, build_for, build_model, fit_fault, step_fault

ARCHITECTURES.discover(__name__)

__all__ = ["ARCHITECTURES", "build_for", "build_model", "fit_fault", "step_fault"]
