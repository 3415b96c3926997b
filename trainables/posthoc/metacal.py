"""MetaCal (Ma & Blaschko 2021): reject high-entropy predictions to the uniform distribution, scale the others.

H is the entropy of softmax(z), unscaled. A row is accepted when H < t; accepted rows become softmax(z/T), rejected
rows 1/K. The threshold t comes from a sample of the validation data, T from the accepted part of the rest, as
selective §5 uses it. Rejected rows lose their argmax: MetaCal may change the accuracy.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, Integers, log_softmax64
from trainables.metrics.binning import group_sums
from trainables.posthoc.base import POSTHOC, PosthocUnavailable, SoftmaxCalibrator, validation_data
from trainables.posthoc.temperature import temperature_by_nll
from trainables.registry import Hyperparameter

#: Equal-mass entropy bins of the coverage-accuracy curve (Ma & Blaschko's code).
ENTROPY_BINS = 20

#: At most this many samples choose the threshold, and at most a tenth of them (Ma & Blaschko's code).
LARGEST_SAMPLE = 500

Seed = Annotated[int, Hyperparameter(range="[0, inf)", source="arbitrary: selects the samples that set the threshold")]

PARAMETERS = ("threshold", "temperature", "converged", "at_bound", "accepted")


def entropy(logits: Floats) -> Floats:
    """Return the entropy −Σ_k p_k ln p_k, in nats, of p = softmax(logits) [N, K] as [N]."""
    log_p = log_softmax64(logits)
    return np.asarray(-np.einsum("nk,nk->n", np.exp(log_p), log_p))


class MetaCalibrator(SoftmaxCalibrator):
    """softmax(z/T) where the entropy of softmax(z) is below the parameter `threshold`, else 1/K."""

    def _mapped(self, logits: Floats) -> Floats:
        mapped: Floats = (logits - logits.max(axis=1, keepdims=True)) / self.parameters["temperature"]
        mapped[~(entropy(logits) < self.parameters["threshold"])] = 0.0
        return mapped


@POSTHOC.add("metacal_mis", columns=PARAMETERS, label="MetaCal mis-coverage")
def fit_metacal_mis(
    logits: ArrayLike, targets: ArrayLike, *, alpha: Annotated[float, "(0, 1)"] = 0.05, seed: Seed = 0
) -> MetaCalibrator:
    """Uniform above an entropy threshold that rejects a share alpha of correct predictions, else temperature.

    Return MetaCal under a mis-coverage constraint: a right prediction is rejected with probability about `alpha`.

    min(⌊n_correct/10⌋, 500) right predictions, drawn with `seed`, give t as the (1 − α) quantile ("higher") of their
    entropies; T is fitted on the accepted ones of all others (Ma & Blaschko 2021; selective §5).

    Source: Ma & Blaschko 2021.

    Args:
        logits: [N, K] of the validation data.
        targets: [N] class indices.
        alpha: it is the share of correct predictions rejected [Ma & Blaschko 2021; selective §5].
        seed: of the drawn samples.

    Raises:
        PosthocUnavailable: unusable validation data, α outside (0, 1), fewer than 10 right predictions, or nothing
            accepted.
    """
    values, labels = validation_data(logits, targets)
    correct = np.flatnonzero(values.argmax(axis=1) == labels)
    sample = min(len(correct) // 10, LARGEST_SAMPLE)
    if sample == 0:
        raise PosthocUnavailable(
            f"metacal_mis needs at least 10 correct predictions on validation data and has {len(correct)}: "
            "give more validation samples or a better network"
        )
    drawn = np.random.default_rng(seed).choice(correct, sample, replace=False)
    uncertainty = entropy(values)
    threshold = float(np.quantile(uncertainty[drawn], 1.0 - alpha, method="higher"))
    return _scaled("metacal_mis", values, labels, uncertainty, drawn, threshold)


@POSTHOC.add("metacal_acc", columns=PARAMETERS, label="MetaCal accuracy")
def fit_metacal_acc(
    logits: ArrayLike, targets: ArrayLike, *, accuracy: Annotated[float, "(0, 1)"] = 0.97, seed: Seed = 0
) -> MetaCalibrator:
    """Uniform above an entropy threshold that keeps a target accuracy, else temperature.

    Return MetaCal under a coverage-accuracy constraint: accepted rows are right with about the target `accuracy`.

    min(⌊n/10⌋, 500) samples, drawn with `seed`, give the threshold (`threshold_for_accuracy`); T is fitted on the
    accepted ones of all others (Ma & Blaschko 2021; selective §5).

    Source: Ma & Blaschko 2021.

    Args:
        logits: [N, K] of the validation data.
        targets: [N] class indices.
        accuracy: it is the accuracy of accepted samples [selective §5: .97 CIFAR-10, .87 CIFAR-100, .85 Tiny-ImageNet].
        seed: of the drawn samples.

    Raises:
        PosthocUnavailable: unusable validation data, a target outside (0, 1) or above what any coverage reaches,
            fewer than 20 drawn samples, or nothing accepted.
    """
    values, labels = validation_data(logits, targets)
    sample = min(len(labels) // 10, LARGEST_SAMPLE)
    if sample < ENTROPY_BINS:
        raise PosthocUnavailable(
            f"metacal_acc draws a tenth of {len(labels)} validation samples, {sample}, for {ENTROPY_BINS} entropy "
            f"bins: give at least {10 * ENTROPY_BINS} validation samples"
        )
    drawn = np.random.default_rng(seed).choice(len(labels), sample, replace=False)
    uncertainty = entropy(values)
    correct = (values[drawn].argmax(axis=1) == labels[drawn]).astype(np.float64)
    threshold = threshold_for_accuracy(uncertainty[drawn], correct, accuracy)
    return _scaled("metacal_acc", values, labels, uncertainty, drawn, threshold)


def threshold_for_accuracy(uncertainty: Floats, correct: Floats, accuracy: float) -> float:
    """Return the entropy, in nats, below which predictions are right with probability `accuracy`.

    Over 20 equal-mass bins of entropy, from low: a_j is the running mean of the bins' accuracies, h_j the bin's
    mean entropy; the threshold is the decreasing isotonic fit of h on a, at `accuracy`.

    Args:
        uncertainty: [n] entropies, in nats.
        correct: [n], 1 where the prediction is right, else 0.
        accuracy: the target.

    Returns:
        The threshold; infinite where the target is below every a_j (met without rejecting).

    Raises:
        PosthocUnavailable: the target is above every a_j.
    """
    from sklearn.isotonic import IsotonicRegression

    order = np.argsort(uncertainty, kind="stable")
    sizes = group_sums(np.ones(len(order)), ENTROPY_BINS)
    running = np.cumsum(group_sums(correct[order], ENTROPY_BINS) / sizes) / np.arange(1, ENTROPY_BINS + 1)
    heights = group_sums(uncertainty[order], ENTROPY_BINS) / sizes
    if accuracy < running.min():
        return math.inf
    if accuracy > running.max():
        raise PosthocUnavailable(
            f"accuracy = {accuracy:g} is above {running.max():.4g}, the best that rejecting uncertain samples "
            f"reaches on validation data: ask for at most {running.max():.4g}"
        )
    fit = IsotonicRegression(increasing=False, out_of_bounds="clip").fit(running, heights)
    return float(fit.predict([accuracy])[0])


def _scaled(
    name: str, logits: Floats, targets: Integers, uncertainty: Floats, drawn: Integers, threshold: float
) -> MetaCalibrator:
    """Return the calibrator at `threshold`, T fitted on accepted samples that were not `drawn`."""
    rest = np.ones(len(targets), dtype=bool)
    rest[drawn] = False
    accepted = rest & (uncertainty < threshold)
    if not accepted.any():
        raise PosthocUnavailable(
            f"{name} accepts none of {int(rest.sum())} validation samples at entropy threshold {threshold:.4g}: "
            "relax the constraint or give more validation samples"
        )
    found = temperature_by_nll(logits[accepted], targets[accepted])
    share = float((uncertainty < threshold).mean())
    # twice the largest entropy accepts everything as infinity does, and can be written to any table or JSON
    threshold = min(threshold, 2.0 * math.log(logits.shape[1]))
    return MetaCalibrator(name, {"threshold": threshold, **found, "accepted": share}, logits.shape[1])
