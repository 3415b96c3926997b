"""Affine maps of logits, fitted by the NLL: vector, matrix and structured matrix scaling, Dirichlet calibration.

    p = softmax(W x + b)

The features x depend on the method:

- logits z: vector scaling, with a diagonal W, and matrix scaling (Guo et al. 2017, arXiv:1706.04599, §4.2);
- log-probabilities: Dirichlet calibration (Kull et al. 2019, arXiv:1910.12656, Eq. 5);
- log-probabilities after temperature scaling: structured matrix scaling (Berta, Holzmüller, Jordan & Bach, Structured
  matrix scaling for multi-class calibration, AISTATS 2026), whose ridge penalties pull W towards the identity and grow
  with the number of classes.

All fits are convex. Without penalties on W and b there is no minimum if W x + b separates some classes from the others
without an error, or if a class has no sample. Some probabilities go to 0 in these cases (Albert & Anderson 1984, On the
existence of maximum likelihood estimates in logistic regression models). Then `at_bound` is 1, and W and b are fitted
to targets smoothed by a pseudo-count (`trainables.posthoc.temperature.pseudo_count`).

W has K² entries, so matrix scaling without penalties memorises 100 classes with a few hundred samples each. That is the
published method; the penalties of the other methods prevent it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, Integers, log_softmax64
from trainables.posthoc.base import POSTHOC, SoftmaxCalibrator, validation_data
from trainables.posthoc.temperature import logit_scale, pseudo_count, temperature_by_nll
from trainables.registry import Hyperparameter

if TYPE_CHECKING:
    from torch import nn

VECTOR_PARAMETERS = ("weight_min", "weight_max", "bias_range", "iterations", "converged", "at_bound")
#: Reported: smallest and largest diagonal entry, max b − min b, and for a matrix the root mean square off the diagonal.
MATRIX_PARAMETERS = (*VECTOR_PARAMETERS, "off_diagonal")

STRUCTURED_PARAMETERS = ("temperature", *MATRIX_PARAMETERS)

#: Samples used to fit the starting temperature; a convex minimum does not depend on its start.
START_SAMPLES = 1000

#: A group of classes counts as separated if the shared probability with all others sums to less than this many samples.
#: A separating fit goes to 0 and a single error leaves about one sample's probability; the value between is our choice.
SEPARATED = 0.1

#: The search stops when a step changes the loss or every parameter by less than TOLERANCE, or when no component of the
#: gradient exceeds GRADIENT.
TOLERANCE, GRADIENT = 1e-9, 1e-7

Iterations = Annotated[int, Hyperparameter(range="[1, inf)", source="vector scaling takes 30 to 60")]
Penalty = Annotated[float, Hyperparameter(range="[0, inf)", source="ODIR, Kull et al. 2019, section 4.2")]

#: Function from logits [N, K] to the features that W multiplies. Module-level functions keep calibrators picklable.
Features = Callable[[Floats], Floats]

#: A loss value with its gradients by W and by b.
Slope = tuple[float, Floats, Floats]


class AffineCalibrator(SoftmaxCalibrator):
    """softmax(W x + b), where `features` maps logits to x.

    Attributes:
        weights: W [K, K], or its diagonal [K].
        bias: b [K].
    """

    def __init__(
        self, name: str, parameters: Mapping[str, float], weights: Floats, bias: Floats, features: Features
    ) -> None:
        """Store the fitted map and its reported `parameters`."""
        super().__init__(name, parameters, len(bias))
        self.weights, self.bias, self._features = weights, bias, features

    def _mapped(self, logits: Floats) -> Floats:
        features = self._features(logits)
        scaled = features * self.weights if self.weights.ndim == 1 else features @ self.weights.T
        return np.asarray(scaled + self.bias)


def affine_layer(calibrator: AffineCalibrator) -> nn.Module:
    """Return the calibrator as a torch module, for exported programs."""
    import torch  # the import takes two seconds; only exporting needs it

    raw = calibrator.name in ("vector", "matrix")
    temperature = 0.0 if raw else calibrator.parameters.get("temperature", 1.0)

    class Layer(torch.nn.Module):
        weights: torch.Tensor
        bias: torch.Tensor

        def forward(self, logits: torch.Tensor) -> torch.Tensor:
            """Return probabilities [N, K] for logits [N, K]."""
            features = torch.log_softmax(logits / temperature, dim=1) if temperature else logits
            scaled = features * self.weights if self.weights.dim() == 1 else features @ self.weights.T
            return torch.softmax(scaled + self.bias, dim=1)

    layer = Layer()
    # Buffers, not parameters: an exported calibrator is saved with the model but never trained.
    layer.register_buffer("weights", torch.from_numpy(calibrator.weights))
    layer.register_buffer("bias", torch.from_numpy(calibrator.bias))
    return layer


def raw(logits: Floats) -> Floats:
    """Return the logits unchanged: the features of vector and matrix scaling."""
    return logits


def scaled_log_probabilities(logits: Floats, temperature: float) -> Floats:
    """Return log softmax(z/T) for logits z [N, K]."""
    return log_softmax64(logits / temperature)


# The softmax does not change if all classes get the same addend, so one of the K biases, and of W's rows, is not free.
@POSTHOC.add("vector", columns=VECTOR_PARAMETERS, layer=affine_layer, free=lambda k, parameters: 2 * k - 1)
def fit_vector(logits: ArrayLike, targets: ArrayLike, *, max_iterations: Iterations = 200) -> AffineCalibrator:
    """Softmax(w∘z + b), a scale and a shift for each class, by NLL.

    Fit vector scaling, softmax(w ∘ z + b), by the NLL on logits [N, K] and targets [N].

    Raises PosthocUnavailable for unusable validation data.

    Source: Guo et al. 2017, section 4.2.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_vector(logits, [0, 0, 1, 1, 1])([[2.0, 0.0]]).round(2)
        array([[0.77, 0.23]])
    """
    values, labels = validation_data(logits, targets)
    start = np.full(values.shape[1], 1 / _rough_temperature(values, labels))
    return _fit("vector", raw, values, labels, start, max_iterations)


@POSTHOC.add("matrix", columns=MATRIX_PARAMETERS, layer=affine_layer, free=lambda k, parameters: k**2 - 1)
def fit_matrix(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    off_diagonal: Penalty = 0.0,
    intercept: Penalty = 0.0,
    max_iterations: Iterations = 80,
) -> AffineCalibrator:
    """Softmax(Wz + b) by NLL; without penalties it overfits many classes.

    Fit matrix scaling, softmax(W z + b), by the penalised NLL on logits [N, K] and targets [N].

    The penalty is λ/(K(K − 1)) Σ_{i≠j} W_ij² + μ/K Σ b_i², λ = `off_diagonal` and μ = `intercept` (ODIR, Kull et al.
    2019, §4.2; Guo et al. use 0). If the search stops at `max_iterations`, `converged` is 0.

    Source: Guo et al. 2017, section 4.2.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_matrix(logits, [0, 0, 1, 1, 1], off_diagonal=0.1)([[2.0, 0.0]]).round(2)
        array([[0.77, 0.23]])

    Args:
        max_iterations: [two seconds for 10,000 samples of 100 classes].

    Raises PosthocUnavailable for unusable validation data.
    """
    values, labels = validation_data(logits, targets)
    start = np.eye(values.shape[1]) / _rough_temperature(values, labels)
    penalty = _off_diagonal_penalty(values.shape[1], off_diagonal, intercept)
    return _fit("matrix", raw, values, labels, start, max_iterations, penalty)


@POSTHOC.add("dirichlet", columns=MATRIX_PARAMETERS, layer=affine_layer, free=lambda k, parameters: k**2 - 1)
def fit_dirichlet(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    off_diagonal: Penalty = 0.01,
    intercept: Penalty = 0.01,
    max_iterations: Iterations = 80,
) -> AffineCalibrator:
    """Softmax(W log p + b) by NLL with penalties off the diagonal and on b.

    Fit Dirichlet calibration, softmax(W log p + b), by the penalised NLL on logits [N, K] and targets [N].

    The penalty is ODIR, as in `fit_matrix`. Raises PosthocUnavailable for unusable validation data.

    Source: Kull et al. 2019, arXiv:1910.12656.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_dirichlet(logits, [0, 0, 1, 1, 1])([[2.0, 0.0]]).round(2)
        array([[0.72, 0.28]])

    Args:
        max_iterations: [two seconds for 10,000 samples of 100 classes].
    """
    values, labels = validation_data(logits, targets)
    start = np.eye(values.shape[1]) / _rough_temperature(values, labels)
    penalty = _off_diagonal_penalty(values.shape[1], off_diagonal, intercept)
    return _fit("dirichlet", log_softmax64, values, labels, start, max_iterations, penalty)


@POSTHOC.add("structured_matrix", columns=STRUCTURED_PARAMETERS, layer=affine_layer)
def fit_structured_matrix(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    strength: Annotated[float, "[0, inf)"] = 1.0,
    max_iterations: Iterations = 200,
) -> AffineCalibrator:
    """Matrix scaling after temperature scaling, pulled to the identity by penalties that grow with the classes.

    Fit structured matrix scaling, softmax(W log p + b), on logits [N, K] and targets [N].

    p is softmax(z/T) with temperature scaling's T. With s = `strength`, the penalty is
    s·[K/N (Σ b_i² + Σ (W_ii − 1)²) + K(K − 1)/N Σ_{i≠j} W_ij²], the ridge penalty of Berta et al. 2026; s = 1 gives
    the default strengths of their package.

    Raises PosthocUnavailable for unusable validation data.

    Source: Berta, Holzmüller, Jordan & Bach 2026.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_structured_matrix(logits, [0, 0, 1, 1, 1])([[2.0, 0.0]]).round(2)
        array([[0.83, 0.17]])

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

    # The penalty bounds W and b, so a minimum exists even for separated classes and needs no smoothing.
    if strength:
        fitted = _least_nll("structured_matrix", features, values, labels, identity, max_iterations, penalty, 0.0)
    else:
        fitted = _fit("structured_matrix", features, values, labels, identity, max_iterations)
    fitted.parameters = {"temperature": temperature, **fitted.parameters}
    fitted.parameters["at_bound"] = max(scaled["at_bound"], fitted.parameters["at_bound"])
    return fitted


