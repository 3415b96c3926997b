"""Estimated traces: unbiased, with intervals that cover and standard errors that match the spread."""

import math
import statistics

import pytest
import torch
from scipy.stats import t as student

from trainables.curvature.trace import Effort, hutch_plus_plus, hutchinson

REPETITIONS = 500


def matrix(size=80, decay=0.8, seed=0):
    """A symmetric matrix with a few large eigenvalues, a bulk, and some negative ones."""
    generator = torch.Generator().manual_seed(seed)
    vectors, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    values = 10 * decay ** torch.arange(size, dtype=torch.float64)
    values[-10:] = -0.3
    return (vectors * values) @ vectors.T


def top_vectors(symmetric, count):
    return torch.linalg.eigh(symmetric)[1][:, -count:].T.contiguous() if count else symmetric[:0]


def covers(estimate, truth):
    """Whether the 99 % interval with Student's t at the estimate's degrees of freedom holds the truth."""
    return abs(estimate.value - truth) <= student.ppf(0.995, estimate.probes - 1) * estimate.standard_error


def repeat(estimator, symmetric, deflated, repetitions=REPETITIONS, **options):
    basis = top_vectors(symmetric, deflated)
    known = float(((basis @ symmetric) * basis).sum())
    settings = {"precision": None, "floor": 0.0, "max_products": 1000, **options}
    effort = Effort(**settings)
    return [
        estimator(lambda rows: rows @ symmetric, basis, known, effort, torch.Generator().manual_seed(seed))
        for seed in range(repetitions)
    ]


@pytest.mark.parametrize(
    ("estimator", "deflated", "probes"),
    [(hutchinson, 0, 8), (hutchinson, 6, 4), (hutchinson, 6, 20), (hutch_plus_plus, 0, 60), (hutch_plus_plus, 6, 36)],
)
def test_intervals_cover_and_errors_match_the_spread(estimator, deflated, probes):
    symmetric = matrix()
    truth = float(symmetric.trace())
    found = repeat(estimator, symmetric, deflated, probes=probes)
    covered = sum(covers(e, truth) for e in found) / REPETITIONS
    spread = statistics.stdev(e.value for e in found)
    stated = math.sqrt(statistics.fmean(e.standard_error**2 for e in found))
    assert covered >= 0.975
    assert abs(stated / spread - 1) <= 0.2
    assert abs(statistics.fmean(e.value for e in found) - truth) <= 3 * spread / math.sqrt(REPETITIONS)


@pytest.mark.parametrize("estimator", [hutchinson, hutch_plus_plus])
def test_intervals_cover_when_the_precision_decides(estimator):
    symmetric = matrix()
    truth = float(symmetric.trace())
    found = repeat(
        estimator, symmetric, 4, probes=8, precision=0.02, max_products=400 if estimator is hutchinson else 120
    )
    assert all(e.standard_error <= 0.02 * abs(e.value) for e in found)
    assert sum(covers(e, truth) for e in found) >= 0.975 * REPETITIONS


def test_floor_ends_the_search_where_the_trace_is_near_zero():
    symmetric = matrix()
    symmetric -= torch.eye(80, dtype=torch.float64) * symmetric.trace() / 80
    (spent,) = {e.probes for e in repeat(hutchinson, symmetric, 0, 20, probes=2, precision=0.01, max_products=50)}
    assert spent == 50
    floored = repeat(hutchinson, symmetric, 0, 20, probes=2, precision=0.2, floor=10.0, max_products=500)
    assert max(e.probes for e in floored) < 500
    assert all(e.standard_error <= 2.0 for e in floored)


@pytest.mark.parametrize("estimator", [hutchinson, hutch_plus_plus])
def test_a_basis_of_the_whole_space_leaves_nothing_to_probe(estimator):
    symmetric = matrix(12)
    found = repeat(estimator, symmetric, 12, 1, probes=4)[0]
    assert math.isclose(found.value, float(symmetric.trace()), rel_tol=1e-9)
    assert found.standard_error == 0


def test_hutch_plus_plus_finds_a_low_rank_trace_exactly():
    vectors = torch.linalg.qr(torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    symmetric = (vectors * torch.tensor([5.0, 3.0, 2.0, -1.0], dtype=torch.float64)) @ vectors.T
    noise = 1e-9 * torch.eye(50, dtype=torch.float64)
    for found in repeat(hutch_plus_plus, symmetric + noise, 0, 20, probes=18):
        assert math.isclose(found.value, 9.0, rel_tol=1e-5)
