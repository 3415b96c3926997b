"""Packing: which configurations can be lanes, and whether replicates and trials train in sequence or as lanes.

Tests show which of the project's own networks and losses can be lanes. User-defined networks and losses are tried on
the machine where they train: a loss that inspects its values in Python cannot be mapped, and a loss with state outside
of `state_dict` would be mapped wrongly.

`sequential` and a number of lanes are fixed choices; otherwise the number of lanes is measured. Lanes save the time for
calling many small operations. They are slower if an operation on stacked networks takes longer than on one network
after the other, as grouped convolutions often do on a CPU. Wide cohorts also take more memory and cache.

Trials with the same `cohort_key` share the lanes of a cohort. Other networks, such as a user's own, have a cohort for
each trial, with a lane for each of its replicates.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from trainables.datasets.base import DataSet
from trainables.files.atomic import kept_choice
from trainables.files.container import free_memory
from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES
from trainables.registry import Configuration
from trainables.training.acceleration import CHANNELS_LAST, PLAIN, TrainingSettings
from trainables.training.lanes.cohort import Lanes, rule_of
from trainables.training.loop import Replicate
from trainables.training.own_loop import Task
from trainables.training.prediction import EpochRow
from trainables.training.recipe import alone_fault

#: Steps per epoch of a lane check and of a timing. A check takes two epochs, because a wrong gradient or lost state
#: shows in the second one's losses.
STEPS = 3

EPOCHS = 2

#: Relative tolerance for losses and states after six steps. Lanes round differently, by about 1e-6 per step, whereas a
#: wrong gradient, or state that lanes share, changes the first digits.
TOLERANCE = 0.01


def unmappable(configuration: Configuration, training: TrainingSettings = PLAIN) -> tuple[str, str] | None:
    """Return the part of a configuration (network, loss or recipe) that cannot be a lane and the reason, or `None`.

    Example:
        >>> configuration = {"architecture": {"name": "mlp"}, "loss": {"name": "focal"}, "optimizer": {"name": "sgd"}}
        >>> unmappable(configuration) is None
        True
        >>> unmappable({**configuration, "optimizer": {"name": "sgd", "ema": 0.999}})
        ('a recipe', 'ema is not computed for lanes')
    """
    network, loss = configuration["architecture"]["name"], configuration["loss"]["name"]
    if training.memory_format == CHANNELS_LAST:
        return network, "lanes become channels of one network, whose layout cannot be channels_last"
    if (alone := alone_fault(configuration.get("optimizer", {}))) is not None:
        return "a recipe", alone
    if not ARCHITECTURES.is_own(network) and ARCHITECTURES[network].lanes:
        return network, ARCHITECTURES[network].lanes
    if not LOSSES.is_own(loss) and getattr(LOSSES[loss].build, "lanes", "") == "none":
        return loss, "it cannot be computed for several replicates side by side"
    return None


def is_own(configuration: Configuration) -> bool:
    """Return whether a configuration's network or loss is the user's own."""
    return ARCHITECTURES.is_own(configuration["architecture"]["name"]) or LOSSES.is_own(configuration["loss"]["name"])


def cohort_fault(configuration: Configuration, training: TrainingSettings = PLAIN) -> str | None:
    """Return why a configuration cannot share a cohort with other configurations, or `None`."""
    if (fault := unmappable(configuration, training)) is not None:
        return fault[1]
    if training.compile:
        return "compiled lanes are those of one trial"
    if training.precision != PLAIN.precision:
        return f"lanes in {training.precision} are those of one trial"
    for registry, part in ((ARCHITECTURES, "architecture"), (LOSSES, "loss")):
        if registry.is_own(name := configuration[part]["name"]):
            return f"{name} is your own {registry.kind}, for which lanes must be tried first"
    return None


def cohort_key(configuration: Configuration, training: TrainingSettings = PLAIN) -> str | None:
    """Return a key, equal for configurations that can share a cohort; `None` for one that shares none.

    The key contains everything that determines shapes: the data set, the network with all hyperparameters, the batch
    size and the kind of optimiser. Losses that differentiate three times share a cohort only with each other.

    Example:
        >>> configuration = {"architecture": {"name": "mlp"}, "loss": {"name": "focal"}, "optimizer": {"name": "sgd"}}
        >>> cohort_key(configuration) == cohort_key({**configuration, "loss": {"name": "brier"}})
        True
    """
    if cohort_fault(configuration, training) is not None:
        return None
    recipe, loss = configuration["optimizer"], configuration["loss"]
    third_order = LOSSES.has_tag(loss["name"], "third_order")
    regularised = [loss["name"], loss.get("probes"), loss.get("weight") == 0] if third_order else None
    batch_size = recipe.get("batch_size", 128)
    parts = [configuration.get("dataset"), configuration["architecture"], batch_size, rule_of(recipe), regularised]
    return json.dumps(parts, sort_keys=True, default=dict)


def few_batches(dataset: DataSet, batch_size: int, steps: int = STEPS) -> DataSet:
    """Return the data set reduced to `steps` training batches and one validation batch."""
    return replace(dataset, train=dataset.train.first(steps * batch_size), val=dataset.val.first(batch_size))


def lane_fault(
    build: Callable[[int, DataSet], Replicate], seeds: Sequence[int], dataset: DataSet, batch_size: int
) -> str | None:
    """Return why replicates train differently as lanes than alone, or `None` if they train equally.

    Args:
        build: function from a seed and a data set to a replicate.
        seeds: seeds of at least two replicates; two of them are tried.
        dataset: data set on the device.
        batch_size: batch size of the recipe.
    """
    few = few_batches(dataset, batch_size)
    alone, together = ([build(seed, few) for seed in seeds[:2]] for _ in range(2))
    expected = [[replicate.train_epoch() for replicate in alone] for _ in range(EPOCHS)]
    try:
        lanes = Lanes(together)
        measured = [lanes.train_epoch() for _ in range(EPOCHS)]
        lanes.settle()
    except Exception as error:
        # torch.func raises many kinds of errors for operations it cannot map, and user code can raise others.
        words = " ".join(str(error).split())
        return f"it cannot be mapped over lanes ({type(error).__name__}: {words[:200]})"
    for mine, theirs in zip(expected, measured, strict=True):
        for lane, (left, right) in enumerate(zip(mine, theirs, strict=True)):
            for column in ("train_loss", "val_nll"):
                if not _close(left[column], right[column]):
                    return (
                        f"its {column} in epoch {left['epoch']} is {right[column]:.6g} as lane {lane} but "
                        f"{left[column]:.6g} alone"
                    )
    return _state_fault([own.loss.state_dict() for own in alone], [own.loss.state_dict() for own in together])


def _state_fault(alone: Sequence[Mapping[str, object]], together: Sequence[Mapping[str, object]]) -> str | None:
    for left, right in zip(alone, together, strict=True):
        for key, value in left.items():
            mine, theirs = torch.as_tensor(value).double(), torch.as_tensor(right[key]).double()
            if mine.shape != theirs.shape or not torch.allclose(mine, theirs, rtol=TOLERANCE, atol=1e-6):
                return f"the loss's state {key!r} differs after training in lanes"
    return None


def _close(left: float, right: float) -> bool:
    # A configuration that diverges must diverge as a lane, too.
    same = math.isnan(left) and math.isnan(right)
    return same or math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=1e-6)


#: Widths to try, in this order, as long as each is faster than the one before.
WIDTHS = (4, 8, 16, 32, 64)

#: Widths to try on a GPU, which saturates much later: an H200 still gained 2.7 times from 64 to 256 small perceptrons.
CARD_WIDTHS = (*WIDTHS, 128, 256)

#: Number of timed epochs. The fastest epoch counts; the first one warms up caches and kernels.
ROUNDS = 3

#: Largest accepted ratio of times per lane, of a wider cohort to a narrower one and of a cohort to training alone.
GAIN = 0.95

#: If the first width takes this many times as long per lane as training alone, the search ends. Wider cohorts only
#: divide a step's fixed cost among more lanes, so they would win only if that cost were most of the step.
HOPELESS = 1.1

#: Copies of a lane's parameters in a cohort: values, gradients, two optimiser memories, and two temporaries.
COPIES = 6

#: Share of free memory that all cohorts on a machine may take together.
MEMORY_SHARE = 0.25


def measured_width(build: Callable[[int], Replicate], device: str, most: int, processes: int = 1) -> int:
    """Return the fastest width up to `most` lanes, or 0 if none is clearly faster than training alone."""
    weight = sum(p.numel() * p.element_size() for p in build(0).model.parameters())
    free = float(free_memory() if device == "cpu" else torch.cuda.mem_get_info()[0])
    # Every process with a cohort takes its part of the free memory.
    limit = min(most, free * MEMORY_SHARE / processes / max(1, COPIES * weight))
    return best_width(seconds_of_widths(build, device, _tried(limit, WIDTHS if device == "cpu" else CARD_WIDTHS)))


def seconds_of_widths(build: Callable[[int], Replicate], device: str, widths: Iterable[int]) -> dict[int, float]:
    """Return width → seconds of an epoch per lane, with width 0 for training alone.

    Wider cohorts are tried as long as each is faster, can be mapped and fits in memory.
    """
    seconds = {0: _fastest(build(0).train_epoch, device)}
    for width in widths:
        try:
            seconds[width] = _fastest(Lanes([build(lane) for lane in range(width)]).train_epoch, device) / width
        except (MemoryError, RuntimeError):  # torch raises RuntimeError if it cannot allocate or map
            break
        if not is_promising(seconds):
            break
    return seconds


def is_promising(seconds: Mapping[int, float]) -> bool:
    """Return whether a wider cohort than the last one measured may be faster.

    Args:
        seconds: width → seconds of an epoch per lane, in measured order, beginning with width 0 for training alone.

    Example:
        >>> is_promising({0: 1.0, 4: 0.5}), is_promising({0: 1.0, 4: 0.5, 8: 0.6})
        (True, False)
    """
    *before, last = seconds.values()
    if len(before) == 1:
        return last < HOPELESS * before[0]
    return last <= GAIN * min(before)


def best_width(seconds: Mapping[int, float]) -> int:
    """Return the smallest width that is nearly as fast as the best, or 0 if training alone is as fast.

    Args:
        seconds: width → seconds of an epoch per lane, with width 0 for training alone.

    Example:
        >>> best_width({0: 1.0, 4: 0.5, 8: 0.49})
        4
    """
    wide = {lanes: time_per_lane for lanes, time_per_lane in seconds.items() if lanes}
    best = min(wide.values(), default=float("inf"))
    if best > GAIN * seconds[0]:
        return 0
    # Among equally fast widths the smallest needs the least memory and fills soonest.
    return min(lanes for lanes, time_per_lane in wide.items() if GAIN * time_per_lane <= best)


def _tried(limit: float, widths: Sequence[int]) -> list[int]:
    fitting = [width for width in widths if width <= limit]
    narrower = fitting[-1] if fitting else 1
    return [*fitting, int(limit)] if narrower < int(limit) < widths[-1] else fitting


def _fastest(train: Callable[[], object], device: str) -> float:
    # With one thread, processor time is measured: waiting for other trials would distort wall-clock time.
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    times = []
    for _ in range(ROUNDS):
        started = clock()
        train()
        # Kernels run asynchronously: without this, only their launch would be timed.
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(clock() - started)
    return min(times)


LANES, SEQUENTIAL, AUTO, TRIALS = "lanes", "sequential", "auto", "trials"

Build = Callable[[int, DataSet], Replicate]

_choices: dict[str, str] = {}
_mappable: dict[str, bool] = {}


class Sequential:
    """Trains replicates one after the other."""

    def __init__(
        self, replicates: Sequence[Task], after_step: Callable[[], None] | None = None, trained: Sequence[EpochRow] = ()
    ) -> None:
        """Prepare to train replicates of one configuration at the same epoch.

        Args:
            replicates: replicates to train.
            after_step: function called after each step of any replicate.
            trained: rows of the first replicates, if these have already trained the current epoch.
        """
        self._replicates, self._after_step = replicates, after_step
        self.trained = [*trained]

    def train_epoch(self) -> list[EpochRow]:
        """Train one epoch and return a row per replicate, in order."""
        for replicate in self._replicates[len(self.trained) :]:
            self.trained.append(replicate.train_epoch(self._after_step))
        rows, self.trained = self.trained, []
        return rows


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
    """Return whether a trial that shares no cohort trains its replicates as `lanes` or `sequential`.

    With `lanes`, they are lanes if the network can be; `auto` takes lanes only if a measurement shows that they are
    faster. A user's own network or loss becomes lanes only if a check shows that these train equally.

    What `auto` measured is kept per network, loss, optimiser, batch size, number of replicates, data shape, device and
    arithmetic. It is kept in this process and, for all processes of the sweep, in `choices`, where the first answer
    counts. Measuring trains temporary replicates, which draw only from their own generators.

    Args:
        packing: `lanes` or `auto`.
        build: function from a seed and a data set to a replicate.
        configuration: trial configuration.
        seeds: seeds of the replicates.
        dataset: data set on the device.
        device: `cpu` or `cuda`.
        training: arithmetic of training steps.
        choices: folder in which the sweep keeps answers; `None` if no folder is shared.
    """
    if len(seeds) == 1 or unmappable(configuration, training):
        return SEQUENTIAL
    if is_own(configuration) and not _mappable_here(build, configuration, seeds, dataset):
        return SEQUENTIAL
    if packing == LANES:
        return LANES
    key = _key(configuration, len(seeds), dataset, device, training)

    def measure() -> str:
        few = few_batches(dataset, configuration["optimizer"]["batch_size"])
        lanes = best_width(seconds_of_widths(lambda lane: build(seeds[lane], few), device, (len(seeds),)))
        return LANES if lanes else SEQUENTIAL

    if key not in _choices:
        _choices[key] = measure() if choices is None else kept_choice(choices, key, measure)
    return _choices[key]


def _mappable_here(build: Build, configuration: Configuration, seeds: Sequence[int], dataset: DataSet) -> bool:
    """Return whether lanes train like replicates alone; tried once per process and kind of configuration."""
    # A floating-point number hardly changes whether a loss can be mapped; a text, a flag or a count may.
    parts = [{k: v for k, v in configuration[part].items() if not isinstance(v, float)} for part in configuration]
    key = json.dumps([parts, dataset.input_shape, dataset.classes], sort_keys=True, default=dict)
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
    """Return the width with the most epochs per second, or 0 if training in sequence is as fast.

    The answer is kept per `cohort_key`, device and arithmetic, in `choices` for all processes of the sweep.

    Args:
        build: function from a seed and a data set to a replicate of the configuration.
        configuration: configuration that can be a lane.
        dataset: data set on the device.
        device: `cpu` or `cuda`.
        training: arithmetic of training steps.
        most: maximum number of lanes that the sweep can fill.
        processes: number of processes with cohorts on this machine.
        choices: folder in which the sweep keeps answers; `None` if no folder is shared.
    """
    key = json.dumps([LANES, cohort_key(configuration), most, *_computed_by(device, training)])

    def measure() -> str:
        few = few_batches(dataset, configuration["optimizer"]["batch_size"])
        return str(measured_width(lambda seed: build(seed, few), device, most, processes))

    return int(measure() if choices is None else kept_choice(choices, key, measure))


def _key(configuration: Configuration, count: int, dataset: DataSet, device: str, training: TrainingSettings) -> str:
    recipe = configuration["optimizer"]
    trained = [configuration["architecture"], configuration["loss"]["name"], recipe["name"], recipe["batch_size"]]
    parts = [*trained, count, dataset.input_shape, dataset.classes, *_computed_by(device, training)]
    return json.dumps(parts, sort_keys=True, default=dict)


def _computed_by(device: str, training: TrainingSettings) -> tuple[str, str, int]:
    """Return device, arithmetic and threads, which determine the fastest choice."""
    device_name = device if device == "cpu" else torch.cuda.get_device_name()
    return device_name, training.described, torch.get_num_threads()
