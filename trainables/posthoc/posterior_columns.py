"""Metrics that need more than predictions and labels: the training loss's γ, or the data's true posterior.

They are columns of every evaluation, empty where that is not known.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from trainables.metrics.known_posterior import posterior_metrics
from trainables.metrics.probabilities import Floats
from trainables.posthoc.confidence_regions import region_shares
from trainables.posthoc.training_gamma import training_gamma

REGION_COLUMNS = (
    "region_below_tau_oc",
    "region_ambiguous",
    "region_above_tau_uc",
    "region_over_confident",
    "region_under_confident",
)
"""Shares of samples by region of posterior Thm. 8, for networks trained with one constant γ > 0."""

POSTERIOR_COLUMNS = ("kl_to_posterior", "true_calibration_error", "confidence_to_posterior_distance")
"""Distances from the true posterior (posterior §5.2), for data sets that know it, on the test split."""

TRUE_ERROR_BINS = 100


def region_columns(probabilities: Floats, loss: Mapping[str, object]) -> dict[str, float]:
    """Return the region shares of `probabilities` [N, K] of a network trained with `loss` (name, γ), or nothing."""
    gamma = training_gamma(loss)
    if not gamma:
        return {}
    return {f"region_{name}": share for name, share in region_shares(probabilities, gamma).items()}


def posterior_columns(posterior: Tensor | None, probabilities: Floats) -> dict[str, float]:
    """Return the distances of `probabilities` [N, K] from the true `posterior` [N, K], or nothing without one."""
    if posterior is None:
        return {}
    return posterior_metrics(posterior.cpu().numpy(), probabilities, min(TRUE_ERROR_BINS, len(probabilities)))
