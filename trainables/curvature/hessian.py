"""Hessian-vector products of a mean loss over a data set, by double backward through retained graphs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainables.curvature.failures import CurvatureUnavailable, unavailable

LossFunction = Callable[[Tensor, Tensor], Tensor]


@contextlib.contextmanager
def second_order(device: torch.device) -> Iterator[None]:
    """Within this context graphs can be differentiated twice, and the caller's random state is left alone.

    Gradients are on whatever the caller's mode, autocast is off, and attention runs as plain matrix products
    because the fused kernels have no second derivative.
    """
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        yield


def private_copy(model: nn.Module) -> nn.Module:
    """Return a copy of `model` in eval mode to work on, so that the original is never touched.

    Raises CurvatureUnavailable when the model cannot be copied or has no trainable parameter.
    """
    original = getattr(model, "_orig_mod", model)  # a compiled module has no second derivative; its original has
    try:
        network: nn.Module = copy.deepcopy(original).eval()
    except RuntimeError as error:
        raise unavailable("copying the network", error) from error
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise CurvatureUnavailable("the network has no trainable parameter, so there is no Hessian")
    return network


def flatten(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """Return `tensors` as one vector, with zeros for each that is `None`."""
    pieces = (torch.zeros_like(p) if t is None else t for t, p in zip(tensors, like, strict=True))
    return torch.cat([piece.reshape(-1) for piece in pieces])


def split_like(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return `vector` [P] cut into pieces with the shapes and type of `like`."""
    pieces = vector.to(like[0].dtype).split([p.numel() for p in like])
    return [piece.view(p.shape) for piece, p in zip(pieces, like, strict=True)]


def hessian_vector_product(
    gradients: Sequence[Tensor | None],
    parameters: Sequence[Tensor],
    vectors: Sequence[Tensor],
    *,
    training: bool = False,
) -> list[Tensor | None]:
    """Return H·v, a tensor for each parameter, from gradients that were taken with `create_graph=True`.

    With `training` the result can itself be differentiated, as the `hessian_trace` regulariser needs
    (curvature paper, Eq. 33). A parameter that the gradient does not depend on gets `None`.
    """
    kept = [(g, v) for g, v in zip(gradients, vectors, strict=True) if g is not None and g.requires_grad]
    if not kept:  # the loss is affine in the parameters
        return [None] * len(parameters)
    outputs, cotangents = zip(*kept, strict=True)
    return list(
        torch.autograd.grad(
            outputs, parameters, cotangents, retain_graph=True, create_graph=training, allow_unused=True
        )
    )


@dataclass
class Chunk:
    """Samples that pass through the network together; `graph` is kept while memory allows."""

    inputs: Tensor
    targets: Tensor
    logits: Tensor | None = None


class Surface:
    """A network over a fixed data set, ready for second derivatives of any loss of its logits.

    The logits' graph of each chunk is built once and shared by all losses.
    """

    def __init__(
        self, network: nn.Module, inputs: Tensor, targets: Tensor, *, batch_size: int, chunk_size: int
    ) -> None:
        """Cut the data into chunks of `chunk_size` samples, rounded to whole batches of `batch_size`."""
        self.network = network
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self.batch_size = batch_size
        self.samples = len(targets)
        size = max(batch_size, chunk_size // batch_size * batch_size)
        device = self.parameters[0].device
        self.chunks = [
            Chunk(x.to(device).clone(), y.to(device).clone())
            for x, y in zip(inputs.split(size), targets.split(size), strict=True)
        ]

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self.parameters[0].device

    def logits(self, chunk: Chunk) -> Tensor:
        """Return the chunk's logits [n, K] with their graph."""
        if chunk.logits is None:
            try:
                chunk.logits = self.network(chunk.inputs)
            except RuntimeError as error:
                raise unavailable("the forward pass for curvature", error) from error
        return chunk.logits


class HessianOperator:
    """The Hessian of one mean loss over a `Surface`: its gradient and its products, which are counted."""

    def __init__(self, surface: Surface, loss: LossFunction) -> None:
        """Freeze what the loss treats as constant, batch by batch, and take the gradient.

        Raises CurvatureUnavailable when the gradient is not finite or cannot be differentiated.
        """
        self.surface = surface
        self.products = 0
        self._gradients: list[list[Tensor | None]] = []
        parameters = surface.parameters
        self.gradient = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64, device=surface.device)
        for chunk in surface.chunks:
            value = self._mean_loss(surface.logits(chunk), chunk.targets, loss)
            try:
                gradients = torch.autograd.grad(
                    value, parameters, create_graph=True, retain_graph=True, allow_unused=True
                )
            except (RuntimeError, NotImplementedError) as error:
                raise unavailable("the gradient for curvature", error) from error
            self._gradients.append(list(gradients))
            self.gradient += flatten([None if g is None else g.detach() for g in gradients], parameters)
        if not bool(torch.isfinite(self.gradient).all()):
            raise CurvatureUnavailable("the gradient of the loss has entries that are not finite")

    def _mean_loss(self, logits: Tensor, targets: Tensor, loss: LossFunction) -> Tensor:
        """Return the chunk's share of the mean over all samples, summed over its batches."""
        size = self.surface.batch_size
        total = logits.new_zeros(())
        for z, y in zip(logits.split(size), targets.split(size), strict=True):
            fixed = frozen(loss, z.detach(), y)
            total = total + fixed(z, y) * (len(y) / self.surface.samples)
        return total

    def product(self, vector: Tensor) -> Tensor:
        """Return H·vector [P] in float64. Raises CurvatureUnavailable when it is not finite."""
        self.products += 1
        vectors = split_like(vector, self.surface.parameters)
        result = torch.zeros_like(vector, dtype=torch.float64)
        for gradients in self._gradients:
            try:
                pieces = hessian_vector_product(gradients, self.surface.parameters, vectors)
            except (RuntimeError, NotImplementedError) as error:
                raise unavailable("a Hessian-vector product", error) from error
            result += flatten(pieces, self.surface.parameters)
        if not bool(torch.isfinite(result).all()):
            raise CurvatureUnavailable("a Hessian-vector product has entries that are not finite")
        return result


def frozen(loss: Any, logits: Tensor, targets: Tensor) -> LossFunction:
    """Return `loss` with everything that it treats as constant fixed at `logits`; a plain function as it is."""
    freeze = getattr(loss, "frozen", None)
    return loss if freeze is None else freeze(logits, targets)
