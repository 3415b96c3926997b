"""The papers' figures of losses, their weights and gradients, and of the focal map: formulas, no data, no training.

Each is a function of γ values that gives rows and curves; `FIGURES` has them by paper and number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sweeper.analysis.papers.computed import ComputedFigure, Floats
from sweeper.analysis.papers.simplex_figures import arrows, differences, proper_parts
from sweeper.text.cells import Row

POINTS = 199
"""Points of a curve over probabilities, evenly inside (0, 1)."""

GAMMAS: dict[str, tuple[float, ...]] = {
    "curvature-1": (0, 0.5, 1, 2, 5),
    "properness-1-left": (0.5, 3),
    "properness-1-right": (0.5, 1, 3, 10),
    "properness-2-right": (0.5, 3),
    "properness-4": (1, 3),
    "properness-5": (0.5, 3),
    "properness-7": (0.5, 3),
    "mukhoti-4a": (0.5, 1, 2, 3, 5),
    "mukhoti-6": (0, 1, 2, 3),
    "posterior-1": (0.5, 1, 2, 3, 5),
    "selective-1": (1, 2, 3),
    "selective-a-1": (1, 2, 3),
    "selective-a-2": (1, 2, 5),
    "selective-a-3": (2,),
}
"""The values drawn, where the papers print them; our choice elsewhere."""

SMOOTHING = (0.01, 0.1, 1.0)
"""ν of selective App. Fig. 5."""


def probabilities(points: int = POINTS) -> Floats:
    """Return probabilities evenly inside (0, 1)."""
    return np.linspace(0, 1, points + 2)[1:-1]


def focal_loss(p: Floats, gamma: float) -> Floats:
    """Return −(1−p)^γ ln p of the true class's probability p; cross-entropy at γ = 0."""
    return -((1 - p) ** gamma) * np.log(p)


def focal_gradient(p: Floats, gamma: float) -> Floats:
    """Return the focal loss's derivative by p, −(1−p)^γ/p + γ(1−p)^(γ−1) ln p (curvature Eq. 30, misprinted)."""
    return -((1 - p) ** gamma) / p + gamma * (1 - p) ** (gamma - 1) * np.log(p)


def inverse_focal_gradient(p: Floats, gamma: float) -> Floats:
    """Return the derivative of −(1+p)^γ ln p by p."""
    return -((1 + p) ** gamma) / p - gamma * (1 + p) ** (gamma - 1) * np.log(p)


