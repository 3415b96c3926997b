"""GPU-hours of a sweep, estimated from floating-point operations, without training and without data.

Operations are counted by running each network once on PyTorch's meta device, which knows shapes only. How many of them
a GPU does in a second comes from `hardware.yaml`, which says what was measured and what is assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from sweeper.planning.preparation import distinct
from sweeper.space.configurations import looked_at
from sweeper.space.spec import SweepSpec
from trainables.datasets.base import DATASETS
from trainables.datasets.splits import build_split
from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES, build_model
from trainables.registry import DataSetSize
from trainables.training.edge_of_stability import FEWEST, SHARE
from trainables.training.fine_tuning import radius_of

#: A training step in forward passes: the backward pass is two (gradients of activations and of weights).
TRAINING_PASSES = 3

#: Below this on every card, hours are not shown: starting takes longer.
SHORTEST_HOURS = 0.05

#: A Hessian-vector product in forward passes: twice the backward of a forward and a backward pass.
PRODUCT_PASSES = 6

#: Layers of a network in whose blocks curvature is measured, as its cost counts them; resnet20 has 11.
LAYERS = 11


@dataclass(frozen=True)
class Card:
    """A graphics card: what it reaches on the anchor, operations a second, and where that is known from."""

    name: str
    operations_per_second: float
    anchor: str


@dataclass(frozen=True)
class Estimate:
    """What a sweep takes on named cards.

    Attributes:
        operations: floating-point operations of the whole sweep (a multiply-add counts two).
        gpu_hours: card → hours of one GPU, from the anchor's speed to `slowest` times that.
        forward: architecture → operations of one sample's forward pass.
        assumption: what the range rests on, in a sentence.
    """

    operations: float
    gpu_hours: dict[str, tuple[float, float]]
    forward: dict[str, float]
    assumption: str

    @property
    def worth_a_card(self) -> bool:
        """Whether this is more than some seconds of the slowest card."""
        return max(high for _, high in self.gpu_hours.values()) > SHORTEST_HOURS


def cards() -> tuple[list[Card], float]:
    """Return the GPUs of `hardware.yaml`, and by which factor small images may be slower than the anchor."""
    table = yaml.safe_load(resources.files("sweeper.planning").joinpath("hardware.yaml").read_text("utf-8"))
    found = [Card(row["name"], row["peak_tflops"] * 1e12 * row["share"], row["anchor"]) for row in table["cards"]]
    return found, float(table["slowest"])


def estimate(spec: SweepSpec, epochs: float, evaluations: float, finished: float = 0.0) -> Estimate | None:
    """Return what a sweep takes on the GPUs of `hardware.yaml`; `None` where the data set's size is not known.

    Args:
        spec: the sweep.
        epochs: training epochs over all trials and replicates.
        evaluations: evaluations over all trials and replicates.
        finished: replicates that reach the last epoch, and are measured on shifts.
    """
    size = None if spec.loop is not None else dataset_size(spec.dataset)
    if size is None:
        return None
    drawn = looked_at(spec)
    networks = [configuration["architecture"] for configuration in drawn]
    counted = [(network, forward_operations(network, size)) for network in distinct(networks)]
    forward = {_label(network, [n for n, _ in counted]): count for network, count in counted}
    per_network = [next(count for network, count in counted if network == each) for each in networks]
    passes = [training_passes(each["loss"]) * (2 if radius_of(each["optimizer"]) else 1) for each in drawn]
    epoch = size.train * sum(f * p for f, p in zip(per_network, passes, strict=True)) / len(drawn)
    forward_pass = sum(per_network) / len(drawn)
    epoch += forward_pass * trajectory_samples(spec, size)
    evaluation = forward_pass * (_samples(size, spec.evaluation.own_splits) + curvature_passes(spec, size))
    operations = epochs * epoch + evaluations * evaluation
    operations += finished * forward_pass * shifted_samples(spec, size.test)
    known, slowest = cards()
    hours = {card.name: operations / card.operations_per_second / 3600 for card in known}
    assumption = (
        f"estimated from {operations:.2g} floating-point operations; the low end is the GPU's speed on "
        f"{known[0].name}'s anchor ({known[0].anchor}), the high end {slowest:g} times that, for small images in "
        "float32; see sweeper/planning/hardware.yaml"
    )
    return Estimate(operations, {name: (h, h * slowest) for name, h in hours.items()}, forward, assumption)


def dataset_size(dataset: Mapping[str, Any]) -> DataSetSize | None:
    """Return a data set's size from its name and options; `None` where only its files know it."""
    name = dataset["name"]
    size = None if DATASETS.is_own(name) else DATASETS[name].size
    return None if size is None else size(dataset)


