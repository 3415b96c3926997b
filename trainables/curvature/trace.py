"""The trace of a symmetric operator: from random probes with a standard error, or sample by sample without products.

If the network is affine in each parameter alone (`gauss_newton`), Tr(H) = Σ_i ⟨H_z,i, J_i J_iᵀ⟩, a sum over samples.
With few classes K it is exact, from K backward passes for all losses together. With many classes, each sample draws
random directions w_i in logit space with E[w_i w_iᵀ] = H_z,i. Samples draw independently, so their errors average out.
A probe in parameter space is instead shared by all samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainables.curvature.hessian import HessianOperator
from trainables.curvature.lanczos import project_out

Products = Callable[[Tensor], Tensor]  # rows [m, P] → images [m, P]
Sums = Callable[[Tensor], Tensor]  # rows [m, P] → sums over blocks of parameters [m, B]

_FEWEST_PROBES = 2  # a standard error needs two
_PROBES_PER_PASS = 4  # probes share a graph that must be rebuilt, and each takes the memory of all parameters


@dataclass(frozen=True)
class TraceEstimate:
    """An estimated trace. The interval value ± t·standard_error uses Student's t with `probes` − 1 degrees of freedom.

    Attributes:
        value: the trace.
        standard_error: its standard error; 0 if exact.
        probes: number of random probes; 0 if exact.
        parts: traces of diagonal blocks from the same probes, which sum to `value`; empty unless requested.
        part_errors: their standard errors.
    """

    value: float
    standard_error: float
    probes: int
    parts: tuple[float, ...] = ()
    part_errors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Effort:
    """The budget of a trace estimate.

    Attributes:
        probes: number of probes, or the minimum number if `precision` is set.
        precision: target standard error relative to the larger of |trace| and `floor`; `None` for a fixed number.
        floor: smallest scale for the relative error, e.g. the operator's norm; a trace near 0 has no relative error.
        max_products: maximum number of products with the operator.
    """

    probes: int
    precision: float | None
    floor: float
    max_products: int


def random_signs(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return random ±1 of `shape` with the device and dtype of `like`, drawn on the generator's device."""
    # Drawing bytes takes a CPU a quarter of the time of 64-bit integers and gives the same signs.
    bits = torch.randint(0, 2, tuple(shape), generator=generator, dtype=torch.int8, device=generator.device)
    return bits.to(like.device).mul_(2).sub_(1).to(like)


def generator_on(device: torch.device, source: torch.Generator) -> torch.Generator:
    """Return `source` if it is on `device`, else a new generator there, seeded by one draw from `source`.

    The state of `source` determines the draws on either device, but the numbers differ between devices.
    """
    if device.type == source.device.type:
        return source
    seed = int(torch.randint(2**63 - 1, (), generator=source))
    return torch.Generator(device).manual_seed(seed)


def rademacher(count: int, basis: Tensor, generator: torch.Generator) -> Tensor:
    """Return `count` vectors of random signs [count, P] with the width of `basis` [k, P]."""
    # A generator on the CPU gives a GPU the same probes as a CPU; its time is negligible compared with a product.
    return random_signs((count, basis.shape[1]), basis, generator)


