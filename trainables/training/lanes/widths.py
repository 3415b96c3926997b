"""How many lanes are fastest, as measured.

Lanes save the cost of calling many small operations, and lose where an operation on several stacked networks is slower
than one after the other, as grouped convolutions often are on a CPU; wide cohorts cost memory and caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import torch

from trainables.files.container import free_memory
from trainables.training.lanes.cohort import Lanes
from trainables.training.loop import Replicate

#: Widths that are tried, as long as each is faster than the one before.
WIDTHS = (4, 8, 16, 32, 64)

#: Epochs that are timed; the fastest counts, the first one warms up.
ROUNDS = 3

#: A wider cohort must take at most this share of the time a lane, and a cohort of any width of the time alone.
GAIN = 0.95

#: A first width that takes so many times as long as training alone ends the search: wider ones share what a step costs
#: whatever its width, and that would have to be most of a step to win.
HOPELESS = 1.1

#: Copies of a lane's parameters that a cohort holds: values, gradients, two memories, and two in passing.
COPIES = 6

#: Of the memory that is free, what all cohorts of a machine may take together.
MEMORY_SHARE = 0.25


def measured_width(build: Callable[[int], Replicate], device: str, most: int, processes: int = 1) -> int:
    """Return the best of `WIDTHS` up to `most` lanes, or 0 where the best is not clearly faster than one lane alone."""
    weight = sum(p.numel() * p.element_size() for p in build(0).model.parameters())
    free = float(free_memory() if device == "cpu" else torch.cuda.mem_get_info()[0])
    limit = min(most, free * MEMORY_SHARE / processes / max(1, COPIES * weight))
    return best_width(seconds_of_widths(build, device, _tried(limit)))


def seconds_of_widths(build: Callable[[int], Replicate], device: str, widths: Iterable[int]) -> dict[int, float]:
    """Return by lanes the seconds that an epoch takes one of them, 0 standing for training alone.

    Wider ones are tried while they gain. A network that cannot run in lanes, or not in the memory, has no more widths.
    """
    seconds = {0: _fastest(build(0).train_epoch, device)}
    for width in widths:
        try:
            seconds[width] = _fastest(Lanes([build(lane) for lane in range(width)]).train_epoch, device) / width
        except (MemoryError, RuntimeError):  # torch says so where it cannot allocate, or map
            break
        if not is_promising(seconds):
            break
    return seconds


def is_promising(seconds: Mapping[int, float]) -> bool:
    """Return whether a wider cohort than the last one measured may be faster.

    Args:
        seconds: by lanes, in the order in which they were measured, of an epoch of one lane; 0 stands for none.
    """
    *before, last = seconds.values()
    if len(before) == 1:
        return last < HOPELESS * before[0]
    return last <= GAIN * min(before)


def best_width(seconds: Mapping[int, float]) -> int:
    """Return the fewest lanes that are hardly slower than the best; 0 where training alone is as fast.

    Args:
        seconds: by lanes, of an epoch of one lane; 0 stands for none.
    """
    wide = {lanes: each for lanes, each in seconds.items() if lanes}
    best = min(wide.values(), default=float("inf"))
    if best > GAIN * seconds[0]:
        return 0
    return min(lanes for lanes, each in wide.items() if GAIN * each <= best)


def _tried(limit: float) -> list[int]:
    fitting = [width for width in WIDTHS if width <= limit]
    larger = WIDTHS[len(fitting) :]
    return [*fitting, int(limit)] if larger and limit > max(1, larger[0] // 2) else fitting


def _fastest(train: Callable[[], object], device: str) -> float:
    # With one thread the processor's time is what counts: waiting for other trials says nothing about a width.
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    times = []
    for _ in range(ROUNDS):
        started = clock()
        train()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(clock() - started)
    return min(times)