def forward_operations(architecture: Mapping[str, Any], size: DataSetSize) -> float:
    """Return the floating-point operations of one sample's forward pass; convolutions and matrix products only.

    Raises ValueError when the network cannot take the data set's shape.
    """
    described = {k: v for k, v in architecture.items() if k not in ("pretrained", "weights_file")}
    trees = ARCHITECTURES.has_tag(described["name"], "follows_data")
    # What it computes is in its data, which the meta device does not hold.
    with torch.device("cpu" if trees else "meta"), torch.no_grad():
        model = build_model(input_shape=size.input_shape, classes=size.classes, **described).eval()
        counter = FlopCounterMode(display=False)
        kind = torch.int32 if size.text else torch.float32
        inputs = _example(described["name"], size) if trees else torch.zeros((1, *size.input_shape), dtype=kind)
        with counter:
            model(inputs)
    return float(counter.get_total_flops())


def training_passes(loss: Mapping[str, Any]) -> float:
    """Return a training step in forward passes; trace regularisation adds products that are differentiated again."""
    if LOSSES.has_tag(loss["name"], "third_order"):
        return TRAINING_PASSES + 2 * PRODUCT_PASSES * float(loss.get("probes", 1))
    return TRAINING_PASSES


def trajectory_samples(spec: SweepSpec, size: DataSetSize) -> float:
    """Return how many samples' forward passes the trajectory takes after an average epoch."""
    settings = spec.evaluation.trajectory
    if settings is None:
        return 0.0
    passes, sharpness = _samples(size, settings.splits) / settings.every, settings.curvature
    if sharpness is None:
        return passes
    taken = min(sharpness.samples or max(FEWEST, size.train // SHARE), size.train)
    return passes + taken * PRODUCT_PASSES * sharpness.products / sharpness.every


def shifted_samples(spec: SweepSpec, test: int) -> int:
    """Return how many samples of shifts a finished network is measured on, where the test split has `test`.

    Other data sets are counted as large as the test split.
    """
    shifts = [build_split(entry) for entry in spec.evaluation.shifts]
    return sum(len(shift.names) * min(shift.samples or test, test) for shift in shifts)


def curvature_passes(spec: SweepSpec, size: DataSetSize) -> float:
    """Return how many samples' forward passes the curvature of one evaluation takes."""
    settings = spec.evaluation.curvature
    if not settings:
        return 0.0
    samples = min(settings.get("samples") or size.val, size.val)
    products = settings["lanczos_steps"] + settings["trace_probes"]
    if settings.get("spectrum"):
        products += 4 * settings["spectrum_steps"]  # probes: at least 2, at most 16
    if settings.get("blocks"):
        products += LAYERS * settings["block_steps"] / 2  # a block's product takes a part of the whole's
    if "gauss_newton" in settings.get("statistics", ()):
        products += 3 * settings["lanczos_steps"]  # G, and R = H − G
    return float(samples * PRODUCT_PASSES * products * len(settings["losses"]))


def _samples(size: DataSetSize, splits: Iterable[str]) -> int:
    return sum(map(size.samples, splits))


def _example(network: str, size: DataSetSize) -> torch.Tensor:
    """Return an average sample of data that decide what a network computes."""
    if ARCHITECTURES.has_tag(network, "translation"):
        return torch.ones((1, *size.input_shape), dtype=torch.int32)  # both sentences without padding
    # One tree of as many nodes as an average sentence of SST has (19 words): a left-branching one.
    words, nodes = 19, size.input_shape[0]
    rows = torch.tensor([[0, 0, 0, -1]] * nodes, dtype=torch.int32)
    rows[0] = torch.tensor([2, 0, 0, 0])
    for word in range(1, words):
        rows[2 * word - 1] = torch.tensor([2, 0, 0, 0])
        rows[2 * word] = torch.tensor([0, 2 * word - 2, 2 * word - 1, word])
    return rows[None]


def _label(network: Mapping[str, Any], networks: list[dict[str, object]]) -> str:
    """Return a network's name, with the hyperparameters that tell it from others of that name."""
    same = [other for other in networks if other["name"] == network["name"]]
    differ = [key for key in network if any(other.get(key) != network[key] for other in same)]
    return " ".join([str(network["name"]), *(f"{key}={network[key]}" for key in differ)])
