"""Synthetic problems with known class probabilities, which a calibrated network should output.

* `known_posterior_1d`: posterior section 5.2, three Gaussian classes on a line. The paper prints no parameters; ours
  are means -2, 0, 2, standard deviation 1 and equal priors.
* `mukhoti_linear`: mukhoti App. B, two linearly separable classes of two clusters in the plane, with a tenth of the
  labels flipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.datasets.base import DATASETS, DataSet, divided, hash_of_splits
from trainables.registry import DataSetSize, Options

MEANS = (-2.0, 0.0, 2.0)
# Vertices of a square of side 4. The clusters of a class share an edge: a straight line separates the classes.
CORNERS = np.array([[-2.0, -2.0], [-2.0, 2.0], [2.0, -2.0], [2.0, 2.0]])
CORNER_CLASSES = np.array([0, 0, 1, 1])


def gaussian_posterior(
    points: NDArray[np.generic], means: NDArray[np.generic], factors: NDArray[np.generic]
) -> NDArray[np.float64]:
    """Return the probability of each cluster given a point, for equal priors.

    Args:
        points: points [N, D].
        means: means of the clusters [C, D].
        factors: factors of the clusters [C, D, D]; cluster c is means[c] + z factors[c] with standard normal rows z.

    Returns:
        Probabilities [N, C].

    Example:
        >>> gaussian_posterior(np.array([[0.0]]), np.array([[-1.0], [1.0]]), np.ones((2, 1, 1))).tolist()
        [[0.5, 0.5]]
    """
    # Log densities up to their common constant; the largest is subtracted, so that `exp` cannot underflow for all.
    log_densities = []
    for mean, factor in zip(means, factors, strict=True):
        standard = np.linalg.solve(factor.T, (points - mean).T)
        log_densities.append(-0.5 * (standard**2).sum(0) - np.linalg.slogdet(factor)[1])
    logs = np.stack(log_densities, 1)
    shares = np.exp(logs - logs.max(1, keepdims=True))
    posteriors: NDArray[np.float64] = shares / shares.sum(1, keepdims=True)
    return posteriors


def _on_paper(features: int, classes: int) -> Callable[[Options], DataSetSize]:
    def size(options: Options) -> DataSetSize:
        train, val, test = (int(options[f"{split}_samples"]) for split in ("train", "validation", "test"))
        return DataSetSize((features,), classes, train, val, test)

    return size


@DATASETS.add("known_posterior_1d", size=_on_paper(1, 3))
def load_known_posterior_1d(
    train_samples: Annotated[int, "[1, inf)"] = 5000,
    validation_samples: Annotated[int, "[1, inf)"] = 5000,
    test_samples: Annotated[int, "[1, inf)"] = 20_000,
    seed: Annotated[int, f"[0, {2**32 - 1}]"] = 0,
) -> DataSet:
    """Three Gaussian classes on a line, true probabilities known.

    Draw the one-dimensional problem of posterior section 5.2; population error 0.2115.

    Source: posterior section 5.2.

    Args:
        train_samples: size of the training split [our choice: posterior prints none].
        validation_samples: size of the validation split [our choice: posterior prints none].
        test_samples: size of the test split [our choice: posterior prints none].
        seed: seed of the draw [our choice].

    Returns:
        inputs float32 [N, 1], three classes, `posterior` of the test split [N, 3].

    Example:
        >>> dataset = load_known_posterior_1d(train_samples=10, validation_samples=10, test_samples=4)
        >>> dataset.posterior.shape, dataset.posterior.sum(1).tolist()
        (torch.Size([4, 3]), [1.0, 1.0, 1.0, 1.0])
    """
    random = np.random.RandomState(seed)
    samples = train_samples + validation_samples + test_samples
    means = np.array(MEANS)[:, None]
    targets = random.randint(0, len(MEANS), samples)
    points = means[targets] + random.standard_normal((samples, 1))
    posterior = gaussian_posterior(points, means, np.ones((len(MEANS), 1, 1)))
    sizes = (train_samples, validation_samples, test_samples)
    return _dataset("known_posterior_1d", points, targets, posterior, sizes, seed)


@DATASETS.add("mukhoti_linear", size=_on_paper(2, 2))
def load_mukhoti_linear(
    train_samples: Annotated[int, "[1, inf)"] = 4000,
    validation_samples: Annotated[int, "[1, inf)"] = 1000,
    test_samples: Annotated[int, "[1, inf)"] = 1000,
    flipped: Annotated[float, "[0, 0.5]"] = 0.1,
    seed: Annotated[int, f"[0, {2**32 - 1}]"] = 0,
) -> DataSet:
    """Two linearly separable classes of two clusters with flipped labels, true probabilities known.

    Draw the two-dimensional problem of mukhoti App. B: 4,000 training and 1,000 test points.

    The standard normal rows of each cluster are multiplied by a random matrix with entries uniform on [-1, 1]. A share
    of the labels is flipped, not redrawn, so η = (1 - 2 flipped) η₀ + flipped. The validation points are an addition to
    the paper. The paper's classifier is `mlp` with depth 0 and bias false.

    Source: mukhoti App. B.

    Args:
        train_samples: size of the training split [mukhoti App. B; validation is our addition].
        validation_samples: size of the validation split [mukhoti App. B; validation is our addition].
        test_samples: size of the test split [mukhoti App. B; validation is our addition].
        flipped: share of the labels flipped [mukhoti App. B].
        seed: seed of matrices, points and flips [our choice].

    Returns:
        inputs float32 [N, 2], two classes, `posterior` of the test split [N, 2].

    Example:
        >>> dataset = load_mukhoti_linear(train_samples=10, validation_samples=10, test_samples=4)
        >>> dataset.input_shape, bool(dataset.posterior.max() <= 0.9)  # a tenth of the labels is flipped
        ((2,), True)
    """
    random = np.random.RandomState(seed)
    factors = random.uniform(-1, 1, (len(CORNERS), 2, 2))
    samples = train_samples + validation_samples + test_samples
    clusters = random.randint(0, len(CORNERS), samples)
    normals = random.standard_normal((samples, 2))
    points = CORNERS[clusters] + np.einsum("nd,nde->ne", normals, factors[clusters])
    # exclusive or: a flip turns 0 into 1 and 1 into 0
    targets = CORNER_CLASSES[clusters] ^ (random.uniform(size=samples) < flipped)
    shares = gaussian_posterior(points, CORNERS, factors)
    clean = np.stack([shares[:, label == CORNER_CLASSES].sum(1) for label in (0, 1)], 1)
    posterior = (1 - 2 * flipped) * clean + flipped
    sizes = (train_samples, validation_samples, test_samples)
    return _dataset("mukhoti_linear", points, targets, posterior, sizes, seed)


def _dataset(
    name: str,
    points: NDArray[np.generic],
    targets: NDArray[np.generic],
    posterior: NDArray[np.generic],
    sizes: tuple[int, int, int],
    seed: int,
) -> DataSet:
    """Divide consecutive samples into splits; the hash covers their indices and the seed of the draw."""
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    chosen, known = hash_of_splits(*parts, np.array([seed])), torch.from_numpy(posterior[parts[2]])
    inputs, classes = points.astype(np.float32), targets.astype(np.int64)
    return divided(name, inputs, classes, parts, posterior.shape[1], chosen, posterior=known)
