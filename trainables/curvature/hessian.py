"""Hessian-vector products of a mean loss over a data set, by double backward through retained graphs.

`Surface` prepares a network and a fixed data set for second derivatives without changing the original network.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainables.curvature.failures import (
    CurvatureUnavailable,
    as_unavailable,
    cannot_differentiate,
    require_finite,
    samples_mix,
)
from trainables.curvature.gauss_newton import (
    affine_in_each_parameter,
    fold_batch_norm,
    gram_holds,
    logit_gram,
    logit_hessian,
)
from trainables.curvature.loss_of_logits import LossFunction, loss_of_logits
from trainables.extensions.libraries import vector_jacobian
from trainables.registry import set_within

# Memory of a graph for second derivatives relative to the forward pass. Autograd keeps 1.6 times as much for resnet8
# and 1.05 times for mlp (measured), and the products' own temporaries come on top.
_GRAPH_GROWTH = 3.0
_DOUBLE_DIMENSION = 1_000_000  # more parameters: Lanczos vectors in double precision would take gigabytes
LARGEST_CHUNK = 1024  # larger passes are no faster on a CPU
# The memory budget from which chunk sizes follow. It ignores free memory, because the chunk size determines the last
# digits of a sum. CPU caches favour small chunks (resnet8 on 3×32×32: 18.4 s with chunks of 128, 22.9 s with 768); on a
# GPU every chunk costs launch time.
_CPU_PLAN, _CUDA_PLAN = 2**29, 2**32
_MIXED_PLANS = 8  # multiple of that budget allowed for a network that mixes samples: its data cannot be cut
_CPU_SHARE, _CPU_LIMIT = 0.25, 2**30  # share of free memory: other trials run too, and kept graphs save only 10 to 25 %
_SYMMETRY = 1e-4  # largest accepted |uᵀHv − vᵀHu| relative to ‖H‖
_CUDA_SHARE = 0.6  # share of the unused part of this process's GPU fraction


@contextlib.contextmanager
def second_order(device: torch.device) -> Iterator[None]:
    """Within this context graphs can be differentiated twice, and the caller's random state is preserved.

    Gradients are enabled in any mode of the caller. Autocast, TF32 and cuDNN's non-deterministic kernels are off.
    Attention runs as plain matrix products, because the fused kernels have no second derivative.
    """
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        # TF32 for matrix products has no context manager of its own, unlike cuDNN's.
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


def private_copy(model: nn.Module) -> nn.Module:
    """Return a copy of `model` in eval mode, so that the original stays unchanged.

    Raises CurvatureUnavailable if the model cannot be copied or has no trainable parameter.
    """
    original = getattr(model, "_orig_mod", model)  # a compiled module has no second derivative; its original has
    with as_unavailable("copying the network"):
        network: nn.Module = copy.deepcopy(original).eval()
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise CurvatureUnavailable("the network has no trainable parameter, so there is no Hessian")
    # The network runs on the same inputs repeatedly and could change them in place.
    network.register_forward_pre_hook(lambda _, given: tuple(value.clone() for value in given), prepend=True)
    return network


_frugal = ContextVar("frugal", default=False)


def no_graphs_kept() -> contextlib.AbstractContextManager[None]:
    """Within this context measurements keep no graphs, which saves memory, takes longer and changes no number."""
    return set_within(_frugal, True)


def graph_budget(device: torch.device) -> int:
    """Return the bytes of graphs that a measurement may hold on `device`."""
    if _frugal.get():
        return 0
    if device.type == "cuda":
        # `set_per_process_memory_fraction` limits this process, but `mem_get_info` reports the whole GPU.
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        left = min(free, int(torch.cuda.get_per_process_memory_fraction(device) * total) - reserved)
        # Memory that torch has reserved and not allocated is free for this process, although the driver counts it used.
        unused = reserved - torch.cuda.memory_allocated(device)
        return int(_CUDA_SHARE * (max(0, left) + unused))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(_CPU_SHARE * free), _CPU_LIMIT)


def chunk_size(samples: int, bytes_per_sample: float, reserved: int, batch_size: int, device: torch.device) -> int:
    """Return the number of samples per pass, in whole batches and at least one batch.

    The size determines how sums are rounded, so it depends on the arguments alone and never on free memory. The budget
    is half a GiB on a CPU and 4 GiB on a GPU, minus `reserved` bytes. If not all samples fit, a chunk takes half of
    that.
    """
    fits = max(0, (_CPU_PLAN if device.type == "cpu" else _CUDA_PLAN) - reserved) / max(bytes_per_sample, 1.0)
    size = int(min(LARGEST_CHUNK, samples, fits if samples <= fits else fits / 2))
    return max(1, size // batch_size) * batch_size


def kept_chunks(samples: int, size: int, bytes_per_sample: float, budget: int) -> int:
    """Return how many chunks of `size` keep their graph within `budget` bytes.

    The other graphs are rebuilt for every product, which gives the same numbers and takes longer.
    """
    # Memory for one chunk is left for the graph that is being rebuilt.
    chunks, fits = -(-samples // size), budget / max(bytes_per_sample, 1.0)
    return chunks if samples <= fits else min(chunks, max(0, int(fits / size) - 1))


@dataclass
class Chunk:
    """Samples that pass through the network together. If `kept`, `logits` holds their graph."""

    inputs: Tensor
    targets: Tensor
    kept: bool
    logits: Tensor | None = None


class Surface:
    """A network over a fixed data set, ready for second derivatives of any loss of its logits.

    The logits' graph of each chunk is built once and shared by all losses. Must be used within `second_order`.

    Attributes:
        names: names of the trainable parameters, in order.
        affine: whether the network is affine in each parameter alone, so that traces are exact.
        dimension: number P of trainable parameters.
        basis_type: dtype for vectors with one entry per parameter.
        arithmetic: dtype of the products' factors, which limits the accuracy of residuals.
        samples: number of samples in the mean.
        graph_bytes: estimated memory of all samples' graphs.
        batch_size: batch size of the fixed partition for batch-coupled losses.
        by_layer: whether each layer's contribution to J_i J_iᵀ is also kept.
    """

    def __init__(
        self, model: nn.Module, inputs: Tensor, targets: Tensor, *, batch_size: int, basis_rows: int = 0
    ) -> None:
        """Copy `model`, examine its structure on a few samples, and cut the data into chunks.

        Memory for `basis_rows` vectors of all parameters is reserved. Raises CurvatureUnavailable if the model cannot
        be copied or run, has outputs that vary between calls, or has no trainable parameter.
        """
        self.network = private_copy(model)
        trainable = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.names, self.parameters = [*trainable], [*trainable.values()]
        self.device = self.parameters[0].device
        self.arithmetic = self.parameters[0].dtype
        self.samples, self.batch_size = len(targets), batch_size
        inputs, targets = inputs.to(self.device).clone(), targets.to(self.device).clone()
        few = inputs[:3].clone()  # a view would count the storage of all samples
        with as_unavailable("the forward pass for curvature"):
            mix = samples_mix(self.network, model, inputs[:4])
            with _saved_bytes(self.network) as saved:
                self.affine = affine_in_each_parameter(self.network, few)
            self._folded = dict(fold_batch_norm(self.network, few))
            self.affine = self.affine and gram_holds(self.network, self._folded, few)
        per_sample = _GRAPH_GROWTH * saved[0] / len(few)
        self.dimension = sum(p.numel() for p in self.parameters)
        self.basis_type = torch.float64 if self.dimension <= _DOUBLE_DIMENSION else self.parameters[0].dtype
        reserved = basis_rows * self.dimension * self.basis_type.itemsize
        self.graph_bytes = per_sample * self.samples
        size = chunk_size(self.samples, per_sample, reserved, batch_size, self.device)
        if mix and size < self.samples:
            if self.graph_bytes > _MIXED_PLANS * (_CPU_PLAN if self.device.type == "cpu" else _CUDA_PLAN):
                raise CurvatureUnavailable(
                    f"the network mixes samples, as with batch statistics, so all {self.samples} samples must fit in"
                    " one pass, and they do not: lower evaluation.curvature.samples"
                )
            size = self.samples
        budget = max(0, graph_budget(self.device) - reserved)
        kept = kept_chunks(self.samples, size, per_sample, budget)
        pairs = zip(inputs.split(size), targets.split(size), strict=True)
        self._grams: dict[int, Tensor] = {}
        self._shares: dict[int, dict[nn.Module, Tensor]] = {}
        self.by_layer = False
        self.chunks = [Chunk(x, y, index < kept) for index, (x, y) in enumerate(pairs)]

    def logits(self, chunk: Chunk) -> Tensor:
        """Return the chunk's logits [n, K] with their graph. Raises CurvatureUnavailable if the network fails."""
        if chunk.logits is not None:
            return chunk.logits
        with as_unavailable("the forward pass for curvature"):
            logits: Tensor = self.network(chunk.inputs)
        if chunk.kept:
            chunk.logits = logits
        return logits

    def mean_loss(self, loss: LossFunction, logits: Tensor, targets: Tensor, at: Tensor | None = None) -> Tensor:
        """Return these samples' contribution to the mean of `loss` over all samples, summed over their batches.

        Values that the loss treats as constant are fixed at `at`, or at these logits by default.
        """
        total = logits.new_zeros((), dtype=torch.float64)
        given = (logits, targets, (logits if at is None else at).detach())
        batches = (values.split(self.batch_size) for values in given)
        for z, y, known in zip(*batches, strict=True):
            total = total + loss_of_logits(loss, z, y, known) * (len(y) / self.samples)
        return total

    def gram(self, index: int) -> Tensor:
        """Return J_i J_iᵀ [n, K, K] for the samples of chunk `index`, computed once for all losses."""
        if self.by_layer:
            self.shares(index)
        if index not in self._grams:
            self._grams[index] = logit_gram(self.network, self._folded, self.chunks[index].inputs)
        return self._grams[index]

    def shares(self, index: int) -> dict[nn.Module, Tensor]:
        """Return each layer's contribution [n, K, K] to `gram(index)`, which is computed as well."""
        if index not in self._shares:
            slices: dict[nn.Module, list[Tensor]] = {}
            self._grams[index] = logit_gram(self.network, self._folded, self.chunks[index].inputs, shares=slices)
            self._shares[index] = {module: torch.cat(parts) for module, parts in slices.items()}
        return self._shares[index]

    def squared_norms(self, chunk: Chunk, directions: Tensor) -> Tensor:
        """Return ‖J_iᵀ w_ij‖² [n, m] for `directions` w_ij [n, K, m] in logit space."""
        gram = logit_gram(self.network, self._folded, chunk.inputs, directions)
        return gram.diagonal(dim1=1, dim2=2)


