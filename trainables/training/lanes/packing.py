"""Which configurations can be lanes, and how replicates and trials share a processor: in turn, or as lanes of one net.

For the project's own networks and losses tests show what can be a lane. A user's own are tried where they train: a loss
that looks at its values in Python cannot be mapped, one that keeps its state elsewhere than in `state_dict` would be
mapped wrongly.

`sequential`, `fused` and a number of lanes are rules, `auto` measures.

How many lanes are fastest is measured: lanes save the cost of calling many small operations, and lose where an
operation on several stacked networks is slower than one after the other, as grouped convolutions often are on a CPU;
wide cohorts cost memory and caches.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from trainables.datasets.base import DataSet
from trainables.files.atomic import kept_choice
from trainables.files.container import free_memory
from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES
from trainables.registry import Configuration
from trainables.training.acceleration import CHANNELS_LAST, PLAIN, TrainingSettings
from trainables.training.evaluation import Task
from trainables.training.lanes.cohort import Lanes, rule_of
from trainables.training.loop import Replicate
from trainables.training.prediction import EpochRow
from trainables.training.recipe import alone_fault

#: Steps an epoch of a trial; with two epochs a wrong gradient or a lost state shows in the second one's losses.
STEPS = 3

EPOCHS = 2

#: Of losses and states after six steps. Lanes round otherwise, by some 1e-6 a step; a wrong gradient, or a state that
#: is not each lane's own, shows in the first digits.
TOLERANCE = 0.01


def unmappable(configuration: Configuration, training: TrainingSettings = PLAIN) -> tuple[str, str] | None:
    """Return what of a configuration cannot be a lane at all, network, loss or recipe, and why; or `None`."""
    network, loss = configuration["architecture"]["name"], configuration["loss"]["name"]
    if training.memory_format == CHANNELS_LAST:
        return network, "lanes are channels of one network, whose layout cannot be channels_last"
    if (alone := alone_fault(configuration.get("optimizer", {}))) is not None:
        return "a recipe", alone
    for registry, name in ((ARCHITECTURES, network), (LOSSES, loss)):
        if not registry.is_own(name) and registry[name].lanes:
            return name, registry[name].lanes
    return None


def is_own(configuration: Configuration) -> bool:
    """Return whether the network or the loss of a configuration is the user's own."""
    return ARCHITECTURES.is_own(configuration["architecture"]["name"]) or LOSSES.is_own(configuration["loss"]["name"])


def cohort_fault(configuration: Configuration, training: TrainingSettings = PLAIN) -> str | None:
    """Return why a configuration cannot be a lane beside other configurations, or `None`."""
    if (found := unmappable(configuration, training)) is not None:
        return found[1]
    if training.compile:
        return "a cohort is not compiled"
    if training.precision != PLAIN.precision:
        return f"a cohort computes in float32, not in {training.precision}"
    for registry, part in ((ARCHITECTURES, "architecture"), (LOSSES, "loss")):
        if registry.is_own(name := configuration[part]["name"]):
            return f"{name} is your own {registry.kind}: its lanes would have to be tried first (packing: fused does)"
    return None


def cohort_key(configuration: Configuration, training: TrainingSettings = PLAIN) -> str | None:
    """Return what the lanes of one cohort have in common, as text; `None` where a configuration cannot be a lane.

    It is the data set, the network with all its hyperparameters, the batch size and the kind of optimiser: what decides
    the shapes. A loss that differentiates three times shares a cohort with its like alone.
    """
    if cohort_fault(configuration, training) is not None:
        return None
    recipe, loss = configuration["optimizer"], configuration["loss"]
    third_order = LOSSES.has_tag(loss["name"], "third_order")
    regularised = [loss["name"], loss.get("probes"), loss.get("weight") == 0] if third_order else None
    batch_size = recipe.get("batch_size", 128)
    parts = [configuration.get("dataset"), configuration["architecture"], batch_size, rule_of(recipe), regularised]
    return json.dumps(parts, sort_keys=True, default=str)


def few_batches(dataset: DataSet, batch_size: int, steps: int = STEPS) -> DataSet:
    """Return the data set cut to a few batches for training, and one for validation."""
    return replace(dataset, train=dataset.train.first(steps * batch_size), val=dataset.val.first(batch_size))


def lane_fault(
    build: Callable[[int, DataSet], Replicate], seeds: Sequence[int], dataset: DataSet, batch_size: int
) -> str | None:
    """Return why replicates do not train as lanes what they train alone, or `None` when they do.

    Args:
        build: makes a replicate from a seed, to train on the data set given.
        seeds: of two replicates or more; two are tried.
        dataset: on the device.
        batch_size: of the recipe.
    """
    few = few_batches(dataset, batch_size)
    alone, together = ([build(seed, few) for seed in seeds[:2]] for _ in range(2))
    expected = [[each.train_epoch() for each in alone] for _ in range(EPOCHS)]
    try:
        lanes = Lanes(together)
        found = [lanes.train_epoch() for _ in range(EPOCHS)]
        lanes.settle()
    except Exception as error:
        # torch.func names what it cannot map over lanes in many ways, and a user's code may fail in others.
        words = " ".join(str(error).split())
        return f"it cannot be mapped over lanes ({type(error).__name__}: {words[:200]})"
    for mine, theirs in zip(expected, found, strict=True):
        for lane, (left, right) in enumerate(zip(mine, theirs, strict=True)):
            for column in ("train_loss", "val_nll"):
                if not _close(left[column], right[column]):
                    return (
                        f"as lane {lane} its {column} is {right[column]:.6g}, alone {left[column]:.6g}, in epoch "
                        f"{left['epoch']}"
                    )
    return _state_fault([each.loss.state_dict() for each in alone], [each.loss.state_dict() for each in together])


