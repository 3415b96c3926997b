"""Figures that are computed without training: losses, their weights and gradients, and the focal map alone.

Each is a function that returns a `ComputedFigure`; `FIGURES` lists them by paper and number. `temperatures` is
properness Fig. 2 (two classes) and Fig. 6 (three, and the four of section 3.3), `bounds` is its Fig. 3, `confidence` is
posterior Fig. 2. Remarks give the papers' printed numbers.

Some figures are drawn over the probabilities of three classes, a triangle in which (q₁, q₂, q₃) is at x = q₂ + q₃/2,
y = √3/2·q₃; its corners left, right and above are classes 1, 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from search_spaces.papers.published_numbers import read_published
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
from trainables.metrics.base import softmax64
from trainables.posthoc import confidence_regions as regions
from trainables.posthoc.focal_map import focal_map

Floats = NDArray[np.float64]
Points = tuple[Sequence[float] | Floats, Sequence[float] | Floats]

#: Corners of the triangle of three classes' probabilities.
CORNERS = {(0.0, 0.0): "class 1", (1.0, 0.0): "class 2", (0.5, 0.866): "class 3"}

#: Most points of a curve whose points are marked.
FEW_POINTS = 15


@dataclass(frozen=True)
class ComputedFigure:
    """A figure as curves.

    Attributes:
        remarks: sentences with fitted lines and the papers' printed numbers.
        curves: label → (x, y) values; NaN separates the parts of a curve. A label `a, b` has two parts: one is shown by
            colour, the other by dashes.
        axes: names of the axes; None for the triangle of three classes' probabilities.
        ends: label → points that mark where a curve's parts end.
        shaded: label → (x, y, value) of points drawn by colour, one panel each.
        limits: limits of the y axis, which cut the curves; None shows whole curves.
    """

    remarks: Sequence[str]
    curves: Mapping[str, Points]
    axes: tuple[str, str] | None
    ends: Mapping[str, Points] = field(default_factory=dict)
    shaded: Mapping[str, tuple[list[float], list[float], list[float]]] = field(default_factory=dict)
    limits: tuple[float, float] | None = None

    @property
    def rows(self) -> list[Row]:
        """One row per point, all with the same columns."""
        x, y = self.axes or ("x", "y")
        rows: list[Row] = [
            {"curve": label, x: float(a), y: float(b)}
            for label, points in self.curves.items()
            for a, b in zip(*points, strict=True)
            if a == a  # NaN is the only number unequal to itself
        ]
        for label, drawn in self.shaded.items():
            rows += [{"curve": label, x: a, y: b, "value": value} for a, b, value in zip(*drawn, strict=True)]
        return rows

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
        return Figure(name, f"{'; '.join(self.remarks)}.", [], panels, [], legend=colours, dashes=several)

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
        part += int(x != x)
        rows += [] if x != x else [{"x": float(x), "y": float(y), "part": part, "says": f"{label}\n{x:.4g}, {y:.4g}"}]
    return rows


#: Points of a curve over probabilities, evenly spaced inside (0, 1).
POINTS = 199

#: ν of selective App. Fig. 5.
SMOOTHING = (0.01, 0.1, 1.0)

#: γ of `temperatures`: properness section 3.3 fits its line over (0, 10).
WHOLE_GAMMAS = tuple(range(11))

#: Bounds of the temperature closest to the map, by γ.
BOUNDS = {"theory": regions.theoretical_bounds, "measured": regions.measured_bounds}

#: Points of a `confidence` curve, evenly spaced between 1/K and 1.
CONFIDENCES = 99


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


def over_p(
    kinds: Mapping[str, Callable[[Floats, float], Points]],
    gammas: Sequence[float],
    axes: tuple[str, str],
    remark: str,
    limits: tuple[float, float] | None = None,
    first: Mapping[str, Callable[[Floats], Points]] | None = None,
) -> ComputedFigure:
    """Return curves over the probability p by γ.

    Args:
        kinds: beginning of a label, which γ completes → function from p and γ to (x, y).
        gammas: drawn γ.
        axes: names of the axes.
        remark: remark on the figure.
        limits: limits of the y axis.
        first: curves without γ.
    """
    p = probabilities()
    curves = {label: curve(p) for label, curve in (first or {}).items()}
    curves |= {f"{label}γ {gamma:g}": curve(p, gamma) for label, curve in kinds.items() for gamma in gammas}
    return ComputedFigure([remark], curves, axes, limits=limits)


def at_p(values: Callable[[Floats, float], Floats]) -> Callable[[Floats, float], Points]:
    """Return the curve of a function of p and γ, drawn at p."""
    return lambda p, gamma: (p, values(p, gamma))


def _map_and_temperature() -> ComputedFigure:
    s = np.linspace(-6, 6, POINTS)
    curves: dict[str, Points] = {}
    remarks = []
    for gamma in (0.5, 3.0):
        fit = regions.closest_temperature(gamma, regions.simplex_logits(2))
        curves[f"focal map, γ {gamma:g}"] = (s, mapped(1 / (1 + np.exp(-s)), gamma))
        curves[f"T = {fit.temperature:.3g}"] = (s, 1 / (1 + np.exp(-s / fit.temperature)))
        remarks.append(_fitted(fit))
    return ComputedFigure(remarks, curves, ("logit", "probability"))


def _fitted(fit: regions.ClosestTemperature) -> str:
    return f"γ {fit.gamma:g}: T = {fit.temperature:.4g}, largest difference {fit.max_error:.4f}"


def _weights() -> ComputedFigure:
    p = probabilities()
    curves: dict[str, Points] = {"cross-entropy, loss": (p, focal_loss(p, 0.0))}
    for gamma in (1, 2, 3):
        for label, weight in (("focal", (1 - p) ** gamma), ("inverse focal", (1 + p) ** gamma)):
            # Losses of different γ differ in scale; with equal mean weights the curves show only which p each weights.
            share = weight / weight.mean()
            curves[f"{label} γ {gamma:g}, weight"] = (p, share)
            curves[f"{label} γ {gamma:g}, loss"] = (p, -share * np.log(p))
    return ComputedFigure(["weights are normalised to a mean of 1 over p"], curves, ("p", "value"), limits=(0, 6))


def _dual_focal() -> ComputedFigure:
    curves: dict[str, Points] = {}
    p = probabilities()
    for other in (0.5, 0.7, 0.9):
        # Two probabilities of one distribution: their sum is at most 1.
        wrong = p[(p < other) & (p + other <= 1)]
        for gamma in (1, 2, 5):
            curves[f"γ {gamma:g}, p_j {other:g}"] = (wrong, -((1 - wrong + other) ** gamma) * np.log(wrong))
    remark = "misclassified samples, whose largest other class has p_j > p_y"
    return ComputedFigure([remark], curves, ("p_y", "dual focal loss"))


def _smoothed_counts() -> ComputedFigure:
    """Return the share of scores below x, exact and smoothed, for scores distributed as Beta(5, 2)."""
    from scipy.stats import beta

    scores, x = beta.ppf(probabilities(500), 5, 2), np.linspace(0, 1, POINTS)
    curves: dict[str, Points] = {"exact": (x, [(scores <= place).mean() for place in x])}
    for nu in SMOOTHING:
        curves[f"ν {nu:g}"] = (x, [(1 / (1 + np.exp(-(place - scores) / nu))).mean() for place in x])
    return ComputedFigure(["the scores' distribution is ours"], curves, ("score", "share of scores below"))


#: Our Beta distributions of p_y in place of epochs 40, 120 and 200 of selective App. Fig. 3.
STAGES = {"early": (2.0, 2.0), "later": (4.0, 1.0), "late": (12.0, 0.6)}

STAGE_SAMPLES = 2000


def gradients_by_true_class(
    logs: Floats, targets: NDArray[np.int64], gammas: Sequence[float]
) -> tuple[Floats, dict[str, Floats]]:
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


def _gradients_by_stage() -> ComputedFigure:
    """Return each loss's derivative by p_y for drawn samples at three stages; the page shows a trained network's."""
    from scipy.stats import beta

    curves: dict[str, Points] = {}
    for stage, shape in STAGES.items():
        drawn = np.clip(beta.ppf(probabilities(STAGE_SAMPLES), *shape), 1e-3, 1 - 1e-6)
        logs = np.log(np.stack([drawn, 1 - drawn], 1))
        p, gradients = gradients_by_true_class(logs, np.zeros(len(drawn), np.int64), (2,))
        curves |= {f"{label}, {stage}": (p, values) for label, values in gradients.items()}
    remark = "two classes; the samples' p_y are drawn, ours: early, later and late stand for epochs 40, 120 and 200"
    return ComputedFigure([remark], curves, ("p_y", "derivative of the loss"), limits=(-12, 2))


def _temperatures() -> ComputedFigure:
    remarks = []
    curves: dict[str, Points] = {}
    for classes in (2, 3, 4):
        logits = regions.simplex_logits(classes)
        fits = [regions.closest_temperature(gamma, logits) for gamma in WHOLE_GAMMAS]
        curves[f"{classes} classes"] = ([fit.gamma for fit in fits], [fit.inverse_temperature for fit in fits])
        slope, intercept = regions.line_through(fits)
        worst = max(fit.max_error for fit in fits)
        printed = _printed("properness-fig2" if classes == 2 else "properness-fig6", classes=str(classes))
        remarks.append(
            f"{classes} classes: 1/T = {slope:.3f} gamma + {intercept:.3f}, largest error {worst:.4f}; published: "
            f"{printed['slope']} gamma + {printed['intercept']}, {printed['max_error']}"
        )
    return ComputedFigure(remarks, curves, ("gamma", "1/T of the closest temperature scaling"))


def _bounds() -> ComputedFigure:
    remarks = []
    curves: dict[str, Points] = {}
    for label, compute in BOUNDS.items():
        bounds = [compute(gamma) for gamma in (0.5, *WHOLE_GAMMAS[1:])]
        for side in ("lower", "upper"):
            curves[f"{label}, {side}"] = ([b.gamma for b in bounds], [getattr(b, side) for b in bounds])
        printed = _printed("properness-fig3", bounds=label)
        low, high = printed["temperature_lower"], printed["temperature_upper"]
        remarks.append(f"published at gamma 4, {label}: T from {low} to {high}")
    return ComputedFigure(remarks, curves, ("gamma", "bounds of T for the binary map"))


def _confidence() -> ComputedFigure:
    remarks = []
    curves: dict[str, Points] = {}
    for classes in (2, 1000):
        # The largest of K probabilities is at least 1/K; at the ends the map is the identity.
        top = np.linspace(1 / classes, 1, CONFIDENCES + 2)[1:-1]
        for gamma in (0.5, 1, 2, 3, 5):
            curves[f"{classes} classes, gamma {gamma:g}"] = (regions.confidence_after(top, gamma, classes), top)
        last = regions.largest_overconfident_gamma(classes)
        never = f"{classes} classes: focal loss's minimiser is never over-confident"
        remarks.append(never if last is None else f"{never} above gamma {last:.4g}")
    printed = _printed("posterior-fig2", classes="5")["largest_overconfident_gamma"]
    remarks.append(f"published: over-confidence needs at least 5 classes, with gamma up to {printed}")
    axes = ("true probability of the top class", "confidence of the focal minimiser")
    return ComputedFigure(remarks, curves, axes)


def _printed(table: str, **options: str) -> dict[str, str]:
    """Return metric → printed text of the published numbers with these options; the first if there are several."""
    printed: dict[str, str] = {}
    for number in read_published(table):
        if options.items() <= number.options.items():
            printed.setdefault(number.metric, number.printed)
    return printed


#: True class probabilities of the risks in properness Fig. 4.
TRUTH = np.array([0.55, 0.3, 0.15])

#: Percentiles of the risk over the triangle at which Fig. 4 draws isolines.
PERCENTILES = (3, 12, 20)

#: Steps of a side of the triangle, for isolines, arrows and differences; isolines need many, as their level is a
#: percentile.
FINE, COARSE, EVEN = 400, 12, 60


def triangle(steps: int) -> Floats:
    """Return probabilities of three classes evenly inside the triangle, [N, 3]."""
    inside = [(i, j, steps - i - j) for i in range(1, steps) for j in range(1, steps - i)]
    return np.array(inside, dtype=np.float64) / steps


def projected(q: Floats) -> tuple[list[float], list[float]]:
    """Return the coordinates x, y of probabilities [N, 3] in the triangle."""
    return (q[:, 1] + q[:, 2] / 2).tolist(), (np.sqrt(3) / 2 * q[:, 2]).tolist()


def brier_risk(q: Floats) -> Floats:
    """Return the expected Brier score of predictions q [..., 3] if classes have probabilities TRUTH."""
    risk: Floats = (q**2).sum(-1) - 2 * (q * TRUTH).sum(-1) + 1
    return risk


def focal_risk(q: Floats, gamma: float) -> Floats:
    """Return the expected focal loss of predictions q [..., 3] if classes have probabilities TRUTH."""
    risk: Floats = -(TRUTH * (1 - q) ** gamma * np.log(q)).sum(-1)
    return risk


def isolines(risk: Callable[[Floats], Floats], mapped: Callable[[Floats], Floats]) -> tuple[dict[int, Floats], Floats]:
    """Return the isolines of a loss's risk at its PERCENTILES, and the point of least risk.

    Args:
        risk: risk as a function of predictions u [..., 3].
        mapped: function from u to the point q [..., 3] where it is drawn: u itself, or the focal map of u, which turns
            the focal loss's risk into that of its proper part (properness section 3.3: L*(q) = L(p̂⁻¹(q))).

    Returns:
        Percentile → points q [N, 3] of its isolines, with NaN after each line; and the q [3] of the least risk.
    """
    from contourpy import contour_generator

    side = (np.arange(FINE) + 0.5) / FINE
    first, second = np.meshgrid(side, side)
    third = 1 - first - second
    inside = third > 0.25 / FINE  # away from the edge, where ln q₃ diverges
    u = np.stack([first, second, third], -1)[inside]
    values = np.full(inside.shape, np.nan)
    values[inside] = risk(u)
    areas, order = _areas(mapped, u), np.argsort(values[inside])
    shares = np.cumsum(areas[order]) / areas.sum()
    lines = contour_generator(side, side, np.ma.masked_invalid(values))
    by_percentile = {}
    for percentile in PERCENTILES:
        level = values[inside][order][np.searchsorted(shares, percentile / 100)]
        parts = []
        for line in map(np.asarray, lines.lines(float(level))):
            points = np.column_stack([line, 1 - line.sum(1)])
            parts += [mapped(points), np.full((1, 3), np.nan)]
        by_percentile[percentile] = np.concatenate(parts)
    return by_percentile, mapped(u[order[:1]])[0]


def _areas(mapped: Callable[[Floats], Floats], u: Floats) -> Floats:
    """Return the relative area that a map gives to equal areas around u [N, 3]."""
    # Percentiles refer to areas in q, not in u: each u counts with the determinant of the map's Jacobian.
    step = 0.01 / FINE
    centre = mapped(u)
    right, up = (mapped(u + step * np.array(way))[:, :2] - centre[:, :2] for way in ((1, 0, -1), (0, 1, -1)))
    areas: Floats = np.abs(right[:, 0] * up[:, 1] - right[:, 1] * up[:, 0])
    return areas


def proper_parts() -> ComputedFigure:
    """Compute properness Fig. 4."""

    def by_map(gamma: float) -> Callable[[Floats], Floats]:
        return lambda u: np.asarray(focal_map(u.reshape(-1, 3), gamma)).reshape(u.shape)

    losses: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
        "Brier": (brier_risk, lambda u: u),
        "cross-entropy": (partial(focal_risk, gamma=0.0), lambda u: u),
    }
    for gamma in (1, 3):
        losses[f"focal γ {gamma:g}, proper part"] = (partial(focal_risk, gamma=gamma), by_map(gamma))
    curves: dict[str, Points] = {}
    remarks = []
    # A proper loss has its least risk at the truth; the remarks show each loss's point of least risk.
    for label, (risk, mapped) in losses.items():
        lines, least = isolines(risk, mapped)
        remarks.append(f"{label}: least at q = ({', '.join(f'{p:.3f}' for p in least)}), the truth (.55, .3, .15)")
        curves |= {f"{label}, {percentile} %": projected(points) for percentile, points in lines.items()}
    return ComputedFigure(remarks, curves, None)


def arrows() -> ComputedFigure:
    """Compute properness Fig. 5: how the focal map and the closest temperature scaling move probabilities."""
    q, remarks = triangle(COARSE), []
    curves: dict[str, Points] = {}
    ends: dict[str, Points] = {}
    for gamma in (0.5, 3.0):
        fit = regions.closest_temperature(gamma, regions.simplex_logits(3))
        remarks.append(_fitted(fit))
        for label, after in _both(q, fit).items():
            # NaN ends each segment, so that all arrows are one curve of the figure.
            segments = np.stack([q, after, np.full_like(q, np.nan)], 1).reshape(-1, 3)
            curves[label], ends[label] = projected(segments), projected(after)
    return ComputedFigure(remarks, curves, None, ends=ends)


def differences() -> ComputedFigure:
    """Compute properness Fig. 7: the largest difference between both maps' probabilities, over the triangle."""
    q, remarks, shaded = triangle(EVEN), [], {}
    for gamma in (0.5, 3.0):
        fit = regions.closest_temperature(gamma, regions.simplex_logits(3))
        mapped, scaled = _both(q, fit).values()
        apart = np.abs(mapped - scaled).max(1)
        shaded[f"γ {gamma:g}"] = (*projected(q), apart.tolist())
        worst = ", ".join(f"{probability:.2f}" for probability in q[apart.argmax()])
        centre = apart[np.abs(q - 1 / 3).max(1).argmin()]
        remarks.append(
            f"γ {gamma:g}, T = {fit.temperature:.3g}: up to {apart.max():.4f} at ({worst}), {centre:.4f} in the centre"
        )
    return ComputedFigure(remarks, {}, None, shaded=shaded)


