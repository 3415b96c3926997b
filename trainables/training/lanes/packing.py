"""How a configuration's replicates share a processor: one after the other, or as lanes of one network.

`sequential` and `fused` are rules, `auto` measures both and takes the faster: lanes save the cost of calling many
small operations, and lose where an operation on several stacked networks is slower than one after the other, as
grouped convolutions often are on a CPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from trainables.datasets.base import DataSet
from trainables.files.measured_once import kept_choice
from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES
from trainables.training.acceleration import CHANNELS_LAST, PLAIN, TrainingSettings
from trainables.training.lanes import Lanes
from trainables.training.lanes.check import few_batches, lane_fault
from trainables.training.loop import Replicate
from trainables.training.recipe import alone_fault

FUSED, SEQUENTIAL, AUTO, TRIALS = "fused", "sequential", "auto", "trials"

MEASURED_STEPS = 3  # of each packing in a round, so that what an epoch costs besides steps weighs little
MEASURED_SECONDS = 1.0  # after which a round besides the warm-up is enough
MOST_ROUNDS = 8
CLEAR = 2.0  # a lead by this factor is beyond what a disturbed machine makes of equal times

_choices: dict[str, str] = {}
_mappable: dict[str, bool] = {}


class Packed(Protocol):
    """Replicates that train together."""

    packing: str

    def train_epoch(self) -> list[dict[str, Any]]:
        """Train one epoch and return a row for each replicate, in order."""

    def settle(self) -> None:
        """Bring everything that training keeps elsewhere back into the replicates, to save or regroup them."""


class Sequential:
    """Trains replicates one after the other."""

    packing = SEQUENTIAL

    def __init__(
        self,
        replicates: Sequence[Replicate],
        after_step: Callable[[], None] | None = None,
        trained: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Take up replicates of one configuration at the same epoch.

        Args:
            replicates: to train.
            after_step: called after each step of any of them.
            trained: rows of the first replicates, where those have trained the epoch that the others are in.
        """
        self._replicates, self._after_step = replicates, after_step
        self.trained = [*trained]

    def train_epoch(self) -> list[dict[str, Any]]:
        """Train one epoch and return a row for each replicate, in order."""
        for replicate in self._replicates[len(self.trained) :]:
            self.trained.append(replicate.train_epoch(self._after_step))
        rows, self.trained = self.trained, []
        return rows

    def settle(self) -> None:
        """Nothing is kept elsewhere."""


def pack(replicates: Sequence[Replicate], packing: str) -> Packed:
    """Return `replicates` as a group that trains as `packing` says: `fused` or `sequential`."""
    return Lanes(replicates) if packing == FUSED else Sequential(replicates)


def packing_fault(configuration: Mapping[str, Any], packing: str, training: TrainingSettings = PLAIN) -> str | None:
    """Return why a configuration's replicates cannot be packed as asked, or `None`."""
    found = _unpackable(configuration, training)
    if packing != FUSED or found is None:
        return None
    name, reason = found
    return f"{name} cannot be trained with packing = fused: {reason}; choose sequential"


def _unpackable(configuration: Mapping[str, Any], training: TrainingSettings) -> tuple[str, str] | None:
    """Return the network or loss that cannot be lanes, and why."""
    network, loss = configuration["architecture"]["name"], configuration["loss"]["name"]
    if training.memory_format == CHANNELS_LAST:
        return network, "lanes are channels of one network, whose layout cannot be channels_last"
    alone = alone_fault(configuration.get("optimizer", {}))
    if alone is not None:
        return "a recipe", alone
    if training.graphs:
        return network, "lanes take plain steps, not recorded ones (training.graphs)"
    for registry, name in ((ARCHITECTURES, network), (LOSSES, loss)):
        reason = "" if registry.is_own(name) else registry[name].lanes
        if reason:
            return name, reason
    return None


def is_own(configuration: Mapping[str, Any]) -> bool:
    """Return whether the network or the loss of a configuration is the user's own."""
    return ARCHITECTURES.is_own(configuration["architecture"]["name"]) or LOSSES.is_own(configuration["loss"]["name"])


