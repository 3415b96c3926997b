"""One-vs-rest calibration: each class's probability is mapped to its frequency, and rows are normalised.

Isotonic regression (Zadrozny & Elkan 2002, Transforming classifier scores into accurate multiclass probability
estimates) and histogram binning (Zadrozny & Elkan 2001, Obtaining calibrated probability estimates; Guo et al. 2017,
arXiv:1706.04599, §4.1). Both change predictions, and both map many probabilities to exactly 0, of which one wrong label
makes the NLL infinite: a share of 1/(N + 1) of the uniform distribution is mixed in unless that is turned off.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, Integers, softmax64
from trainables.metrics.binning import Bins, Scheme, bin_edges, equal_mass_starts, isotonic_levels
from trainables.posthoc.base import POSTHOC, Calibrator, validation_data
from trainables.registry import Hyperparameter

Mix = Annotated[bool, Hyperparameter(source="keeps the NLL finite; the papers do without")]

ISOTONIC_PARAMETERS = ("steps", "uniform", "at_bound")
#: What is reported: the mean number of levels a class has, the share of the uniform distribution, and whether a class
#: has no sample, so that its frequency is 0.
HISTOGRAM_PARAMETERS = ("filled_bins", "uniform", "at_bound")


class OneVsRestCalibrator(Calibrator):
    """Maps each class's softmax probability by a function of its own, normalises, mixes the uniform in."""

    def _probabilities(self, logits: Floats) -> Floats:
        mapped = self._mapped(softmax64(logits))
        total = mapped.sum(axis=1, keepdims=True)
        none = total[:, 0] <= 0
        mapped[none], total[none] = 1.0, self.classes  # no class has a frequency: nothing is known of the row
        uniform = self.parameters["uniform"]
        return np.asarray((1 - uniform) * mapped / total + uniform / self.classes)

    @abstractmethod
    def _mapped(self, probabilities: Floats) -> Floats:
        """Return each class's frequency [N, K] at its probability [N, K]."""


class IsotonicCalibrator(OneVsRestCalibrator):
    """Interpolates linearly between the levels of each class's isotonic regression."""

    def __init__(self, levels: Sequence[tuple[Floats, Floats]], uniform: float) -> None:
        """Keep the levels of each class: probabilities, ascending, and their frequencies."""
        empty = float(any(not frequency.any() for _, frequency in levels))
        steps = float(np.mean([len(np.unique(frequency)) for _, frequency in levels]))
        super().__init__("isotonic", {"steps": steps, "uniform": uniform, "at_bound": empty}, len(levels))
        self._levels = levels

    def _mapped(self, probabilities: Floats) -> Floats:
        columns = [np.interp(probabilities[:, k], *level) for k, level in enumerate(self._levels)]
        return np.stack(columns, axis=1)


class HistogramCalibrator(OneVsRestCalibrator):
    """Gives each class's probability the frequency of its bin."""

    def __init__(self, edges: Floats, frequencies: Floats, parameters: Mapping[str, float]) -> None:
        """Keep the inner edges [K, B − 1] and frequencies [K, B] of each class's bins."""
        super().__init__("histogram_binning", parameters, len(edges))
        self._edges, self._frequencies = edges, frequencies

    def _mapped(self, probabilities: Floats) -> Floats:
        columns = [
            frequency[np.searchsorted(edges, probabilities[:, k], side="left")]
            for k, (edges, frequency) in enumerate(zip(self._edges, self._frequencies, strict=True))
        ]
        return np.stack(columns, axis=1)


@POSTHOC.add("isotonic", columns=ISOTONIC_PARAMETERS)
def fit_isotonic(logits: ArrayLike, targets: ArrayLike, *, mix: Mix = True) -> IsotonicCalibrator:
    """Isotonic regression of each class against the rest, normalised.

    Return one-vs-rest isotonic regression of softmax probabilities, fitted on logits [N, K] and targets [N].

    Between the probabilities of validation samples it is interpolated linearly, beyond them constant.

    Source: Zadrozny & Elkan 2002.

    Args:
        logits: [N, K].
        targets: [N] class indices.
        mix: mix 1/(N + 1) of the uniform distribution in.

    Raises:
        PosthocUnavailable: unusable validation data.
    """
    values, labels = validation_data(logits, targets)
    probabilities = softmax64(values)
    levels = [isotonic_levels(probabilities[:, k], labels == k) for k in range(values.shape[1])]
    return IsotonicCalibrator(levels, _uniform(labels, mix))


@POSTHOC.add("histogram_binning", columns=HISTOGRAM_PARAMETERS)
def fit_histogram_binning(
    logits: ArrayLike, targets: ArrayLike, *, bins: Bins = 15, scheme: Scheme = "equal_width", mix: Mix = True
) -> HistogramCalibrator:
    """Frequencies in bins of each class against the rest, normalised.

    Return one-vs-rest histogram binning of softmax probabilities, fitted on logits [N, K] and targets [N].

    An empty bin gives its middle.

    Source: Zadrozny & Elkan 2001; Guo et al. 2017, section 4.1.

    Args:
        logits: [N, K].
        targets: [N] class indices.
        bins: of each class, at most N.
        scheme: `equal_width` (Guo et al. 2017) or `equal_mass` bins; these meet halfway between two samples.
        mix: mix 1/(N + 1) of the uniform distribution in.

    Raises:
        PosthocUnavailable: unusable validation data, or fewer samples than bins.
    """
    values, labels = validation_data(logits, targets, bins)
    probabilities = softmax64(values)
    samples, classes = probabilities.shape
    edges = np.tile(bin_edges(bins)[1:-1], (classes, 1))
    if scheme == "equal_mass":
        ascending = np.sort(probabilities, axis=0)
        starts = equal_mass_starts(samples, bins)[1:]
        edges = ((ascending[starts - 1] + ascending[starts]) / 2).T
    frequencies, filled = np.empty((classes, bins)), 0
    for k in range(classes):
        index = np.searchsorted(edges[k], probabilities[:, k], side="left")
        counts = np.bincount(index, minlength=bins)
        hits = np.bincount(index, weights=(labels == k).astype(np.float64), minlength=bins)
        ends = np.concatenate(([0.0], edges[k], [1.0]))
        frequencies[k] = np.where(counts > 0, hits / np.maximum(counts, 1), (ends[1:] + ends[:-1]) / 2)
        filled += int((counts > 0).sum())
    empty = float(len(np.unique(labels)) < classes)
    parameters = {"filled_bins": filled / classes, "uniform": _uniform(labels, mix), "at_bound": empty}
    return HistogramCalibrator(edges, frequencies, parameters)


def _uniform(labels: Integers, mix: bool) -> float:
    return 1 / (len(labels) + 1) if mix else 0.0
