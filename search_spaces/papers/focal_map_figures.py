"""Figures of the focal map alone, as rows and as a picture: no sweep, no data, no training.

`temperatures` is properness Fig. 2 (two classes) and Fig. 6 (three, and the four of section 3.3), `bounds` is its
Fig. 3, `confidence` is posterior Fig. 2. Figures of losses and weights are in `loss_figures`. Remarks give the papers'
printed numbers.

Some figures are drawn over the probabilities of three classes, a triangle in which (q₁, q₂, q₃) is at x = q₂ + q₃/2,
y = √3/2·q₃; its corners left, right and above are classes 1, 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from search_spaces.papers import loss_figures
from search_spaces.papers.loss_figures import ComputedFigure, Floats
from search_spaces.papers.published_numbers import read_published
from sweeper.core.cells import Row
from sweeper.core.errors import SweeperError
from trainables.metrics.base import softmax64
from trainables.posthoc import confidence_regions as regions
from trainables.posthoc.focal_map import focal_map

#: γ of `temperatures`: properness section 3.3 fits its line over (0, 10).
WHOLE_GAMMAS = tuple(range(11))

#: Bounds of the temperature closest to the map, by γ.
BOUNDS = {"theory": regions.theoretical_bounds, "measured": regions.measured_bounds}
#: Largest γ: beyond it, 1/T leaves the searched range.
MOST_GAMMA = 20.0

#: Points of a `confidence` curve, evenly spaced between 1/K and 1.
CONFIDENCES = 99


def map_figure(name: str, gammas: Sequence[float] = (), classes: int | None = None) -> ComputedFigure:
    """Compute a figure.

    Args:
        name: `temperatures`, `bounds`, `confidence`, or a figure of a loss such as `curvature-1`.
        gammas: γ of the focal map; the paper's range if empty.
        classes: number of classes; the paper's if `None`.

    Raises:
        SweeperError: the figure is unknown, or not defined for this γ or number of classes.
    """
    if name not in FIGURES:
        raise SweeperError(f"no figure {name!r}", f"figures: {', '.join(FIGURES)}")
    usual, known_classes = OF_MAP[name][1:] if name in OF_MAP else (BY_GAMMA[name][1], (2,))
    chosen = tuple(gammas) or usual
    wrong = [f"{gamma:g}" for gamma in chosen if not 0 <= gamma <= MOST_GAMMA]
    if wrong:
        raise SweeperError(f"gamma {', '.join(wrong)} is outside [0, {MOST_GAMMA:g}]", "give other --gamma values")
    if classes is not None and name != "confidence" and classes not in known_classes:
        known = " or ".join(map(str, known_classes))
        raise SweeperError(f"{name} is defined for {known} classes, not {classes}", f"give --classes {known}")
    if classes is not None and not 2 <= classes <= 10_000:
        raise SweeperError(f"{classes} classes are outside [2, 10000]", "give another --classes")
    if name in BY_GAMMA:
        return BY_GAMMA[name][0](sorted(set(chosen)))
    return OF_MAP[name][0](sorted(set(chosen)), known_classes if classes is None else (classes,))


def _temperatures(gammas: Sequence[float], classes: Sequence[int]) -> ComputedFigure:
    rows: list[Row] = []
    remarks, curves = [], {}
    for count in classes:
        logits = regions.simplex_logits(count)
        fits = [regions.closest_temperature(gamma, logits) for gamma in gammas]
        names = ("gamma", "temperature", "inverse_temperature", "max_error")
        rows += [{"classes": count, **{name: getattr(fit, name) for name in names}} for fit in fits]
        curves[f"{count} classes"] = ([fit.gamma for fit in fits], [fit.inverse_temperature for fit in fits])
        if len(fits) > 1:
            slope, intercept = regions.line_through(fits)
            worst = max(fit.max_error for fit in fits)
            printed = _printed("properness-fig2" if count == 2 else "properness-fig6", classes=str(count))
            remarks.append(
                f"{count} classes: 1/T = {slope:.3f} gamma + {intercept:.3f}, largest error {worst:.4f}; published: "
                f"{printed['slope']} gamma + {printed['intercept']}, {printed['max_error']}"
            )
    return ComputedFigure(rows, remarks, curves, ("gamma", "1/T of the closest temperature scaling"))


def _bounds(gammas: Sequence[float], classes: Sequence[int]) -> ComputedFigure:
    rows: list[Row] = []
    curves: dict[str, tuple[list[float], list[float]]] = {}
    remarks = []
    for label, compute in BOUNDS.items():
        bounds = [compute(gamma) for gamma in gammas]
        rows += [{"bounds": label, "gamma": b.gamma, "lower": b.lower, "upper": b.upper} for b in bounds]
        for side in ("lower", "upper"):
            curves[f"{label}, {side}"] = ([b.gamma for b in bounds], [getattr(b, side) for b in bounds])
        printed = _printed("properness-fig3", bounds=label)
        low, high = printed["temperature_lower"], printed["temperature_upper"]
        remarks.append(f"published at gamma 4, {label}: T from {low} to {high}")
    return ComputedFigure(rows, remarks, curves, ("gamma", "bounds of T for the binary map"))


def _confidence(gammas: Sequence[float], classes: Sequence[int]) -> ComputedFigure:
    rows: list[Row] = []
    curves, remarks = {}, []
    for count in classes:
        # The largest of K probabilities is at least 1/K; at the ends the map is the identity.
        top = np.linspace(1 / count, 1, CONFIDENCES + 2)[1:-1]
        for gamma in gammas:
            true = regions.confidence_after(top, gamma, count)
            rows += [
                {"classes": count, "gamma": gamma, "confidence": float(q), "probability": float(p)}
                for q, p in zip(top, true, strict=True)
            ]
            curves[f"{count} classes, gamma {gamma:g}"] = (true.tolist(), top.tolist())
        last = regions.largest_overconfident_gamma(count)
        never = f"{count} classes: focal loss's minimiser is never over-confident"
        remarks.append(never if last is None else f"{never} above gamma {last:.4g}")
    printed = _printed("posterior-fig2", classes="5")["largest_overconfident_gamma"]
    remarks.append(f"published: over-confidence needs at least 5 classes, with gamma up to {printed}")
    return ComputedFigure(
        rows, remarks, curves, ("true probability of the top class", "confidence of the focal minimiser")
    )


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


def proper_parts(gammas: Sequence[float]) -> ComputedFigure:
    """Compute properness Fig. 4."""

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
    # A proper loss has its least risk at the truth; the remarks show each loss's point of least risk.
    for label, (risk, mapped) in losses.items():
        lines, least = isolines(risk, mapped)
        remarks.append(f"{label}: least at q = ({', '.join(f'{p:.3f}' for p in least)}), the truth (.55, .3, .15)")
        for percentile, points in lines.items():
            curves[f"{label}, {percentile} %"] = projected(points)
            drawn = points[~np.isnan(points[:, 0])]
            rows += [{"loss": label, "percentile": percentile, **_numbered("q", point)} for point in drawn]
    return ComputedFigure(rows, remarks, curves, None)


def arrows(gammas: Sequence[float]) -> ComputedFigure:
    """Compute properness Fig. 5: how the focal map and the closest temperature scaling move probabilities."""
    q, remarks = triangle(COARSE), []
    rows: list[Row] = []
    curves, ends = {}, {}
    for gamma in gammas:
        fit = regions.closest_temperature(gamma, regions.simplex_logits(3))
        remarks.append(f"γ {gamma:g}: T = {fit.temperature:.4g}, largest difference {fit.max_error:.4f}")
        for label, after in _both(q, gamma, fit.temperature).items():
            # NaN ends each segment, so that all arrows are one curve of the figure.
            segments = np.stack([q, after, np.full_like(q, np.nan)], 1).reshape(-1, 3)
            curves[label], ends[label] = projected(segments), projected(after)
            pairs = zip(q, after, strict=True)
            rows += [{"map": label, **_numbered("q", a), **_numbered("p", b)} for a, b in pairs]
    return ComputedFigure(rows, remarks, curves, None, ends=ends)


def differences(gammas: Sequence[float]) -> ComputedFigure:
    """Compute properness Fig. 7: the largest difference between both maps' probabilities, over the triangle."""
    q, remarks = triangle(EVEN), []
    rows: list[Row] = []
    shaded = {}
    for gamma in gammas:
        fit = regions.closest_temperature(gamma, regions.simplex_logits(3))
        mapped, scaled = _both(q, gamma, fit.temperature).values()
        apart = np.abs(mapped - scaled).max(1)
        shaded[f"γ {gamma:g}"] = (*projected(q), apart.tolist())
        worst = ", ".join(f"{probability:.2f}" for probability in q[apart.argmax()])
        centre = apart[np.abs(q - 1 / 3).max(1).argmin()]
        remarks.append(
            f"γ {gamma:g}, T = {fit.temperature:.3g}: up to {apart.max():.4f} at ({worst}), {centre:.4f} in the centre"
        )
        pairs = zip(q, apart, strict=True)
        rows += [{"gamma": gamma, **_numbered("q", a), "difference": float(d)} for a, d in pairs]
    return ComputedFigure(rows, remarks, {}, None, shaded=shaded)