@contextlib.contextmanager
def _saved_bytes(network: nn.Module) -> Iterator[list[int]]:
    """Within the context, count the bytes that autograd saves, without parameters. Yields a list of one number."""
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    storages: dict[int, int] = {}
    total = [0]

    def pack(tensor: Tensor) -> Tensor:
        # Several saved tensors can be views of one storage, which must count once.
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield total
    total[0] = sum(storages.values())


def flatten(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """Concatenate `tensors`, shaped like `like`, to one vector [P], with zeros for `None`.

    Example:
        >>> weight, bias = torch.ones(1, 2), torch.ones(1)
        >>> flatten([weight, None], like=[weight, bias])
        tensor([1., 1., 0.])
    """
    pairs = zip(tensors, like, strict=True)
    return torch.cat([(torch.zeros_like(p) if t is None else t).reshape(-1) for t, p in pairs])


def split_like(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split `vector` [P] into pieces with the shapes and dtype of `like`."""
    pieces = torch.split(vector.to(like[0].dtype), [p.numel() for p in like])
    return [piece.view_as(p) for piece, p in zip(pieces, like, strict=True)]


def hessian_vector_product(
    gradients: Sequence[Tensor | None],
    parameters: Sequence[Tensor],
    vectors: Sequence[Tensor],
    *,
    training: bool = False,
) -> list[Tensor | None]:
    """Return H·v = ∇(gᵀv) from gradients g that kept their graph (Pearlmutter 1994).

    Args:
        gradients: gradient per parameter, taken with `create_graph=True`; `None` if the loss does not depend on it.
        parameters: the parameters of these gradients.
        vectors: v, shaped like the parameters.
        training: keep the graph of the result, as the `hessian_trace` loss needs (curvature Eq. 33).

    Returns:
        H·v per parameter; `None` if it does not depend on that parameter.

    Example:
        >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> gradients = torch.autograd.grad(w[0] ** 2 * w[1], [w], create_graph=True)
        >>> hessian_vector_product(gradients, [w], [torch.tensor([1.0, 0.0])])
        [tensor([4., 2.])]
    """
    kept = [(g, v) for g, v in zip(gradients, vectors, strict=True) if g is not None and g.requires_grad]
    if not kept:  # the loss is affine in the parameters
        return [None] * len(parameters)
    outputs, cotangents = zip(*kept, strict=True)
    return [
        *vector_jacobian(outputs, parameters, cotangents, retain_graph=True, create_graph=training, allow_unused=True)
    ]


class HessianOperator:
    """The Hessian of one mean loss over a `Surface`: its gradient, its products and their count."""

    def __init__(self, surface: Surface, loss: LossFunction, gradient: Tensor | None = None) -> None:
        """Compute the gradient unless `gradient` is given. The loss's constants are fixed separately for each batch.

        Raises CurvatureUnavailable if the gradient is not finite or cannot be differentiated.
        """
        self.surface = surface
        self.loss = loss
        self.products = 0
        self._gradients: dict[int, list[Tensor | None]] = {}
        self.gradient = self._whole_gradient() if gradient is None else gradient

    def _whole_gradient(self) -> Tensor:
        surface = self.surface
        total = torch.zeros(surface.dimension, dtype=torch.float64, device=surface.device)
        for index, chunk in enumerate(surface.chunks):
            gradients = self._chunk_gradients(chunk)
            if index == 0 and cannot_differentiate(g for g in gradients if g is not None):
                raise CurvatureUnavailable("the network or the loss has an operation without a second derivative")
            if chunk.kept:
                self._gradients[index] = gradients
            total += flatten([None if g is None else g.detach() for g in gradients], surface.parameters)
        return require_finite(total, "the gradient of the loss")

    def product(self, vector: Tensor) -> Tensor:
        """Return H·vector [P] in float64. Raises CurvatureUnavailable if it is not finite."""
        return self.products_of(vector[None])[0]

    def products_of(self, vectors: Tensor) -> Tensor:
        """Return H·v for each row v of `vectors` [m, P], in one pass over the data.

        Raises CurvatureUnavailable if a product is not finite.
        """
        self.products += len(vectors)
        parameters, result = self.surface.parameters, torch.zeros_like(vectors, dtype=torch.float64)
        # The outer loop is over chunks: a graph that did not fit in memory is then rebuilt once for all vectors.
        for gradients in self.gradients():
            with as_unavailable("a Hessian-vector product"):
                for row, vector in zip(result, vectors, strict=True):
                    images = hessian_vector_product(gradients, parameters, split_like(vector, parameters))
                    row += flatten(images, parameters)
        return require_finite(result, "a Hessian-vector product")

    def require_symmetric(self) -> None:
        """Raise CurvatureUnavailable if uᵀHv ≠ vᵀHu for random u, v, because some second derivative is then wrong.

        The two products are not counted.
        """
        # The double backward of torch.nn.utils.parametrizations.weight_norm is wrong in torch 2.13.
        surface, count = self.surface, self.products
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(2, surface.dimension, generator=generator, dtype=surface.basis_type).to(surface.device)
        images, self.products = self.products_of(drawn), count
        one, other = (drawn.double() * images.flip(0)).sum(1)
        # Both numbers are about ‖H‖_F. In float32, rounding makes them differ by 1e-6 of ‖H‖_F; weight_norm makes them
        # differ by up to 6e-1 of it.
        size, tolerance = float(images.norm(dim=1).max()), max(_SYMMETRY, torch.finfo(surface.arithmetic).eps ** 0.5)
        if abs(float(one - other)) > tolerance * size:
            share = abs(float(one - other)) / size
            raise CurvatureUnavailable(
                f"the Hessian is not symmetric (uᵀHv and vᵀHu differ by {share:.1g}‖H‖): an operation in the network or"
                " the loss has a wrong second derivative, as torch's weight_norm has; replace it"
            )

    def gradients(self) -> Iterator[list[Tensor | None]]:
        """Yield each chunk's gradients with their graph, rebuilding graphs that were not kept."""
        for index, chunk in enumerate(self.surface.chunks):
            yield self._gradients.get(index) or self._chunk_gradients(chunk)

    def logit_blocks(self, chunk: Chunk) -> Tensor | None:
        """Return the mean loss's Hessian by each sample's logits [n, K, K], or `None` if the loss couples samples."""
        logits = self.surface.logits(chunk).detach().requires_grad_()
        return logit_hessian(self.surface.mean_loss(self.loss, logits, chunk.targets), logits)

    def _chunk_gradients(self, chunk: Chunk) -> list[Tensor | None]:
        logits = self.surface.logits(chunk)
        with as_unavailable("the gradient for curvature"):
            value = self.surface.mean_loss(self.loss, logits, chunk.targets)
            parameters = self.surface.parameters
            return [*torch.autograd.grad(value, parameters, create_graph=True, retain_graph=True, allow_unused=True)]
