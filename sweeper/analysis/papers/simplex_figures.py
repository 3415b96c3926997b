"""Properness' figures over the probabilities of three classes, a triangle: isolines of losses, arrows, differences.

A point (q₁, q₂, q₃) lies at x = q₂ + q₃/2, y = √3/2·q₃: classes 1, 2 and 3 are the corners left, right and above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sweeper.analysis.papers.computed import ComputedFigure, Floats
from sweeper.text.cells import Row

TRUTH = np.array([0.55, 0.3, 0.15])
"""The class probabilities whose risk properness Fig. 4 draws."""

PERCENTILES = (3, 12, 20)
"""Of the losses over the triangle, at which Fig. 4 draws isolines."""

FINE, COARSE, EVEN = 400, 12, 60
"""Steps of a side: of isolines, of arrows and of differences."""


def triangle(steps: int) -> Floats:
    """Return probabilities of three classes evenly inside the triangle, [N, 3]."""
    inside = [(i, j, steps - i - j) for i in range(1, steps) for j in range(1, steps - i)]
    return np.array(inside, dtype=np.float64) / steps


def projected(q: Floats) -> tuple[Floats, Floats]:
    """Return the places x, y of probabilities [..., 3]."""
    return q[..., 1] + q[..., 2] / 2, np.sqrt(3) / 2 * q[..., 2]


def brier_risk(q: Floats) -> Floats:
    """Return the expected Brier score of predicting q [..., 3] where classes come with TRUTH."""
    risk: Floats = (q**2).sum(-1) - 2 * (q * TRUTH).sum(-1) + 1
    return risk


def focal_risk(q: Floats, gamma: float) -> Floats:
    """Return the expected focal loss of predicting q [..., 3] where classes come with TRUTH; γ = 0: cross-entropy."""
    risk: Floats = -(TRUTH * (1 - q) ** gamma * np.log(q)).sum(-1)
    return risk


def isolines(risk: Callable[[Floats], Floats], mapped: Callable[[Floats], Floats]) -> tuple[dict[int, Floats], Floats]:
    """Return the isolines of a loss's risk at its PERCENTILES, and where it is least.

    Args:
        risk: of predictions u [..., 3].
        mapped: what u is drawn at, q [..., 3]: itself, or the focal map, which makes the focal loss's proper part of
            its risk (properness section 3.3: L*(q) = L(p̂⁻¹(q))).

    Returns:
        Percentile → points q [N, 3] of its lines, each line ended by NaN; and the q of the least risk, [3].
    """
    from contourpy import contour_generator

    side = (np.arange(FINE) + 0.5) / FINE
    first, second = np.meshgrid(side, side)
    third = 1 - first - second
    inside = third > 0.25 / FINE
    u = np.stack([first, second, third], -1)[inside]
    values = np.full(inside.shape, np.nan)
    values[inside] = risk(u)
    areas, order = _areas(mapped, u), np.argsort(values[inside])
    shares = np.cumsum(areas[order]) / areas.sum()
    lines = contour_generator(side, side, np.ma.masked_invalid(values))
    found = {}
    for percentile in PERCENTILES:
        level = values[inside][order][np.searchsorted(shares, percentile / 100)]
        parts = []
        for line in map(np.asarray, lines.lines(float(level))):
            points = np.column_stack([line, 1 - line.sum(1)])
            parts += [mapped(points), np.full((1, 3), np.nan)]
        found[percentile] = np.concatenate(parts)
    return found, mapped(u[order[:1]])[0]


def _areas(mapped: Callable[[Floats], Floats], u: Floats) -> Floats:
    """Return what a map makes of equal areas around u [N, 3]: percentiles are of the triangle over q, not over u."""
    step = 0.01 / FINE
    here = mapped(u)
    right, up = (mapped(u + step * np.array(way))[:, :2] - here[:, :2] for way in ((1, 0, -1), (0, 1, -1)))
    areas: Floats = np.abs(right[:, 0] * up[:, 1] - right[:, 1] * up[:, 0])
    return areas


def proper_parts(gammas: Sequence[float]) -> ComputedFigure:
    """Compute properness Fig. 4."""
    from trainables.posthoc.focal_map import focal_map

    def by_map(gamma: float) -> Callable[[Floats], Floats]:
        return lambda u: np.asarray(focal_map(u.reshape(-1, 3), gamma)).reshape(u.shape)

    losses: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
        "Brier": (brier_risk, lambda u: u),
        "cross-entropy": (lambda q: focal_risk(q, 0.0), lambda u: u),
    }
    for gamma in gammas:
        losses[f"focal γ {gamma:g}, proper part"] = (lambda u, g=gamma: focal_risk(u, g), by_map(gamma))  # type: ignore[misc]
    rows: list[Row] = []
    curves, remarks = {}, []
    for label, (risk, mapped) in losses.items():
        lines, least = isolines(risk, mapped)
        remarks.append(
            f"{label}: least at q = ({', '.join(f'{each:.3f}' for each in least)}), the truth (.55, .3, .15)"
        )
        for percentile, points in lines.items():
            x, y = projected(points)
            curves[f"{label}, {percentile} %"] = (x.tolist(), y.tolist())
            rows += [
                {
                    "loss": label,
                    "percentile": percentile,
                    **dict(zip(("q1", "q2", "q3"), map(float, point), strict=True)),
                }
                for point in points[~np.isnan(points[:, 0])]
            ]
    return ComputedFigure(rows, remarks, curves, None)


def arrows(gammas: Sequence[float]) -> ComputedFigure:
    """Compute properness Fig. 5: where the focal map, and the closest temperature scaling, move probabilities."""
    from trainables.posthoc.confidence_regions import closest_temperature, simplex_logits

    q, remarks = triangle(COARSE), []
    rows: list[Row] = []
    curves: dict[str, tuple[list[float], list[float]]] = {}
    ends: dict[str, tuple[list[float], list[float]]] = {}
    for gamma in gammas:
        fit = closest_temperature(gamma, simplex_logits(3))
        remarks.append(f"γ {gamma:g}: T = {fit.temperature:.4g}, largest difference {fit.max_error:.4f}")
        for label, after in _both(q, gamma, fit.temperature).items():
            segments = np.stack([q, after, np.full_like(q, np.nan)], 1).reshape(-1, 3)
            x, y = projected(segments)
            curves[label] = (x.tolist(), y.tolist())
            x, y = projected(after)
            ends[label] = (x.tolist(), y.tolist())
            rows += [
                {"map": label, **{f"{when}{k + 1}": float(p[k]) for when, p in (("q", a), ("p", b)) for k in range(3)}}
                for a, b in zip(q, after, strict=True)
            ]
    return ComputedFigure(rows, remarks, curves, None, ends=ends)


def differences(gammas: Sequence[float]) -> ComputedFigure:
    """Compute properness Fig. 7: the largest difference between both maps' probabilities, over the triangle."""
    from trainables.posthoc.confidence_regions import closest_temperature, simplex_logits

    q, remarks = triangle(EVEN), []
    rows: list[Row] = []
    shaded = {}
    for gamma in gammas:
        fit = closest_temperature(gamma, simplex_logits(3))
        mapped, scaled = _both(q, gamma, fit.temperature).values()
        apart = np.abs(mapped - scaled).max(1)
        x, y = projected(q)
        shaded[f"γ {gamma:g}"] = (x.tolist(), y.tolist(), apart.tolist())
        worst = ", ".join(f"{each:.2f}" for each in q[apart.argmax()])
        centre = apart[np.abs(q - 1 / 3).max(1).argmin()]
        remarks.append(
            f"γ {gamma:g}, T = {fit.temperature:.3g}: up to {apart.max():.4f} at ({worst}), {centre:.4f} in the centre"
        )
        rows += [
            {"gamma": gamma, "q1": float(a[0]), "q2": float(a[1]), "q3": float(a[2]), "difference": float(d)}
            for a, d in zip(q, apart, strict=True)
        ]
    return ComputedFigure(rows, remarks, {}, None, shaded=shaded)


def _both(q: Floats, gamma: float, temperature: float) -> dict[str, Floats]:
    from trainables.metrics.base import softmax64
    from trainables.posthoc.focal_map import focal_map

    return {
        f"focal map, γ {gamma:g}": np.asarray(focal_map(q, gamma)),
        f"T = {temperature:.3g}": softmax64(np.log(q) / temperature),
    }
