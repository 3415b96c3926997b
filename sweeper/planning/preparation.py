"""Check before any trial starts that the data can be loaded, and that every network of the space can train on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sweeper.core.domains.values import join_path
from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.planning.user_code_checks import data_stand_in, own_faults, try_loop
from sweeper.space.configurations import EXAMPLES, configurations, first_examples
from sweeper.space.evaluation import split_faults
from sweeper.space.spec import Evaluation, SweepSpec
from trainables.datasets import Transform, load_dataset
from trainables.datasets.base import DATASETS, DataSet, Split, batch_fault
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.sharing import content_key, node_copy
from trainables.datasets.splits import build_split
from trainables.extensions.targets import describe_error
from trainables.metrics.base import bin_faults
from trainables.metrics.refinement import FOLDS, folds_of
from trainables.metrics.weighted import WEIGHTED_COLUMNS
from trainables.models import ARCHITECTURES, fit_fault, step_fault
from trainables.registry import OWN, Configuration, Options
from trainables.training.acceleration import acceleration_fault, compiler_fault
from trainables.training.fine_tuning import mixes, mixing_fault
from trainables.training.lanes import packing
from trainables.training.loop import Replicate
from trainables.training.own_loop import own_data
from trainables.training.weighting import weighted, weighting_fault


def prepare_dataset(spec: SweepSpec, manifest: Mapping[str, object] | None = None) -> DataSet:
    """Load the data set of `spec`, and check that the space's networks, batch sizes and packing suit it.

    Args:
        spec: the checked search space.
        manifest: manifest of a sweep that has begun. Its training loop was tried at the start and is not tried again.

    Raises:
        SweeperError: the data cannot be loaded.
        InvalidSearchSpace: architectures or batch sizes do not fit, or splits are missing or
            cannot be made from the data. The error lists all faults.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> prepare_dataset(load_spec("quickstart")).classes
        10
    """
    if spec.loop is not None:
        return data_stand_in(manifest) if manifest is not None else try_loop(spec, data_of_loop(spec))
    dataset = _load(spec.dataset)
    drawn = first_examples(spec)
    # Checks stop after the first kind of fault, because later checks rely on earlier ones.
    faults = (
        own_faults(spec, drawn, dataset)
        or split_faults(spec.evaluation.model_dump(), tuple(dataset.splits))
        or shift_faults(spec, dataset)
        or _unsuited(spec, drawn, dataset)
        or _untrainable(drawn, dataset)
    )
    if faults:
        raise InvalidSearchSpace(faults)
    return dataset


def suited_sizes(spec: SweepSpec) -> tuple[int | None, int, bool]:
    """Return a smaller batch size if the data need one, a number of bins, and whether methods can be cross-fitted.

    Raises:
        SweeperError: the data cannot be loaded.
    """
    dataset, own = _load(spec.dataset), int(first_examples(spec)[0].at("optimizer.batch_size"))
    rows, size = len(dataset.train), own
    # Halved until it fits; batch-norm fails on a last batch of one sample.
    while size > 1 and (size > rows or rows % size == 1):
        size //= 2
    bins = max(1, min(spec.evaluation.bins, len(dataset.val), len(dataset.test)))
    return size if size < own else None, bins, _cross_fits(dataset)


def data_of_loop(spec: SweepSpec) -> DataSet:
    """Return the data set that the search space names; if it names none, a placeholder for the loop's own data.

    Raises:
        SweeperError: the data cannot be loaded.
    """
    return own_data() if spec.dataset == {"name": OWN} else _load(spec.dataset)


def _unsuited(spec: SweepSpec, drawn: Sequence[Configuration], dataset: DataSet) -> list[Fault]:
    """Return a fault for each part of the configurations and settings that does not suit the data or another part."""
    # Each check runs once per distinct value: thousands of configurations share a few networks and batch sizes.
    training = spec.training.settings
    try:
        dataset = weighted(dataset, training)
    except ValueError as error:
        return [Fault("training.class_weights", str(error))]
    networks = dict.fromkeys(c["architecture"] for c in drawn if not ARCHITECTURES.is_own(c.name("architecture")))
    recipes = dict.fromkeys(Configuration({part: c[part] for part in RECIPE}) for c in drawn)
    mixed = [recipe for recipe in recipes if mixes(recipe["optimizer"])]
    names = dict.fromkeys((c.name("loss"), c.name("architecture")) for c in drawn)
    sizes = dict.fromkeys(c.at("optimizer.batch_size") for c in drawn)
    return [
        *_faults("space.architecture", networks, lambda network: fit_fault(dataset, network)),
        *_faults("space.optimizer.batch_size", sizes, lambda size: batch_fault(dataset, size)),
        *_faults("space.optimizer", mixed, lambda recipe: mixing_fault(recipe, dataset)),
        *_unweighted(spec, dataset),
        *_undetermined(spec, dataset),
        *_faults("space.loss", recipes, lambda recipe: weighting_fault(recipe, dataset)),
        *_faults("training", names, lambda pair: acceleration_fault(pair[0], pair[1], training)),
        *_faults("evaluation.bins", [spec.evaluation], lambda measured: bins_fault(dataset, measured)),
        *one_by_one_faults(dataset, spec),
        *_faults("training.compile", [training], compiler_fault),
        *_faults("dataset", spec.space.data_sets, lambda variant: _variant_fault(variant, dataset)),
    ]


#: The parts of a configuration that train together.
RECIPE = ("loss", "architecture", "optimizer")

#: Largest number of pairs of network and batch size that train one step before a start (our choice): about 5 s.
MOST_STEPS = 50


def _untrainable(drawn: Sequence[Configuration], dataset: DataSet) -> list[Fault]:
    """Return a fault for each network that cannot train in batches of its size."""
    pairs = dict.fromkeys((c["architecture"], c["optimizer"]["batch_size"]) for c in drawn)
    # Pairs with a small last batch come first, because batch-norm fails on a last batch of one sample.
    first = sorted(pairs, key=lambda pair: len(dataset.train) % pair[1] or pair[1])[:MOST_STEPS]
    return _faults("space.architecture", first, lambda pair: step_fault(dataset, *pair))


def _unweighted(spec: SweepSpec, dataset: DataSet) -> list[Fault]:
    """Return a fault if the objective is a weighted metric and validation samples have no weights."""
    columns = {f"val_{name}" for name in WEIGHTED_COLUMNS if dataset.val.weights is None}
    rule = "needs weights of the samples, and the data have none; give dataset.weight, a column of a table"
    return [Fault("objective", f"{spec.objective.metric} {rule}")] if spec.objective.metric in columns else []


def _undetermined(spec: SweepSpec, dataset: DataSet) -> list[Fault]:
    """Return a fault if the objective's method is cross-fitted, and cannot be fitted on the other folds of some fold.

    Without this check, every trial would fail at its first rung, because the objective has no value.
    """
    metric = spec.objective.metric
    if not any(f"{label}_" in metric for label in spec.cross_fitted) or _cross_fits(dataset):
        return []
    targets = dataset.val.targets.flatten()
    rule = (
        f"{metric} needs at least {FOLDS} validation samples, and two classes without any one of {FOLDS} folds; "
        f"{dataset.name} has {len(targets)}, of {len(targets.unique())} classes"
    )
    return [Fault("objective", rule, "write objective: {metric: val_nll}, or give more validation samples")]


def _cross_fits(dataset: DataSet) -> bool:
    """Return whether post-hoc methods can be fitted on the validation samples without any one fold."""
    targets = dataset.val.targets.flatten().numpy()
    folds = folds_of(targets)
    return len(targets) >= FOLDS and all(len(np.unique(targets[folds != fold])) > 1 for fold in range(FOLDS))


def bins_fault(dataset: DataSet, measured: Evaluation) -> str | None:
    """Return a sentence if a split that every evaluation measures is too small for the bins, otherwise `None`."""
    names = ("val", "test", *measured.own_splits)
    faults = (bin_faults(len(dataset.splits[name]), measured.bins) for name in names)
    return next((rule for rules in faults for rule in rules), None)


def one_by_one_faults(dataset: DataSet, spec: SweepSpec) -> list[Fault]:
    """Return a fault for each setting that cannot be used with weights, or data that are decoded during training."""
    faults: list[Fault] = []
    decoded = dataset.train.source is not None
    if not decoded and dataset.train.loss_weights is None:
        return faults
    asked, curvature = spec.replicates.packing, spec.evaluation.curvature
    if asked not in (packing.SEQUENTIAL, packing.TRIALS):
        reason = f"{dataset.name}, which is decoded for one network at a time" if decoded else "samples with weights"
        rule = f"packing = {asked} cannot train on {reason}"
        faults.append(Fault("replicates.packing", rule, f"choose {packing.SEQUENTIAL} or {packing.TRIALS}"))
    if decoded and curvature is not False and curvature.get("samples") is None:
        rule = f"curvature over all {len(dataset.val):,} validation images would hold them in memory at once"
        faults.append(Fault("evaluation.curvature", rule, "give samples, e.g. 256, or set curvature: false"))
    return faults


def shift_faults(spec: SweepSpec, dataset: DataSet) -> list[Fault]:
    """Return a fault for each shift that cannot be made. Loads the data sets that shifts name."""
    faults = []
    for index, entry in enumerate(spec.evaluation.splits):
        rule = build_split(entry).fault(dataset) if isinstance(entry, dict) else None
        if rule is not None:
            faults.append(Fault(join_path("evaluation.splits", index), rule))
    return faults


def lane_notes(spec: SweepSpec, dataset: DataSet) -> list[str]:
    """Return a sentence for each pair of network and loss that shares no lanes although lanes were requested.

    Args:
        spec: the checked search space.
        dataset: data set of the sweep.
    """
    # This is only a note, because the process that trains the pair detects the same and trains without lanes.
    replicates, training = spec.replicates, spec.training.settings
    if not replicates.together:
        return []
    notes = dict[str, None]()
    pairs: dict[tuple[object, object], Configuration] = {}
    for configuration in configurations(spec)[:EXAMPLES]:
        network, loss = configuration.name("architecture"), configuration.name("loss")
        if replicates.count > 1 and packing.is_own(configuration):
            pairs.setdefault((network, loss), configuration)
        elif replicates.packing == packing.LANES and (fault := packing.cohort_fault(configuration, training)):
            notes[f"{network} with {loss} shares no lanes with other trials: {fault}"] = None
    for (architecture, family), configuration in pairs.items():
        # A default argument, because a closure would see the loop's last configuration.
        def build(seed: int, data: DataSet, values: Configuration = configuration) -> Replicate:
            return Replicate(values, seed=seed, dataset=data, max_epochs=spec.scheduler.max_epochs, training=training)

        size = configuration.at("optimizer.batch_size")
        if (fault := packing.lane_fault(build, (0, 1), dataset, size)) is not None:
            notes[f"{family} on {architecture} trains replicates one after another, not as lanes: {fault}"] = None
    return [*notes]


def data_keys(spec: SweepSpec) -> dict[Configuration, str] | None:
    """Load one copy per node of every data set that configurations name.

    Returns:
        Name and options of a data set → key of its content; `None` if the sweep has a single data set.

    Raises:
        SweeperError, InvalidSearchSpace: as for `prepare_dataset`.
    """
    named = spec.space.data_sets
    return {variant: content_key(node_copy(_load(variant))) for variant in named} if named else None


def dataset_facts(dataset: DataSet) -> dict[str, object]:
    """Return the manifest's entry on a data set: sizes of the splits, and the hash of their indices."""
    sizes = {name: len(split) for name, split in dataset.splits.items()}
    return {"samples": sizes, "classes": dataset.classes, "split_hash": dataset.split_hash}


