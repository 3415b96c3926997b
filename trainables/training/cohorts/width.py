"""How many lanes a cohort should have: measured on a few steps, for more lanes cost memory and caches."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from trainables.datasets.base import DataSet
from trainables.files.measured_once import kept_choice
from trainables.training.acceleration import TrainingSettings
from trainables.training.cohorts.cohort import Cohort
from trainables.training.cohorts.membership import cohort_key
from trainables.training.lanes.check import few_batches
from trainables.training.loop import Replicate

WIDTHS = (4, 8, 16, 32, 64)
"""Widths that are tried, as long as each is faster than the one before."""

STEPS = 3
ROUNDS = 3
"""Steps of an epoch that is timed, and how many of these; the fastest counts, the first one warms up."""

GAIN = 0.95
"""A wider cohort must take at most this share of the time a lane, and a cohort of any width of the time alone."""

HOPELESS = 1.1
"""A first width that takes so many times as long as training alone ends the search: wider ones share what a step costs
whatever its width, and that would have to be most of a step to win."""

COPIES = 6
"""Copies of a lane's parameters that a cohort holds: values, gradients, two memories, and two in passing."""

MEMORY_SHARE = 0.25
"""Of the memory that is free, what all cohorts of a machine may take together."""

Build = Callable[[int, DataSet], Replicate]


def chosen_width(
    build: Build,
    configuration: Mapping[str, Any],
    dataset: DataSet,
    device: str,
    training: TrainingSettings,
    *,
    most: int,
    processes: int,
    choices: Path | None,
) -> int:
    """Return the lanes with which most epochs a second are trained; 0 where one after the other is as fast.

    The answer is kept for each `cohort_key`, device and arithmetic, in `choices` for all processes of the sweep.

    Args:
        build: makes a replicate of the configuration from a seed, to train on the data set given.
        configuration: one that can be a lane.
        dataset: on the device.
        device: `cpu` or `cuda`.
        training: how training steps are computed.
        most: lanes that the sweep could fill.
        processes: that have cohorts on this machine.
        choices: the sweep's folder of answers, or `None` where no folder is shared.
    """
    card = device if device == "cpu" else torch.cuda.get_device_name()
    key = json.dumps(["cohort", cohort_key(configuration), most, card, training.described, torch.get_num_threads()])

    def measure() -> str:
        few = few_batches(dataset, configuration["optimizer"]["batch_size"], STEPS)
        return str(measured_width(lambda seed: build(seed, few), device, most, processes))

    return int(measure() if choices is None else kept_choice(choices, key, measure))


def measured_width(build: Callable[[int], Replicate], device: str, most: int, processes: int = 1) -> int:
    """Return the best of `WIDTHS` up to `most` lanes, or 0 where the best is not clearly faster than one lane alone."""
    alone = build(0)
    weight = sum(p.numel() * p.element_size() for p in alone.model.parameters())
    limit = min(most, _free_bytes(device) * MEMORY_SHARE / processes / max(1, COPIES * weight))
    seconds = {0: _fastest(alone.train_epoch, device)}
    for width in _tried(limit):
        try:
            cohort = Cohort(first := build(0), width)
            for seed in range(width):
                cohort.join(build(seed) if seed else first)
            seconds[width] = _fastest(cohort.train_epoch, device) / width
        except (MemoryError, RuntimeError):  # torch says so where it cannot allocate, or map
            break
        if not is_promising(seconds):
            break
    return best_width(seconds)


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


def _tried(limit: float) -> Iterator[int]:
    for width in WIDTHS:
        if width <= limit:
            yield width
        else:
            if limit > max(1, width // 2):
                yield int(limit)
            return


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


def _free_bytes(device: str) -> float:
    if device != "cpu":
        return float(torch.cuda.mem_get_info()[0])
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