def _both(q: Floats, fit: regions.ClosestTemperature) -> dict[str, Floats]:
    return {
        f"focal map, γ {fit.gamma:g}": np.asarray(focal_map(q, fit.gamma)),
        f"T = {fit.temperature:.3g}": softmax64(np.log(q) / fit.temperature),
    }


#: Paper and number (appendix: `a`) on the command line → function; γ are the paper's where it prints them, else ours.
FIGURES: dict[str, Callable[[], ComputedFigure]] = {
    "temperatures": _temperatures,
    "bounds": _bounds,
    "confidence": _confidence,
    "curvature-fig1": partial(
        over_p,
        {"loss, ": at_p(focal_loss), "gradient, ": at_p(lambda p, gamma: np.abs(focal_gradient(p, gamma)))},
        (0, 0.5, 1, 2, 5), ("p", "value"), "published: the caption calls γ = 1 cross-entropy, which is γ = 0", (0, 8),
    ),
    "properness-fig1-left": partial(
        over_p,
        {"focal, ": at_p(focal_loss), "proper part, ": lambda p, gamma: (mapped(p, gamma), focal_loss(p, gamma))},
        (0.5, 3), ("p", "loss"), "the proper part is the focal loss at the map's inverse",
        first={"cross-entropy": lambda p: (p, focal_loss(p, 0.0))},
    ),
    "properness-fig1-right": partial(
        over_p, {"": at_p(mapped)}, (0.5, 1, 3, 10), ("probability before", "probability after"),
        "the focal map of two classes",
    ),
    "properness-fig2-right": _map_and_temperature,
    "properness-fig4": proper_parts,
    "properness-fig5": arrows,
    "properness-fig7": differences,
    "mukhoti-fig4a": partial(
        over_p, {"": at_p(gradient_ratio)}, (0.5, 1, 2, 3, 5), ("p", "g(p, γ)"),
        "above 1, focal loss's gradient is the larger one",
    ),
    "mukhoti-fig6": partial(
        over_p, {"": lambda p, gamma: (mapped(p, gamma), p)}, (0, 1, 2, 3), ("q", "optimal p"),
        "the prediction that minimises the focal risk of two classes",
    ),
    "posterior-fig1": partial(
        over_p, {"": at_p(gradient_ratio)}, (0.5, 1, 2, 3, 5), ("v", "φ(v)"),
        "φ is largest at τ_oc and comes back to 1 at τ_uc (Thm. 8)",
    ),
    "selective-fig1": _weights,
    "selective-figa-1": partial(
        over_p, {"focal ": at_p(focal_gradient), "inverse focal ": at_p(inverse_focal_gradient)},
        (1, 2, 3), ("p", "derivative of the loss"),
        "inverse focal loss's gradient turns positive for γ above 3.5911", (-12, 1),
        first={"cross-entropy": lambda p: (p, focal_gradient(p, 0.0))},
    ),
    "selective-figa-2": _dual_focal,
    "selective-figa-3": _gradients_by_stage,
    "selective-figa-5": _smoothed_counts,
}  # fmt: skip
