"""Rehearsals: a search space scaled down to minutes on two cores, on the same code path.

`rehearsed_values` shrinks everything that costs time. Data are replaced by handwritten digits in the data set's shape,
networks by small networks of their family, and the recipe is shortened to a few epochs. Then the file's own changes
under `rehearsal` are applied. The key `rehearsed` lists the changes as sentences, and marks every table, report and
tracked run: a rehearsal shows that a sweep works, and its numbers never answer the sweep's question.

This module imports torch, because stand-ins are chosen among data sets and networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeper.core.domains.base import DOMAINS
from sweeper.core.domains.tree import grid_size, parse
from sweeper.core.domains.values import Values, part_of
from sweeper.space.components import PART, domains_of
from trainables.datasets import digits
from trainables.datasets.base import DATASETS
from trainables.datasets.images import LIKE_CIFAR
from trainables.models import ARCHITECTURES
from trainables.registry import OWN, SPLITS, Registry

#: Enough for both milestones of a recipe (150 and 250 of 350 fall on 1.7 and 2.9) and for three rungs (1, 3, 4).
EPOCHS = 4

#: Largest number of configurations drawn. All points of a grid are kept, because each is a cell of some table.
CONFIGURATIONS = 16

#: With more grid points than this, grids over plain values keep only their two ends. All losses and networks are kept.
GRID_POINTS = 36

#: The smallest number of replicates from which a spread can be computed.
REPLICATES = 2

#: This gives four steps per epoch over the stand-in's 256 training samples.
BATCH_SIZE = 64

#: Settings of a recipe that are counted in epochs. A value below 1 is a share of the run.
EPOCH_SETTINGS = ("milestones", "warmup_epochs", "checkpoint_after")

#: Smallest sizes for which each measurement still runs all of its code.
BOOTSTRAP = 20
SHIFTED_SAMPLES = 100
CURVATURE = {"samples": 16, "lanczos_steps": 3, "trace_probes": 2, "spectrum_steps": 3}


def rehearsed_values(values: Values, changes: Values) -> Values:
    """Return the values of a rehearsal, to be checked like those of a file.

    Args:
        values: values of a checked search space, with every default filled in.
        changes: the file's own changes under `rehearsal`, written like the file itself; they are applied last.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> values = rehearsed_values(load_spec("quickstart").resolved(), {})
        >>> values["scheduler"]["max_epochs"], values["samples"] <= 16
        (4, True)
    """
    scaled = {key: value for key, value in values.items() if key not in ("rehearsal", "rehearsed")}
    notes: list[str] = []
    # The file's own length is needed first, because the recipe's epochs scale with it.
    requested, before = part_of(changes, "scheduler", "max_epochs"), values["scheduler"]["max_epochs"]
    lengths = (before, requested if isinstance(requested, int) and requested > 0 else min(EPOCHS, before))
    _scale_epochs(scaled, lengths[1], notes)
    scaled["dataset"] = rehearsed_dataset(values["dataset"], [] if part_of(changes, "dataset", "name") else notes)
    parts = {
        "architecture": lambda network: rehearsed_architecture(network, scaled["dataset"], notes),
        "optimizer": lambda recipe: _rehearsed_recipe(recipe, lengths, notes),
    }
    scaled["space"] = {**values["space"], **{key: _changed(values["space"][key], parts[key]) for key in parts}}
    if PART in values["space"]:
        axes = _rehearsed_axes(scaled["space"].pop(PART), scaled["dataset"], notes)
        scaled["space"] |= {PART: axes} if axes else {}
    notes[:] = dict.fromkeys(notes)  # several replaced components often have the same note
    if grid_size(parse(scaled["space"], "", [])) > GRID_POINTS:
        scaled["space"] = _thinned(scaled["space"])
        notes.append("grids of numbers → their first and last")
    _scale_counts(scaled, notes)
    _scale_evaluation(scaled, lengths, notes)
    scaled["resources"] = {"cpu": 1.0, "gpu": "auto"}
    scaled["training"] = {**values["training"], "compile": False}  # compiling takes longer than a rehearsal
    if isinstance(values["training"].get("class_weights"), dict):
        scaled["training"]["class_weights"] = "balanced"  # the stand-in has other classes
    scaled |= {"budget": None, "max_concurrent": None}
    scaled = merged(scaled, changes)
    notes += [f"the file's rehearsal sets {key}" for key in changes]
    return {**scaled, "rehearsed": notes or ["nothing had to be scaled down"]}


def merged(base: object, changes: object, path: str = "") -> Any:
    """Return `base` with `changes` applied.

    Mappings are merged key by key. Lists, scalars, domains and components of another name replace the old value.

    Example:
        >>> merged({"a": {"x": 1, "y": 2}, "b": [1]}, {"a": {"y": 3}, "b": [4]})
        {'a': {'x': 1, 'y': 3}, 'b': [4]}
    """
    if not (isinstance(base, dict) and isinstance(changes, Mapping)):
        return changes
    # A domain has one key; merged, `{choice: …}` over `{uniform: …}` would have two.
    domain = any(key in DOMAINS for key in (*base, *changes))
    other = path != "scheduler" and "name" in changes and changes["name"] != base.get("name")
    if domain or other:
        return dict(changes)
    if path == "scheduler" and changes.get("name", base.get("name")) != base.get("name"):
        base = {key: value for key, value in base.items() if key == "max_epochs"}  # all schedulers have this setting
    joined = {key: merged(base.get(key), value, key) for key, value in changes.items()}
    return {**base, **joined}


def _scale_epochs(values: Values, epochs: int, notes: list[str]) -> None:
    scheduler = values["scheduler"]
    before = scheduler["max_epochs"]
    counted = {key: value for key, value in scheduler.items() if key.endswith("_epochs") and value is not None}
    scaled = {key: _scaled_count(value, before, epochs) for key, value in counted.items()}
    values["scheduler"] = {**scheduler, **scaled, "max_epochs": epochs}
    if epochs != before:
        notes.append(f"{before} epochs → {epochs}; milestones, warm-up and rungs move with them")


def _scaled_count(epoch: Any, before: int, after: int) -> Any:
    """Scale an epoch, or each epoch of a list, to a run of `after` epochs."""
    if isinstance(epoch, list):
        return [*dict.fromkeys(_scaled_count(value, before, after) for value in epoch)]
    return max(1, min(after, round(epoch * after / before)))


def _rehearsed_recipe(settings: Values, epochs: tuple[int, int], notes: list[str]) -> Values:
    """Return an optimiser's settings with small batches, and its epochs scaled to another length of run."""
    if settings.get("recipe_epochs") is None:  # a recipe with a stated length scales by itself
        points = {key: settings[key] for key in EPOCH_SETTINGS if key in settings}
        settings = {**settings, **{key: _share_of_run(point, epochs) for key, point in points.items()}}
    size = settings.get("batch_size", BATCH_SIZE)
    if not isinstance(size, int) or size > BATCH_SIZE:
        settings = {**settings, "batch_size": BATCH_SIZE}
        notes.append(f"batch size → {BATCH_SIZE}")
    return settings


