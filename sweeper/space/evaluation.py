"""Check the measurements of a sweep (`evaluation`) and its `objective`.

`evaluation.splits` names the data set's own splits, and shifts. A shift is a mapping of its name to its options:
`splits: [val, test, {corrupted: {severities: [1, 3, 5]}}, {other: {dataset: svhn}}]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sweeper.core.domains.values import Plain, Values, join_path, listed, mappings, part_of
from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.space.catalogue import Registries
from sweeper.space.components import resolve_components, resolve_plain_component
from sweeper.space.spec import SchedulerSettings
from trainables.curvature.statistics import CURVATURE_FIELDS
from trainables.curvature.statistics.base import LOSS_LABELS, TEMPERED, further_columns, temperature_labels
from trainables.metrics import RECALIBRATED
from trainables.metrics.base import larger_is_better
from trainables.registry import FITTED_ON as POSTHOC_SPLIT, LABEL, column_label, entry_label
from trainables.registry.names import hint

#: The split that every evaluation measures, named or not: post-hoc methods are fitted on it.
FITTED_ON = "val"

#: The option of a shift that names a data set, as text or as a mapping with its options.
NAMED_DATASET = "dataset"

#: Prefixes of the names of post-hoc metrics and of the Hessian's columns.
POSTHOC, HESSIAN = "val_posthoc_", "hessian_"


def check_evaluation(evaluation: Values, registries: Registries, dataset: object, faults: list[Fault]) -> Values:
    """Resolve the components of `evaluation` and fill in every default; append each broken rule to `faults`.

    Args:
        evaluation: values of the file.
        registries: names to check against.
        dataset: the resolved data set, whose component declares its splits.
        faults: list to which each broken rule is appended.
    """
    known = _known_splits(dataset, registries)
    _resolve_splits(evaluation, registries, faults)
    faults += split_faults(evaluation, known)
    methods, metrics, extra_keys = evaluation.get("posthoc"), evaluation.get("metrics"), (LABEL, POSTHOC_SPLIT)
    evaluation["posthoc"] = resolve_components(methods, registries.posthoc, "evaluation.posthoc", faults, extra_keys)
    own_faults: list[Fault] = []
    evaluation["metrics"] = resolve_components(metrics, registries.further_metrics, "evaluation.metrics", own_faults)
    # A standard metric such as `ece` is not in the registry of further metrics. Suggesting the nearest name would
    # mislead.
    anyway = _measured_anyway(metrics, registries)
    again = "every evaluation measures it already: remove it"
    faults += [replace(fault, remedy=again) if fault.path in anyway else fault for fault in own_faults]
    for index, method in enumerate(mappings(evaluation["posthoc"])):
        faults += _unknown_split(f"evaluation.posthoc[{index}].{POSTHOC_SPLIT}", method.get(POSTHOC_SPLIT), known)
    faults += _column_faults(evaluation)
    if "bootstrap" in evaluation and evaluation["bootstrap"] in (False, None):
        evaluation["bootstrap"] = 0
    curvature = evaluation.get("curvature")
    if curvature is True or curvature is None:
        curvature = {}
    if isinstance(curvature, dict):
        named = {"name": "curvature", **curvature}
        settings = resolve_plain_component(named, registries.curvature, "evaluation.curvature", faults)
        settings.pop("name", None)
        evaluation["curvature"] = settings
        losses = listed(settings.get("losses"))
        if TEMPERED in losses and not temperature_labels(mappings(evaluation["posthoc"])):
            rule = "tempered divides logits by a temperature, and evaluation.posthoc names no method of it"
            faults.append(Fault("evaluation.curvature.losses", rule, "write posthoc: [temperature]"))
    return evaluation


def split_faults(evaluation: Mapping[str, object], known: Sequence[str] | None) -> list[Fault]:
    """Return the faults of the splits that an evaluation and its trajectory name.

    Args:
        evaluation: values of the evaluation; the structure's check reports wrong types.
        known: splits of the data set, or `None` if they are known only after it is loaded.
    """
    faults: list[Fault] = []
    for place, part in (("evaluation", evaluation), ("evaluation.trajectory", evaluation.get("trajectory"))):
        names = listed(part_of(part, "splits"))
        for index, name in enumerate(names):
            where = f"{place}.splits[{index}]"
            twice = isinstance(name, str) and name in names[:index]
            again = [Fault(where, f"{name!r} is named twice", "name each split once")] if twice else []
            faults += _unknown_split(where, name, known) or again
    return faults


def _unknown_split(place: str, name: object, known: Sequence[str] | None) -> list[Fault]:
    if known is None or not isinstance(name, str) or name in known:
        return []
    return [Fault(place, f"the data set has no split {name!r}", hint(name, known))]


def _known_splits(dataset: object, registries: Registries) -> tuple[str, ...] | None:
    """Return the splits that a data set's component declares; `None` for unknown and user-defined data sets."""
    name = part_of(dataset, "name")
    known = isinstance(name, str) and not registries.datasets.is_own(name)
    return registries.datasets[str(name)].splits if known else None


