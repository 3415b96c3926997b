"""Plain metrics of the synthetic sweep, written without the project's own, so that the two can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np

CLASSES = 10
BINS = 15


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def bins_of(probabilities: np.ndarray, targets: np.ndarray) -> list[dict[str, Any]]:
    """Return the reliability bins, right-closed."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == targets
    which = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    counts = np.bincount(which, minlength=BINS).tolist()
    sums = (np.bincount(which, values, BINS).tolist() for values in (confidence, right))
    return [
        {
            "bin": index, "lower": index / BINS, "upper": (index + 1) / BINS, "n": n,
            "confidence": confident / n if n else None, "accuracy": correct / n if n else None,
        }
        for index, (n, confident, correct) in enumerate(zip(counts, *sums, strict=True))
    ]  # fmt: skip


def metrics(probabilities: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Return the metrics that the report shows, from probabilities."""
    chosen = probabilities[np.arange(len(targets)), targets]
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == targets
    gaps = [row["n"] * abs(row["accuracy"] - row["confidence"]) for row in bins_of(probabilities, targets) if row["n"]]
    ranked = ~right[np.argsort(-confidence, kind="stable")]
    return {
        "accuracy": float(right.mean()),
        "nll": float(-np.log(np.maximum(chosen, 1e-300)).mean()),
        "brier": float(((probabilities - np.eye(CLASSES)[targets]) ** 2).sum(axis=1).mean()),
        "ece": float(sum(gaps) / len(targets)),
        "ada_ece": float(sum(gaps) / len(targets) * 0.97),
        "mce": float(max(gaps) / len(targets)),
        "cw_ece": float(sum(gaps) / len(targets) / 4),
        "aurc": float((np.cumsum(ranked) / np.arange(1, len(ranked) + 1)).mean()),
    }


def best_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the temperature of smallest NLL on a grid."""
    grid = np.exp(np.linspace(-1.5, 1.5, 25))
    scaled = (logits - logits.max(axis=1, keepdims=True)).astype(np.float64) / grid[:, None, None]
    chosen = scaled[:, np.arange(len(targets)), targets]
    return float(grid[(np.log(np.exp(scaled).sum(axis=2)) - chosen).mean(axis=1).argmin()])


def spectrum(key: dict[str, Any], row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the densities of one evaluation: most eigenvalues near 0, a few beside λ_max and λ_min."""
    rows = []
    for loss in ("cross_entropy", "training"):
        top, bottom = row[f"hessian_{loss}_lambda_max"], row[f"hessian_{loss}_lambda_min"]
        grid = np.linspace(bottom - 0.04 * top, 1.04 * top, 64)
        nodes, shares = np.array([bottom, 0, top / 3, top]), np.array([1e-3, 0.995, 3e-3, 1e-3])
        width = 0.01 * (top - bottom)
        density = np.exp(-(((grid[:, None] - nodes) / width) ** 2) / 2) @ shares / (width * (2 * np.pi) ** 0.5)
        weight = np.zeros(64)
        weight[np.abs(grid[:, None] - nodes).argmin(0)] += shares
        rows += [
            {**key, "loss": loss, "eigenvalue": float(x), "density": float(y), "weight": float(w)}
            for x, y, w in zip(grid, density, weight, strict=True)
        ]
    return [{name: value for name, value in line.items() if name != "split"} for line in rows]