def _share_of_run(point: Any, epochs: tuple[int, int]) -> Any:
    """Return an epoch (or a list or domain of epochs) as a share of the run; an epoch after the end stays after it."""
    if isinstance(point, dict):
        return {key: _share_of_run(value, epochs) for key, value in point.items()}
    if isinstance(point, list):
        return [_share_of_run(value, epochs) for value in point]
    before, after = epochs
    if point < 1:  # already a share
        return point
    return point / before if point < before else point * after / before


def _changed(node: Any, change: Callable[[Values], Values]) -> Any:
    """Return a part of the space with `change` applied to every component. Members that become equal are merged."""
    if "name" in node:
        return change(dict(node))
    (kind, members), *_ = node.items()
    changed: list[Any] = []
    for member in members:
        after = _changed(member, change)
        # Several large networks can have one stand-in, and a grid refuses repeats.
        if after not in changed:
            changed.append(after)
    return changed[0] if len(changed) == 1 else {kind: changed}


def _thinned(node: object) -> Any:
    """Return a part of the space in which grids of more than two plain values keep only their first and last."""
    if not isinstance(node, dict):
        return node
    if list(node) == ["grid"] and not any(isinstance(member, dict) for member in node["grid"]):
        return {"grid": [node["grid"][0], node["grid"][-1]]} if len(node["grid"]) > 2 else node
    return {k: [_thinned(m) for m in v] if isinstance(v, list) else _thinned(v) for k, v in node.items()}


