"""Training losses by name. A new loss is one new file that registers itself, and one import below.

They import scores, the registry and, for those that need second derivatives, `trainables.curvature`: neither data nor
networks nor the training loop.
"""

from importlib import import_module

from trainables.losses.base import LOSSES, Loss, build_loss

import_module("trainables.losses.cross_entropy")
import_module("trainables.losses.brier")
import_module("trainables.losses.focal")
import_module("trainables.losses.focal_scheduled")
import_module("trainables.losses.focal_sample_dependent")
import_module("trainables.losses.focal_lambert")
import_module("trainables.losses.inverse_focal")
import_module("trainables.losses.dual_focal")
import_module("trainables.losses.adafocal")
import_module("trainables.losses.mmce")
import_module("trainables.losses.kde_xe")
import_module("trainables.losses.aurc")
import_module("trainables.losses.selective_risk")
import_module("trainables.losses.hessian_trace")
import_module("trainables.losses.own")

__all__ = ["LOSSES", "Loss", "build_loss"]
