"""Hessian-vector products of a mean loss over a data set, by double backward through retained graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from trainables.curvature.failures import CurvatureUnavailable, cannot_differentiate, unavailable
from trainables.curvature.gauss_newton import logit_hessian
from trainables.curvature.surface import Chunk, Surface

LossFunction = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class Freezable(Protocol):
    """A loss that treats something as constant: ranks, weights, thresholds, a bandwidth, per-sample γ."""

    def frozen(self, logits: Tensor, targets: Tensor) -> LossFunction:
        """Return the loss with all that fixed at these logits [N, K] and targets [N]."""


def flatten(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """Return `tensors`, shaped like `like`, as one vector [P], with zeros for each that is `None`."""
    pieces = (torch.zeros_like(p) if t is None else t for t, p in zip(tensors, like, strict=True))
    return torch.cat([piece.reshape(-1) for piece in pieces])


def split_like(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return `vector` [P] cut into pieces with the shapes and type of `like`."""
    pieces = torch.split(vector.to(like[0].dtype), [p.numel() for p in like])
    return [piece.view(p.shape) for piece, p in zip(pieces, like, strict=True)]


def split_rows(vectors: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the rows [m, P] cut into columns [m, numel] for each of `like`, in their type."""
    return torch.split(vectors.to(like[0].dtype), [p.numel() for p in like], dim=1)


def hessian_vector_product(
    gradients: Sequence[Tensor | None],
    parameters: Sequence[Tensor],
    vectors: Sequence[Tensor],
    *,
    training: bool = False,
    batched: bool = False,
) -> list[Tensor | None]:
    """Return H·v = ∇(gᵀv) from gradients g that kept their graph (Pearlmutter 1994).

    Args:
        gradients: g of each parameter, taken with `create_graph=True`; `None` where the loss does not depend on it.
        parameters: what the gradients were taken with respect to.
        vectors: v, shaped like the parameters.
        training: the result can itself be differentiated, as the `hessian_trace` loss needs (curvature Eq. 33).
        batched: each vector has a leading dimension m, and so has the result: m products in one traversal.

    Returns:
        A tensor for each parameter, `None` for one that the gradient does not depend on.
    """
    kept = [(g, v) for g, v in zip(gradients, vectors, strict=True) if g is not None and g.requires_grad]
    if not kept:  # the loss is affine in the parameters
        return [None] * len(parameters)
    outputs, cotangents = zip(*kept, strict=True)
    return list(
        torch.autograd.grad(
            outputs,
            parameters,
            cotangents,
            retain_graph=True,
            create_graph=training,
            allow_unused=True,
            is_grads_batched=batched,
        )
    )


class HessianOperator:
    """The Hessian of one mean loss over a `Surface`: its gradient and its products, which are counted."""

    def __init__(self, surface: Surface, loss: LossFunction, vectors_per_pass: int = 1) -> None:
        """Freeze what the loss treats as constant, batch by batch, and take the gradient.

        Raises CurvatureUnavailable when the gradient is not finite or cannot be differentiated.
        """
        self.surface = surface
        self.loss = loss
        self.width = vectors_per_pass
        self.products = 0
        self.gradient = torch.zeros(
            sum(p.numel() for p in surface.parameters), dtype=torch.float64, device=surface.device
        )
        self._gradients: dict[int, list[Tensor | None]] = {}
        for index, chunk in enumerate(surface.chunks):
            gradients = self._chunk_gradients(chunk)
            if index == 0 and cannot_differentiate(g for g in gradients if g is not None):
                raise CurvatureUnavailable("the network or the loss has an operation without a second derivative")
            if chunk.kept:
                self._gradients[index] = gradients
            self.gradient += flatten([None if g is None else g.detach() for g in gradients], surface.parameters)
        if not bool(torch.isfinite(self.gradient).all()):
            raise CurvatureUnavailable("the gradient of the loss has entries that are not finite")

    def product(self, vector: Tensor) -> Tensor:
        """Return H·vector [P] in float64. Raises CurvatureUnavailable when it is not finite."""
        return self.products_of(vector[None])[0]

    def products_of(self, vectors: Tensor) -> Tensor:
        """Return H·v for each row v of `vectors` [m, P], in one pass over the data.

        A graph that did not fit in memory is rebuilt once for all of them. `vectors_per_pass` of them share a
        traversal of it. Raises CurvatureUnavailable when a product is not finite.
        """
        self.products += len(vectors)
        result = torch.zeros_like(vectors, dtype=torch.float64)
        for index, chunk in enumerate(self.surface.chunks):
            gradients = self._gradients.get(index)
            if gradients is None:
                gradients = self._chunk_gradients(chunk)
            try:
                for rows, part in zip(result.split(self.width), vectors.split(self.width), strict=True):
                    rows += self._chunk_products(gradients, part)
            except (RuntimeError, NotImplementedError) as error:
                raise unavailable("a Hessian-vector product", error) from error
        if not bool(torch.isfinite(result).all()):
            raise CurvatureUnavailable("a Hessian-vector product has entries that are not finite")
        return result

    def _chunk_products(self, gradients: list[Tensor | None], vectors: Tensor) -> Tensor:
        parameters = self.surface.parameters
        if len(vectors) == 1:
            pieces = split_like(vectors[0], parameters)
            return flatten(hessian_vector_product(gradients, parameters, pieces), parameters)[None]
        stacked = [p.expand(len(vectors), *p.shape) for p in parameters]
        together = [v.view_as(p) for v, p in zip(split_rows(vectors, parameters), stacked, strict=True)]
        found = hessian_vector_product(gradients, parameters, together, batched=True)
        rows = (torch.zeros_like(p) if f is None else f for f, p in zip(found, stacked, strict=True))
        return torch.cat([row.reshape(len(vectors), -1) for row in rows], dim=1)

    def logit_blocks(self, chunk: Chunk) -> Tensor | None:
        """Return the mean loss's Hessian in each sample's logits [n, K, K], or None where it couples samples."""
        logits = self.surface.logits(chunk).detach().requires_grad_()
        return logit_hessian(self._mean_loss(logits, chunk.targets), logits)

    def _chunk_gradients(self, chunk: Chunk) -> list[Tensor | None]:
        logits = self.surface.logits(chunk)
        try:
            value = self._mean_loss(logits, chunk.targets)
            return list(
                torch.autograd.grad(
                    value, self.surface.parameters, create_graph=True, retain_graph=True, allow_unused=True
                )
            )
        except (RuntimeError, NotImplementedError) as error:
            raise unavailable("the gradient for curvature", error) from error

    def _mean_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the chunk's share of the mean over all samples, summed over its batches."""
        size = self.surface.batch_size
        total = logits.new_zeros(())
        for z, y in zip(logits.split(size), targets.split(size), strict=True):
            total = total + frozen(self.loss, z.detach(), y)(z, y) * (len(y) / self.surface.samples)
        return total


def frozen(loss: LossFunction, logits: Tensor, targets: Tensor) -> LossFunction:
    """Return `loss` with everything that it treats as constant fixed at `logits`; a plain function as it is."""
    return loss.frozen(logits, targets) if isinstance(loss, Freezable) else loss
