"""Affine maps of logits, fitted by the NLL: vector, matrix and structured matrix scaling, Dirichlet calibration.

    p = softmax(W x + b)

x are logits z (vector scaling with a diagonal W, and matrix scaling: Guo et al. 2017, arXiv:1706.04599, §4.2),
log-probabilities (Dirichlet calibration: Kull et al. 2019, arXiv:1910.12656, Eq. 5), or these after temperature scaling
(structured matrix scaling: Berta, Holzmüller, Jordan & Bach, Structured matrix scaling for multi-class
calibration, AISTATS 2026), whose W is held to the identity by ridge penalties that grow with the number of classes.

All are convex. Without penalties on W and b there is no minimum where W x + b separates some classes from the others
without an error, or where a class has no sample: probabilities go to 0 (Albert & Anderson 1984, On the existence of
maximum likelihood estimates in logistic regression models). Then `at_bound` is 1, and W and b are those of targets
smoothed by a pseudo-count (`trainables.posthoc.temperature.pseudo_count`).

W has K² numbers, so that matrix scaling without penalties fits 100 classes by heart from some hundred samples each:
that is the method as published, and what the penalties of the others are for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from trainables.metrics.base import Floats, Integers, log_softmax64
from trainables.posthoc.base import POSTHOC, SoftmaxCalibrator, validation_data
from trainables.posthoc.temperature import logit_scale, pseudo_count, temperature_by_nll
from trainables.registry import Hyperparameter

VECTOR_PARAMETERS = ("weight_min", "weight_max", "bias_range", "iterations", "converged", "at_bound")
#: What is reported: the diagonal's ends, max b − min b, and of a matrix the root mean square off the diagonal.
MATRIX_PARAMETERS = (*VECTOR_PARAMETERS, "off_diagonal")

STRUCTURED_PARAMETERS = ("temperature", *MATRIX_PARAMETERS)

#: Samples that the temperature of the start is fitted on; the minimum does not depend on it.
STARTED_ON = 1000

#: Classes are separated from the others where these have less than so many samples' probability of them: a fit without
#: an error goes to 0, one with an error leaves at least about one sample's. Our choice.
SEPARATED = 0.1

#: The search ends where a step changes the loss, or all parameters, by less than the first, or where no part of the
#: gradient is larger than the second.
TOLERANCE, GRADIENT = 1e-9, 1e-7

Iterations = Annotated[int, Hyperparameter(range="[1, inf)", source="vector scaling takes 30 to 60")]
Penalty = Annotated[float, Hyperparameter(range="[0, inf)", source="ODIR, Kull et al. 2019, section 4.2")]

#: Makes of logits [N, K] what W multiplies; a function of a module, so that calibrators can be pickled.
Features = Callable[[Floats], Floats]

#: A loss with its gradients by W and by b.
Slope = tuple[float, Floats, Floats]


class AffineCalibrator(SoftmaxCalibrator):
    """softmax(W x + b), x what `features` makes of logits.

    Attributes:
        weights: W [K, K], or its diagonal [K].
        bias: b [K].
    """

    def __init__(
        self, name: str, parameters: Mapping[str, float], weights: Floats, bias: Floats, features: Features
    ) -> None:
        """Keep what was fitted, and what is reported of it."""
        super().__init__(name, parameters, len(bias))
        self.weights, self.bias, self._features = weights, bias, features

    def _mapped(self, logits: Floats) -> Floats:
        features = self._features(logits)
        scaled = features * self.weights if self.weights.ndim == 1 else features @ self.weights.T
        return np.asarray(scaled + self.bias)


class AffineLayer(nn.Module):
    """softmax(W x + b), x the logits or their log-probabilities at a temperature."""

    weights: Tensor
    bias: Tensor

    def __init__(self, calibrator: AffineCalibrator) -> None:
        """Keep W, b and the temperature of x; 0 stands for raw logits."""
        super().__init__()
        self.register_buffer("weights", torch.from_numpy(calibrator.weights))
        self.register_buffer("bias", torch.from_numpy(calibrator.bias))
        raw = calibrator.name in ("vector", "matrix")
        self.temperature = 0.0 if raw else calibrator.parameters.get("temperature", 1.0)

    def forward(self, logits: Tensor) -> Tensor:
        """Return probabilities [N, K]."""
        features = torch.log_softmax(logits / self.temperature, dim=1) if self.temperature else logits
        scaled = features * self.weights if self.weights.dim() == 1 else features @ self.weights.T
        return torch.softmax(scaled + self.bias, dim=1)


def raw(logits: Floats) -> Floats:
    """Return the logits."""
    return logits


def scaled_log_probabilities(logits: Floats, temperature: float) -> Floats:
    """Return log softmax(z/T) of logits z [N, K]."""
    return log_softmax64(logits / temperature)


@POSTHOC.add("vector", columns=VECTOR_PARAMETERS, layer=AffineLayer)
def fit_vector(logits: ArrayLike, targets: ArrayLike, *, max_iterations: Iterations = 200) -> AffineCalibrator:
    """Softmax(w∘z + b), a scale and a shift for each class, by NLL.

    Return vector scaling, softmax(w ∘ z + b), with the least NLL on logits [N, K] and targets [N].

    Raises PosthocUnavailable for unusable validation data.

    Source: Guo et al. 2017, section 4.2.
    """
    values, labels = validation_data(logits, targets)
    start = np.full(values.shape[1], 1 / _rough_temperature(values, labels))
    return _fit("vector", raw, values, labels, start, max_iterations)


@POSTHOC.add("matrix", columns=MATRIX_PARAMETERS, layer=AffineLayer)
def fit_matrix(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    off_diagonal: Penalty = 0.0,
    intercept: Penalty = 0.0,
    max_iterations: Iterations = 80,
) -> AffineCalibrator:
    """Softmax(Wz + b) by NLL; without penalties it overfits many classes.

    Return matrix scaling, softmax(W z + b), with the least penalised NLL on logits [N, K] and targets [N].

    The penalty is λ/(K(K − 1)) Σ_{i≠j} W_ij² + μ/K Σ b_i², λ = `off_diagonal` and μ = `intercept` (ODIR, Kull et al.
    2019, §4.2; 0 is Guo et al.'s). Where the search ends at `max_iterations`, `converged` is 0.

    Source: Guo et al. 2017, section 4.2.

    Args:
        max_iterations: [two seconds for 10,000 samples of 100 classes].

    Raises PosthocUnavailable for unusable validation data.
    """
    values, labels = validation_data(logits, targets)
    start = np.eye(values.shape[1]) / _rough_temperature(values, labels)
    penalty = _off_diagonal_penalty(values.shape[1], off_diagonal, intercept)
    return _fit("matrix", raw, values, labels, start, max_iterations, penalty)


@POSTHOC.add("dirichlet", columns=MATRIX_PARAMETERS, layer=AffineLayer)
def fit_dirichlet(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    off_diagonal: Penalty = 0.01,
    intercept: Penalty = 0.01,
    max_iterations: Iterations = 80,
) -> AffineCalibrator:
    """Softmax(W log p + b) by NLL with penalties off the diagonal and on b.

    Return Dirichlet calibration, softmax(W log p + b), with the least penalised NLL on logits [N, K], targets [N].

    The penalty is `fit_matrix`'s, ODIR. Raises PosthocUnavailable for unusable validation data.

    Source: Kull et al. 2019, arXiv:1910.12656.

    Args:
        max_iterations: [two seconds for 10,000 samples of 100 classes].
    """
    values, labels = validation_data(logits, targets)
    start = np.eye(values.shape[1]) / _rough_temperature(values, labels)
    penalty = _off_diagonal_penalty(values.shape[1], off_diagonal, intercept)
    return _fit("dirichlet", log_softmax64, values, labels, start, max_iterations, penalty)


@POSTHOC.add("structured_matrix", columns=STRUCTURED_PARAMETERS, layer=AffineLayer)
def fit_structured_matrix(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    strength: Annotated[float, "[0, inf)"] = 1.0,
    max_iterations: Iterations = 200,
) -> AffineCalibrator:
    """Matrix scaling after temperature scaling, held to the identity by penalties that grow with the classes.

    Return structured matrix scaling of logits [N, K] with targets [N]: softmax(W log p + b), W held to I.

    p is softmax(z/T), T temperature scaling's. The penalty is, with s = `strength`,
    s·[K/N (Σ b_i² + Σ (W_ii − 1)²) + K(K − 1)/N Σ_{i≠j} W_ij²]: the ridge penalty of Berta et al. 2026, in their
    package's default strengths where s = 1.

    Raises PosthocUnavailable for unusable validation data.

    Source: Berta, Holzmüller, Jordan & Bach 2026.

    Args:
        strength: [Berta et al. 2026].
    """
    values, labels = validation_data(logits, targets)
    samples, classes = values.shape
    scaled = temperature_by_nll(values, labels)
    temperature = scaled["temperature"]
    features = partial(scaled_log_probabilities, temperature=temperature)
    near, far = strength * classes / samples, strength * classes * (classes - 1) / samples
    identity = np.eye(classes)

    def penalty(weights: Floats, bias: Floats) -> Slope:
        moved = weights - identity
        factors = np.where(identity > 0, near, far)
        value = float((factors * moved**2).sum() + near * (bias**2).sum())
        return value, 2 * factors * moved, 2 * near * bias

    if strength:
        found = _least_nll("structured_matrix", features, values, labels, identity, max_iterations, penalty, 0.0)
    else:
        found = _fit("structured_matrix", features, values, labels, identity, max_iterations)
    found.parameters = {"temperature": temperature, **found.parameters}
    found.parameters["at_bound"] = max(scaled["at_bound"], found.parameters["at_bound"])
    return found


def _rough_temperature(logits: Floats, targets: Integers) -> float:
    step = max(1, len(targets) // STARTED_ON)
    found = temperature_by_nll(logits[::step], targets[::step])
    return logit_scale(logits) if found["at_bound"] else found["temperature"]


def _off_diagonal_penalty(classes: int, off_diagonal: float, intercept: float) -> Callable[[Floats, Floats], Slope]:
    far, near = off_diagonal / (classes * (classes - 1)), intercept / classes

    def penalty(weights: Floats, bias: Floats) -> Slope:
        outside = weights - np.diag(np.diag(weights))
        return float(far * (outside**2).sum() + near * (bias**2).sum()), 2 * far * outside, 2 * near * bias

    return penalty


def _fit(
    name: str,
    features: Features,
    logits: Floats,
    targets: Integers,
    start: Floats,
    max_iterations: int,
    penalty: Callable[[Floats, Floats], Slope] | None = None,
) -> AffineCalibrator:
    """Return W and b with the least mean NLL, plus `penalty`, by L-BFGS from W = `start` [K] or [K, K] and b = 0."""
    fitted = _least_nll(name, features, logits, targets, start, max_iterations, penalty, 0.0)
    if not separated(fitted(logits), targets):
        return fitted
    smoothed = _least_nll(name, features, logits, targets, start, max_iterations, penalty, pseudo_count(len(targets)))
    smoothed.parameters["at_bound"] = 1.0
    return smoothed


def separated(probabilities: Floats, targets: Integers) -> bool:
    """Return whether fitted probabilities [N, K] separate some classes from all others, which have no part in them.

    Groups of classes are those of single linkage by the probability that their samples give each other.
    """
    from scipy.sparse.csgraph import minimum_spanning_tree

    classes = probabilities.shape[1]
    shared = np.stack([np.bincount(targets, weights=each, minlength=classes) for each in probabilities.T])
    shared += shared.T
    np.fill_diagonal(shared, 0.0)
    outside = shared.sum(axis=1)
    groups = {k: [k] for k in range(classes)}
    if outside.min() < SEPARATED:
        return True
    tree = minimum_spanning_tree(1 / (shared + np.finfo(np.float64).tiny)).tocoo()
    at = np.arange(classes)
    for edge in np.argsort(tree.data)[: classes - 2]:
        first, second = at[tree.row[edge]], at[tree.col[edge]]
        between = shared[np.ix_(groups[first], groups[second])].sum()
        outside[first] += outside[second] - 2 * between
        if outside[first] < SEPARATED:
            return True
        at[groups[second]] = first
        groups[first] += groups.pop(second)
    return False


def _least_nll(
    name: str,
    features: Features,
    logits: Floats,
    targets: Integers,
    start: Floats,
    max_iterations: int,
    penalty: Callable[[Floats, Floats], Slope] | None,
    smoothing: float,
) -> AffineCalibrator:
    """Return W and b as `_fit`, with a share `smoothing` of every target for the uniform distribution."""
    samples, classes = logits.shape
    given, labels = torch.from_numpy(np.ascontiguousarray(features(logits))), torch.from_numpy(targets)[:, None]
    share = torch.full(labels.shape, -(1.0 - smoothing) / samples, dtype=torch.float64)
    flat = torch.from_numpy(np.concatenate([start.ravel(), np.zeros(classes)]))
    weights, bias = flat[:-classes].view(start.shape), flat[-classes:]
    scaled, log_p = torch.empty_like(given), torch.empty_like(given)

    def loss() -> float:
        if start.ndim == 1:
            torch.mul(given, weights, out=scaled).add_(bias)
        else:
            torch.addmm(bias, given, weights.T, out=scaled)
        torch.log_softmax(scaled, dim=1, out=log_p)
        value = -float(log_p.gather(1, labels).mean())
        if smoothing:
            value = (1 - smoothing) * value - smoothing * float(log_p.mean())
        slope = log_p.exp_().div_(samples).scatter_add_(1, labels, share)
        if smoothing:
            slope -= smoothing / (samples * classes)
        by_weights = torch.mul(slope, given, out=scaled).sum(0) if start.ndim == 1 else slope.T @ given
        by_bias = slope.sum(0)
        if penalty is not None:
            added, of_weights, of_bias = penalty(weights.numpy(), bias.numpy())
            value += added
            by_weights += torch.from_numpy(of_weights)
            by_bias += torch.from_numpy(of_bias)
        flat.grad = torch.cat([by_weights.ravel(), by_bias])
        return value

    # torch's softmax, products and L-BFGS take a fraction of numpy's and scipy's time
    search = torch.optim.LBFGS(
        [flat],
        max_iter=max_iterations,
        max_eval=4 * max_iterations,
        history_size=20,
        tolerance_grad=GRADIENT,
        tolerance_change=TOLERANCE,
        line_search_fn="strong_wolfe",
    )
    search.step(loss)
    iterations = search.state[flat]["n_iter"]
    parameters = _reported(weights.numpy(), bias.numpy(), iterations, iterations < max_iterations)
    return AffineCalibrator(name, parameters, weights.numpy().copy(), bias.numpy().copy(), features)


def _reported(weights: Floats, bias: Floats, iterations: int, converged: bool) -> dict[str, float]:
    """Return the parameters that are reported of what was fitted."""
    classes = len(bias)
    diagonal = weights if weights.ndim == 1 else np.diag(weights)
    parameters = {
        "weight_min": float(diagonal.min()),
        "weight_max": float(diagonal.max()),
        "bias_range": float(np.ptp(bias)),
        "iterations": float(iterations),
        "converged": float(converged),
        "at_bound": 0.0,
    }
    if weights.ndim == 2:
        outside = weights - np.diag(diagonal)
        parameters["off_diagonal"] = float(np.sqrt((outside**2).sum() / (classes * (classes - 1))))
    return parameters