def _faults(path: str, values: Iterable[Any], fault: Callable[[Any], str | None]) -> list[Fault]:
    sentences = dict.fromkeys(rule for value in values if (rule := fault(value)))
    return [Fault(path, sentence) for sentence in sentences]


def _variant_fault(named: Configuration, dataset: DataSet) -> str | None:
    """Return why a data set does not fit the sweep's first one, `None` if it does."""
    other = _load(named)
    # The tables' columns and a network's layers depend on the number of classes and the input shape.
    shapes = [(data.classes, tuple(data.train.inputs.shape[1:])) for data in (dataset, other)]
    if shapes[0] == shapes[1]:
        return None
    asked = ", ".join(f"{key} {value}" for key, value in named.items() if key != "name")
    (classes, shape), (others, usual) = shapes[1], shapes[0]
    return f"{asked} has {classes} classes and inputs of shape {shape}, others {others} and {usual}"


def describe_data_file(spec: SweepSpec) -> str:
    """Describe the contents of the user's file of a data set; empty if the data set has no such file.

    Raises:
        SweeperError: the file cannot be read.
    """
    name = spec.dataset["name"]
    describe = None if DATASETS.is_own(name) else DATASETS[name].describe
    try:
        return "" if describe is None else describe(spec.dataset)
    except DataSetUnavailableError as error:
        raise SweeperError(f"{error.path}: {error.rule}", error.remedy) from error