def gradient_ratio(p: Floats, gamma: float) -> Floats:
    """Return g(p, γ), the factor between the focal loss's and cross-entropy's gradients (mukhoti Prop. 1)."""
    return (1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * np.log(p)


def mapped(q: Floats, gamma: float) -> Floats:
    """Return the first class's probability after the binary focal map of (q, 1 − q)."""
    from trainables.posthoc.focal_map import focal_map

    return np.asarray(focal_map(np.column_stack([q, 1 - q]), gamma)[:, 0])


Line = tuple[Floats, Floats]


def _figure(
    lines: dict[str, Line], remarks: Sequence[str], axes: tuple[str, str], limits: tuple[float, float] | None = None
) -> ComputedFigure:
    rows: list[Row] = [
        {"curve": label, axes[0]: float(a), axes[1]: float(b)}
        for label, (x, y) in lines.items()
        for a, b in zip(x, y, strict=True)
    ]
    curves = {label: (x.tolist(), y.tolist()) for label, (x, y) in lines.items()}
    return ComputedFigure(rows, list(remarks), curves, axes, limits=limits)


def _loss_and_gradient(gammas: Sequence[float]) -> ComputedFigure:
    p = probabilities()
    lines: dict[str, Line] = {f"loss, γ {gamma:g}": (p, focal_loss(p, gamma)) for gamma in gammas}
    lines |= {f"gradient, γ {gamma:g}": (p, np.abs(focal_gradient(p, gamma))) for gamma in gammas}
    return _figure(lines, ["published: the caption calls γ = 1 cross-entropy, which is γ = 0"], ("p", "value"), (0, 8))


def _proper_part(gammas: Sequence[float]) -> ComputedFigure:
    p = probabilities()
    lines: dict[str, Line] = {"cross-entropy": (p, focal_loss(p, 0.0))}
    for gamma in gammas:
        lines[f"focal, γ {gamma:g}"] = (p, focal_loss(p, gamma))
        lines[f"proper part, γ {gamma:g}"] = (mapped(p, gamma), focal_loss(p, gamma))
    return _figure(lines, ["the proper part is the focal loss at the map's inverse"], ("p", "loss"))


def _binary_map(gammas: Sequence[float]) -> ComputedFigure:
    p = probabilities()
    lines = {f"γ {gamma:g}": (p, mapped(p, gamma)) for gamma in gammas}
    return _figure(lines, ["the focal map of two classes"], ("probability before", "probability after"))


def _map_and_temperature(gammas: Sequence[float]) -> ComputedFigure:
    from trainables.posthoc.confidence_regions import closest_temperature, simplex_logits

    s = np.linspace(-6, 6, POINTS)
    logits, lines, remarks = simplex_logits(2), {}, []
    for gamma in gammas:
        fit = closest_temperature(gamma, logits)
        lines[f"focal map, γ {gamma:g}"] = (s, mapped(1 / (1 + np.exp(-s)), gamma))
        lines[f"T = {fit.temperature:.3g}"] = (s, 1 / (1 + np.exp(-s / fit.temperature)))
        remarks.append(f"γ {gamma:g}: T = {fit.temperature:.4g}, largest difference {fit.max_error:.4f}")
    return _figure(lines, remarks, ("logit", "probability"))


def _ratio(gammas: Sequence[float]) -> ComputedFigure:
    p = probabilities()
    lines = {f"γ {gamma:g}": (p, gradient_ratio(p, gamma)) for gamma in gammas}
    return _figure(lines, ["above 1, focal loss's gradient is the larger one"], ("p", "g(p, γ)"))


def _minimiser(gammas: Sequence[float]) -> ComputedFigure:
    p = probabilities()
    lines = {f"γ {gamma:g}": (mapped(p, gamma), p) for gamma in gammas}
    return _figure(lines, ["the prediction that minimises the focal risk of two classes"], ("q", "optimal p"))


def _phi(gammas: Sequence[float]) -> ComputedFigure:
    v = probabilities()
    lines = {f"γ {gamma:g}": (v, gradient_ratio(v, gamma)) for gamma in gammas}
    return _figure(lines, ["φ is largest at τ_oc and comes back to 1 at τ_uc (Thm. 8)"], ("v", "φ(v)"))


def _weights(gammas: Sequence[float]) -> ComputedFigure:
    p = probabilities()
    lines: dict[str, Line] = {"cross-entropy, loss": (p, focal_loss(p, 0.0))}
    for gamma in gammas:
        for label, weight in (("focal", (1 - p) ** gamma), ("inverse focal", (1 + p) ** gamma)):
            share = weight / weight.mean()
            lines[f"{label} γ {gamma:g}, weight"] = (p, share)
            lines[f"{label} γ {gamma:g}, loss"] = (p, -share * np.log(p))
    return _figure(lines, ["weights are normalised to a mean of 1 over p"], ("p", "value"), (0, 6))


def _gradients(gammas: Sequence[float]) -> ComputedFigure:
    p = probabilities()
    lines: dict[str, Line] = {"cross-entropy": (p, focal_gradient(p, 0.0))}
    lines |= {f"focal γ {gamma:g}": (p, focal_gradient(p, gamma)) for gamma in gammas}
    lines |= {f"inverse focal γ {gamma:g}": (p, inverse_focal_gradient(p, gamma)) for gamma in gammas}
    remark = "inverse focal loss's gradient turns positive for γ above 3.5911"
    return _figure(lines, [remark], ("p", "derivative of the loss"), (-12, 1))


def _dual_focal(gammas: Sequence[float]) -> ComputedFigure:
    lines: dict[str, Line] = {}
    p = probabilities()
    for other in (0.5, 0.7, 0.9):
        wrong = p[(p < other) & (p + other <= 1)]
        for gamma in gammas:
            weight = (1 - wrong + other) ** gamma
            lines[f"γ {gamma:g}, p_j {other:g}"] = (wrong, -weight * np.log(wrong))
    return _figure(
        lines, ["misclassified samples, whose largest other class has p_j > p_y"], ("p_y", "dual focal loss")
    )


def _smoothed_counts(_: Sequence[float]) -> ComputedFigure:
    """Return the share of scores below x and its smooth stand-ins, of scores spread like Beta(5, 2)."""
    from scipy.stats import beta

    scores, x = beta.ppf(probabilities(500), 5, 2), np.linspace(0, 1, POINTS)
    lines: dict[str, Line] = {"exact": (x, np.array([(scores <= each).mean() for each in x]))}
    for nu in SMOOTHING:
        smooth = np.array([(1 / (1 + np.exp(-(each - scores) / nu))).mean() for each in x])
        lines[f"ν {nu:g}"] = (x, smooth)
    return _figure(lines, ["the scores' distribution is ours"], ("score", "share of scores below"))


STAGES = {"early": (2.0, 2.0), "later": (4.0, 1.0), "late": (12.0, 0.6)}
"""Beta distributions of p_y that stand for epochs 40, 120 and 200 of selective App. Fig. 3; ours."""

STAGE_SAMPLES = 2000


def _gradients_by_stage(gammas: Sequence[float]) -> ComputedFigure:
    """Return each loss's derivative by p_y over samples of a training set at three stages, from the losses trained."""
    import torch
    from scipy.stats import beta

    from trainables.losses import build_loss

    losses: dict[str, tuple[str, dict[str, float]]] = {"cross-entropy": ("cross_entropy", {})}
    for gamma in gammas:
        losses[f"focal γ {gamma:g}"] = ("focal", {"gamma": gamma})
        losses[f"inverse focal γ {gamma:g}"] = ("inverse_focal", {"gamma": gamma})
    losses["AU, κ .9, ν .1"] = ("selective_risk", {"coverage": 0.9, "nu": 0.1})
    lines: dict[str, Line] = {}
    for stage, shape in STAGES.items():
        p = np.clip(beta.ppf(probabilities(STAGE_SAMPLES), *shape), 1e-3, 1 - 1e-6)
        for label, (name, options) in losses.items():
            of_true = torch.tensor(p, requires_grad=True)
            logits = torch.stack([of_true.log(), torch.log1p(-of_true)], 1)
            value = build_loss(name, **options)(logits, torch.zeros(len(p), dtype=torch.int64))
            (gradient,) = torch.autograd.grad(len(p) * value, of_true)
            lines[f"{label}, {stage}"] = (p, gradient.numpy())
    remark = "two classes; the samples' p_y are drawn, ours: early, later and late stand for epochs 40, 120 and 200"
    return _figure(lines, [remark], ("p_y", "derivative of the loss"), (-12, 2))


FIGURES: dict[str, Callable[[Sequence[float]], ComputedFigure]] = {
    "curvature-1": _loss_and_gradient,
    "properness-1-left": _proper_part,
    "properness-1-right": _binary_map,
    "properness-2-right": _map_and_temperature,
    "properness-4": proper_parts,
    "properness-5": arrows,
    "properness-7": differences,
    "mukhoti-4a": _ratio,
    "mukhoti-6": _minimiser,
    "posterior-1": _phi,
    "selective-1": _weights,
    "selective-a-1": _gradients,
    "selective-a-2": _dual_focal,
    "selective-a-3": _gradients_by_stage,
    "selective-a-5": _smoothed_counts,
}
"""By paper and number; an appendix's has `a` before it."""