def _scale_counts(values: Values, notes: list[str]) -> None:
    points = grid_size(parse(values["space"], "", []))
    samples = max(1, min(values["samples"], CONFIGURATIONS // points))
    if samples != values["samples"]:
        notes.append(f"{values['samples']} samples of each of {points} grid points → {samples}")
    count = min(values["replicates"]["count"], REPLICATES)
    if count != values["replicates"]["count"]:
        notes.append(f"{values['replicates']['count']} replicates → {count}")
    values["samples"] = samples
    # The stand-in network may not support fusing.
    values["replicates"] = {**values["replicates"], "count": count, "packing": "sequential"}
    if values["replicates"].get("at_most") is not None:
        values["replicates"]["at_most"] = count + 1


def _scale_evaluation(values: Values, epochs: tuple[int, int], notes: list[str]) -> None:
    evaluation = dict(values["evaluation"])
    name = values["dataset"]["name"]
    known = SPLITS if name == OWN else DATASETS[name].splits  # the file's own changes can name other splits later
    own = [split for split in evaluation["splits"] if isinstance(split, str)]
    shifts = [_scaled_shift(split, notes) for split in evaluation["splits"] if not isinstance(split, str)]
    evaluation["splits"] = [*_kept_splits(own, known, notes), *shifts]
    evaluation["bootstrap"] = min(evaluation["bootstrap"], BOOTSTRAP)
    curvature = evaluation["curvature"]
    if curvature:
        limits = {k: min(v, curvature[k] if curvature.get(k) is not None else v) for k, v in CURVATURE.items()}
        evaluation["curvature"] = {**curvature, **limits}
        notes.append(f"curvature on {limits['samples']} samples")
    if evaluation["trajectory"] is not None:
        trajectory = evaluation["trajectory"]
        moved = _scaled_count(trajectory["gradient_norms"], *epochs)
        splits = _kept_splits(trajectory["splits"], known, notes)
        evaluation["trajectory"] = {**trajectory, "every": 1, "gradient_norms": moved, "splits": splits}
    values["evaluation"] = evaluation


def _scaled_shift(shift: Values, notes: list[str]) -> Values:
    """Return a shift with fewer samples, kinds and severities, computed locally, and the stand-in for its data set."""
    scaled = {**shift, "samples": min(shift.get("samples") or SHIFTED_SAMPLES, SHIFTED_SAMPLES)}
    if "kinds" in shift:
        # Frost is left out, because its picture files may be missing here. Every fourth severity of 1…5 gives both
        # ends.
        kinds = [kind for kind in shift["kinds"] if kind != "frost"][:2] or shift["kinds"]
        scaled |= {"kinds": kinds, "severities": shift["severities"][::4]}
        scaled.pop("folder", None)  # its published files contain the original data set
    if "dataset" in shift:
        scaled["dataset"] = rehearsed_dataset(shift["dataset"], notes)
    notes.append(f"{shift['name']} data of {scaled['samples']} samples")
    return scaled


def _kept_splits(asked: Sequence[str], known: Sequence[str], notes: list[str]) -> list[str]:
    """Return the requested splits that a rehearsal's data set has."""
    notes += [f"nothing is measured on {name}, which the stand-in lacks" for name in asked if name not in known]
    return [name for name in asked if name in known]


#: Hyperparameters that a stand-in network inherits if it has them.
SHARED = ("dropout", "shortcut", "output_gate", "train_embedding")


def rehearsed_dataset(dataset: Values, notes: list[str]) -> Values:
    """Return the data set of a rehearsal; append a sentence to `notes` if it is replaced."""
    name = dataset["name"]
    if name == OWN:
        return dict(dataset)
    # The user's own data set declares no stand-in; images like CIFAR's fit most networks.
    stand_in = None if DATASETS.is_own(name) else DATASETS[name].stand_in
    options = dict(stand_in(dataset)) if callable(stand_in) else dict(LIKE_CIFAR if stand_in is None else stand_in)
    if not options:  # small enough as it is
        return dict(dataset)
    if "name" in options:
        notes.append(f"{name} → {options['name']}")
        return options
    if "augment" in dataset:
        options["augment"] = dataset["augment"]
    shown = {**_defaults(DATASETS, digits.STAND_IN), **options}
    shape = (
        f"{shown['channels']}×{shown['size']}×{shown['size']} images of {shown['classes']} classes"
        if shown["form"] == "images"
        else f"{shown['form']} of {shown['classes']} classes"
    )
    notes.append(f"{name} → handwritten digits as {shape}")
    return {"name": digits.STAND_IN, **options}


def _rehearsed_axes(axes: Values, stand_in: Values, notes: list[str]) -> Values:
    """Return the part `dataset` of a rehearsal's space: the varying options that the stand-in also has."""
    if stand_in["name"] == axes["name"]:
        return axes
    varied, known = domains_of(axes), _defaults(DATASETS, stand_in["name"])
    notes += [f"no {key}: the stand-in for the data has none" for key in varied if key not in known]
    kept = {key: axes[key] for key in varied if key in known}
    return {**stand_in, **kept} if kept else {}


def rehearsed_architecture(architecture: Values, dataset: Values, notes: list[str]) -> Values:
    """Return a rehearsal's network for its `dataset`; append a sentence to `notes` if it is replaced."""
    name = architecture["name"]
    kept = dataset["name"] != digits.STAND_IN and name in ("mlp", "resnet8")
    stand_in = None if kept or ARCHITECTURES.is_own(name) else ARCHITECTURES[name].stand_in
    small = dict(stand_in(architecture)) if callable(stand_in) else dict(stand_in or {})
    if not small:
        return dict(architecture)
    if ARCHITECTURES.has_tag(small["name"], "text"):
        small = {"name": small["name"], "vocabulary": digits.VOCABULARY, **small}
    defaults = _defaults(ARCHITECTURES, small["name"])
    # Values equal to the stand-in's default are omitted, so that equal networks are written equally and merged.
    shared = {key: architecture[key] for key in SHARED if key in defaults and key in architecture}
    small |= {key: value for key, value in shared.items() if value != defaults[key]}
    options = ", ".join(f"{key} {value}" for key, value in small.items() if key not in ("name", *SHARED))
    notes.append(f"{name} → {small['name']} ({options})")
    return small


def _defaults(registry: Registry, name: str) -> Values:
    return {hyperparameter.name: hyperparameter.default for hyperparameter in registry[name].hyperparameters}
