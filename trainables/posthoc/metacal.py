"""MetaCal (Ma & Blaschko 2021): reject high-entropy predictions to the uniform distribution, scale the others.

H is the entropy of softmax(z), unscaled. A row is accepted if H < t; accepted rows become softmax(z/T), rejected rows
1/K. A sample of the validation data determines the threshold t, and the accepted part of the rest determines T, as in
selective §5. Rejected rows lose their argmax, so MetaCal can change the accuracy.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, Integers, log_softmax64
from trainables.metrics.binning import group_sums, mean_of_ties
from trainables.posthoc.base import POSTHOC, PosthocUnavailable, SoftmaxCalibrator, validation_data
from trainables.posthoc.temperature import temperature_by_nll
from trainables.registry import Hyperparameter

#: Equal-mass entropy bins of the coverage-accuracy curve (Ma & Blaschko's code).
ENTROPY_BINS = 20

#: Largest sample that chooses the threshold, besides the limit of a tenth of the data (Ma & Blaschko's code).
LARGEST_SAMPLE = 500

Seed = Annotated[int, Hyperparameter(range="[0, inf)", source="arbitrary: selects the samples that set the threshold")]

PARAMETERS = ("threshold", "temperature", "converged", "at_bound", "accepted")


def entropy(logits: Floats) -> Floats:
    """Return the entropies −Σ_k p_k ln p_k [N], in nats, of p = softmax(logits) for logits [N, K].

    Example:
        >>> entropy(np.zeros((1, 2))).round(4)
        array([0.6931])
    """
    log_p = log_softmax64(logits)
    return np.asarray(-np.einsum("nk,nk->n", np.exp(log_p), log_p))


class MetaCalibrator(SoftmaxCalibrator):
    """softmax(z/T) where the entropy of softmax(z) is below the parameter `threshold`, else 1/K."""

    def _mapped(self, logits: Floats) -> Floats:
        mapped: Floats = (logits - logits.max(axis=1, keepdims=True)) / self.parameters["temperature"]
        # Equal logits are the uniform distribution. `~(<)` instead of `>=` also rejects a NaN entropy.
        mapped[~(entropy(logits) < self.parameters["threshold"])] = 0.0
        return mapped


@POSTHOC.add("metacal_mis", columns=PARAMETERS, label="MetaCal mis-coverage")
def fit_metacal_mis(
    logits: ArrayLike, targets: ArrayLike, *, alpha: Annotated[float, "(0, 1)"] = 0.05, seed: Seed = 0
) -> MetaCalibrator:
    """Uniform above an entropy threshold that rejects a share alpha of correct predictions, else temperature.

    Fit MetaCal under a mis-coverage constraint: a correct prediction is rejected with probability about `alpha`.

    t is the (1 − α) quantile ("higher") of the entropies of min(⌊n_correct/10⌋, 500) correct predictions, drawn with
    `seed`. T is fitted on the accepted samples among all others (Ma & Blaschko 2021; selective §5).

    Source: Ma & Blaschko 2021.

    Example:
        >>> logits = np.random.default_rng(0).normal(size=(200, 3))
        >>> calibrator = fit_metacal_mis(2 * logits, logits.argmax(axis=1), alpha=0.2)
        >>> round(calibrator.parameters["accepted"], 2)
        0.74

    Args:
        logits: validation logits [N, K].
        targets: class indices [N].
        alpha: it is the share of correct predictions rejected [Ma & Blaschko 2021; selective §5].
        seed: seed for drawing the samples.

    Raises:
        PosthocUnavailable: unusable validation data, α outside (0, 1), fewer than 10 correct predictions, or no
            accepted sample.
    """
    values, labels = validation_data(logits, targets)
    correct = np.flatnonzero(values.argmax(axis=1) == labels)
    sample = min(len(correct) // 10, LARGEST_SAMPLE)
    if sample == 0:
        raise PosthocUnavailable(
            f"metacal_mis needs at least 10 correct predictions on validation data but has {len(correct)}: "
            "give more validation samples or a better network"
        )
    drawn = np.random.default_rng(seed).choice(correct, sample, replace=False)
    uncertainty = entropy(values)
    # "higher" is an observed entropy: an interpolated one would reject slightly more than α of a small sample.
    threshold = float(np.quantile(uncertainty[drawn], 1.0 - alpha, method="higher"))
    return _scaled("metacal_mis", values, labels, uncertainty, drawn, threshold)


@POSTHOC.add("metacal_acc", columns=PARAMETERS, label="MetaCal accuracy")
def fit_metacal_acc(
    logits: ArrayLike, targets: ArrayLike, *, accuracy: Annotated[float, "(0, 1)"] = 0.97, seed: Seed = 0
) -> MetaCalibrator:
    """Uniform above an entropy threshold that keeps a target accuracy, else temperature.

    Fit MetaCal under a coverage-accuracy constraint: accepted predictions have about the target `accuracy`.

    min(⌊n/10⌋, 500) samples, drawn with `seed`, determine the threshold (`threshold_for_accuracy`). T is fitted on the
    accepted samples among all others (Ma & Blaschko 2021; selective §5).

    Source: Ma & Blaschko 2021.

    Example:
        >>> random = np.random.default_rng(0)
        >>> logits = 2 * random.normal(size=(400, 3))
        >>> targets = (logits + random.normal(size=logits.shape)).argmax(axis=1)
        >>> calibrator = fit_metacal_acc(logits, targets, accuracy=0.9)
        >>> round(calibrator.parameters["accepted"], 2)
        0.27

    Args:
        logits: validation logits [N, K].
        targets: class indices [N].
        accuracy: it is the accuracy of accepted samples [selective §5: .97 CIFAR-10, .87 CIFAR-100, .85 Tiny-ImageNet].
        seed: seed for drawing the samples.

    Raises:
        PosthocUnavailable: unusable validation data, a target outside (0, 1) or above the accuracy at every coverage,
            fewer than 20 drawn samples, or no accepted sample.
    """
    values, labels = validation_data(logits, targets)
    sample = min(len(labels) // 10, LARGEST_SAMPLE)
    if sample < ENTROPY_BINS:
        raise PosthocUnavailable(
            f"metacal_acc fills {ENTROPY_BINS} entropy bins from a tenth of the {len(labels)} validation samples, "
            f"{sample}: give at least {10 * ENTROPY_BINS} validation samples"
        )
    drawn = np.random.default_rng(seed).choice(len(labels), sample, replace=False)
    uncertainty = entropy(values)
    correct = (values[drawn].argmax(axis=1) == labels[drawn]).astype(np.float64)
    threshold = threshold_for_accuracy(uncertainty[drawn], correct, accuracy)
    return _scaled("metacal_acc", values, labels, uncertainty, drawn, threshold)


def threshold_for_accuracy(uncertainty: Floats, correct: Floats, accuracy: float) -> float:
    """Return the entropy, in nats, below which predictions are correct with probability `accuracy`.

    In 20 equal-mass bins of ascending entropy, a_j is the running mean of the bins' accuracies and h_j the bin's mean
    entropy. The threshold is the decreasing isotonic fit of h on a, evaluated at `accuracy`. It is infinite if the
    target is below every a_j, because the target is then met without rejecting.

    Args:
        uncertainty: entropies [n], in nats.
        correct: 1 for a correct prediction, else 0 [n].
        accuracy: target accuracy.

    Raises:
        PosthocUnavailable: the target is above every a_j.
    """
    from sklearn.isotonic import IsotonicRegression

    order = np.argsort(uncertainty)
    ascending, sizes = uncertainty[order], group_sums(np.ones(len(order)), ENTROPY_BINS)
    right = mean_of_ties(ascending, correct[order])
    # The running mean is unweighted over bins, as in the authors' code, although sizes can differ by one.
    running = np.cumsum(group_sums(right, ENTROPY_BINS) / sizes) / np.arange(1, ENTROPY_BINS + 1)
    heights = group_sums(ascending, ENTROPY_BINS) / sizes
    if accuracy < running.min():
        return math.inf
    if accuracy > running.max():
        raise PosthocUnavailable(
            f"accuracy = {accuracy:g} is above {running.max():.4g}, the best accuracy that rejecting uncertain samples "
            f"reaches on validation data: set accuracy to at most {running.max():.4g}"
        )
    fit = IsotonicRegression(increasing=False, out_of_bounds="clip").fit(running, heights)
    return float(fit.predict([accuracy])[0])


def _scaled(
    name: str, logits: Floats, targets: Integers, uncertainty: Floats, drawn: Integers, threshold: float
) -> MetaCalibrator:
    """Return the calibrator with `threshold`, T fitted on accepted samples that were not `drawn`."""
    # Samples that chose the threshold would bias T, so they are held out of its fit.
    rest = np.ones(len(targets), dtype=bool)
    rest[drawn] = False
    accepted = rest & (uncertainty < threshold)
    if not accepted.any():
        raise PosthocUnavailable(
            f"{name} accepts none of the {int(rest.sum())} held-out validation samples at entropy threshold "
            f"{threshold:.4g}: relax the constraint or give more validation samples"
        )
    fitted = temperature_by_nll(logits[accepted], targets[accepted])
    share = float((uncertainty < threshold).mean())
    # Twice the largest entropy accepts every row, as infinity does, and is valid in tables and JSON.
    threshold = min(threshold, 2.0 * math.log(logits.shape[1]))
    return MetaCalibrator(name, {"threshold": threshold, **fitted, "accepted": share}, logits.shape[1])
