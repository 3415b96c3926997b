"""Post-hoc calibration: methods fitted on validation logits and applied to any logits of the same network.

    calibrator = fit("temperature", val_logits, val_targets)
    probabilities = calibrator(test_logits)

`trainables.posthoc.base` says how to add a method. This folder imports numpy, and torch, scipy and the
losses inside functions; it knows no data sets, networks or training.
"""

from trainables.posthoc.base import POSTHOC, Calibrator, PosthocMethod, PosthocUnavailable, fit

POSTHOC.discover(__name__)

__all__ = ["POSTHOC", "Calibrator", "PosthocMethod", "PosthocUnavailable", "fit"]
