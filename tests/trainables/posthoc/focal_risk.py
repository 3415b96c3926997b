"""The focal risk's minimiser, found from the loss itself and not from the map that inverts it."""

import numpy as np


def loss_slope(q, gamma):
    """Derivative of −(1−q)^γ ln q in q, negative on (0, 1) for γ ≥ 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.where(q < 1, gamma * (1 - q) ** (gamma - 1) * np.log(q), 0.0) if gamma else 0.0
    return inner - (1 - q) ** gamma / q


def focal_risk_minimiser(posterior, gamma):
    """argmin over the simplex of Σ η_k·focal(q_k) for posteriors [N, K], by bisection inside bisection.

    The loss is convex, so at the minimum every η_k·slope(q_k) equals one −λ; q_k falls with λ, and Σ q_k = 1 fixes λ.
    """
    eta = np.asarray(posterior, dtype=np.float64)

    def coordinates(log_level):
        low, high = np.full(eta.shape, -745.0), np.zeros(eta.shape)  # ln q
        for _ in range(90):
            middle = (low + high) / 2
            steep = -eta * loss_slope(np.exp(middle), gamma) > np.exp(log_level)[:, None]
            low, high = np.where(steep, middle, low), np.where(steep, high, middle)
        return np.exp((low + high) / 2)

    low, high = np.full(len(eta), -60.0), np.full(len(eta), 60.0)
    for _ in range(90):
        middle = (low + high) / 2
        much = coordinates(middle).sum(1) > 1
        low, high = np.where(much, middle, low), np.where(much, high, middle)
    found = coordinates((low + high) / 2)
    return found / found.sum(1, keepdims=True)


def focal_risk(posterior, q, gamma):
    return (-posterior * (1 - q) ** gamma * np.log(q)).sum(1)
