"""The trace of a symmetric operator from random probes, with its standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.curvature.lanczos import Product


@dataclass(frozen=True)
class TraceEstimate:
    """An estimated trace. `standard_error` is of the estimate, from `probes` − 1 degrees of freedom."""

    value: float
    standard_error: float
    probes: int
    products: int


def rademacher(dimension: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return a vector [dimension] of random signs, the same on every device."""
    signs = torch.randint(0, 2, (dimension,), generator=generator, dtype=torch.int8)
    return (2 * signs - 1).to(device=device, dtype=torch.float64)


def hutchinson(
    product: Product,
    basis: Tensor,
    known: float,
    *,
    probes: int,
    precision: float | None,
    max_products: int,
    generator: torch.Generator,
) -> TraceEstimate:
    """Return the trace as `known`, its part on the orthonormal rows of `basis` [k, P], plus an estimate of the rest.

    The rest is Hutchinson's estimator on the complement: the mean of wᵀHw over probes w = (I − QᵀQ)z with random
    signs z. The standard error covers that residual part only; the deflated part has none. Without `precision`
    it takes `probes` probes; with it, it goes on from there until the standard error is at most `precision`
    times the |trace|, or `max_products` products are spent.
    """
    dimension = basis.shape[1]
    if len(basis) >= dimension:
        return TraceEstimate(known, 0.0, 0, 0)
    values: list[float] = []
    while len(values) < max(2, min(probes, max_products)) or (
        precision is not None and len(values) < max_products and not _precise(values, known, precision)
    ):
        probe = rademacher(dimension, generator, basis.device)
        probe -= (basis @ probe) @ basis
        values.append(float(probe @ product(probe)))
    mean, error = mean_and_error(values)
    return TraceEstimate(known + mean, error, len(values), len(values))


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean of `values` and its standard error (sample standard deviation over √n)."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def _precise(values: list[float], known: float, precision: float) -> bool:
    mean, error = mean_and_error(values)
    return error <= precision * abs(known + mean)
