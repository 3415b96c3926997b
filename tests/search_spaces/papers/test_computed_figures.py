"""The papers' figures of losses against the losses that are trained, the focal map's formulas and plain searches."""

import csv
import functools
import io
from pathlib import Path

import numpy as np
import pytest
import torch

from search_spaces.papers import computed_figures as figures
from search_spaces.papers.computed_figures import FIGURES, ComputedFigure
from sweeper.reporting.html import write_figure
from tests.running import typed
from trainables.losses import build_loss
from trainables.posthoc.confidence_regions import region_thresholds
from trainables.posthoc.focal_map import focal_map

P = np.array([0.05, 0.3, 0.6, 0.95])


def trained(name: str, **options: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a loss of two classes and its derivative by p of the true one, from the loss that is trained."""
    p = torch.tensor(P, requires_grad=True)
    value = len(P) * build_loss(name, **options)(torch.stack([p.log(), (1 - p).log()], 1), torch.zeros(len(P)).long())
    (gradient,) = torch.autograd.grad(value, p)
    each = [
        float(build_loss(name, **options)(torch.tensor([[np.log(q), np.log(1 - q)]]), torch.tensor([0]))) for q in P
    ]
    return np.array(each), gradient.numpy()


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
def test_losses_and_gradients_are_those_that_are_trained(gamma: float) -> None:
    value, gradient = trained("focal", gamma=gamma)
    np.testing.assert_allclose(figures.focal_loss(P, gamma), value, rtol=1e-6)
    np.testing.assert_allclose(figures.focal_gradient(P, gamma), gradient, rtol=1e-6)
    _, inverse = trained("inverse_focal", gamma=gamma)
    np.testing.assert_allclose(figures.inverse_focal_gradient(P, gamma), inverse, rtol=1e-6)


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_phi_is_largest_and_comes_back_to_one_where_theorem_8_says(gamma: float) -> None:
    v = figures.probabilities(100_000)
    phi = figures.gradient_ratio(v, gamma)
    found = region_thresholds(gamma)
    over, under = found.over_confident, found.under_confident
    assert v[phi.argmax()] == pytest.approx(over, abs=1e-4)
    assert v[np.flatnonzero(phi > 1)[-1]] == pytest.approx(under, abs=1e-4)


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_the_optimal_prediction_minimises_the_risk(gamma: float) -> None:
    q, p = figure_of("mukhoti-fig6").curves[f"γ {gamma:g}"]
    fine = figures.probabilities(20_000)
    for place in (20, 90, 150):
        risk = q[place] * figures.focal_loss(fine, gamma) + (1 - q[place]) * figures.focal_loss(1 - fine, gamma)
        assert fine[risk.argmin()] == pytest.approx(p[place], abs=1e-3)


def test_the_smoothed_distribution_comes_nearer_as_nu_falls() -> None:
    curves = figure_of("selective-figa-5").curves
    exact = np.array(curves["exact"][1])
    away = [np.abs(np.array(curves[f"ν {nu:g}"][1]) - exact).max() for nu in figures.SMOOTHING]
    assert away == sorted(away)


@functools.cache
def figure_of(name: str) -> ComputedFigure:
    return FIGURES[name]()


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_every_figure_has_curves_and_rows(name: str) -> None:
    figure = figure_of(name)
    assert figure.remarks and len(figure.rows) > 10 and len({tuple(row) for row in figure.rows}) == 1
    for x, y in figure.curves.values():
        parted = figure.axes is None and np.isnan(x)  # between arrows and isolines
        assert (np.isfinite(x) | parted).all() and (np.isfinite(y) | parted).all()


def test_the_command_prints_rows_and_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "fits.html"
    result = typed("paper", "temperatures", "--format", "csv", "--to", str(picture))
    assert result.returncode == 0, result.stderr
    rows = [row for row in csv.reader(io.StringIO(result.stdout)) if row[:1] == ["2 classes"]]
    assert [float(gamma) for _, gamma, _ in rows] == [*range(11)]
    assert [float(inverse) for *_, inverse in rows[:3]] == pytest.approx([1.0, 1.781, 1 / 0.373], abs=0.01)
    assert "published: 0.95 gamma + 0.85" in result.stderr
    assert "window.vegaEmbed=" in picture.read_text() and "<script src" not in picture.read_text()


def points_of(figure: ComputedFigure, label: str) -> np.ndarray:
    """Return the probabilities of three classes [N, 3] at the points of a curve in the triangle."""
    x, y = np.array(figure.curves[label])
    q = np.stack([1 - x - y / np.sqrt(3), x - y / np.sqrt(3), 2 * y / np.sqrt(3)], 1)
    return np.asarray(q[~np.isnan(x)])


def inverse_map(q: np.ndarray, gamma: float) -> np.ndarray:
    """Return the u whose focal map is q: the prediction of least focal risk where classes come with q."""
    from scipy.optimize import minimize

    def risk(free: np.ndarray) -> float:
        u = np.exp([*free, 0.0])
        u /= u.sum()
        return float(-(q * (1 - u) ** gamma * np.log(u)).sum())

    found = minimize(risk, np.log(q[:2] / q[2]), tol=1e-12).x
    u = np.exp([*found, 0.0])
    return u / u.sum()


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_a_proper_parts_isoline_has_one_risk(gamma: float) -> None:
    for percentile in figures.PERCENTILES:
        points = points_of(figure_of("properness-fig4"), f"focal γ {gamma:g}, proper part, {percentile} %")
        risks = [figures.focal_risk(inverse_map(q, gamma), gamma) for q in points[:: len(points) // 6]]
        np.testing.assert_allclose(risks, risks[0], rtol=2e-3)


def test_the_risks_are_those_of_the_losses_that_are_trained() -> None:
    import torch

    q = np.array([0.2, 0.5, 0.3])
    logits = torch.tensor(np.log(q)).repeat(3, 1)
    for found, name, options in (
        (figures.brier_risk(q), "brier", {}),
        (figures.focal_risk(q, 2.0), "focal", {"gamma": 2.0}),
        (figures.focal_risk(q, 0.0), "cross_entropy", {}),
    ):
        values = build_loss(name, **options).per_sample(logits, torch.arange(3)).numpy()
        assert found == pytest.approx(float(values @ figures.TRUTH))


def test_every_loss_is_proper_and_its_isolines_hold_the_shares_of_the_triangle_that_they_name() -> None:
    figure = figure_of("properness-fig4")
    assert [remark.split(":")[0] for remark in figure.remarks] == [
        "Brier", "cross-entropy", "focal γ 1, proper part", "focal γ 3, proper part",
    ]  # fmt: skip
    for remark in figure.remarks:
        least = np.array(remark[remark.index("(") + 1 : remark.index(")")].split(","), float)
        np.testing.assert_allclose(least, figures.TRUTH, atol=3e-3)
    even = figures.triangle(150)
    risks = figures.brier_risk(even)
    for percentile in figures.PERCENTILES:
        level = figures.brier_risk(points_of(figure, f"Brier, {percentile} %")[0])
        assert (risks < level).mean() == pytest.approx(percentile / 100, abs=0.01)


def test_arrows_lead_to_the_map() -> None:
    figure = figure_of("properness-fig5")
    before, after = (part.reshape(-1, 3) for part in np.split(points_of(figure, "focal map, γ 3").reshape(-1, 6), 2, 1))
    np.testing.assert_allclose(after, focal_map(before, 3.0), atol=1e-12)
    assert (after.max(1) >= before.max(1) - 1e-12).all(), "from the centre towards the corners"
    assert set(figure.curves) == set(figure.ends)


def test_differences_are_those_of_both_maps() -> None:
    x, y, differences = np.array(figure_of("properness-fig7").shaded["γ 0.5"])
    assert 0.02 < differences.max() < 0.022
    assert differences[np.hypot(x - 0.5, y - np.sqrt(3) / 6).argmin()] < 1e-9, "none in the centre"


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("properness-fig5", "png"), ("properness-fig7", "html"), ("posterior-fig1", "svg"), ("posterior-fig1", "pdf")],
)
def test_pictures_are_written_in_every_format(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"figure.{suffix}"
    write_figure(figure_of(name).figure(name), path)
    begins = {"html": b"<!doctype html>", "png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(begins) and path.stat().st_size > 5000


def test_gradients_at_three_stages_are_those_of_the_losses() -> None:
    figure = figure_of("selective-figa-3")
    p, gradient = figure.curves["cross-entropy, late"]
    np.testing.assert_allclose(gradient, -1 / np.array(p), rtol=1e-6)
    assert len(figure.curves) == 3 * 4
