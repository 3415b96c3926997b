"""Extreme eigenvalues of a symmetric operator by Lanczos with full reorthogonalisation."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]

#: Error of a product relative to ‖H‖, in units of its dtype's epsilon. With float32 products, λ_max of three mlps and
#: three resnet8 was wrong by 4e-8 to 4e-7 while Lanczos' own estimate of the residual had fallen to 1e-32.
ROUNDINGS = 8.0


@dataclass(frozen=True)
class Lanczos:
    """The result of a Lanczos run with k steps on an operator of dimension P.

    Attributes:
        values: ascending Ritz values [k].
        residuals: ‖Hv − λv‖ per Ritz pair [k] according to the recurrence, which assumes exact products.
        basis: orthonormal rows [k, P] that span the Krylov space.
        coordinates: Ritz vectors in that basis, one per column [k, k].
        precision: relative error of a product, which limits the accuracy of every residual.
        rest: component of the last product outside the Krylov space [P].
    """

    values: Tensor
    residuals: Tensor
    basis: Tensor
    coordinates: Tensor
    precision: float = 0.0
    rest: Tensor | None = None

    @property
    def lambda_max(self) -> float:
        """Largest algebraic Ritz value."""
        return float(self.values[-1])

    @property
    def lambda_min(self) -> float:
        """Smallest Ritz value."""
        return float(self.values[0])

    @property
    def top(self) -> Tensor:
        """Ritz vector of λ_max [P]."""
        return self.coordinates[:, -1] @ self.basis

    @property
    def images(self) -> Tensor:
        """Products of H with the rows of `basis` [k, P]."""
        # The recurrence H Q = Q T + r eᵀ gives them without a further product.
        tridiagonal = (self.coordinates * self.values.to(self.coordinates)) @ self.coordinates.T
        products = tridiagonal @ self.basis
        if self.rest is not None:
            products[-1] += self.rest
        return products

    @property
    def relative_residual(self) -> float:
        """‖Hv − λv‖/|λ| for λ_max, at least the rounding error of a product; 0 for a zero operator."""
        top = abs(self.lambda_max)
        return max(float(self.residuals[-1]), self.precision * self.norm) / top if top > 0 else 0.0

    @property
    def norm(self) -> float:
        """Largest |Ritz value|, a lower bound on the operator's norm."""
        return max(abs(self.lambda_max), abs(self.lambda_min))

    @property
    def trace(self) -> float:
        """Trace of the operator on the Krylov space."""
        return float(self.values.sum())


#: A generator that yields each vector [P] whose product it needs and receives that product.
LanczosRun = Generator[Tensor, Tensor, Lanczos]


def lanczos(
    product: Product,
    start: Tensor,
    *,
    steps: int,
    tolerance: float,
    generator: torch.Generator,
    arithmetic: torch.dtype | None = None,
) -> Lanczos:
    """Run Lanczos on an operator given by `product`, a function from a vector [P] to its image [P].

    The other arguments are those of `lanczos_run`.

    Example:
        >>> matrix = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
        >>> start, generator = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.Generator().manual_seed(0)
        >>> result = lanczos(lambda v: matrix @ v, start, steps=2, tolerance=0.0, generator=generator)
        >>> round(result.lambda_max, 6), round(result.lambda_min, 6)
        (3.0, 1.0)
    """
    run = lanczos_run(start, steps=steps, tolerance=tolerance, generator=generator, arithmetic=arithmetic)
    return complete_run(run, product)


def complete_run(run: LanczosRun, product: Product) -> Lanczos:
    """Drive `run` with `product` to its end and return its result."""
    vector = next(run)
    while True:
        try:
            vector = run.send(product(vector))
        except StopIteration as end:
            result: Lanczos = end.value
            return result


