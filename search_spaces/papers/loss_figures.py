"""Figures that are computed without training: the papers' figures of losses, their weights and gradients.

Each is a function from γ values to a `ComputedFigure`; `FIGURES` lists them by paper and number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sweeper.core.cells import Row
from sweeper.reporting.figures.base import (
    Channel,
    Figure,
    Json,
    Panel,
    colour,
    dash,
    mark,
    paint,
    points,
    quantity,
    shade,
    unseen,
)
from trainables.losses import build_loss
from trainables.posthoc import confidence_regions as regions
from trainables.posthoc.focal_map import focal_map

Floats = NDArray[np.float64]
Points = tuple[Sequence[float], Sequence[float]]

#: Corners of the triangle of three classes' probabilities.
CORNERS = {(0.0, 0.0): "class 1", (1.0, 0.0): "class 2", (0.5, 0.866): "class 3"}

#: Most points of a curve whose points are marked.
FEW_POINTS = 15


@dataclass(frozen=True)
class ComputedFigure:
    """A figure as rows and curves.

    Attributes:
        rows: one row per point, all with the same columns.
        remarks: sentences with fitted lines and the papers' printed numbers.
        curves: label → (x, y) values; NaN separates the parts of a curve. A label `a, b` has two parts: one is shown by
            colour, the other by dashes.
        axes: names of the axes; None for the triangle of three classes' probabilities.
        ends: label → points that mark where a curve's parts end.
        shaded: label → (x, y, value) of points drawn by colour, one panel each.
        limits: limits of the y axis, which cut the curves; None shows whole curves.
    """

    rows: list[Row]
    remarks: list[str]
    curves: Mapping[str, Points]
    axes: tuple[str, str] | None
    ends: Mapping[str, Points] = field(default_factory=dict)
    shaded: Mapping[str, tuple[list[float], list[float], list[float]]] = field(default_factory=dict)
    limits: tuple[float, float] | None = None

    def figure(self, name: str) -> Figure:
        """Return the figure in the report's grammar, under a name."""
        kinds = {label: label.rpartition(", ")[::2] for label in self.curves}
        values = [list(dict.fromkeys(pair[side] for pair in kinds.values())) for side in (0, 1)]
        # Colours are easier to tell apart than dashes, so they show the part of the label with more values.
        coloured = int(len(values[1]) > len(values[0]))
        colours, dashes = values[coloured], values[1 - coloured]
        by: dict[str, Channel] = {"color": colour("by", colours), "detail": {"field": "part", "type": "quantitative"}}
        rows = {
            side: [{**row, "by": kinds[label][coloured], "dashed": kinds[label][1 - coloured]}
                   for label, points in held.items() for row in placed(label, points)]
            for side, held in (("curves", self.curves), ("ends", self.ends))
        }  # fmt: skip
        if len(dashes) > 1:
            by["strokeDash"] = dash("dashed", dashes)
        few = all(len(x) <= FEW_POINTS for x, _ in self.curves.values())
        look: Json = {"clip": True, "point": {"size": 20} if few else "transparent"}
        layers = [
            mark("line", rows["curves"], look=look, **by),
            points(rows["ends"], size=20, color=colour("by", colours)),
        ]
        panels = [self._panel("", layers)] if self.curves else []
        for label, (x, y, shades) in self.shaded.items():
            hexagons = [{**row, "value": value} for row, value in zip(placed(label, (x, y)), shades, strict=True)]
            scale = shade("value", min(shades), max(shades))
            panels.append(self._panel(label, [points(hexagons, size=30, color=scale)]))
        several = dashes if len(dashes) > 1 else []
        return Figure(name, name, f"{'; '.join(self.remarks)}.", [], panels, [], legend=colours, dashes=several)

    def _panel(self, heading: str, layers: list[Json]) -> Panel:
        if self.axes is not None:
            return Panel(heading, layers, quantity("x", self.axes[0]), quantity("y", self.axes[1], limits=self.limits))
        corners = [{"x": x, "y": y, "words": words} for (x, y), words in CORNERS.items()]
        outline = mark("line", [*corners, corners[0]], look={"strokeWidth": 1}, color=paint("axis"))
        words = mark("text", corners, look={"dy": {"expr": "datum.y ? -10 : 12"}}, text={"field": "words"})
        return Panel(heading, [*layers, outline, words], unseen("x", (-0.1, 1.1)), unseen("y", (-0.1, 1)))


