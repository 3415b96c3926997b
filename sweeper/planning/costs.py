"""The time of an epoch and an evaluation on this machine, measured on a small part of each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import starmap
from typing import Any

import torch
from torch import Tensor

from sweeper.core.domains import Configuration
from sweeper.core.errors import InvalidSearchSpace, SweeperError
from sweeper.planning.estimate import TRAINING_PASSES, dataset_size, forward_operations, shifted_samples
from sweeper.planning.plan import Cost, Plan, plan
from sweeper.planning.preparation import prepare_dataset
from sweeper.planning.user_code_checks import LoopData, torch_threads
from sweeper.space.configurations import configurations, looked_at
from sweeper.space.spec import SweepSpec
from trainables.datasets import DataSet, Split
from trainables.files.container import usable_cores
from trainables.registry import OWN, DataSetSize
from trainables.training.acceleration import prepare_arithmetic
from trainables.training.evaluation import EvaluationSettings
from trainables.training.lanes.cohort import Cohort
from trainables.training.lanes.packing import cohort_key
from trainables.training.lanes.widths import measured_width
from trainables.training.loop import Replicate

#: A larger training split is cut to this many samples and the time scaled up, so that planning stays quick.
MEASURED_SAMPLES = 2048

#: More than this in one measured epoch, some 20 s on a core, is not measured without a GPU.
MEASURED_OPERATIONS = 1e12

#: The largest class is reported as too large from this many times its equal share.
IMBALANCED = 1.25

#: For how long each architecture is trained.
MEASURED_SECONDS = 1.0


def measured_plan(spec: SweepSpec, workers: int | Callable[[Mapping[str, Cost]], int] | None = None) -> Plan:
    """Plan a sweep with the costs measured here; where the data set cannot be loaded, without time and saying why.

    `workers` may follow from the costs.
    """
    size, found = dataset_size(spec.dataset), workers if callable(workers) else lambda costs: workers
    if size is not None and _too_much(spec, size):
        note = "No estimate: too large to measure locally; see the GPU-hours, or plan with --rehearse"
        return plan(spec, workers=found({}), note=note, estimated=True)
    try:
        whole = prepare_dataset(spec)
        if isinstance(whole, LoopData):
            costs = {OWN: Cost(whole.epoch_seconds, whole.evaluation_seconds)}
        else:
            costs = measure_costs(spec, whole)
    except InvalidSearchSpace:
        raise
    except SweeperError as error:
        return replace(plan(spec, workers=found({}), note=f"No estimate: {error}", estimated=True), obstacle=str(error))
    note = f"Time estimated from a short measurement on this machine: {'; '.join(starmap(_cost_text, costs.items()))}"
    planned = plan(spec, costs, found(costs), note, estimated=True)
    if whole.translation is not None or isinstance(whole, LoopData):  # samples without classes, or unknown
        return planned
    return replace(planned, balance=class_balance(whole.train.targets, whole.classes))


def _cost_text(network: str, cost: Cost) -> str:
    lanes = f" as one of {cost.lanes} lanes ({cost.alone_seconds:.3g} s alone)" if cost.lanes else ""
    return f"{network} {cost.epoch_seconds:.3g} s per epoch{lanes}, {cost.evaluation_seconds:.3g} s per evaluation"


def _too_much(spec: SweepSpec, size: DataSetSize) -> bool:
    """Return whether the short measurement would take minutes here: more than `MEASURED_OPERATIONS`, and no GPU."""
    if torch.cuda.is_available() and spec.resources.gpu != 0:
        return False
    samples = min(size.train, MEASURED_SAMPLES) * TRAINING_PASSES
    return any(
        forward_operations(configuration["architecture"], size) * samples > MEASURED_OPERATIONS
        for configuration in representatives(spec).values()
    )


def class_balance(targets: Tensor, classes: int) -> str:
    """Return a sentence on classes of which the largest has IMBALANCED times its equal share, else nothing."""
    counts = torch.bincount(targets, minlength=classes)
    largest, smallest = int(counts.max()), int(counts.min())
    share = largest / max(1, int(counts.sum()))
    if share * classes < IMBALANCED:
        return ""
    return (
        f"imbalanced: {largest:,} training samples of the largest, {smallest:,} of the smallest; always predicting the "
        f"largest has accuracy {share:.1%}, so consider constraints: [{{metric: val_balanced_accuracy, min: …}}]"
    )


def measure_costs(spec: SweepSpec, whole: DataSet | None = None) -> dict[str, Cost]:
    """Return architecture → cost, each measured on one of the sweep's configurations.

    Args:
        spec: the checked search space.
        whole: its data set, loaded where none is given.

    Raises:
        SweeperError: the data set's files are missing or damaged, or a network does not suit it.
    """
    device = "cuda" if spec.resources.gpu != 0 and torch.cuda.is_available() else "cpu"
    whole = whole if whole is not None else prepare_dataset(spec)
    share = min(1.0, MEASURED_SAMPLES / len(whole.train))
    dataset = _cut(whole, share).to(device)
    prepare_arithmetic(spec.training.settings, device)
    with torch_threads(max(1, int(spec.resources.cpu))):
        return {
            name: _measure(configuration, spec, dataset, share, device)
            for name, configuration in representatives(spec).items()
        }


def representatives(spec: SweepSpec) -> dict[str, Configuration]:
    """Return architecture → one of its configurations, preferring other losses to plain cross-entropy, which
    needs one Hessian where they need two.
    """
    chosen: dict[str, Configuration] = {}
    for configuration in looked_at(spec):
        architecture = str(configuration["architecture"]["name"])
        before = chosen.setdefault(architecture, configuration)
        if before["loss"]["name"] == "cross_entropy":
            chosen[architecture] = configuration
    return dict(sorted(chosen.items()))


def _measure(configuration: Configuration, spec: SweepSpec, dataset: DataSet, share: float, device: str) -> Cost:
    training = spec.training.settings

    def build(seed: int = 0) -> Replicate:
        epochs = spec.scheduler.max_epochs
        return Replicate(configuration, seed=seed, dataset=dataset, max_epochs=epochs, device=device, training=training)

    try:
        replicate = build()
    except (ValueError, OSError) as error:
        network = configuration["architecture"]["name"]
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SweeperError(
            f"{network} cannot be built: {reason}", "make its weights available, or set pretrained=false"
        ) from error
    row = replicate.train_epoch()  # the first one also pays for allocations and kernels' choice
    started, epochs = time.perf_counter(), 0
    while epochs == 0 or time.perf_counter() - started < MEASURED_SECONDS:
        row = replicate.train_epoch()
        epochs += 1
    alone = epoch_seconds = (time.perf_counter() - started) / epochs
    lanes = lanes_here(spec, configuration, build, device)
    if lanes:
        epoch_seconds = lane_seconds(build, lanes)
    evaluation_seconds, wanted = 0.0, spec.evaluation.model_dump()
    if not math.isfinite(row["val_nll"]):
        replicate = build()  # it diverged; evaluating untrained weights costs the same
    for _ in range(2):  # a quick evaluation is repeated: the first one also pays for imports
        evaluation_seconds = _evaluating(replicate, wanted)
        if evaluation_seconds > MEASURED_SECONDS:
            break
    curvature_seconds = shifted_seconds = 0.0
    plain = {**wanted, "curvature": False}
    if spec.evaluation.curvature is not False:
        curvature_seconds = max(0.0, evaluation_seconds - _evaluating(replicate, plain))
    if spec.evaluation.shifts:
        seconds = _evaluating(replicate, {**plain, "bootstrap": 0})
        measured = sum(len(dataset.splits[name]) for name in spec.evaluation.own_splits)
        shifted_seconds = seconds / measured * shifted_samples(spec, round(len(dataset.test) / share))
    return Cost(
        epoch_seconds / share, evaluation_seconds / share, curvature_seconds / share, shifted_seconds, lanes,
        alone / share,
    )  # fmt: skip


def lanes_here(spec: SweepSpec, configuration: Configuration, build: Callable[[int], Replicate], device: str) -> int:
    """Return the lanes of a cohort of a configuration's kind in each process of this machine; 0 where it trains alone.

    As many as the space says; where it leaves that to a measurement, as many as are measured here.
    """
    training = spec.training.settings
    if not spec.replicates.together or cohort_key(configuration, training) is None:
        return 0
    if spec.replicates.lanes != "auto":
        return spec.replicates.lanes
    processes = max(1, int(usable_cores() / max(1.0, spec.resources.cpu)))
    most = -(-len(configurations(spec)) * spec.replicates.count // processes)
    return measured_width(build, device, most, processes)


def trials_each(spec: SweepSpec, costs: Mapping[str, Cost]) -> int:
    """Return how many trials a process trains at once: as the space says, or as was measured for the `costs`."""
    given = spec.replicates.lanes
    lanes = max(cost.lanes for cost in costs.values()) if costs else 0
    if not costs and spec.replicates.together and given != "auto":
        lanes = given
    return max(1, lanes // spec.replicates.count)


def lane_seconds(build: Callable[[int], Replicate], lanes: int) -> float:
    """Return a lane's share of the seconds that an epoch of a full cohort takes, the first epoch left out."""
    cohort = Cohort(first := build(0), lanes)
    for seed in range(lanes):
        cohort.join(build(seed) if seed else first)
    cohort.train_epoch()
    started = time.perf_counter()
    cohort.train_epoch()
    return (time.perf_counter() - started) / lanes


def _evaluating(replicate: Replicate, settings: dict[str, Any]) -> float:
    """Return the seconds of one evaluation at a rung."""
    started = time.perf_counter()
    replicate.evaluate(EvaluationSettings.from_mapping(settings), "rung")
    return time.perf_counter() - started


def _cut(dataset: DataSet, share: float) -> DataSet:
    """Return the data set with the first `share` of each split."""
    if share == 1.0:
        return dataset

    def first(split: Split) -> Split:
        return split.first(max(1, int(len(split) * share)))

    cut = dataset.with_splits(first)
    known = dataset.posterior  # a row for each test sample
    return replace(cut, posterior=None if known is None else known[: len(cut.test)])
