"""One-vs-rest calibration: map each class's probability to its frequency, then normalise rows.

Isotonic regression (Zadrozny & Elkan 2002, Transforming classifier scores into accurate multiclass probability
estimates) and histogram binning (Zadrozny & Elkan 2001, Obtaining calibrated probability estimates; Guo et al. 2017,
arXiv:1706.04599, §4.1). Both can change predictions. Both also map many probabilities to exactly 0, where a single
wrong label makes the NLL infinite. By default, a share of 1/(N + 1) of the uniform distribution is therefore mixed in.

Venn–Abers calibration brackets each class's frequency by two isotonic regressions, one per possible label. A sample
with score s joins the validation samples once with label 0 and once with label 1, and the two regressions give p⁰ and
p¹ at s. If samples are exchangeable, the regression with the true label is calibrated (Vovk & Petej 2014, Venn–Abers
predictors, arXiv:1211.0025). For the log loss, p⁰ and p¹ are merged as p = p¹/(1 − p⁰ + p¹) (Vovk, Petej & Fedorova
2015, Large-scale probabilistic predictors, arXiv:1511.00213). With more than two classes, each is calibrated against
the rest and rows are normalised. The guarantee then no longer holds, but predictions stay cautious: no p is 0, and few
samples pull p towards 1/2. Scores are log-odds on a fixed grid, which bounds the number of regressions and preserves
the guarantee.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Booleans, Floats, Integers, softmax64
from trainables.metrics.binning import Bins, Scheme, bin_edges, equal_mass_starts
from trainables.metrics.isotonic import interpolated, isotonic_levels
from trainables.posthoc.base import POSTHOC, Calibrator, validation_data
from trainables.registry import Hyperparameter

Mix = Annotated[bool, Hyperparameter(source="keeps the NLL finite; the papers do without")]

ISOTONIC_PARAMETERS = ("steps", "uniform", "at_bound")
#: Reported: mean number of filled bins per class, share of the uniform distribution, and whether a class has no sample,
#: so that its frequency is 0.
HISTOGRAM_PARAMETERS = ("filled_bins", "uniform", "at_bound")


class OneVsRestCalibrator(Calibrator):
    """Maps each class's probability by a separate function, normalises rows, and mixes in the uniform distribution."""

    def _probabilities(self, logits: Floats) -> Floats:
        mapped = self.mapped(softmax64(logits))
        total = mapped.sum(axis=1, keepdims=True)
        none = total[:, 0] <= 0
        mapped[none], total[none] = 1.0, self.classes  # every class has frequency 0: the row becomes uniform
        uniform = self.parameters.get("uniform", 0.0)
        return np.asarray((1 - uniform) * mapped / total + uniform / self.classes)

    @abstractmethod
    def mapped(self, probabilities: Floats) -> Floats:
        """Return the frequency [N, K] of each class at its probability [N, K]."""


class IsotonicCalibrator(OneVsRestCalibrator):
    """Interpolates linearly between the levels of each class's isotonic regression."""

    def __init__(self, levels: Sequence[tuple[Floats, Floats]], uniform: float) -> None:
        """Store each class's levels: ascending probabilities and their frequencies."""
        empty = float(any(not frequency.any() for _, frequency in levels))
        steps = float(np.mean([len(np.unique(frequency)) for _, frequency in levels]))
        super().__init__("isotonic", {"steps": steps, "uniform": uniform, "at_bound": empty}, len(levels))
        self._levels = levels

    def mapped(self, probabilities: Floats) -> Floats:
        """Return each class's isotonic regression [N, K] at its probability [N, K]."""
        columns = [interpolated(probabilities[:, k], *level) for k, level in enumerate(self._levels)]
        return np.stack(columns, axis=1)


class HistogramCalibrator(OneVsRestCalibrator):
    """Replaces each class's probability by the frequency in its bin."""

    def __init__(self, name: str, edges: Floats, frequencies: Floats, parameters: Mapping[str, float]) -> None:
        """Store inner bin edges [K, B − 1] and frequencies [K, B] per class."""
        super().__init__(name, parameters, len(edges))
        self._edges, self._frequencies = edges, frequencies

    def mapped(self, probabilities: Floats) -> Floats:
        """Return the value of each class's bin [N, K] at its probability [N, K]."""
        columns = [
            # side="left" makes bins right-closed, (l, u], as in the metrics.
            frequency[np.searchsorted(edges, probabilities[:, k], side="left")]
            for k, (edges, frequency) in enumerate(zip(self._edges, self._frequencies, strict=True))
        ]
        return np.stack(columns, axis=1)