def lanczos_run(
    start: Tensor, *, steps: int, tolerance: float, generator: torch.Generator, arithmetic: torch.dtype | None = None
) -> LanczosRun:
    """Run Lanczos with at most `steps` products from `start` [P]; stop early once both ends have converged.

    The generator yields each vector whose product it needs, and receives that product. Several runs can thus share a
    traversal. Converged means ‖Hv − λv‖ ≤ tolerance·|λ| for λ_max and ≤ tolerance·‖H‖ for λ_min.

    Args:
        start: start vector [P]. The basis has its dtype; the tridiagonal matrix is in double precision.
        steps: maximum number of products.
        tolerance: relative residual of convergence.
        generator: source of new directions when the Krylov space is exhausted.
        arithmetic: dtype of the products if it differs from that of `start`; it limits the accuracy of residuals.
    """
    dimension = start.numel()
    steps = min(steps, dimension)
    basis = torch.zeros(steps, dimension, dtype=start.dtype, device=start.device)
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    vector = _unit(start, basis[:0], generator)
    precision = ROUNDINGS * max(torch.finfo(kind).eps for kind in (basis.dtype, arithmetic or basis.dtype))
    for step in range(steps):
        basis[step] = vector
        image = (yield vector).to(basis)
        diagonal.append(float(vector.double() @ image.double()))
        # Full reorthogonalisation: without it, converged eigenvalues reappear as copies (Golub & Van Loan, Matrix
        # Computations, §10.3).
        image = project_out(image, basis[: step + 1])
        remainder = float(image.norm())
        scale = max(map(abs, diagonal + off_diagonal))
        # An invariant subspace: the run continues in a random direction, so that eigenvectors orthogonal to `start`
        # are not missed.
        exhausted = remainder <= 100 * torch.finfo(basis.dtype).eps * max(scale, 1e-300)
        result = _ritz(diagonal, off_diagonal, 0.0 if exhausted else remainder, basis[: step + 1])
        if step + 1 == steps or (not exhausted and _converged(result, tolerance)):
            return replace(result, precision=precision, rest=image)
        vector = _unit(torch.zeros_like(image) if exhausted else image, basis[: step + 1], generator)
        off_diagonal.append(0.0 if exhausted else remainder)
    raise AssertionError("the loop returns at its last step")


def gradient_start(gradient: Tensor, generator: torch.Generator) -> Tensor:
    """Return a start vector [P] for Lanczos: the gradient's direction plus a tenth of a random direction."""
    # The gradient lies largely along the top eigenvectors: on trained networks it reaches the same residual in 5
    # products instead of 6. The random part costs no product and reaches eigenvectors orthogonal to the gradient. It is
    # drawn on the CPU, so that a GPU starts at the same vector.
    drawn = torch.randn(gradient.numel(), generator=generator, dtype=torch.float64).to(gradient.device)
    drawn /= drawn.norm()
    norm = gradient.norm()
    return gradient / norm + 0.1 * drawn if float(norm) > 0 else drawn


def project_out(vectors: Tensor, basis: Tensor) -> Tensor:
    """Return a vector [P] or rows [m, P] without the components along the orthonormal rows of `basis`."""
    # Twice is enough (Kahan and Parlett): one pass leaves rounding errors as large as the remainder.
    for _ in range(2):
        vectors = vectors - (vectors @ basis.T) @ basis
    return vectors


def _unit(vector: Tensor, basis: Tensor, generator: torch.Generator) -> Tensor:
    """Return `vector` scaled to norm 1, or a random unit vector orthogonal to `basis` if it is zero."""
    norm = float(vector.norm())
    if norm > 0:
        return vector / norm
    drawn = torch.randn(vector.numel(), generator=generator, dtype=torch.float64).to(vector)
    drawn = project_out(drawn, basis)
    direction: Tensor = drawn / drawn.norm()
    return direction


def _ritz(diagonal: list[float], off_diagonal: list[float], remainder: float, basis: Tensor) -> Lanczos:
    """Return the Ritz pairs of the tridiagonal matrix; a residual is the remainder times a vector's last coordinate."""
    tridiagonal = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if off_diagonal:
        sides = torch.tensor(off_diagonal, dtype=torch.float64)
        tridiagonal += torch.diag(sides, 1) + torch.diag(sides, -1)
    values, coordinates = torch.linalg.eigh(tridiagonal)
    return Lanczos(values, remainder * coordinates[-1].abs(), basis, coordinates.to(basis))


def _converged(run: Lanczos, tolerance: float) -> bool:
    # λ_min is compared with ‖H‖, because it is often almost 0 and no residual is small relative to it.
    top, bottom = float(run.residuals[-1]), float(run.residuals[0])
    return len(run.values) > 1 and top <= tolerance * abs(run.lambda_max) and bottom <= tolerance * run.norm
