"""Post-hoc calibration: methods fitted on validation logits and applied to any logits of the same network.

    calibrator = fit("temperature", val_logits, val_targets)
    probabilities = calibrator(test_logits)

How a method is added is said in `trainables.posthoc.base`. They import numpy and torch, scipy inside functions, and
losses for their formulas: no data sets, networks or training.
"""

from trainables.posthoc.base import POSTHOC, Calibrator, PosthocMethod, PosthocUnavailable, fit, fit_many

POSTHOC.discover(__name__)

__all__ = ["POSTHOC", "Calibrator", "PosthocMethod", "PosthocUnavailable", "fit", "fit_many"]
