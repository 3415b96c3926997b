"""The trace of a symmetric operator from random probes, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Products = Callable[[Tensor], Tensor]  # rows [m, P] to their images [m, P]

_FEWEST_PROBES = 2  # for a standard error
_PROBES_PER_PASS = 4


@dataclass(frozen=True)
class TraceEstimate:
    """A trace, its standard error (0 when exact) and the number of probes behind it.

    The interval value ± t·standard_error takes Student's t at `probes` − 1 degrees of freedom.
    """

    value: float
    standard_error: float
    probes: int


def rademacher(count: int, basis: Tensor, generator: torch.Generator) -> Tensor:
    """Return `count` vectors of random signs [count, P], the same on every device, as wide as `basis` [k, P]."""
    signs = torch.randint(0, 2, (count, basis.shape[1]), generator=generator, dtype=torch.int8)
    return (2 * signs - 1).to(basis)


def hutchinson(
    products: Products,
    basis: Tensor,
    known: float,
    *,
    probes: int,
    precision: float | None,
    floor: float,
    max_products: int,
    generator: torch.Generator,
) -> TraceEstimate:
    """Return the trace as `known`, its part on the orthonormal rows of `basis` [k, P], plus an estimate of the rest.

    The rest is Hutchinson's estimator on the complement: the mean of wᵀHw over probes w = (I − QᵀQ)z with random
    signs z. The standard error covers that residual part only; the deflated part has none. Without `precision`
    it takes `probes` probes; with it, at least as many, and goes on until the standard error is at most
    `precision` times the larger of |trace| and `floor`, or `max_products` products are spent.
    """
    if len(basis) >= basis.shape[1]:
        return TraceEstimate(known, 0.0, 0)
    values: list[float] = []
    wanted = max(_FEWEST_PROBES, min(probes, max_products))
    while len(values) < wanted or _go_on(values, known, precision, floor, max_products):
        missing = wanted - len(values) if len(values) < wanted else 1
        signs = project_out(rademacher(min(missing, _PROBES_PER_PASS), basis, generator), basis)
        values += (signs * products(signs)).sum(1).tolist()
    mean, error = mean_and_error(values)
    return TraceEstimate(known + mean, error, len(values))


def xtrace(
    products: Products,
    basis: Tensor,
    known: float,
    *,
    probes: int,
    precision: float | None,
    floor: float,
    max_products: int,
    generator: torch.Generator,
) -> TraceEstimate:
    """Return the trace like `hutchinson`, by XTrace on the complement of `basis`: two products a probe.

    Each of m probes is estimated beside the range of the other m − 1 images, so all of them serve both to find the
    large eigenvalues and to sample the rest (Epperly, Tropp & Webber 2024, SIAM J. Matrix Anal. Appl. 45(1),
    Algorithm 2). With `precision` the number of probes doubles until it is reached; products are reused.
    """
    most = min(basis.shape[1] - len(basis), max_products // 2)
    if len(basis) >= basis.shape[1]:
        return TraceEstimate(known, 0.0, 0)
    signs = images = frame = frame_images = basis[:0]
    wanted = max(_FEWEST_PROBES, min(probes // 2, most))
    while True:
        fresh = project_out(rademacher(wanted - len(signs), basis, generator), basis)
        signs, images = torch.cat([signs, fresh]), torch.cat([images, project_out(products(fresh), basis)])
        added = _orthonormal(images[len(frame) :], frame)
        frame = torch.cat([frame, added])
        frame_images = torch.cat([frame_images, project_out(products(added), basis)])
        mean, error = mean_and_error(_leave_one_out(signs, images, frame, frame_images))
        if precision is None or error <= precision * max(abs(known + mean), floor) or wanted >= most:
            return TraceEstimate(known + mean, error, wanted)
        wanted = min(2 * wanted, most)


def _leave_one_out(signs: Tensor, images: Tensor, frame: Tensor, frame_images: Tensor) -> list[float]:
    """Return XTrace's m exchangeable estimates, from rows ω_i, Aω_i, and an orthonormal frame Q of all Aω with AQ.

    Without image i the frame spans I − s_i s_iᵀ of itself, with s_i the unit i-th row of R⁻¹ where images = R Q.
    """
    triangle = images @ frame.T
    left_out = torch.linalg.inv(triangle).T
    left_out = left_out / left_out.norm(dim=1, keepdim=True)
    inner = frame @ frame_images.T
    inner = (inner + inner.T) / 2
    within = signs @ frame.T
    kept = within - left_out * (left_out * within).sum(1, keepdim=True)
    beside = (signs * images).sum(1) - 2 * (kept * (signs @ frame_images.T)).sum(1) + ((kept @ inner) * kept).sum(1)
    spanned = inner.trace() - ((left_out @ inner) * left_out).sum(1)
    return (spanned + beside).tolist()


def project_out(vectors: Tensor, basis: Tensor) -> Tensor:
    """Return rows `vectors` [m, P] without their components along the orthonormal rows of `basis`."""
    for _ in range(2):
        vectors = vectors - (vectors @ basis.T) @ basis
    return vectors


def _orthonormal(vectors: Tensor, frame: Tensor) -> Tensor:
    """Return an orthonormal basis of the rows of `vectors` beside those of `frame`."""
    return torch.linalg.qr(project_out(vectors, frame).T).Q.T


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean of `values` and its standard error (sample standard deviation over √n)."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def _go_on(values: list[float], known: float, precision: float | None, floor: float, max_products: int) -> bool:
    if precision is None or len(values) >= max_products:
        return False
    mean, error = mean_and_error(values)
    return error > precision * max(abs(known + mean), floor)
