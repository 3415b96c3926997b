"""Data that stay on the host: batches are gathered and sent to the device while the one before trains.

On a GPU three things run at once: a thread gathers batch i + 2 into page-locked memory, a stream of its own copies
batch i + 1, and the network's stream computes on batch i. Two rules keep that safe, and `streamed` holds both: a
buffer is written again only once its copy is done, and the network's stream waits for the copy of what it reads.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2  # batches in flight: one that waits, one being gathered


def ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `work(item)` in order, computed in another thread up to `AHEAD` items early; its errors are raised here.

    Torch gathers without the interpreter's lock, so one thread is enough to hide it, and needs no process whose
    memory would have to be shared.
    """
    waiting = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
        running: deque[Future[Result]] = deque(pool.submit(work, item) for item in islice(waiting, AHEAD))
        try:
            while running:
                done = running.popleft().result()
                running.extend(pool.submit(work, item) for item in islice(waiting, 1))
                yield done
        finally:
            for job in running:
                job.cancel()


@dataclass(frozen=True)
class Copy:
    """A copy on its way: the tensor on the device, and what tells when it is there."""

    tensor: Tensor
    done: Any


class Copier(Protocol):
    """Copies from the host beside other work of the device."""

    def buffer(self, like: Tensor, rows: int) -> Tensor:
        """Return memory of the host, [rows, ...], from which can be copied while the host continues."""

    def send(self, source: Tensor) -> Copy:
        """Begin to copy `source`, which must stay as it is until `wait_for`."""

    def wait_for(self, copy: Copy) -> None:
        """Let the host wait until a copy is done and its source may be overwritten."""

    def received(self, copy: Copy) -> Tensor:
        """Let what the caller computes next on the device wait for a copy; return its tensor."""


@functools.lru_cache(maxsize=8)  # the allocator keeps the memory of each stream apart
def copying_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that this process copies on."""
    return torch.cuda.Stream(device)


class CudaCopier:
    """Copies on a CUDA stream beside the one that computes, from page-locked memory."""

    def __init__(self, device: torch.device) -> None:
        """Take the stream of `device`."""
        self._device = device
        self._stream = copying_stream(device)

    def buffer(self, like: Tensor, rows: int) -> Tensor:
        """Return page-locked memory."""
        return torch.empty((rows, *like.shape[1:]), dtype=like.dtype, pin_memory=True)

    def send(self, source: Tensor) -> Copy:
        """Begin to copy in the stream."""
        with torch.cuda.stream(self._stream):
            return Copy(source.to(self._device, non_blocking=True), self._stream.record_event())

    def wait_for(self, copy: Copy) -> None:
        """Wait for the event after the copy."""
        copy.done.synchronize()

    def received(self, copy: Copy) -> Tensor:
        """Let the current stream wait, and tell the allocator that it reads what another stream allocated."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copy.done)
        copy.tensor.record_stream(current)
        return copy.tensor


def streamed(
    inputs: Tensor, rows: Iterable[Tensor], device: torch.device, copier: Copier | None = None
) -> Iterator[Tensor]:
    """Yield `inputs[rows]` on `device` for each of `rows`, gathered and sent ahead of its use.

    Args:
        inputs: [N, ...] on the host.
        rows: int64 [B] each; none is longer than the first.
        device: where the batches are needed.
        copier: how they get there; by default on a stream of its own for a GPU, and without one elsewhere.
    """
    if copier is None and device.type == "cuda":
        copier = CudaCopier(device)
    if copier is None:
        yield from ahead(lambda chosen: inputs.index_select(0, chosen).to(device), rows)
        return
    sender = _Sender(inputs, copier)
    for copy in ahead(sender.send, rows):
        yield copier.received(copy)


def sent(batches: Iterator[Tensor], count: int, device: torch.device, copier: Copier | None = None) -> Iterator[Tensor]:
    """Yield tensors of the host on `device`, the next one taken and sent while the one before is used.

    Args:
        batches: at least `count` tensors of one type.
        count: how many of them.
        device: where they are needed.
        copier: as for `streamed`.
    """
    if copier is None and device.type == "cuda":
        copier = CudaCopier(device)
    if copier is None:
        for _ in range(count):
            yield next(batches).to(device)
        return
    sending = copier

    def send(_: int) -> Copy:
        taken = next(batches)
        buffer = sending.buffer(taken, len(taken))
        return sending.send(buffer.copy_(taken))

    for copy in ahead(send, range(count)):
        yield copier.received(copy)


class _Sender:
    """Gathers batches into buffers that take turns, in one thread."""

    def __init__(self, inputs: Tensor, copier: Copier) -> None:
        self._inputs, self._copier = inputs, copier
        self._buffers: deque[tuple[Tensor, Copy]] = deque()

    def send(self, rows: Tensor) -> Copy:
        """Gather `inputs[rows]` into the buffer whose copy began first, and begin to copy it."""
        if len(self._buffers) < AHEAD:
            buffer = self._copier.buffer(self._inputs, len(rows))
        else:
            buffer, before = self._buffers.popleft()
            self._copier.wait_for(before)
        part = buffer[: len(rows)]
        torch.index_select(self._inputs, 0, rows, out=part)
        copy = self._copier.send(part)
        self._buffers.append((buffer, copy))
        return copy