def chosen_packing(
    packing: str,
    build: Callable[[int, DataSet], Replicate],
    configuration: Mapping[str, Any],
    seeds: Sequence[int],
    dataset: DataSet,
    device: str,
    training: TrainingSettings = PLAIN,
    choices: Path | None = None,
) -> str:
    """Return `fused`, `sequential` or `trials`: the requested one, or for `auto` the faster of the first two here.

    `auto` never chooses `trials`, which pays where one network fills a GPU: a process sees only its own share of
    the machine, so what replicates would gain from separate processes cannot be measured in one.

    The answer is kept for each network, loss, optimiser, batch size, number of replicates, shape of the data, device
    and arithmetic: in this process, and in `choices` for all processes of the sweep, where the first one to have
    measured decides. Measuring trains replicates that are thrown away, and draws from their generators alone.

    Args:
        packing: `fused`, `sequential`, `trials` or `auto`.
        build: makes a replicate from a seed, to train on the data set given.
        configuration: of the trial.
        seeds: of the replicates.
        dataset: on the device.
        device: `cpu` or `cuda`.
        training: how training steps are computed.
        choices: the sweep's folder of answers, or `None` where no folder is shared.

    Replicates with a network or loss of the user's own are fused only where a trial shows that lanes train what each
    trains alone.

    Raises:
        ValueError: the architecture cannot be packed as asked.
    """
    batch_size = configuration["optimizer"]["batch_size"]
    fault = packing_fault(configuration, packing, training)
    if fault is not None:
        raise ValueError(fault)
    own = packing in (FUSED, AUTO) and len(seeds) > 1 and is_own(configuration)
    if own and not _mappable_here(build, configuration, seeds, dataset):
        return SEQUENTIAL
    if packing != AUTO:
        return packing
    if len(seeds) == 1 or _unpackable(configuration, training):
        return SEQUENTIAL
    key = _key(configuration, len(seeds), dataset, device, training)

    def measure() -> str:
        few = few_batches(dataset, batch_size, MEASURED_STEPS)
        fused, sequential = measured_seconds(lambda: [build(seed, few) for seed in seeds], device)
        return FUSED if fused < sequential else SEQUENTIAL

    if key not in _choices:
        _choices[key] = measure() if choices is None else kept_choice(choices, key, measure)
    return _choices[key]


def _mappable_here(
    build: Callable[[int, DataSet], Replicate], configuration: Mapping[str, Any], seeds: Sequence[int], dataset: DataSet
) -> bool:
    """Return whether lanes train what their replicates train alone; tried once a process for each kind of both."""
    # A number hardly changes whether a loss can be mapped; a text, a flag or a count may.
    parts = [{k: v for k, v in configuration[part].items() if not isinstance(v, float)} for part in configuration]
    key = json.dumps([parts, dataset.input_shape, dataset.classes], sort_keys=True, default=str)
    if key not in _mappable:
        _mappable[key] = lane_fault(build, seeds, dataset, configuration["optimizer"]["batch_size"]) is None
    return _mappable[key]


def measured_seconds(build: Callable[[], list[Replicate]], device: str) -> tuple[float, float]:
    """Return the seconds of a short epoch of all replicates fused, and one after the other.

    The two alternate; each counts with its fastest round, the first round being a warm-up unless it is clear
    already. A network that cannot run in lanes takes for ever. What is compiled is so in a round that does not count.
    """
    groups: list[Packed] = [Sequential(first := build())]
    try:
        groups.insert(0, Lanes(build()))
        if first[0].training.compile:
            for group in groups:
                group.train_epoch()
        times = [_timed(group, device) for group in groups]
    except (RuntimeError, NotImplementedError):
        # torch.func names what it cannot map over lanes in many ways; out of memory counts as well.
        return float("inf"), 0.0
    began = time.perf_counter()
    for done in range(MOST_ROUNDS):
        if max(times) > CLEAR * min(times) or (done > 0 and time.perf_counter() - began > MEASURED_SECONDS):
            break
        again = [_timed(group, device) for group in groups]
        times = again if done == 0 else [min(pair) for pair in zip(times, again, strict=True)]
    return times[0], times[1]


def _timed(group: Packed, device: str) -> float:
    # With one thread the processor's time is what counts: waiting for other trials says nothing about a packing.
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    group.train_epoch()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - started


def _key(
    configuration: Mapping[str, Any], count: int, dataset: DataSet, device: str, training: TrainingSettings
) -> str:
    parts = (
        configuration["architecture"],
        configuration["loss"]["name"],
        configuration["optimizer"]["name"],
        configuration["optimizer"]["batch_size"],
        count,
        dataset.input_shape,
        dataset.classes,
        device if device == "cpu" else torch.cuda.get_device_name(),
        training.described,
        torch.get_num_threads(),
    )
    return json.dumps(parts, sort_keys=True, default=str)