def _measured_anyway(metrics: object, registries: Registries) -> set[str]:
    """Return the paths of requested metrics that every evaluation measures already."""
    listed = metrics if isinstance(metrics, list) else [metrics]
    names = [part_of(metric, "name") if isinstance(metric, dict) else metric for metric in listed]
    places = [join_path("evaluation.metrics", at) for at, name in enumerate(names) if name in registries.metrics]
    return {*places, *(join_path(place, "name") for place in places)}


def further_metric_labels(evaluation: object) -> list[str]:
    """Return the columns of the further metrics that an evaluation names."""
    names = [metric.get("name") for metric in mappings(part_of(evaluation, "metrics"))]
    return [column_label(name) for name in names if isinstance(name, str)]


def _column_faults(evaluation: Values) -> list[Fault]:
    """Return a fault for each further metric whose column already exists in every sweep."""
    from sweeper.core.columns import usual_columns  # brings torch along

    taken, faults = usual_columns(), []
    for index, label in enumerate(further_metric_labels(evaluation)):
        if label in taken:
            rule = f"{label!r} would write to the column {label}, which every sweep has"
            faults.append(Fault(join_path("evaluation.metrics", index), rule, "give the metric another name"))
    return faults


def _resolve_splits(evaluation: Values, registries: Registries, faults: list[Fault]) -> None:
    """Replace the file's shifts with resolved ones, and put `val` first if it is missing."""
    given, place, before = evaluation.get("splits"), "evaluation.splits", len(faults)
    if not isinstance(given, list):
        return
    splits = [
        _resolved_shift(entry, registries, join_path(place, index), faults) if isinstance(entry, dict) else entry
        for index, entry in enumerate(given)
    ]
    splits = [entry for entry in splits if entry != {}]
    if len(faults) == before:  # shifts are built to list their splits, which needs valid options
        faults += _shift_faults(splits, registries, place)
    evaluation["splits"] = splits if FITTED_ON in splits else [FITTED_ON, *splits]


def _resolved_shift(entry: Values, registries: Registries, path: str, faults: list[Fault]) -> Values:
    """Resolve a shift to `{name: …, option: value}` with its defaults; append its faults, if any, and return `{}`."""
    before, named = len(faults), entry
    if "name" not in entry:
        if len(entry) != 1:
            known = ", ".join(registries.shifts)
            rule = f"{entry!r} must have one key, the name of an evaluation split: {known}"
            faults.append(Fault(path, rule, "write each as a separate entry, e.g. - {other: {dataset: svhn}}"))
            return {}
        ((name, options),) = entry.items()
        if options is not None and not isinstance(options, dict):
            faults.append(Fault(join_path(path, name), f"{options!r} must be a mapping of options", "e.g. {}"))
            return {}
        named = {"name": name, **(options or {})}
    other = named.get(NAMED_DATASET)
    # The shift's own signature takes the data set's name. The data set's options are resolved separately below.
    if isinstance(other, dict):
        named = {**named, NAMED_DATASET: str(other.get("name", ""))}
    resolved = resolve_plain_component(named, registries.shifts, path, faults)
    if other is not None and len(faults) == before:
        place = join_path(path, NAMED_DATASET)
        resolved[NAMED_DATASET] = resolve_plain_component(other, registries.datasets, place, faults)
    return resolved if len(faults) == before else {}


def _shift_faults(entries: Sequence[object], registries: Registries, path: str) -> list[Fault]:
    """Return a fault for each shift that needs the missing `test` split, or whose split names are already used."""
    faults: list[Fault] = []
    names: set[str] = {entry for entry in entries if isinstance(entry, str)}
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            continue
        options = {key: value for key, value in entry.items() if key != "name"}
        shift = registries.shifts[str(entry["name"])].build(**options)
        twice = sorted(names.intersection(shift.names))
        if twice:
            rule = f"{', '.join(twice)} is measured twice"
            faults.append(Fault(join_path(path, index), rule, "name each split once, or give one of them a label"))
        names |= set(shift.names)
        if shift.detected and "test" not in entries:
            rule = f"{entry['name']} is compared with the test split, which is not measured"
            faults.append(Fault(join_path(path, index), rule, "add test to the splits"))
    return faults


def write_out_objective(values: dict[str, Plain], registries: Registries) -> None:
    """Give the objective the metric and the mode that the file leaves out; invalid values stay unchanged.

    The metric is the NLL after temperature scaling, if that is fitted, because most networks are used with it. It is
    cross-fitted: on the samples of its fit, a method looks better than it is.
    """
    objective = values.get("objective", {})
    if not isinstance(objective, dict):
        return
    own = _own_modes(values.get("evaluation"), registries)
    metric = objective.get("metric", _usual_metric(values.get("evaluation")))
    mode = {"mode": "max"} if isinstance(metric, str) and (own.get(metric) == "max" or larger_is_better(metric)) else {}
    values["objective"] = {"metric": metric, **mode, **objective}


