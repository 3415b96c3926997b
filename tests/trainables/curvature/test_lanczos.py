"""Lanczos on matrices whose spectrum is known: both ends, residuals, hard starts."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from trainables.curvature.lanczos import complete_run, gradient_start, lanczos, lanczos_run


def matrix(values, seed=0):
    values = torch.as_tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    vectors, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64))
    return (vectors * values) @ vectors.T, vectors


def run(symmetric, start, steps=200, tolerance=1e-8, starts=1):
    generator = torch.Generator().manual_seed(7)
    within = lanczos_run(start, steps=steps, tolerance=tolerance, generator=generator, starts=starts)
    return complete_run(within, lambda v: symmetric @ v)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.floats(-5, 5), st.integers(1, 3))
def test_finds_both_ends_with_true_residuals(seed, size, shift, starts):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, generator=generator, dtype=torch.float64) * 3 + shift
    symmetric, _ = matrix(values, seed)
    found = run(symmetric, torch.randn(size, generator=generator, dtype=torch.float64), starts=starts)
    assert math.isclose(found.lambda_max, float(values.max()), rel_tol=1e-6, abs_tol=1e-9)
    assert math.isclose(found.lambda_min, float(values.min()), rel_tol=1e-6, abs_tol=1e-9)
    for index in (0, -1):
        vector = found.coordinates[:, index] @ found.basis
        residual = (symmetric @ vector - found.values[index] * vector).norm()
        assert abs(float(residual - found.residuals[index])) < 1e-8


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_few_steps_stay_inside_the_spectrum_and_state_their_residual(steps):
    symmetric, _ = matrix(torch.linspace(-2, 9, 60))
    start = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = run(symmetric, start, steps)
    assert len(found.values) == steps
    assert -2 <= found.lambda_min <= found.lambda_max <= 9
    vector = found.coordinates[:, -1] @ found.basis
    residual = float((symmetric @ vector - found.lambda_max * vector).norm())
    assert math.isclose(found.relative_residual, residual / abs(found.lambda_max), rel_tol=1e-6)
    assert math.isclose(found.trace, float(((found.basis @ symmetric) * found.basis).sum()), rel_tol=1e-9)


def test_reaches_eigenvectors_orthogonal_to_the_start():
    symmetric, vectors = matrix([5.0, 3.0, 1.0, -4.0, 0.5])
    found = run(symmetric, vectors[:, 1].contiguous())
    assert math.isclose(found.lambda_max, 5, rel_tol=1e-9)
    assert math.isclose(found.lambda_min, -4, rel_tol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 3), st.sampled_from([0.0, 1e-2, 0.3]))
def test_several_runs_keep_the_projection_its_products_and_residuals(seed, steps, starts, tolerance):
    generator = torch.Generator().manual_seed(seed)
    symmetric, _ = matrix(torch.randn(50, generator=generator, dtype=torch.float64), seed)
    found = run(symmetric, torch.randn(50, generator=generator, dtype=torch.float64), steps, tolerance, starts)
    torch.testing.assert_close(found.basis @ found.basis.T, torch.eye(len(found.values), dtype=torch.float64))
    torch.testing.assert_close(found.images, found.basis @ symmetric)
    assert math.isclose(found.trace, float((found.images * found.basis).sum()), rel_tol=1e-9, abs_tol=1e-9)
    vectors = found.coordinates.T @ found.basis
    true = (vectors @ symmetric - found.values[:, None] * vectors).norm(dim=1)
    torch.testing.assert_close(found.residuals, true, rtol=1e-6, atol=1e-7)


def test_a_second_start_finds_the_end_that_the_first_one_cannot_see():
    symmetric, vectors = matrix([50.0, -3.0, *torch.linspace(-1, 1, 98).tolist()])
    start = vectors @ torch.ones(100, dtype=torch.float64)
    start -= (1 - 1e-9) * (start @ vectors[:, 1]) * vectors[:, 1]
    once, twice = (run(symmetric, start, tolerance=1e-2, starts=starts) for starts in (1, 2))
    assert once.lambda_min > -1.01 and once.residuals[0] <= 1e-2 * once.norm
    assert twice.lambda_min == pytest.approx(-3, rel=1e-2)
    assert twice.lambda_min_residual == pytest.approx(float(twice.residuals[0]) / abs(twice.lambda_min))
    assert len(twice.values) < 40


def test_copies_no_eigenvalue():
    symmetric, _ = matrix([100.0, *torch.linspace(0, 1, 49).tolist()])
    found = run(symmetric, torch.ones(50, dtype=torch.float64), steps=50, tolerance=0.0)
    assert int((found.values > 50).sum()) == 1
    torch.testing.assert_close(found.basis @ found.basis.T, torch.eye(len(found.values), dtype=torch.float64))


@pytest.mark.parametrize("value", [0.0, 2.0, -2.0])
def test_multiples_of_the_identity(value):
    found = run(value * torch.eye(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64))
    assert found.lambda_max == pytest.approx(value)
    assert found.lambda_min == pytest.approx(value)
    assert found.relative_residual < 1e-9


def test_stops_once_both_ends_have_converged():
    symmetric, _ = matrix([50.0, -20.0, *torch.linspace(-1, 1, 98).tolist()])
    products = []

    def product(vector):
        products.append(1)
        return symmetric @ vector

    start = torch.ones(100, dtype=torch.float64)
    found = lanczos(product, start, steps=100, tolerance=1e-3, generator=torch.Generator().manual_seed(0))
    assert len(products) == len(found.values) < 12
    assert found.relative_residual <= 1e-3


def test_start_is_near_the_gradient_and_random_without_one():
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(1000, generator=generator, dtype=torch.float64)
    start = gradient_start(gradient, generator)
    assert float(start @ gradient / start.norm() / gradient.norm()) > 0.98
    assert math.isclose(float(gradient_start(torch.zeros_like(gradient), generator).norm()), 1.0)


@pytest.mark.parametrize("seed", range(4))
def test_no_residual_is_smaller_than_the_rounding_of_the_products(seed):
    """Once Krylov's space is exhausted Lanczos' own estimate is far below what products in float32 can resolve."""
    exact, _ = matrix([7.0, 3.0, -1.0, 0.5, 0.25, 0.1], seed)
    start = torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    generator = torch.Generator().manual_seed(7)
    rounded = exact.float()
    found = lanczos(
        lambda v: (rounded @ v.float()).double(), start, steps=6, tolerance=0.0, generator=generator,
        arithmetic=torch.float32,
    )  # fmt: skip
    error = abs(found.lambda_max - float(torch.linalg.eigvalsh(exact)[-1])) / 7
    assert float(found.residuals[-1]) / 7 < 1e-8, "what was reported before"
    assert found.relative_residual >= error
    assert 1e-7 < found.relative_residual < 1e-5