def hutchinson(
    products: Products,
    basis: Tensor,
    known: float,
    effort: Effort,
    generator: torch.Generator,
    images: Tensor | None = None,
    sums: Sums | None = None,
) -> TraceEstimate:
    """Estimate a trace by Hutchinson's method on the complement of a subspace whose trace is known.

    The estimate is `known` plus the mean of wᵀHw over probes w = (I − QᵀQ)z with random signs z (Hutchinson 1990). The
    standard error covers the probed part only; the deflated part is exact.

    Args:
        products: products with H for rows [m, P].
        basis: orthonormal rows Q [k, P].
        known: trace of H on the rows of `basis`.
        effort: budget of probes.
        generator: source of the signs.
        images: products of H with the rows of `basis` [k, P], needed with `sums`.
        sums: sums of rows over blocks; if given, also estimate each block's trace from the same probes,
            Tr(P_b H) = Tr(P_b HQQᵀ) + E[wᵀP_b Hw], since E[wwᵀ] = I − QQᵀ.

    Example:
        >>> matrix, basis = torch.diag(torch.tensor([3.0, 2.0, 1.0])), torch.tensor([[1.0, 0.0, 0.0]])
        >>> effort, generator = Effort(4, None, 0.0, 100), torch.Generator().manual_seed(0)
        >>> hutchinson(lambda rows: rows @ matrix, basis, 3.0, effort, generator)
        TraceEstimate(value=6.0, standard_error=0.0, probes=4, parts=(), part_errors=())
    """
    settled = sums(basis * images).sum(0) if sums is not None and images is not None else None
    if len(basis) >= basis.shape[1]:
        return TraceEstimate(known, 0.0, 0, *_parts(settled, []))
    values: list[float] = []
    by_block: list[Tensor] = []
    # At least two probes, even beyond the budget: a trace without a standard error is useless.
    fewest = max(_FEWEST_PROBES, min(effort.probes, effort.max_products))
    while len(values) < fewest or _needs_more_probes(values, known, effort):
        missing = fewest - len(values) if len(values) < fewest else 1
        signs = project_out(rademacher(min(missing, _PROBES_PER_PASS), basis, generator), basis)
        terms = signs * products(signs)
        values += terms.sum(1).tolist()
        by_block += [] if sums is None else [sums(terms)]
    mean, error = mean_and_error(values)
    return TraceEstimate(known + mean, error, len(values), *_parts(settled, by_block))