def _numbered(name: str, point: Floats) -> dict[str, float]:
    """Return the probabilities of three classes as columns: `q1`, `q2`, `q3`."""
    return {f"{name}{at}": float(value) for at, value in enumerate(point, 1)}


def _both(q: Floats, gamma: float, temperature: float) -> dict[str, Floats]:
    return {
        f"focal map, γ {gamma:g}": np.asarray(focal_map(q, gamma)),
        f"T = {temperature:.3g}": softmax64(np.log(q) / temperature),
    }


#: Figures by γ and number of classes: function, usual γ, and possible numbers of classes.
OF_MAP: dict[
    str, tuple[Callable[[Sequence[float], Sequence[int]], ComputedFigure], Sequence[float], tuple[int, ...]]
] = {
    "temperatures": (_temperatures, WHOLE_GAMMAS, (2, 3, 4)),
    "bounds": (_bounds, (0.5, *WHOLE_GAMMAS[1:]), (2,)),
    "confidence": (_confidence, (0.5, 1, 2, 3, 5), (2, 1000)),
}
#: Figures by γ: function and usual γ.
BY_GAMMA = {
    **loss_figures.FIGURES,
    "properness-4": (proper_parts, (1, 3)),
    "properness-5": (arrows, (0.5, 3)),
    "properness-7": (differences, (0.5, 3)),
}
FIGURES = (*OF_MAP, *BY_GAMMA)
