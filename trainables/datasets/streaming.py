"""Data that stay on the host: batches are gathered and sent to the device while the one before trains.

On a GPU three things run at once: a thread gathers batch i + 2 into page-locked memory, a stream of its own copies
batch i + 1, and the network's stream computes on batch i. Two rules keep that safe: torch gives page-locked memory out
again only once the copies from it are done, and `sent` lets the network's stream wait for the copy of what it reads.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

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


@functools.lru_cache(maxsize=8)  # the allocator keeps the memory of each stream apart
def copying_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that this process copies on."""
    return torch.cuda.Stream(device)


def sent(take: Callable[[Item], Tensor], items: Iterable[Item], device: torch.device) -> Iterator[Tensor]:
    """Yield `take(item)` on `device` for each of `items`; on the way to a GPU taken and sent ahead of its use.

    Args:
        take: returns a tensor of the host, which nothing else writes to.
        items: what it is called with, in order, in one thread.
        device: where the tensors are needed.
    """
    if device.type != "cuda":
        for item in items:
            yield take(item).to(device)
        return
    stream = copying_stream(device)

    def send(item: Item) -> tuple[Tensor, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            return take(item).pin_memory().to(device, non_blocking=True), stream.record_event()

    for tensor, arrived in ahead(send, items):
        current = torch.cuda.current_stream(device)
        current.wait_event(arrived)
        tensor.record_stream(current)  # the allocator learns that it is read by another stream than its own
        yield tensor
