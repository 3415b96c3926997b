"""A post-hoc method of one's own: a temperature and one bias a class."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

Floats = NDArray[np.float64]


class BiasCorrected:
    """Bias-corrected temperature scaling (Alexandari et al. 2020, arXiv:1901.06852, section 3), fitted by NLL."""

    PARAMETERS = ("temperature", "largest_bias")  # the keys of `parameters`: columns of the results

    def __init__(self, logits: Floats, targets: NDArray[np.int64], penalty: float = 1e-3) -> None:
        rows = np.arange(len(targets))

        def objective(free: Floats) -> float:
            log_p = log_softmax(logits * np.exp(-free[0]) + free[1:], axis=1)
            return -log_p[rows, targets].mean() + penalty * (free[1:] ** 2).sum()

        self.free = minimize(objective, np.zeros(1 + logits.shape[1]), method="L-BFGS-B").x
        self.parameters = {"temperature": np.exp(self.free[0]), "largest_bias": np.abs(self.free[1:]).max()}

    def __call__(self, logits: Floats) -> Floats:
        """Return probabilities [M, K] of logits [M, K]."""
        return softmax(logits * np.exp(-self.free[0]) + self.free[1:], axis=1)