@POSTHOC.add("isotonic", columns=ISOTONIC_PARAMETERS, free=lambda k, parameters: k * parameters["steps"])
def fit_isotonic(logits: ArrayLike, targets: ArrayLike, *, mix: Mix = True) -> IsotonicCalibrator:
    """Isotonic regression of each class against the rest, normalised.

    Fit one-vs-rest isotonic regression of softmax probabilities on logits [N, K] and targets [N].

    The map is linear between the probabilities of validation samples and constant beyond them.

    Source: Zadrozny & Elkan 2002.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_isotonic(logits, [0, 0, 1, 1, 1])([[2.0, 0.0]]).round(2)
        array([[0.92, 0.08]])

    Args:
        logits: validation logits [N, K].
        targets: class indices [N].
        mix: mix in 1/(N + 1) of the uniform distribution.

    Raises:
        PosthocUnavailable: unusable validation data.
    """
    values, labels = validation_data(logits, targets)
    probabilities = softmax64(values)
    levels = [isotonic_levels(probabilities[:, k], labels == k) for k in range(values.shape[1])]
    return IsotonicCalibrator(levels, uniform_share(labels, mix))


@POSTHOC.add(
    "histogram_binning", columns=HISTOGRAM_PARAMETERS, free=lambda k, parameters: k * parameters["filled_bins"]
)
def fit_histogram_binning(
    logits: ArrayLike, targets: ArrayLike, *, bins: Bins = 15, scheme: Scheme = "equal_width", mix: Mix = True
) -> HistogramCalibrator:
    """Frequencies in bins of each class against the rest, normalised.

    Fit one-vs-rest histogram binning of softmax probabilities on logits [N, K] and targets [N].

    An empty bin maps to its midpoint.

    Source: Zadrozny & Elkan 2001; Guo et al. 2017, section 4.1.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_histogram_binning(logits, [0, 0, 1, 1, 1], bins=2)([[2.0, 0.0]]).round(2)
        array([[0.64, 0.36]])

    Args:
        logits: validation logits [N, K].
        targets: class indices [N].
        bins: number of bins per class, at most N.
        scheme: `equal_width` (Guo et al. 2017) or `equal_mass` bins, whose edges lie halfway between two samples.
        mix: mix in 1/(N + 1) of the uniform distribution.

    Raises:
        PosthocUnavailable: unusable validation data, or fewer samples than bins.
    """
    values, labels = validation_data(logits, targets, bins)
    own = labels[:, None] == np.arange(values.shape[1])
    edges, frequencies, filled = binned(softmax64(values), own, bins, scheme)
    parameters = {"filled_bins": filled, "uniform": uniform_share(labels, mix), "at_bound": not own.any(axis=0).all()}
    return HistogramCalibrator("histogram_binning", edges, frequencies, parameters)


def binned(probabilities: Floats, values: Floats | Booleans, bins: int, scheme: Scheme) -> tuple[Floats, Floats, float]:
    """Return inner bin edges [K, B − 1], the mean of `values` [N, K] in each bin [K, B], and mean filled bins.

    Bins are those of each class's `probabilities` [N, K]; an empty bin has its midpoint.
    """
    samples, classes = probabilities.shape
    edges = np.tile(bin_edges(bins)[1:-1], (classes, 1))
    if scheme == "equal_mass":
        ascending = np.sort(probabilities, axis=0)
        starts = equal_mass_starts(samples, bins)[1:]
        edges = ((ascending[starts - 1] + ascending[starts]) / 2).T
    means, filled = np.empty((classes, bins)), 0
    for k in range(classes):
        index = np.searchsorted(edges[k], probabilities[:, k], side="left")
        counts = np.bincount(index, minlength=bins)
        sums = np.bincount(index, weights=values[:, k], minlength=bins)
        ends = np.concatenate(([0.0], edges[k], [1.0]))
        means[k] = np.where(counts > 0, sums / np.maximum(counts, 1), (ends[1:] + ends[:-1]) / 2)
        filled += int((counts > 0).sum())
    return edges, means, filled / classes


def uniform_share(labels: Integers, mix: bool) -> float:
    """Return the share 1/(N + 1) of the uniform distribution for N labels; 0 if none is mixed in."""
    return 1 / (len(labels) + 1) if mix else 0.0


