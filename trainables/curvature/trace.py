"""The trace of a symmetric operator from random probes, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Effort:
    """How many products an estimate may take.

    Attributes:
        probes: random vectors, where no precision is asked for; with one, the fewest.
        precision: the standard error to reach, as a share of the larger of |trace| and `floor`; `None` for none.
        floor: below which a trace's size does not count, e.g. the operator's norm.
        max_products: the most products with the operator.
    """

    probes: int
    precision: float | None
    floor: float
    max_products: int


def random_signs(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return ±1 in `shape`, on the device and of the type of `like`; drawn on the generator's device.

    Bytes are drawn and sent, which takes a CPU a quarter of the time of 64-bit integers and gives the same signs.
    """
    bits = torch.randint(0, 2, tuple(shape), generator=generator, dtype=torch.int8, device=generator.device)
    return bits.to(like.device).mul_(2).sub_(1).to(like)


def generator_on(device: torch.device, source: torch.Generator) -> torch.Generator:
    """Return a generator of `device`: `source` itself on a CPU; on a card a new one, seeded by one draw of `source`.

    The state of `source` then decides what is drawn on either, but the numbers are not the same on both.
    """
    if device.type == source.device.type:
        return source
    seed = int(torch.randint(2**63 - 1, (), generator=source))
    return torch.Generator(device).manual_seed(seed)


def rademacher(count: int, basis: Tensor, generator: torch.Generator) -> Tensor:
    """Return `count` vectors of random signs [count, P], as wide as `basis` [k, P].

    A generator on the CPU draws the same signs for every device, so that a measurement on a card has the probes of
    one on a CPU; beside a product with the Hessian the time does not count.
    """
    return random_signs((count, basis.shape[1]), basis, generator)


def hutchinson(
    products: Products, basis: Tensor, known: float, effort: Effort, generator: torch.Generator
) -> TraceEstimate:
    """Return the trace as `known`, its part on the orthonormal rows of `basis` [k, P], plus an estimate of the rest.

    The rest is Hutchinson's estimator on the complement: the mean of wᵀHw over probes w = (I − QᵀQ)z with random
    signs z (Hutchinson 1990). The standard error covers that residual part only; the deflated part has none.
    """
    if len(basis) >= basis.shape[1]:
        return TraceEstimate(known, 0.0, 0)
    values: list[float] = []
    wanted = max(_FEWEST_PROBES, min(effort.probes, effort.max_products))
    while len(values) < wanted or _needs_more_probes(values, known, effort):
        missing = wanted - len(values) if len(values) < wanted else 1
        signs = project_out(rademacher(min(missing, _PROBES_PER_PASS), basis, generator), basis)
        values += (signs * products(signs)).sum(1).tolist()
    mean, error = mean_and_error(values)
    return TraceEstimate(known + mean, error, len(values))


def hutch_plus_plus(
    products: Products, basis: Tensor, known: float, effort: Effort, generator: torch.Generator
) -> TraceEstimate:
    """Return the trace like `hutchinson`, beside `basis` [k, P] and the range of a few random images (Hutch++).

    A third of `probes` are multiplied once to find that range and once more for the trace on it, the last third
    are probes of the rest, drawn independently, so that their standard error is honest (Meyer, Musco, Musco &
    Woodruff 2021, arXiv:2010.09649, Algorithm 1). With a precision the range takes a sixth of the products.
    """
    most = effort.max_products
    width = max(1, (most // 4 if effort.precision is not None else min(effort.probes, most)) // 3)
    width = min(width, max(0, most - _FEWEST_PROBES) // 2, basis.shape[1] - len(basis))
    if width == 0:
        images = frame = basis[:0]
    else:
        images = project_out(products(project_out(rademacher(width, basis, generator), basis)), basis)
        frame = project_out(torch.linalg.qr(images.T).Q.T, basis)
        images = products(frame)
    left = replace(effort, probes=effort.probes - 2 * width, max_products=most - 2 * width)
    found = known + float((frame * images).sum())
    return hutchinson(products, torch.cat([basis, frame]), found, left, generator)


def project_out(vectors: Tensor, basis: Tensor) -> Tensor:
    """Return rows `vectors` [m, P] without their components along the orthonormal rows of `basis`."""
    for _ in range(2):
        vectors = vectors - (vectors @ basis.T) @ basis
    return vectors


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean of `values` and its standard error (sample standard deviation over √n)."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def _needs_more_probes(values: list[float], known: float, effort: Effort) -> bool:
    if effort.precision is None or len(values) >= effort.max_products:
        return False
    mean, error = mean_and_error(values)
    return error > effort.precision * max(abs(known + mean), effort.floor)
