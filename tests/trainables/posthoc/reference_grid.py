"""Focal temperature scaling's grid as a double loop over γ and T: every probability mapped for every cell."""

import numpy as np


def map_cell(logits, gamma, temperature):
    """Ψ^γ(softmax(z/T)) from the formula ln φ = (γ−1) ln t + ln(t − γ(1−t) ln(1−t)), t = 1 − p."""
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    log_p = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = 1.0 - np.exp(log_p)
        log_phi = (gamma - 1.0) * np.log(t) + np.log(t - gamma * (1.0 - t) * np.log1p(-t))
        log_phi = np.where(t < 1.0, log_phi, 0.0)
        h = np.exp(log_p - log_phi)
        mapped = h / h.sum(axis=1, keepdims=True)
    one_hot = (t <= 0.0).any(axis=1)
    mapped[one_hot] = np.exp(log_p[one_hot])
    return mapped


def score_cell(probabilities, targets, bins=15):
    """Equal-mass ECE and NLL."""
    samples = len(targets)
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == targets
    correct = np.array([correct[confidence == c].mean() for c in confidence])
    order = np.argsort(confidence)
    ece = sum(abs((confidence[g] - correct[g]).sum()) for g in np.array_split(order, bins)) / samples
    with np.errstate(divide="ignore"):
        return ece, -np.log(probabilities[np.arange(samples), targets]).mean()


def double_loop(logits, targets, gammas, temperatures, bins=15):
    """Return equal-mass ECE and NLL, both [G, T]."""
    cells = [[score_cell(map_cell(logits, g, t), targets, bins) for t in temperatures] for g in gammas]
    values = np.array(cells)
    return values[..., 0], values[..., 1]