def placed(label: str, points: Points) -> list[Json]:
    """Return points as rows with their tooltip; `part` numbers the parts of a curve that NaN separates."""
    rows: list[Json] = []
    part = 0
    for x, y in zip(*points, strict=True):
        part += x != x  # NaN is the only number unequal to itself
        rows += [] if x != x else [{"x": x, "y": y, "part": part, "says": f"{label}\n{x:.4g}, {y:.4g}"}]
    return rows


#: Points of a curve over probabilities, evenly spaced inside (0, 1).
POINTS = 199

#: ν of selective App. Fig. 5.
SMOOTHING = (0.01, 0.1, 1.0)


def probabilities(points: int = POINTS) -> Floats:
    """Return evenly spaced probabilities inside (0, 1), without its ends, where ln p or 1/p diverges."""
    return np.linspace(0, 1, points + 2)[1:-1]


def focal_loss(p: Floats, gamma: float) -> Floats:
    """Return −(1−p)^γ ln p for the true class's probability p; cross-entropy at γ = 0.

    >>> focal_loss(np.array([0.5]), 2.0).round(4).tolist()
    [0.1733]
    """
    return -((1 - p) ** gamma) * np.log(p)


def focal_gradient(p: Floats, gamma: float) -> Floats:
    """Return the focal loss's derivative by p, −(1−p)^γ/p + γ(1−p)^(γ−1) ln p (curvature Eq. 30, misprinted there)."""
    return -((1 - p) ** gamma) / p + gamma * (1 - p) ** (gamma - 1) * np.log(p)


def inverse_focal_gradient(p: Floats, gamma: float) -> Floats:
    """Return the derivative of −(1+p)^γ ln p by p."""
    return -((1 + p) ** gamma) / p - gamma * (1 + p) ** (gamma - 1) * np.log(p)