def _load(dataset: Options) -> DataSet:
    options = dict(dataset)
    name = options.pop("name")
    try:
        loaded = load_dataset(name, **options)
    except DataSetUnavailableError as error:
        rule = f"cannot load the data set {name!r}: {error.path}: {error.rule}"
        raise SweeperError(rule, error.remedy) from error
    except Exception as error:
        if not DATASETS.is_own(name):
            raise
        rule = f"cannot load {name}: {describe_error(error, name)}"
        raise InvalidSearchSpace([Fault("dataset", rule)]) from error
    fault = _own_data_fault(loaded, name) if DATASETS.is_own(name) else None
    if fault is not None:
        raise InvalidSearchSpace([Fault("dataset", fault)])
    return loaded


def _own_data_fault(dataset: object, name: str) -> str | None:
    """Return the first fault of the object that a user-defined data set returned, or `None`."""
    try:
        fault = next(_own_data_faults(dataset), None)
    except Exception as error:
        return f"{name}: {describe_error(error, name)}"
    return None if fault is None else f"{name} {fault}"


def _own_data_faults(dataset: object) -> Iterator[str]:
    """Yield the rules that a user-defined data set breaks. Only the first is reliable: later checks rely on it."""
    if not isinstance(dataset, DataSet):
        yield f"gives a {type(dataset).__name__}, which must be a trainables.datasets.DataSet"
        return
    if not isinstance(dataset.classes, int) or dataset.classes < 2:
        yield f"has classes = {dataset.classes!r}, which must be a whole number from 2"
    for part, split in dataset.splits.items():
        tensors = isinstance(split, Split) and isinstance(split.inputs, Tensor) and isinstance(split.targets, Tensor)
        if not tensors:
            yield f"has no {part} split of tensors"
        if not 0 < len(split.inputs) == len(split.targets):
            yield f"has {len(split.inputs)} inputs and {len(split.targets)} targets in {part}"
        if split.targets.dtype != torch.int64 or split.targets.dim() != 1:
            kind = f"{split.targets.dtype} of shape {tuple(split.targets.shape)}"
            yield f"has targets of {kind} in {part}, which must be torch.int64 of one dimension"
        low, high = int(split.targets.min()), int(split.targets.max())
        if low < 0 or high >= dataset.classes:
            yield f"has targets from {low} to {high} in {part}, which must lie in [0, {dataset.classes})"
        own = split.weights
        if own is not None and not (own.shape == split.targets.shape and 0 < own.min() <= own.max() < torch.inf):
            yield f"has weights of shape {tuple(own.shape)} in {part}; give each sample a finite number above 0"
        first = split.prepare(split.inputs[:2])  # shapes are checked after preprocessing
        if tuple(first.shape[1:]) != tuple(dataset.input_shape):
            shape = tuple(first.shape[1:])
            yield f"has samples of shape {shape} in {part}, but input_shape = {dataset.input_shape}"
        if first.is_floating_point() and not torch.isfinite(split.prepare(split.inputs)).all():
            yield f"has inputs in {part} that are not finite"
    transform = dataset.transform
    if isinstance(transform, Transform) and transform.module is not None and transform.raw is not None:
        made, stored = transform.module(transform.raw), dataset.test.inputs
        if made.shape != stored.shape or not torch.allclose(made, stored):
            yield "declares a transform whose module does not make the test split's inputs of its raw inputs"