def _state_fault(alone: Sequence[Mapping[str, Any]], together: Sequence[Mapping[str, Any]]) -> str | None:
    for left, right in zip(alone, together, strict=True):
        for key, value in left.items():
            mine, theirs = torch.as_tensor(value).double(), torch.as_tensor(right[key]).double()
            if mine.shape != theirs.shape or not torch.allclose(mine, theirs, rtol=TOLERANCE, atol=1e-6):
                return f"the loss's state {key!r} is not the same after training in lanes"
    return None


def _close(left: float, right: float) -> bool:
    same = math.isnan(left) and math.isnan(right)
    return same or math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=1e-6)


#: Widths that are tried, as long as each is faster than the one before.
WIDTHS = (4, 8, 16, 32, 64)

#: The same on a card, which is full much later: an H200 still gained 2.7 times from 64 to 256 small perceptrons.
CARD_WIDTHS = (*WIDTHS, 128, 256)

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
    return best_width(seconds_of_widths(build, device, _tried(limit, WIDTHS if device == "cpu" else CARD_WIDTHS)))


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


def _tried(limit: float, widths: Sequence[int]) -> list[int]:
    fitting = [width for width in widths if width <= limit]
    larger = widths[len(fitting) :]
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


FUSED, SEQUENTIAL, AUTO, TRIALS, COHORT = "fused", "sequential", "auto", "trials", "cohort"

#: Steps of an epoch that is timed.
MEASURED_STEPS = 3

Build = Callable[[int, DataSet], Replicate]

_choices: dict[str, str] = {}
_mappable: dict[str, bool] = {}


class Packed(Protocol):
    """Replicates that train together."""

    def train_epoch(self) -> list[EpochRow]:
        """Train one epoch and return a row for each replicate, in order."""

    def settle(self) -> None:
        """Bring everything that training keeps elsewhere back into the replicates, to save or regroup them."""


class Sequential:
    """Trains replicates one after the other."""

    def __init__(
        self, replicates: Sequence[Task], after_step: Callable[[], None] | None = None, trained: Sequence[EpochRow] = ()
    ) -> None:
        """Take up replicates of one configuration at the same epoch.

        Args:
            replicates: to train.
            after_step: called after each step of any of them.
            trained: rows of the first replicates, where those have trained the epoch that the others are in.
        """
        self._replicates, self._after_step = replicates, after_step
        self.trained = [*trained]

    def train_epoch(self) -> list[EpochRow]:
        """Train one epoch and return a row for each replicate, in order."""
        for replicate in self._replicates[len(self.trained) :]:
            self.trained.append(replicate.train_epoch(self._after_step))
        rows, self.trained = self.trained, []
        return rows

    def settle(self) -> None:
        """Nothing is kept elsewhere."""


def packing_fault(configuration: Configuration, packing: str, training: TrainingSettings = PLAIN) -> str | None:
    """Return why a configuration's replicates cannot be packed as asked, or `None`."""
    found = unmappable(configuration, training)
    if packing != FUSED or found is None:
        return None
    name, reason = found
    return f"{name} cannot be trained with packing = fused: {reason}; choose sequential"


def chosen_packing(
    packing: str,
    build: Build,
    configuration: Configuration,
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
    if len(seeds) == 1 or unmappable(configuration, training):
        return SEQUENTIAL
    key = _key(configuration, len(seeds), dataset, device, training)

    def measure() -> str:
        few = few_batches(dataset, batch_size, MEASURED_STEPS)
        lanes = best_width(seconds_of_widths(lambda lane: build(seeds[lane], few), device, (len(seeds),)))
        return FUSED if lanes else SEQUENTIAL

    if key not in _choices:
        _choices[key] = measure() if choices is None else kept_choice(choices, key, measure)
    return _choices[key]


def _mappable_here(build: Build, configuration: Configuration, seeds: Sequence[int], dataset: DataSet) -> bool:
    """Return whether lanes train what their replicates train alone; tried once a process for each kind of both."""
    # A number hardly changes whether a loss can be mapped; a text, a flag or a count may.
    parts = [{k: v for k, v in configuration[part].items() if not isinstance(v, float)} for part in configuration]
    key = json.dumps([parts, dataset.input_shape, dataset.classes], sort_keys=True, default=str)
    if key not in _mappable:
        _mappable[key] = lane_fault(build, seeds, dataset, configuration["optimizer"]["batch_size"]) is None
    return _mappable[key]


def chosen_width(
    build: Build,
    configuration: Configuration,
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
    key = json.dumps(["cohort", cohort_key(configuration), most, *_computed_by(device, training)])

    def measure() -> str:
        few = few_batches(dataset, configuration["optimizer"]["batch_size"], MEASURED_STEPS)
        return str(measured_width(lambda seed: build(seed, few), device, most, processes))

    return int(measure() if choices is None else kept_choice(choices, key, measure))


def _key(configuration: Configuration, count: int, dataset: DataSet, device: str, training: TrainingSettings) -> str:
    recipe = configuration["optimizer"]
    trained = [configuration["architecture"], configuration["loss"]["name"], recipe["name"], recipe["batch_size"]]
    parts = [*trained, count, dataset.input_shape, dataset.classes, *_computed_by(device, training)]
    return json.dumps(parts, sort_keys=True, default=str)


def _computed_by(device: str, training: TrainingSettings) -> tuple[str, str, int]:
    """Return by what and how steps are computed, which decides what is fastest."""
    card = device if device == "cpu" else torch.cuda.get_device_name()
    return card, training.described, torch.get_num_threads()