def gradient_ratio(p: Floats, gamma: float) -> Floats:
    """Return g(p, γ), the factor between the focal loss's and cross-entropy's gradients (mukhoti Prop. 1)."""
    return (1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * np.log(p)


def mapped(q: Floats, gamma: float) -> Floats:
    """Return the first class's probability after the binary focal map of (q, 1 − q)."""
    return np.asarray(focal_map(np.column_stack([q, 1 - q]), gamma)[:, 0])


Line = tuple[Floats, Floats]
Lines = dict[str, Floats]


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
    s = np.linspace(-6, 6, POINTS)
    logits, lines, remarks = regions.simplex_logits(2), {}, []
    for gamma in gammas:
        fit = regions.closest_temperature(gamma, logits)
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
            # Losses of different γ differ in scale; with equal mean weights the curves show only which p each weights.
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
        # Two probabilities of one distribution: their sum is at most 1.
        wrong = p[(p < other) & (p + other <= 1)]
        for gamma in gammas:
            weight = (1 - wrong + other) ** gamma
            lines[f"γ {gamma:g}, p_j {other:g}"] = (wrong, -weight * np.log(wrong))
    return _figure(
        lines, ["misclassified samples, whose largest other class has p_j > p_y"], ("p_y", "dual focal loss")
    )


def _smoothed_counts(_: Sequence[float]) -> ComputedFigure:
    """Return the share of scores below x, exact and smoothed, for scores distributed as Beta(5, 2)."""
    from scipy.stats import beta

    scores, x = beta.ppf(probabilities(500), 5, 2), np.linspace(0, 1, POINTS)
    lines: dict[str, Line] = {"exact": (x, np.array([(scores <= place).mean() for place in x]))}
    for nu in SMOOTHING:
        smooth = np.array([(1 / (1 + np.exp(-(place - scores) / nu))).mean() for place in x])
        lines[f"ν {nu:g}"] = (x, smooth)
    return _figure(lines, ["the scores' distribution is ours"], ("score", "share of scores below"))


#: Our Beta distributions of p_y in place of epochs 40, 120 and 200 of selective App. Fig. 3.
STAGES = {"early": (2.0, 2.0), "later": (4.0, 1.0), "late": (12.0, 0.6)}

STAGE_SAMPLES = 2000


def gradients_by_true_class(logs: Floats, targets: NDArray[np.int64], gammas: Sequence[float]) -> tuple[Floats, Lines]:
    """Return p_y [N] and the derivative of each trained loss by p_y [N].

    The other classes keep their shares of 1 − p_y. p_y is clipped to [.001, 1 − 1e-6], where derivatives are finite.

    Args:
        logs: log probabilities [N, K].
        targets: true classes [N].
        gammas: γ of focal and inverse focal loss.
    """
    import torch

    losses: dict[str, tuple[str, dict[str, float]]] = {"cross-entropy": ("cross_entropy", {})}
    for gamma in gammas:
        losses[f"focal γ {gamma:g}"] = ("focal", {"gamma": gamma})
        losses[f"inverse focal γ {gamma:g}"] = ("inverse_focal", {"gamma": gamma})
    losses["AU, κ .9, ν .1"] = ("selective_risk", {"coverage": 0.9, "nu": 0.1})
    known, classes = torch.tensor(logs, dtype=torch.float64), torch.tensor(targets)
    truth = torch.nn.functional.one_hot(classes, known.shape[1]).bool()
    p = known[truth].exp().clip(1e-3, 1 - 1e-6)
    shares = known.masked_fill(truth, -torch.inf)
    # Normalised in logarithms: shares of a confident network underflow otherwise.
    shares = shares - shares.logsumexp(1, keepdim=True)
    gradients = {}
    for label, (name, options) in losses.items():
        of_true = p.clone().requires_grad_()
        logits = torch.where(truth, of_true.log()[:, None], torch.log1p(-of_true)[:, None] + shares.nan_to_num())
        value = build_loss(name, **options)(logits, classes)
        # Losses are means over the batch: times N, each sample has its own derivative.
        (gradient,) = torch.autograd.grad(len(p) * value, of_true)
        gradients[label] = gradient.numpy()
    return p.numpy(), gradients


def _gradients_by_stage(gammas: Sequence[float]) -> ComputedFigure:
    """Return each loss's derivative by p_y for drawn samples at three stages; the page shows a trained network's."""
    from scipy.stats import beta

    lines: dict[str, Line] = {}
    for stage, shape in STAGES.items():
        drawn = np.clip(beta.ppf(probabilities(STAGE_SAMPLES), *shape), 1e-3, 1 - 1e-6)
        logs = np.log(np.stack([drawn, 1 - drawn], 1))
        p, gradients = gradients_by_true_class(logs, np.zeros(len(drawn), np.int64), gammas)
        lines |= {f"{label}, {stage}": (p, values) for label, values in gradients.items()}
    remark = "two classes; the samples' p_y are drawn, ours: early, later and late stand for epochs 40, 120 and 200"
    return _figure(lines, [remark], ("p_y", "derivative of the loss"), (-12, 2))


#: Paper and number (appendix: `a`) → function and drawn γ: the paper's γ where it prints them, else ours.
FIGURES: dict[str, tuple[Callable[[Sequence[float]], ComputedFigure], tuple[float, ...]]] = {
    "curvature-1": (_loss_and_gradient, (0, 0.5, 1, 2, 5)),
    "properness-1-left": (_proper_part, (0.5, 3)),
    "properness-1-right": (_binary_map, (0.5, 1, 3, 10)),
    "properness-2-right": (_map_and_temperature, (0.5, 3)),
    "mukhoti-4a": (_ratio, (0.5, 1, 2, 3, 5)),
    "mukhoti-6": (_minimiser, (0, 1, 2, 3)),
    "posterior-1": (_phi, (0.5, 1, 2, 3, 5)),
    "selective-1": (_weights, (1, 2, 3)),
    "selective-a-1": (_gradients, (1, 2, 3)),
    "selective-a-2": (_dual_focal, (1, 2, 5)),
    "selective-a-3": (_gradients_by_stage, (2,)),
    "selective-a-5": (_smoothed_counts, ()),
}
