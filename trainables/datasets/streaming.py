"""Data that stay on the host: batches are gathered and sent to the device while the one before trains."""

from __future__ import annotations

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


def sent(inputs: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """Return `inputs[rows]`, gathered on the host, on `device`; to a GPU without waiting for it."""
    gathered = inputs.index_select(0, rows)
    if device.type != "cuda":
        return gathered.to(device)
    return gathered.pin_memory().to(device, non_blocking=True)
