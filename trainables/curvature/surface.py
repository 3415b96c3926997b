"""A network over a fixed data set, made ready for second derivatives without touching the original."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainables.curvature.failures import CurvatureUnavailable, unavailable
from trainables.curvature.gauss_newton import Folded, affine_in_each_parameter, fold_batch_norm, logit_gram

# What autograd keeps for second derivatives, as a multiple of what it keeps for the forward pass: measured 1.6 for
# resnet8 and 1.05 for mlp, and the products' own temporaries come on top.
_GRAPH_GROWTH = 3.0
_DOUBLE_DIMENSION = 1_000_000  # beyond it, Lanczos vectors in double precision would be gigabytes
_LARGEST_CHUNK = 1024  # beyond it larger passes are no faster on a CPU
_PLANNED_BYTES = 4 * 2**30  # the memory that chunks are cut for, wherever they run: their size decides the last digits
_CPU_SHARE, _CPU_LIMIT = 0.25, 4 * 2**30  # of what is free: other trials run on the same machine
_CUDA_SHARE = 0.6  # of what is left of the process's share of the card


@contextlib.contextmanager
def second_order(device: torch.device) -> Iterator[None]:
    """Within this context graphs can be differentiated twice, and the caller's random state is left alone.

    Gradients are on whatever the caller's mode; autocast, TF32 and cuDNN's non-deterministic kernels are off; and
    attention runs as plain matrix products, because the fused kernels have no second derivative.
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
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


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


_frugal = ContextVar("frugal", default=False)


@contextlib.contextmanager
def no_graphs_kept() -> Iterator[None]:
    """Within this context a measurement keeps no graph: it takes the least memory and gives the same numbers."""
    before = _frugal.set(True)
    try:
        yield
    finally:
        _frugal.reset(before)


def graph_budget(device: torch.device) -> int:
    """Return how many bytes of graphs a measurement may hold on `device`; on a card, of this process's share of it."""
    if _frugal.get():
        return 0
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        left = min(free, int(torch.cuda.get_per_process_memory_fraction(device) * total) - reserved)
        unused = reserved - torch.cuda.memory_allocated(device)
        return int(_CUDA_SHARE * (max(0, left) + unused))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(_CPU_SHARE * free), _CPU_LIMIT)


def chunk_size(samples: int, bytes_per_sample: float, beside: int, batch_size: int) -> int:
    """Return how many samples pass together, in whole batches, at least one.

    The size decides how sums are rounded, so it follows from the arguments alone, never from the memory that is free:
    chunks are cut as if 4 GiB were to be had, `beside` bytes of which are taken. Where not all samples fit, a chunk
    takes half of it.
    """
    fits = max(0, _PLANNED_BYTES - beside) / max(bytes_per_sample, 1.0)
    size = int(min(_LARGEST_CHUNK, samples, fits if samples <= fits else fits / 2))
    return max(1, size // batch_size) * batch_size


def kept_chunks(samples: int, size: int, bytes_per_sample: float, budget: int) -> int:
    """Return how many chunks of `size` keep their graph: all that fit in `budget` beside one that is rebuilt.

    A graph that is rebuilt gives the same numbers; it only takes longer.
    """
    chunks, fits = -(-samples // size), budget / max(bytes_per_sample, 1.0)
    return chunks if samples <= fits else min(chunks, max(0, int(fits / size) - 1))


@dataclass
class Chunk:
    """Samples that pass through the network together; `logits` holds their graph where `kept`."""

    inputs: Tensor
    targets: Tensor
    kept: bool
    logits: Tensor | None = None


class Surface:
    """A network over a fixed data set, ready for second derivatives of any loss of its logits.

    The logits' graph of each chunk is built once and shared by all losses. Must be used within `second_order`.

    Attributes:
        affine: the network is affine in each parameter alone, so that traces are exact.
        dimension: the number P of trainable parameters.
        basis_type: the type to keep vectors of that dimension in.
        samples: how many samples the mean runs over.
        batch_size: the partition over which a batch-coupled loss is taken.
    """

    def __init__(
        self, model: nn.Module, inputs: Tensor, targets: Tensor, *, batch_size: int, basis_rows: int = 0
    ) -> None:
        """Copy `model`, look at its structure on a few samples, and cut the data into chunks.

        Memory for `basis_rows` vectors of all parameters is left beside the graphs. Raises CurvatureUnavailable when
        the model cannot be copied or run, or has no trainable parameter.
        """
        self.network = private_copy(model)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.samples, self.batch_size = len(targets), batch_size
        inputs, targets = inputs.to(self.device).clone(), targets.to(self.device).clone()
        try:
            with _saved_bytes(self.network) as saved:
                self.affine = affine_in_each_parameter(self.network, inputs[:3])
            self._folded: Folded = dict(fold_batch_norm(self.network, inputs[:3]))
        except (RuntimeError, NotImplementedError) as error:
            raise unavailable("the forward pass for curvature", error) from error
        per_sample = _GRAPH_GROWTH * saved[0] / min(3, self.samples)
        self.dimension = sum(p.numel() for p in self.parameters)
        self.basis_type = torch.float64 if self.dimension <= _DOUBLE_DIMENSION else self.parameters[0].dtype
        reserved = basis_rows * self.dimension * self.basis_type.itemsize
        size = chunk_size(self.samples, per_sample, reserved, batch_size)
        budget = max(0, graph_budget(self.device) - reserved)
        kept = kept_chunks(self.samples, size, per_sample, budget)
        pairs = zip(inputs.split(size), targets.split(size), strict=True)
        self._grams: dict[int, Tensor] = {}
        self.chunks = [Chunk(x, y, index < kept) for index, (x, y) in enumerate(pairs)]

    def logits(self, chunk: Chunk) -> Tensor:
        """Return the chunk's logits [n, K] with their graph. Raises CurvatureUnavailable where that fails."""
        if chunk.logits is not None:
            return chunk.logits
        try:
            logits: Tensor = self.network(chunk.inputs)
        except (RuntimeError, NotImplementedError) as error:
            raise unavailable("the forward pass for curvature", error) from error
        if chunk.kept:
            chunk.logits = logits
        return logits

    def gram(self, index: int) -> Tensor:
        """Return J_i J_iᵀ [n, K, K] of each sample of chunk `index`, computed once for all losses."""
        if index not in self._grams:
            self._grams[index] = logit_gram(self.network, self._folded, self.chunks[index].inputs)
        return self._grams[index]

    def squared_norms(self, chunk: Chunk, directions: Tensor) -> Tensor:
        """Return ‖J_iᵀ w_ij‖² [n, m] for each sample's `directions` w_ij [n, K, m] in logit space."""
        gram = logit_gram(self.network, self._folded, chunk.inputs, directions)
        return gram.diagonal(dim1=1, dim2=2)


@contextlib.contextmanager
def _saved_bytes(network: nn.Module) -> Iterator[list[int]]:
    """Count the bytes that autograd saves within the context, parameters aside, into a list of one number."""
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    storages: dict[int, int] = {}
    total = [0]

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield total
    total[0] = sum(storages.values())