#: Log-odds are clipped here, at probabilities of 1e-13 and 1 − 1e-13, which bounds the number of levels.
LARGEST = 30.0


def log_odds(probabilities: Floats) -> Floats:
    """Return log-odds of probabilities, between −30 and 30."""
    smallest = np.exp(-LARGEST)
    inside = np.clip(probabilities, smallest, 1 - smallest)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def levels_of(probabilities: Floats, resolution: float) -> Floats:
    """Return log-odds of probabilities in units of `resolution`, rounded to whole units."""
    return np.asarray(np.rint(log_odds(probabilities) / resolution))


def brackets(level: Floats, outcome: Booleans) -> tuple[Floats, Floats, Floats]:
    """Return the m distinct levels, ascending, with p⁰ and p¹ at each, for levels [N] and outcomes [N]."""
    from scipy.optimize import isotonic_regression

    known, index, counts = np.unique(level, return_inverse=True, return_counts=True)
    hits = np.bincount(index, weights=outcome, minlength=len(known))
    sides = np.empty((2, len(known)))
    # One regression per level and label: the added sample changes the whole fit, not only its own level.
    for label in (0, 1):
        for at in range(len(known)):
            weights, total = counts.astype(np.float64), hits.copy()
            weights[at] += 1
            total[at] += label
            sides[label, at] = isotonic_regression(total / weights, weights=weights).x[at]
    return known, sides[0], sides[1]


class VennAbersCalibrator(OneVsRestCalibrator):
    """Merges the two frequencies p⁰ and p¹ of each class and normalises rows."""

    def __init__(self, classes: Sequence[tuple[Floats, Floats, Floats]], resolution: float) -> None:
        """Store the levels, p⁰ and p¹ of each class."""
        width = float(np.mean([(high - low).mean() for _, low, high in classes]))
        parameters = {"levels": float(np.mean([len(known) for known, _, _ in classes])), "width": width}
        super().__init__("venn_abers", parameters, len(classes))
        self._classes, self._resolution = classes, resolution

    def brackets(self, probabilities: Floats) -> tuple[Floats, Floats]:
        """Return p⁰ and p¹ of each class [N, K] at its softmax probability [N, K].

        A level between two fitted levels gets p⁰ from the lower and p¹ from the upper level, because an added 0 pools
        with the samples below it and an added 1 with the samples above it. Below all levels p⁰ is 0; above all, p¹ is
        1.
        """
        low, high = np.empty_like(probabilities), np.empty_like(probabilities)
        level = levels_of(probabilities, self._resolution)
        for k, (known, zero, one) in enumerate(self._classes):
            low[:, k] = np.append(0.0, zero)[np.searchsorted(known, level[:, k], side="right")]
            high[:, k] = np.append(one, 1.0)[np.searchsorted(known, level[:, k], side="left")]
        return low, high

    def mapped(self, probabilities: Floats) -> Floats:
        """Return p¹/(1 − p⁰ + p¹) of each class [N, K] at its probability [N, K]."""
        low, high = self.brackets(probabilities)
        return high / (1 - low + high)


@POSTHOC.add("venn_abers", label="Venn–Abers", columns=("levels", "width"))
def fit_venn_abers(
    logits: ArrayLike, targets: ArrayLike, *, resolution: Annotated[float, "[0.001, 5]"] = 0.05
) -> VennAbersCalibrator:
    """Two isotonic regressions of each class against the rest, one for either label, merged and normalised.

    Fit the Venn–Abers predictor of softmax probabilities on logits [N, K] and targets [N].

    `width` is the mean of p¹ − p⁰ over levels: the larger it is, the less the validation samples determine.

    Source: Vovk & Petej 2014, arXiv:1211.0025; Vovk, Petej & Fedorova 2015, arXiv:1511.00213.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_venn_abers(logits, [0, 0, 1, 1, 1])([[2.0, 0.0]]).round(2)
        array([[0.67, 0.33]])

    Args:
        logits: validation logits [N, K].
        targets: class indices [N].
        resolution: spacing of log-odds levels; finer takes longer [ours: a factor of 1.05 of the odds].

    Raises:
        PosthocUnavailable: unusable validation data.
    """
    values, labels = validation_data(logits, targets)
    level = levels_of(softmax64(values), resolution)
    return VennAbersCalibrator([brackets(level[:, k], labels == k) for k in range(values.shape[1])], resolution)