def _usual_metric(evaluation: object) -> str:
    """Return the objective of a file that names none."""
    usual = {"objective": "nll", POSTHOC_SPLIT: FITTED_ON}  # and not, e.g., a temperature fitted by ECE
    methods = [of for of in mappings(part_of(evaluation, "posthoc")) if of.get("name") == "temperature"]
    fitted = [of for of in methods if all(of.get(key, value) == value for key, value in usual.items())]
    return f"{POSTHOC}{entry_label(fitted[0])}_nll" if fitted else "val_nll"


def _own_modes(evaluation: Plain, registries: Registries) -> dict[str, str]:
    """Return objective → mode for the user's own metrics of a resolved evaluation that declare one."""
    known = registries.further_metrics
    names = [str(metric["name"]) for metric in mappings(part_of(evaluation, "metrics")) if metric]
    # Names that are trusted without a check must not be imported here. Their modes are already in the resolved file.
    own = [name for name in names if known.is_own(name) and not known.trusts(name)]
    return {
        f"{split}_{column_label(name)}": mode
        for name in own
        if (mode := known[name].mode) is not None
        for split in ("val", "test")
    }


def objective_faults(values: Mapping[str, Plain], registries: Registries) -> list[Fault]:
    """Return the faults of `objective` and of its scheduler; the structure's check reports wrong types."""
    metric, evaluation = part_of(values.get("objective"), "metric"), values.get("evaluation")
    unknown = metric_faults(metric, "objective.metric", evaluation, registries) if isinstance(metric, str) else []
    return unknown + _scheduler_faults(values)


def _scheduler_faults(values: Mapping[str, Plain]) -> list[Fault]:
    """Return a fault if trials would pause where replicates are stopped and started one by one."""
    if part_of(values.get("replicates"), "packing") != "trials":
        return []
    try:
        pauses = SchedulerSettings.model_validate(values.get("scheduler")).built("", "min").pauses
    except (ValueError, InvalidSearchSpace):  # invalid settings have faults of their own
        return []
    rule = "packing: trials stops and starts replicates at every rung itself, so no trial can pause there"
    remedy = "choose another packing, or settings with which no trial pauses, e.g. variant: stopping"
    return [Fault("scheduler", rule, remedy)] if pauses else []


def metric_faults(metric: str, place: str, evaluation: object, registries: Registries) -> list[Fault]:
    """Return a fault if trials do not measure a metric.

    Args:
        metric: name of the metric in the file.
        place: path of that name.
        evaluation: values of the evaluation with its defaults; the structure's check reports wrong types.
        registries: registries with the metrics that are always measured.
    """
    part = evaluation if isinstance(evaluation, Mapping) else {}
    methods = [entry_label(method) for method in mappings(part.get("posthoc")) if isinstance(method.get("name"), str)]
    known = [*registries.objectives, *(f"val_{label}" for label in further_metric_labels(part))]
    known += [*_posthoc_metrics(methods, metric), *_curvature_metrics(part, metric)]
    if metric in known:
        return []
    if method := _posthoc_metrics(registries.posthoc, metric).get(metric):
        rule = f"{metric} needs the post-hoc method {method}, which evaluation.posthoc does not name"
        return [Fault(place, rule, f"write posthoc: [{method}] under evaluation")]
    if metric in _curvature_metrics({"curvature": {}}, metric):
        return [Fault(place, f"{metric} is not measured", "add its loss to evaluation.curvature.losses")]
    return [Fault(place, f"unknown metric {metric!r}", hint(metric, known))]


def _posthoc_metrics(names: Iterable[str], metric: str) -> dict[str, str]:
    """Return metric → method for these post-hoc methods; empty if `metric` is not a post-hoc metric."""
    # There are hundreds of these names. As suggestions they would hide the nearest name of any other metric.
    if not metric.startswith(POSTHOC):
        return {}
    return {f"{POSTHOC}{column_label(name)}_{measured}": name for name in names for measured in RECALIBRATED}


def _curvature_metrics(evaluation: Mapping[str, object], metric: str) -> list[str]:
    """Return the Hessian's columns that an evaluation measures; empty if `metric` is not one of the Hessian."""
    curvature = evaluation.get("curvature")
    if not metric.startswith(HESSIAN) or not isinstance(curvature, Mapping):
        return []
    losses = curvature.get("losses", LOSS_LABELS)
    named = losses if isinstance(losses, (list, tuple)) else LOSS_LABELS
    always = [f"{HESSIAN}{loss}_{field}" for loss in named for field in CURVATURE_FIELDS]
    return always + further_columns(curvature, mappings(evaluation.get("posthoc")))
