"""The curvature paper's theorems on finite sets of networks: what they say holds, and pictures say how loosely."""

import math
from pathlib import Path

import numpy as np
import pytest

from search_spaces import packaged_files
from search_spaces.papers.curvature_bounds import curvature_bounds, evaluated, maxwell_boltzmann, pac_bayes
from sweeper.space.loading import load_spec
from tests.search_spaces.papers.ideal_sweeps import ideal_sweep

LOSSES = np.array([0.1, 0.3, 0.35, 0.5, 0.9, 1.4])


def entropy(shares: np.ndarray) -> float:
    held = shares[shares > 0]
    return float(-held @ np.log(held))


@pytest.mark.parametrize("mean", [0.2, 0.5, 0.7, 1.2])
def test_no_distribution_with_the_same_mean_loss_has_more_entropy(mean: float) -> None:
    beta, best = maxwell_boltzmann(LOSSES, mean)
    assert best @ LOSSES == pytest.approx(mean) and best.sum() == pytest.approx(1)
    assert np.allclose(np.diff(np.log(best)), -beta * np.diff(LOSSES))
    assert (beta > 0) == (mean < LOSSES.mean())
    random = np.random.default_rng(0)
    constraints = np.stack([np.ones_like(LOSSES), LOSSES])
    free = np.linalg.svd(constraints)[2][2:]  # directions that change neither the sum nor the mean
    tried = [best + random.normal(0, 0.02, len(free)) @ free for _ in range(300)]
    inside = [shares for shares in tried if (shares >= 0).all()]
    assert len(inside) > 10 and all(entropy(shares) <= entropy(best) for shares in inside)


@pytest.mark.parametrize(("mean", "shares"), [(0.1, [1, 0, 0, 0, 0, 0]), (1.4, [0, 0, 0, 0, 0, 1])])
def test_a_mean_at_an_end_leaves_one_network(mean: float, shares: list[float]) -> None:
    assert np.allclose(maxwell_boltzmann(LOSSES, mean)[1], shares)


@pytest.mark.parametrize(("error", "divergence"), [(0.0, 0.0), (0.05, 1.0), (0.3, 5.0)])
def test_equation_19_minimises_the_bound(error: float, divergence: float) -> None:
    samples = 500
    weight, bound = pac_bayes(error, divergence, samples)
    penalty = divergence + math.log(2 * math.sqrt(samples) / 0.05)
    grid = np.linspace(0.001, 1.999, 2000)
    values = error / (1 - grid / 2) + penalty / (samples * grid * (1 - grid / 2))
    assert bound <= values.min() + 1e-12 and 0 < weight < 2
    assert bound == pytest.approx(error / (1 - weight / 2) + penalty / (samples * weight * (1 - weight / 2)))


def test_the_bound_holds_for_drawn_samples() -> None:
    """200 draws of 300 samples: the posterior of least bound, which the samples chose, keeps below its bound."""
    random, errors = np.random.default_rng(1), np.linspace(0.02, 0.4, 12)
    _, prior = maxwell_boltzmann(errors, 0.15)
    failed = 0
    for _ in range(200):
        seen = random.binomial(300, errors) / 300
        posterior = prior * np.exp(-300 * 0.5 * seen)  # Eq. 18
        posterior /= posterior.sum()
        divergence = float((posterior * np.log(np.maximum(posterior, 1e-300) / prior)).sum())
        failed += posterior @ errors > pac_bayes(float(posterior @ seen), divergence, 300)[1]
    assert failed <= 10


def rows_of(gamma: float, errors: list[float], weight: float, trace: float) -> list[dict[str, object]]:
    """A network for each error, as rows of `final`."""
    loss = {"config_loss_name": "focal", "config_loss_gamma": gamma} if gamma else {"config_loss_name": "cross_entropy"}
    return [
        {"trial": f"g{gamma}", "replicate": at, "split": split, "accuracy": 1 - error, "nll": 2 * error + gamma / 100,
         "mean_focal_weight": weight, "hessian_cross_entropy_trace": trace,
         "hessian_training_trace": 2 * weight * trace, **loss}
        for at, error in enumerate(errors) for split in ("val", "test")
    ]  # fmt: skip


def test_the_divergence_is_the_gap_of_entropies_and_equation_28_a_product() -> None:
    rows = [*rows_of(0, [0.05, 0.07, 0.09], 1.0, 40.0), *rows_of(3, [0.06, 0.08, 0.12], 0.25, 20.0)]
    found = evaluated(rows, 400)
    losses = np.array([row["nll"] for row in rows if row["split"] == "test"], float)
    for each, own in zip(found, (slice(0, 3), slice(3, 6)), strict=True):
        _, prior = maxwell_boltzmann(losses, losses[own].mean())
        assert each.divergence == pytest.approx(float(np.mean(np.log(1 / 3 / prior[own])))) and each.divergence >= 0
        assert each.bound > each.validation_error and each.networks == 3
    assert [each.gamma for each in found] == [0, 3]
    assert found[1].expected_trace == pytest.approx(5) and found[1].trace == pytest.approx(10)


def test_a_sweep_of_the_paper_has_three_panels_for_each_network(tmp_path: Path) -> None:
    spec = load_spec(packaged_files()["curvature_figures_2_3"], ["scheduler.evaluate_epochs=[1]"], rehearse=True)
    (figure,) = curvature_bounds(ideal_sweep(tmp_path, "curvature_figures_2_3", spec, "curvature-rehearsal"))
    assert len(figure.panels) % 3 == 0 and "the bound lies" in figure.caption and len(figure.legend) == 7
    other = load_spec(packaged_files()["mukhoti_figures_7_8"], rehearse=True)
    assert curvature_bounds(ideal_sweep(tmp_path, "mukhoti_figures_7_8", other, "m-rehearsal")) == []
