"""The trace of a symmetric operator: from random probes with a standard error, or sample by sample without products.

If the network is affine in each parameter alone (`gauss_newton`), Tr(H) = Σ_i ⟨H_z,i, J_i J_iᵀ⟩, a sum over samples.
With few classes K it is exact, from K backward passes for all losses together. With many classes, each sample draws
random directions w_i in logit space with E[w_i w_iᵀ] = H_z,i. Samples draw independently, so their errors average out.
A probe in parameter space is instead shared by all samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.curvature.hessian import HessianOperator
from trainables.curvature.lanczos import Lanczos, project_out

Products = Callable[[Tensor], Tensor]  # rows [m, P] → images [m, P]

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


def hutchinson(products: Products, known: Lanczos, probes: int, generator: torch.Generator) -> TraceEstimate:
    """Estimate Tr(H) by Hutchinson's method on the complement of a Krylov space, whose trace is known.

    For random signs z, E[zzᵀ] = I. So w = (I − QᵀQ)z, with orthonormal rows Q that span the Krylov space, has
    E[wwᵀ] = I − QᵀQ, and Tr(H) = Tr(QHQᵀ) + E[wᵀHw] (Hutchinson 1990). The first term is exact. The standard error is
    that of the mean of wᵀHw.

    Args:
        products: products with H for rows [m, P].
        known: Lanczos run of H.
        probes: number of probes, at least two, as a standard error needs.
        generator: source of the signs.

    Example:
        >>> from trainables.curvature.lanczos import lanczos
        >>> matrix, start = torch.diag(torch.tensor([3.0, 2.0, 1.0])), torch.tensor([1.0, 0.0, 0.0])
        >>> generator = torch.Generator().manual_seed(0)
        >>> known = lanczos(lambda v: matrix @ v, start, steps=1, tolerance=0.0, generator=generator)
        >>> hutchinson(lambda rows: rows @ matrix, known, 4, generator)
        TraceEstimate(value=6.0, standard_error=0.0, probes=4, parts=(), part_errors=())
    """
    rows = probed_terms(products, known.basis, probes, generator)
    return estimate(known, [value for terms in rows for value in terms.sum(1).tolist()])


def probed_terms(products: Products, basis: Tensor, probes: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield w ⊙ Hw as rows [m, P], each with the sum wᵀHw, for probes w in the complement of `basis` [k, P].

    There are none if the basis spans the whole space.
    """
    count = probes if len(basis) < basis.shape[1] else 0
    for start in range(0, count, _PROBES_PER_PASS):
        probe = project_out(rademacher(min(count - start, _PROBES_PER_PASS), basis, generator), basis)
        yield probe * products(probe)


def estimate(known: Lanczos, probed: list[float]) -> TraceEstimate:
    """Return the trace from its exact part on a Krylov space and the values of wᵀHw."""
    mean, error = mean_and_error(probed) if probed else (0.0, 0.0)
    return TraceEstimate(known.trace + mean, error, len(probed))


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean of `values` and its standard error (sample standard deviation over √n).

    Example:
        >>> mean_and_error([1.0, 3.0])
        (2.0, 1.0)
    """
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


EXACT_CLASSES = 32  # 32 backward passes, once for all losses, take as long as about 16 Hessian-vector products
SKETCHED_CLASSES = 256  # with more classes, the blocks H_z,i and their roots cost more than probes
_DIRECTIONS = 2  # per sample: the fewest that give a standard error


def per_sample_trace(operator: HessianOperator, generator: torch.Generator) -> TraceEstimate | None:
    """Return Tr(H) summed over samples: exact with few classes, sketched with many, `None` if not applicable.

    It does not apply to networks that are not affine in each parameter, or to losses that couple samples (mmce,
    kde_xe). A sketch draws two directions per sample.
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
    return _sketch(operator, blocks, generator)


def _sketch(operator: HessianOperator, blocks: list[Tensor], generator: torch.Generator) -> TraceEstimate:
    roots = [signed_roots(block) for block in blocks]
    # [N, 2]: unbiased values of ⟨H_z,i, J_i J_iᵀ⟩
    values = torch.cat([_draw(operator, index, root, generator) for index, root in enumerate(roots)])
    # Samples draw independently, so their variances add up.
    variances = values.var(1)
    error = float((variances.sum() / _DIRECTIONS).sqrt())
    return TraceEstimate(float(values.mean(1).sum()), error, 1 + _degrees_of_freedom(variances))


def _degrees_of_freedom(variances: Tensor) -> int:
    """Return Satterthwaite's degrees of freedom for a sum of `variances` [N], each estimated from two values."""
    # The formula is (draws − 1)(Σσ²)²/Σσ⁴; a squared estimate overstates σ⁴ by (draws + 1)/(draws − 1).
    squares = float(variances.square().sum())
    return max(1, int((_DIRECTIONS + 1) * float(variances.sum()) ** 2 / squares)) if squares > 0 else 1


def _draw(
    operator: HessianOperator, index: int, roots: list[tuple[float, Tensor]], generator: torch.Generator
) -> Tensor:
    """Return two unbiased values [n, 2] of each sample's contribution to the trace."""
    chunk = operator.surface.chunks[index]
    total = torch.zeros(len(chunk.targets), _DIRECTIONS, dtype=torch.float64, device=chunk.targets.device)
    for sign, root in roots:
        shape = (len(root), root.shape[2], _DIRECTIONS)
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