def _rough_temperature(logits: Floats, targets: Integers) -> float:
    step = max(1, len(targets) // START_SAMPLES)
    fitted = temperature_by_nll(logits[::step], targets[::step])
    return logit_scale(logits) if fitted["at_bound"] else fitted["temperature"]


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
    """Minimise mean NLL plus `penalty` by L-BFGS from W = `start` [K] or [K, K] and b = 0.

    If the fit separates classes, fit again to smoothed targets and set `at_bound`.
    """
    fitted = _least_nll(name, features, logits, targets, start, max_iterations, penalty, 0.0)
    if not separated(fitted(logits), targets):
        return fitted
    smoothed = _least_nll(name, features, logits, targets, start, max_iterations, penalty, pseudo_count(len(targets)))
    smoothed.parameters["at_bound"] = 1.0
    return smoothed


def separated(probabilities: Floats, targets: Integers) -> bool:
    """Return whether fitted probabilities [N, K] separate some group of classes from all others.

    The groups tried are the single-linkage clusters by the probability that the classes' samples give each other.
    """
    from scipy.sparse.csgraph import minimum_spanning_tree

    classes = probabilities.shape[1]
    shared = np.stack([np.bincount(targets, weights=column, minlength=classes) for column in probabilities.T])
    shared += shared.T
    np.fill_diagonal(shared, 0.0)
    outside = shared.sum(axis=1)
    groups = {k: [k] for k in range(classes)}
    if outside.min() < SEPARATED:
        return True
    # All 2^K groups cannot be tried; the minimum spanning tree gives the K − 2 that single linkage merges.
    # The tiny addend keeps distances finite, because the sparse tree reads 0 and inf as a missing edge.
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
    """Minimise as `_fit` does, with a share `smoothing` of every target spread over all classes."""
    import torch  # the import takes two seconds; other methods do not need it

    from trainables.extensions.libraries import without_compiler

    samples, classes = logits.shape
    given, labels = torch.from_numpy(np.ascontiguousarray(features(logits))), torch.from_numpy(targets)[:, None]
    share = torch.full(labels.shape, -(1.0 - smoothing) / samples, dtype=torch.float64)
    flat = torch.from_numpy(np.concatenate([start.ravel(), np.zeros(classes)]))
    weights, bias = flat[:-classes].view(start.shape), flat[-classes:]
    # The search evaluates the loss often: it writes to these two buffers instead of allocating [N, K] every time.
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

    # torch's softmax, products and L-BFGS take a fraction of the time of numpy's and scipy's.
    search = without_compiler(torch.optim.LBFGS)(
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
    """Return the reported parameters of a fit."""
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
