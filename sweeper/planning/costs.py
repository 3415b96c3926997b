"""Estimate the cost of a sweep: seconds on this machine, measured on a small part, and GPU-hours, without training.

Operations are counted by running each network once on PyTorch's meta device, which computes shapes only. A GPU's
operations per second come from `hardware.yaml`, which distinguishes measured from assumed numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from itertools import starmap
from typing import Any

import torch
import yaml
from torch import Tensor

from sweeper.core.errors import InvalidSearchSpace, SweeperError
from sweeper.planning.plan import Cost, Estimate, Plan, plan
from sweeper.planning.preparation import prepare_dataset
from sweeper.planning.user_code_checks import LoopData, torch_threads
from sweeper.space.configurations import configurations, first_examples
from sweeper.space.spec import SweepSpec
from trainables.datasets import DataSet
from trainables.datasets.base import DATASETS
from trainables.datasets.splits import build_split
from trainables.extensions.libraries import operation_counter
from trainables.files.container import usable_cores
from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES, build_model
from trainables.models.base import MOST_COMPUTED, Undrawn
from trainables.registry import OWN, Configuration, DataSetSize, Options
from trainables.training.acceleration import prepare_arithmetic
from trainables.training.evaluation import EvaluationSettings
from trainables.training.fine_tuning import radius_of
from trainables.training.lanes.cohort import Cohort
from trainables.training.lanes.packing import cohort_key, measured_width
from trainables.training.loop import Replicate

#: A larger training split is cut to this many samples, and the measured time is scaled up. This keeps planning quick.
MEASURED_SAMPLES = 2048

#: Largest number of operations of a measured epoch without a GPU, about 20 s on one core.
MEASURED_OPERATIONS = 1e12

#: Classes are reported as imbalanced if the largest class has this many times its share under balance.
IMBALANCED = 1.25

#: Measured training time per architecture. It covers several epochs of a small network, so that their mean is stable.
MEASURED_SECONDS = 0.25

#: An evaluation that took longer is not repeated.
QUICK_SECONDS = 0.5


def measured_plan(spec: SweepSpec, workers: int | Callable[[Mapping[str, Cost]], int] | None = None) -> Plan:
    """Plan a sweep with costs measured on this machine.

    If the data cannot be loaded, the plan has no time and states the reason.

    Args:
        spec: the checked search space.
        workers: processes that run at once, or a function that returns them from the costs.
    """
    size, workers_for = dataset_size(spec.dataset), workers if callable(workers) else lambda costs: workers
    if size is not None and _too_much(spec, size):
        note = "No estimate: too large to measure locally; see the GPU-hours, or plan with --rehearse"
        return with_estimate(spec, plan(spec, workers=workers_for({}), note=note))
    try:
        whole = prepare_dataset(spec)
        if isinstance(whole, LoopData):
            costs = {OWN: Cost(whole.epoch_seconds, whole.evaluation_seconds)}
        else:
            costs = measure_costs(spec, whole)
    except InvalidSearchSpace:  # a fault of the file, unlike missing data, must be corrected before any plan
        raise
    except SweeperError as error:
        planned = with_estimate(spec, plan(spec, workers=workers_for({}), note=f"No estimate: {error}"))
        return replace(planned, obstacle=str(error))
    note = f"Time estimated from a short measurement on this machine: {'; '.join(starmap(_cost_text, costs.items()))}"
    planned = with_estimate(spec, plan(spec, costs, workers_for(costs), note))
    if isinstance(whole, LoopData):  # its targets are stand-ins
        return planned
    return replace(planned, balance=class_balance(whole.train.targets, whole.classes))


def _cost_text(network: str, cost: Cost) -> str:
    lanes = f" as one of {cost.lanes} lanes ({cost.alone_seconds:.3g} s alone)" if cost.lanes else ""
    return f"{network} {cost.epoch_seconds:.3g} s per epoch{lanes}, {cost.evaluation_seconds:.3g} s per evaluation"


def _too_much(spec: SweepSpec, size: DataSetSize) -> bool:
    """Return whether the measurement would take minutes: more than `MEASURED_OPERATIONS` without a GPU."""
    if torch.cuda.is_available() and spec.resources.gpu != 0:
        return False
    samples = min(size.train, MEASURED_SAMPLES) * TRAINING_PASSES
    networks = (configuration["architecture"] for configuration in representatives(spec).values())
    return any(forward_operations(network, size) * samples > MEASURED_OPERATIONS for network in networks)


def class_balance(targets: Tensor, classes: int) -> str:
    """Describe the class balance if the largest class has IMBALANCED times its share under balance; empty otherwise.

    Example:
        >>> class_balance(torch.tensor([0, 1, 2, 0, 1, 2]), classes=3)
        ''
        >>> class_balance(torch.tensor([0, 0, 0, 1]), classes=2).split(";")[0]
        'imbalanced: 3 training samples of the largest, 1 of the smallest'
    """
    counts = torch.bincount(targets, minlength=classes)
    largest, smallest = int(counts.max()), int(counts.min())
    share = largest / max(1, int(counts.sum()))
    if share * classes < IMBALANCED:
        return ""
    return (
        f"imbalanced: {largest:,} training samples of the largest, {smallest:,} of the smallest; always predicting the "
        f"largest has accuracy {share:.1%}, so compare val_balanced_accuracy too"
    )


def measure_costs(spec: SweepSpec, whole: DataSet) -> dict[str, Cost]:
    """Measure architecture → cost, each on one of the sweep's configurations.

    Args:
        spec: the checked search space.
        whole: data set of the sweep.

    Raises:
        SweeperError: a network cannot be built.
    """
    device = "cuda" if spec.resources.gpu != 0 and torch.cuda.is_available() else "cpu"
    share = min(1.0, MEASURED_SAMPLES / len(whole.train))
    dataset = _cut(whole, share).to(device)
    prepare_arithmetic(spec.training.settings, device)
    with torch_threads(max(1, int(spec.resources.cpu))):  # the number that a trial of the sweep gets
        chosen = representatives(spec).items()
        return {name: _measure(configuration, spec, dataset, share, device) for name, configuration in chosen}


def representatives(spec: SweepSpec) -> dict[str, Configuration]:
    """Return architecture → one of its configurations, which represents its cost."""
    # Another loss is preferred to cross-entropy, whose training loss and cross-entropy share one Hessian.
    chosen: dict[str, Configuration] = {}
    for configuration in first_examples(spec):
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
            f"cannot build {network}: {reason}", "make its weights available, or set pretrained=false"
        ) from error
    row = replicate.train_epoch()  # not timed: the first epoch also allocates memory and selects kernels
    started, epochs = time.perf_counter(), 0
    while epochs == 0 or time.perf_counter() - started < MEASURED_SECONDS:
        row = replicate.train_epoch()
        epochs += 1
    alone = epoch_seconds = (time.perf_counter() - started) / epochs
    lanes = lanes_here(spec, configuration, build, device)
    if lanes:
        epoch_seconds = lane_seconds(build, lanes)
    settings = spec.evaluation.model_dump()
    if not math.isfinite(row["val_nll"]):
        replicate = build()  # it diverged; evaluating untrained weights costs the same
    plain = {**settings, "curvature": False}
    evaluation_seconds = _evaluating(replicate, plain)
    curvature_seconds = shifted_seconds = 0.0
    # Measured as a difference, because the other measurements need the same forward passes.
    if spec.evaluation.curvature is not False:
        plain_seconds, evaluation_seconds = evaluation_seconds, _evaluating(replicate, settings)
        curvature_seconds = max(0.0, evaluation_seconds - plain_seconds)
    # Scaled from the time of the data set's own splits, because making shifted data would take too long.
    if spec.evaluation.shifts:
        seconds = _evaluating(replicate, {**plain, "bootstrap": 0})
        measured = sum(len(dataset.splits[name]) for name in spec.evaluation.own_splits)
        shifted_seconds = seconds / measured * shifted_samples(spec, round(len(dataset.test) / share))
    return Cost(
        epoch_seconds / share, evaluation_seconds / share, curvature_seconds / share, shifted_seconds, lanes,
        alone / share,
    )  # fmt: skip


def lanes_here(spec: SweepSpec, configuration: Configuration, build: Callable[[int], Replicate], device: str) -> int:
    """Return the number of lanes that a configuration shares in each process of this machine; 0 if it shares none.

    If the space does not give the number, it is measured here.
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
    """Return the number of trials that a process trains at once, from the space or as measured for `costs`."""
    lanes = max((cost.lanes for cost in costs.values()), default=0)
    if not costs and spec.replicates.together and spec.replicates.lanes != "auto":
        lanes = spec.replicates.lanes
    return max(1, lanes // spec.replicates.count)


def lane_seconds(build: Callable[[int], Replicate], lanes: int) -> float:
    """Measure the seconds of one epoch of a full cohort, divided by its lanes, after a first epoch to warm up."""
    cohort = Cohort(first := build(0), lanes)
    for seed in range(lanes):
        cohort.join(build(seed) if seed else first)
    cohort.train_epoch()
    started = time.perf_counter()
    cohort.train_epoch()
    return (time.perf_counter() - started) / lanes


def _evaluating(replicate: Replicate, settings: dict[str, Any]) -> float:
    """Measure the seconds of one evaluation at a rung."""
    seconds = 0.0
    for _ in range(2):  # a quick one is repeated: the first one also imports packages, for up to a second
        started = time.perf_counter()
        replicate.evaluate(EvaluationSettings.from_mapping(settings), "rung")
        seconds = time.perf_counter() - started
        if seconds > QUICK_SECONDS:
            break
    return seconds


def _cut(dataset: DataSet, share: float) -> DataSet:
    """Return the data set with the first `share` of each split."""
    if share == 1.0:
        return dataset
    cut = dataset.with_splits(lambda split: split.first(max(1, int(len(split) * share))))
    known = dataset.posterior  # one row per test sample
    return replace(cut, posterior=None if known is None else known[: len(cut.test)])


#: Cost of a training step in forward passes: the backward pass costs two (gradients of activations and of weights).
TRAINING_PASSES = 3

#: Cost of a Hessian-vector product in forward passes: it differentiates a forward and a backward pass again.
PRODUCT_PASSES = 6

#: Number of layers assumed for curvature by blocks, for any network; resnet20 has 11.
LAYERS = 11


@dataclass(frozen=True)
class Gpu:
    """A GPU of `hardware.yaml`.

    Attributes:
        name: name of the GPU.
        operations_per_second: training speed, measured or assumed.
        anchor: source of that speed.
        machines: types of machines that have it.
    """

    name: str
    operations_per_second: float
    anchor: str
    machines: list[str]


def known_gpus() -> tuple[list[Gpu], float]:
    """Return the GPUs of `hardware.yaml`, and the factor by which small images can be slower than the anchor.

    Example:
        >>> [gpu.name for gpu in known_gpus()[0]][:1]
        ['A100']
    """
    table = yaml.safe_load(resources.files("sweeper.planning").joinpath("hardware.yaml").read_text("utf-8"))
    gpus = [
        Gpu(row["name"], row["peak_tflops"] * 1e12 * row["share"], row["anchor"], row["machines"])
        for row in table["cards"]
    ]
    return gpus, float(table["slowest"])


def with_estimate(spec: SweepSpec, planned: Plan) -> Plan:
    """Return a plan with GPU-hours; every network of the space is built once without weights."""
    finished = planned.reaching[spec.scheduler.max_epochs].mean * spec.replicates.count
    return replace(planned, estimate=estimate(spec, planned.epochs.mean, planned.evaluations.mean, finished))


def estimate(spec: SweepSpec, epochs: float, evaluations: float, finished: float = 0.0) -> Estimate | None:
    """Estimate the hours of a sweep on the GPUs of `hardware.yaml`; `None` if the data set's size is unknown.

    Args:
        spec: the checked search space.
        epochs: training epochs over all trials and replicates.
        evaluations: evaluations over all trials and replicates.
        finished: number of replicates that reach the last epoch. They are also measured on shifts.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> estimated = estimate(load_spec("quickstart"), epochs=100, evaluations=10)
        >>> low, high = estimated.gpu_hours["A100"]
        >>> low < high
        True
    """
    size = None if spec.loop is not None else dataset_size(spec.dataset)
    if size is None:
        return None
    drawn = first_examples(spec)
    networks = [configuration["architecture"] for configuration in drawn]
    counted = [(network, forward_operations(network, size)) for network in dict.fromkeys(networks)]
    per_network = [next(count for other, count in counted if other == network) for network in networks]
    # Sharpness-aware optimisers take two passes a step.
    passes = [training_passes(values["loss"]) * (2 if radius_of(values["optimizer"]) else 1) for values in drawn]
    epoch = size.train * sum(f * p for f, p in zip(per_network, passes, strict=True)) / len(drawn)
    forward_pass = sum(per_network) / len(drawn)
    epoch += forward_pass * trajectory_samples(spec, size)
    samples = sum(map(size.samples, spec.evaluation.own_splits))
    evaluation = forward_pass * (samples + curvature_passes(spec, size))
    operations = epochs * epoch + evaluations * evaluation
    operations += finished * forward_pass * shifted_samples(spec, size.test)
    gpus, slowest = known_gpus()
    hours = {gpu.name: operations / gpu.operations_per_second / 3600 for gpu in gpus}
    assumption = (
        f"estimated from {operations:.2g} floating-point operations; the low end is the GPU's speed on "
        f"{gpus[0].name}'s anchor ({gpus[0].anchor}), the high end {slowest:g} times that, for small images in "
        "float32; see sweeper/planning/hardware.yaml"
    )
    return Estimate(operations, {name: (h, h * slowest) for name, h in hours.items()}, assumption)


def dataset_size(dataset: Options) -> DataSetSize | None:
    """Return a data set's size from its name and options; `None` if it is known only from its files.

    Example:
        >>> size = dataset_size({"name": "cifar10"})
        >>> size.train, size.classes, size.input_shape
        (45000, 10, (3, 32, 32))
    """
    name = dataset["name"]
    size = None if DATASETS.is_own(name) else DATASETS[name].size
    return None if size is None else size(dataset)


def forward_operations(architecture: Options, size: DataSetSize) -> float:
    """Count the floating-point operations of one sample's forward pass, in convolutions and matrix products only.

    Raises:
        ValueError: the network cannot take the data set's shape.

    Example:
        >>> size = dataset_size({"name": "digits"})
        >>> forward_operations({"name": "mlp", "width": 32, "depth": 1}, size)  # 2 · (64 · 32 + 32 · 10)
        4736.0
    """
    # Pretrained weights are left out: the meta device holds no weights, and shapes need no download.
    described = {k: v for k, v in architecture.items() if k not in ("pretrained", "weights_file")}
    trees = ARCHITECTURES.has_tag(described["name"], "follows_data")
    # A network over trees needs the data's values for its structure, and the meta device holds no values.
    device = torch.device("cpu" if trees else "meta")
    build = partial(build_model, input_shape=size.input_shape, classes=size.classes, **described)
    with device, nullcontext() if trees else Undrawn():
        model = build()
    if not trees and sum(weights.numel() for weights in model.parameters()) <= MOST_COMPUTED:
        device = torch.device("cpu")
        with torch.random.fork_rng(devices=[]):
            model = build()  # again, because a buffer's values can be indices
    model.eval()
    with device, torch.no_grad():
        kind = torch.int32 if size.text else torch.float32
        inputs = _example_tree(size) if trees else torch.zeros((1, *size.input_shape), dtype=kind)
        with operation_counter() as counter:
            model(inputs)
    return float(counter.get_total_flops())


def training_passes(loss: Options) -> float:
    """Return the cost of a training step in forward passes."""
    # Trace regularisation differentiates Hessian-vector products again, which doubles their cost.
    if LOSSES.has_tag(loss["name"], "third_order"):
        return TRAINING_PASSES + 2 * PRODUCT_PASSES * float(loss.get("probes", 1))
    return TRAINING_PASSES


def trajectory_samples(spec: SweepSpec, size: DataSetSize) -> float:
    """Return the cost of the trajectory after an average epoch, in forward passes of a sample."""
    settings = spec.evaluation.trajectory
    if settings is None:
        return 0.0
    return sum(map(size.samples, settings.splits)) / settings.every


def shifted_samples(spec: SweepSpec, test: int) -> int:
    """Return the number of samples of all shifts, given `test` samples of the test split.

    Other data sets are assumed to be as large as the test split.
    """
    shifts = [build_split(entry) for entry in spec.evaluation.shifts]
    return sum(len(shift.names) * min(shift.samples or test, test) for shift in shifts)


def curvature_passes(spec: SweepSpec, size: DataSetSize) -> float:
    """Return the cost of the curvature of one evaluation, in forward passes of a sample."""
    settings = spec.evaluation.curvature
    if not settings:
        return 0.0
    samples = min(settings.get("samples") or size.val, size.val)
    products = settings["lanczos_steps"] + settings["trace_probes"]
    if settings.get("spectrum"):
        products += 4 * settings["spectrum_steps"]  # between the smallest (2) and the largest number of probes (16)
    if settings.get("blocks"):
        products += LAYERS * settings["block_steps"] / 2  # a block's product skips part of the backward pass
    if "gauss_newton" in settings.get("statistics", ()):
        products += 3 * settings["lanczos_steps"]  # G, and R = H − G
    return float(samples * PRODUCT_PASSES * products * len(settings["losses"]))


def _example_tree(size: DataSetSize) -> torch.Tensor:
    """Return a left-branching tree with the 19 words of an average sentence of SST."""
    words, nodes = 19, size.input_shape[0]
    rows = torch.tensor([[0, 0, 0, -1]] * nodes, dtype=torch.int32)
    rows[0] = torch.tensor([2, 0, 0, 0])
    for word in range(1, words):
        rows[2 * word - 1] = torch.tensor([2, 0, 0, 0])
        rows[2 * word] = torch.tensor([0, 2 * word - 2, 2 * word - 1, word])
    return rows[None]
