"""The papers' figures of losses against the losses that are trained, and against the focal map's own formulas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sweeper.analysis.papers import loss_figures
from sweeper.analysis.papers.focal_map_figures import map_figure
from sweeper.cli.main import app
from trainables.losses import build_loss
from trainables.posthoc.confidence_regions import region_thresholds

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
    np.testing.assert_allclose(loss_figures.focal_loss(P, gamma), value, rtol=1e-6)
    np.testing.assert_allclose(loss_figures.focal_gradient(P, gamma), gradient, rtol=1e-6)
    _, inverse = trained("inverse_focal", gamma=gamma)
    np.testing.assert_allclose(loss_figures.inverse_focal_gradient(P, gamma), inverse, rtol=1e-6)


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_phi_is_largest_and_comes_back_to_one_where_theorem_8_says(gamma: float) -> None:
    v = loss_figures.probabilities(100_000)
    phi = loss_figures.gradient_ratio(v, gamma)
    found = region_thresholds(gamma)
    over, under = found.over_confident, found.under_confident
    assert v[phi.argmax()] == pytest.approx(over, abs=1e-4)
    assert v[np.flatnonzero(phi > 1)[-1]] == pytest.approx(under, abs=1e-4)


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_the_optimal_prediction_minimises_the_risk(gamma: float) -> None:
    q, p = map_figure("mukhoti-6", [gamma]).curves[f"γ {gamma:g}"]
    fine = loss_figures.probabilities(20_000)
    for place in (20, 90, 150):
        risk = q[place] * loss_figures.focal_loss(fine, gamma) + (1 - q[place]) * loss_figures.focal_loss(
            1 - fine, gamma
        )
        assert fine[risk.argmin()] == pytest.approx(p[place], abs=1e-3)


def test_the_smoothed_distribution_comes_nearer_as_nu_falls() -> None:
    curves = map_figure("selective-a-5").curves
    exact = np.array(curves["exact"][1])
    away = [np.abs(np.array(curves[f"ν {nu:g}"][1]) - exact).max() for nu in loss_figures.SMOOTHING]
    assert away == sorted(away)


@pytest.mark.parametrize("name", sorted(loss_figures.FIGURES))
def test_every_figure_is_one_command_with_a_picture(tmp_path: Path, name: str) -> None:
    picture = tmp_path / "figure.html"
    result = CliRunner().invoke(app, ["focal-map", name, "--format", "csv", "--picture", str(picture)])
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) > 20 and "plotly.js v" in picture.read_text()
    found = map_figure(name)
    for x, y in found.curves.values():
        parted = found.axes is None and np.isnan(x)  # between arrows and isolines
        assert (np.isfinite(x) | parted).all() and (np.isfinite(y) | parted).all()