def _parts(settled: Tensor | None, drawn: list[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the blocks' traces and standard errors from the part on the basis [B] and the probed values [m, B]."""
    if settled is None:
        return (), ()
    if not drawn:
        return tuple(settled.tolist()), (0.0,) * len(settled)
    rest = torch.cat(drawn)
    return tuple((settled + rest.mean(0)).tolist()), tuple((rest.std(0) / math.sqrt(len(rest))).tolist())


def hutch_plus_plus(
    products: Products,
    basis: Tensor,
    known: float,
    effort: Effort,
    generator: torch.Generator,
    images: Tensor | None = None,
    sums: Sums | None = None,
) -> TraceEstimate:
    """Estimate a trace by Hutch++: `hutchinson` on the complement of `basis` [k, P] and of a random range of H.

    A third of the products finds the range, and a third measures the trace on it. The last third are independent probes
    of the rest, so their standard error is valid. With a precision, finding and measuring the range takes a sixth of
    the products. Arguments are those of `hutchinson`.

    Source: Meyer, Musco, Musco & Woodruff 2021, arXiv:2010.09649, Algorithm 1.

    Example:
        >>> matrix, generator = torch.diag(torch.tensor([5.0, 1.0, 1.0])), torch.Generator().manual_seed(0)
        >>> effort = Effort(6, None, 0.0, 100)
        >>> estimate = hutch_plus_plus(lambda rows: rows @ matrix, torch.empty(0, 3), 0.0, effort, generator)
        >>> round(estimate.value, 3), estimate.probes
        (7.0, 2)
    """
    most = effort.max_products
    width = max(1, (most // 4 if effort.precision is not None else min(effort.probes, most)) // 3)
    width = min(width, max(0, most - _FEWEST_PROBES) // 2, basis.shape[1] - len(basis))
    if width == 0:
        of_frame = frame = basis[:0]
    else:
        drawn = project_out(products(project_out(rademacher(width, basis, generator), basis)), basis)
        frame = project_out(torch.linalg.qr(drawn.T).Q.T, basis)
        of_frame = products(frame)
    left = replace(effort, probes=effort.probes - 2 * width, max_products=most - 2 * width)
    deflated = known + float((frame * of_frame).sum())
    both = None if images is None else torch.cat([images, of_frame.to(images)])
    return hutchinson(products, torch.cat([basis, frame]), deflated, left, generator, both, sums)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean of `values` and its standard error (sample standard deviation over √n).

    Example:
        >>> mean_and_error([1.0, 3.0])
        (2.0, 1.0)
    """
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def _needs_more_probes(values: list[float], known: float, effort: Effort) -> bool:
    if effort.precision is None or len(values) >= effort.max_products:
        return False
    mean, error = mean_and_error(values)
    return error > effort.precision * max(abs(known + mean), effort.floor)


EXACT_CLASSES = 32  # 32 backward passes, once for all losses, take as long as about 16 Hessian-vector products
SKETCHED_CLASSES = 256  # with more classes, the blocks H_z,i and their roots cost more than probes
_ROUND = 2  # directions per sample and round: the fewest that give a standard error


def per_sample_trace(
    operator: HessianOperator, *, precision: float | None, max_rounds: int, generator: torch.Generator
) -> TraceEstimate | None:
    """Return Tr(H) summed over samples: exact with few classes, sketched with many, `None` if not applicable.

    It does not apply to networks that are not affine in each parameter, or to losses that couple samples (mmce,
    kde_xe). A sketch draws two directions per sample. With `precision` it continues until the standard error is at most
    `precision`·|trace|, for at most `max_rounds` rounds.
    """
    surface = operator.surface
    if not surface.affine:
        return None
    blocks: list[Tensor] = []
    for chunk in surface.chunks:
        block = operator.logit_blocks(chunk)
        if block is None or block.shape[1] > SKETCHED_CLASSES:
            return None
        blocks.append(block)
    if blocks[0].shape[1] <= EXACT_CLASSES:
        pairs = enumerate(blocks)
        return TraceEstimate(sum(float((block * surface.gram(i)).double().sum()) for i, block in pairs), 0.0, 0)
    return _sketch(operator, blocks, precision, max_rounds, generator)


def _sketch(
    operator: HessianOperator,
    blocks: list[Tensor],
    precision: float | None,
    max_rounds: int,
    generator: torch.Generator,
) -> TraceEstimate:
    roots = [signed_roots(block) for block in blocks]
    drawn: list[Tensor] = []  # [N, 2] per round: unbiased values of ⟨H_z,i, J_i J_iᵀ⟩
    while True:
        drawn.append(torch.cat([_draw(operator, index, root, generator) for index, root in enumerate(roots)]))
        values = torch.cat(drawn, dim=1)
        total = float(values.mean(1).sum())
        # Samples draw independently, so their variances add up.
        variances = values.var(1)
        error = float((variances.sum() / values.shape[1]).sqrt())
        if precision is None or error <= precision * abs(total) or len(drawn) >= max_rounds:
            return TraceEstimate(total, error, 1 + _degrees_of_freedom(variances, values.shape[1]))


def _degrees_of_freedom(variances: Tensor, draws: int) -> int:
    """Return Satterthwaite's degrees of freedom for a sum of `variances` [N], each estimated from `draws` values."""
    # The formula is (draws − 1)(Σσ²)²/Σσ⁴; a squared estimate overstates σ⁴ by (draws + 1)/(draws − 1).
    squares = float(variances.square().sum())
    return max(1, int((draws + 1) * float(variances.sum()) ** 2 / squares)) if squares > 0 else 1


def _draw(
    operator: HessianOperator, index: int, roots: list[tuple[float, Tensor]], generator: torch.Generator
) -> Tensor:
    """Return two unbiased values [n, 2] of each sample's contribution to the trace."""
    chunk = operator.surface.chunks[index]
    total = torch.zeros(len(chunk.targets), _ROUND, dtype=torch.float64, device=chunk.targets.device)
    for sign, root in roots:
        shape = (len(root), root.shape[2], _ROUND)
        total += sign * operator.surface.squared_norms(chunk, root @ random_signs(shape, root, generator))
    return total


def signed_roots(blocks: Tensor) -> list[tuple[float, Tensor]]:
    """Return (sign, R_i [n, K, K]) pairs with blocks = Σ sign·R_i R_iᵀ; the negative pair only if needed."""
    # Blocks of a loss that is convex in the logits have no negative part, except for rounding: half the work is saved.
    values, vectors = torch.linalg.eigh(blocks.double())
    roots = []
    for sign in (1.0, -1.0):
        part = (sign * values).clamp(min=0)
        if sign > 0 or float(part.sum()) > 1e-6 * float(values.abs().sum()):
            roots.append((sign, (vectors * part.sqrt()[:, None, :]).to(blocks.dtype)))
    return roots
