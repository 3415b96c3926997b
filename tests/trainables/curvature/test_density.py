"""The spectral density: moments of the dense Hessian, a density that integrates to 1, rows for a table."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from trainables.curvature import CurvatureSettings, CurvatureUnavailable, spectral_density
from trainables.curvature.density import Quadrature, density_rows, lanczos_quadrature


def quadrature(symmetric, probes, steps):
    return lanczos_quadrature(
        lambda v: symmetric @ v, symmetric[0], probes=probes, steps=steps,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def test_full_runs_give_the_moments_of_their_start_vectors():
    generator = torch.Generator().manual_seed(1)
    raw = torch.randn(40, 40, generator=generator, dtype=torch.float64)
    symmetric = raw + raw.T
    found = quadrature(symmetric, 1, 40)
    signs = 2 * torch.randint(0, 2, (1, 40), generator=torch.Generator().manual_seed(0), dtype=torch.int8)[0] - 1
    start = signs.double() / math.sqrt(40)
    image = start
    for power in range(1, 5):
        image = symmetric @ image
        assert math.isclose(found.moment(lambda x, p=power: x**p), float(start @ image), rel_tol=1e-8, abs_tol=1e-8)


def test_many_probes_find_the_moments_of_the_spectrum():
    values = torch.cat([torch.zeros(90), torch.linspace(1, 20, 10)]).double()
    vectors, _ = torch.linalg.qr(torch.randn(100, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    found = quadrature((vectors * values) @ vectors.T, 200, 15)
    assert math.isclose(float(found.weights.sum()), 1.0, rel_tol=1e-9)
    assert math.isclose(found.moment(lambda x: x), float(values.mean()), rel_tol=0.1)
    assert math.isclose(found.moment(lambda x: x**2), float((values**2).mean()), rel_tol=0.1)
    bulk = float(found.weights[found.nodes.abs() < 0.5].sum())
    assert abs(bulk - 0.9) < 0.02


def test_rows_of_a_network(reference):
    model, (inputs, targets) = reference.build("conv"), reference.batch()
    eigenvalues = torch.linalg.eigvalsh(reference.dense_hessian(model, inputs, targets, cross_entropy))
    settings = CurvatureSettings(spectrum_steps=40)
    losses = {"training": cross_entropy, "same": cross_entropy, "twice": lambda z, y: 2 * cross_entropy(z, y)}
    found = spectral_density(model, inputs, targets, losses, settings=settings, seed=0, probes=3)
    again = spectral_density(model, inputs, targets, losses, settings=settings, seed=0, probes=3)
    assert found == again
    assert found["same"] == found["training"]
    assert math.isclose(found["twice"][-1]["eigenvalue"], 2 * found["training"][-1]["eigenvalue"], rel_tol=1e-4)
    rows = found["training"]
    spacing = rows[1]["eigenvalue"] - rows[0]["eigenvalue"]
    assert math.isclose(sum(row["density"] for row in rows) * spacing, 1.0, rel_tol=1e-3)
    assert math.isclose(sum(row["weight"] for row in rows), 1.0, rel_tol=1e-9)
    assert rows[0]["eigenvalue"] < float(eigenvalues[0]) < float(eigenvalues[-1]) < rows[-1]["eigenvalue"]


def test_a_flat_loss_has_all_its_weight_at_zero():
    rows = density_rows(Quadrature(torch.zeros(3, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64)))
    near_zero = [row["weight"] for row in rows if abs(row["eigenvalue"]) < 1e-12]
    assert math.isclose(sum(near_zero), 1.0)


def test_failure_is_curvature_unavailable(reference):
    model, (inputs, targets) = reference.build("tanh"), reference.batch()
    model.requires_grad_(False)
    with pytest.raises(CurvatureUnavailable):
        spectral_density(model, inputs, targets, {"training": cross_entropy}, settings=CurvatureSettings(), seed=0)
