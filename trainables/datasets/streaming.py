"""Data that stay on the host: a batch is gathered and sent to the device while the previous one trains.

On a GPU three things run at once. A thread gathers batch i + 2 into page-locked memory, a separate stream copies batch
i + 1, and the network's stream computes on batch i. Two rules make this safe. torch reuses page-locked memory only
after the copies from it are done. `sent` makes the network's stream wait for the copy of the batch that it reads.
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

AHEAD = 2  # batches in flight: one waiting and one being gathered


def ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `work(item)` in order, computed in another thread up to `AHEAD` items early; errors are raised here.

    Example:
        >>> list(ahead(str.upper, ["a", "b", "c"]))
        ['A', 'B', 'C']
    """
    # A thread, not a process whose memory would have to be shared: torch gathers without the interpreter's lock.
    waiting = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
        running: deque[Future[Result]] = deque(pool.submit(work, item) for item in islice(waiting, AHEAD))
        try:
            while running:
                done = running.popleft().result()
                running.extend(pool.submit(work, item) for item in islice(waiting, 1))
                yield done
        finally:
            # the caller stopped early: without this, closing the pool would wait for all jobs
            for job in running:
                job.cancel()


@functools.lru_cache(maxsize=8)  # the allocator has separate memory per stream: new streams would waste it
def copying_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the CUDA stream on which this process copies batches."""
    return torch.cuda.Stream(device)


def sent(take: Callable[[Item], Tensor], items: Iterable[Item], device: torch.device) -> Iterator[Tensor]:
    """Yield `take(item)` on `device` for each item. For a GPU, `take` runs and tensors are sent ahead of their use.

    Args:
        take: function that returns a tensor on the host, which nothing else writes to.
        items: arguments of `take`. Calls are made in order, in one thread.
        device: device of the tensors.
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
        tensor.record_stream(current)  # otherwise the allocator could reuse it while the network's stream reads it
        yield tensor
