"""Checking what a sweep optimises: metrics that its trials measure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sweeper.core.errors import Fault
from sweeper.core.key_paths import join_path
from sweeper.core.plain import Plain
from sweeper.core.schemas import HESSIAN_LOSSES
from sweeper.space.evaluation import further_metric_labels
from sweeper.space.registries import Registries
from trainables.registry import column_label, entry_label
from trainables.registry.measured import larger_is_better
from trainables.registry.nearest import did_you_mean

POSTHOC, HESSIAN = "val_posthoc_", "hessian_"
"""How names of post-hoc metrics and of the Hessian's begin."""

POINTS = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*points?(?:\s+of\s+the\s+best)?\s*$")
"""`0.5 points of the best`: percentage points, of which a hundred are 1."""


def written_out(values: dict[str, Plain]) -> None:
    """Write short forms of `objectives` and `constraints` out in place; what is not understood stays as it is."""
    objectives, constraints = values.get("objectives"), values.get("constraints")
    if isinstance(objectives, list):
        written = [_objective(each) for each in objectives]
        values["objectives"] = written
        if written and "objective" not in values:
            values["objective"] = written[0]
    if isinstance(constraints, dict):
        constraints = [constraints]
    if isinstance(constraints, list):
        values["constraints"] = [_guard(each) for each in constraints]


def _objective(value: Plain) -> Plain:
    """Return an objective as a mapping; accuracies are maximised unless the file says otherwise."""
    written: dict[str, Plain] = dict(value) if isinstance(value, dict) else {"metric": value}
    metric = written.get("metric")
    if isinstance(metric, str) and larger_is_better(metric):
        written.setdefault("mode", "max")
    return written


def _guard(value: Plain) -> Plain:
    within = value.get("within") if isinstance(value, dict) else None
    match = POINTS.match(within) if isinstance(within, str) else None
    return {**value, "within": float(match[1]) / 100} if isinstance(value, dict) and match else value


def objective_faults(values: Mapping[str, Plain], registries: Registries) -> list[Fault]:
    """Return what is wrong with `objective`, `objectives` and `constraints`; their types are checked elsewhere."""
    faults: list[Fault] = []
    places = {"objective": values.get("objective")}
    for key in ("objectives", "constraints"):
        part = values.get(key)
        places |= {join_path(key, index): each for index, each in enumerate(part if isinstance(part, list) else [])}
    for place, each in places.items():
        metric = each.get("metric") if isinstance(each, dict) else None
        if isinstance(metric, str):
            faults += metric_faults(metric, join_path(place, "metric"), values.get("evaluation"), registries)
        if isinstance(each, dict) and place.startswith("constraints"):
            faults += _guard_faults(each, place)
    objectives = values.get("objectives")
    if isinstance(objectives, list) and objectives:
        if values.get("objective") != objectives[0]:
            faults.append(Fault("objective", "is not the first of `objectives`", "omit it: the first is used"))
        named = [each.get("metric") for each in objectives if isinstance(each, dict)]
        faults += [
            Fault(join_path("objectives", index), f"{name} is named twice", "name each objective once")
            for index, name in enumerate(named)
            if name in named[:index]
        ]
    scheduler = values.get("scheduler")
    name = scheduler.get("name") if isinstance(scheduler, dict) else None
    if (objectives or values.get("constraints")) and name != "asha":
        key = "objectives" if objectives else "constraints"
        faults.append(Fault(key, f"{name} compares one objective without constraints", "write scheduler: {name: asha}"))
    variant = scheduler.get("variant") if isinstance(scheduler, dict) else None
    if variant == "promotion" and (objectives or values.get("constraints")):
        rule = "promotion compares one objective without constraints"
        faults.append(Fault("scheduler.variant", rule, "leave variant out: the stopping variant compares several"))
    replicates = values.get("replicates")
    if variant == "promotion" and isinstance(replicates, dict) and replicates.get("packing") == "trials":
        rule = "packing: trials stops and starts replicates at every rung itself, and takes the stopping variant"
        faults.append(Fault("scheduler.variant", rule, "leave variant out, or choose another packing"))
    return faults + _contradictions(values.get("constraints"))


def _guard_faults(guard: Mapping[str, Plain], place: str) -> list[Fault]:
    given = [key for key in ("within", "min", "max") if guard.get(key) is not None]
    if len(given) != 1:
        rule = f"a constraint has one of within, min and max, not {' and '.join(given) or 'none'}"
        return [Fault(place, rule, "write e.g. {metric: val_accuracy, within: 0.5 points of the best}")]
    if isinstance(guard.get("within"), str):
        rule = f"within = {guard['within']!r} is neither a number nor points"
        return [Fault(join_path(place, "within"), rule, "write e.g. 0.5 points of the best, or 0.005")]
    metric, bound = guard.get("metric"), guard.get(given[0])
    share = isinstance(metric, str) and larger_is_better(metric)
    if share and isinstance(bound, (int, float)) and not 0 <= bound <= 1:
        return [Fault(join_path(place, given[0]), f"{metric} lies in [0, 1], never at {bound:g}", "90 % is 0.9")]
    return []


def _contradictions(constraints: Plain) -> list[Fault]:
    """Return a fault for each metric that would have to be above one bound and below a smaller one."""
    guards = [each for each in constraints if isinstance(each, dict)] if isinstance(constraints, list) else []
    least = {str(each.get("metric")): each["min"] for each in guards if isinstance(each.get("min"), (int, float))}
    return [
        Fault(
            join_path("constraints", index),
            f"{guard['metric']} cannot be at least {low:g} and at most {high:g}",
            "remove one of the two constraints",
        )
        for index, guard in enumerate(guards)
        if isinstance(high := guard.get("max"), (int, float))
        and isinstance(low := least.get(str(guard.get("metric"))), (int, float))
        and low > high
    ]


def metric_faults(metric: str, place: str, evaluation: object, registries: Registries) -> list[Fault]:
    """Return the fault of a metric that trials do not measure, if it is one.

    Args:
        metric: as the file names it.
        place: where.
        evaluation: the file's values, its defaults filled in; those of a wrong type are the structure's business.
        registries: what is measured in any case.
    """
    part = evaluation if isinstance(evaluation, Mapping) else {}
    known = [*registries.objectives, *(f"val_{label}" for label in further_metric_labels(part))]
    if metric in known:
        return []
    posthoc = dict(_of_methods(_names(part), metric))
    hessian = _curvature_metrics(part.get("curvature"), metric)
    if metric in posthoc or metric in hessian:
        return []
    if metric.startswith(POSTHOC) and (method := dict(_of_methods(registries.posthoc, metric)).get(metric)):
        rule = f"{metric} needs the post-hoc method {method}, which evaluation.posthoc does not name"
        return [Fault(place, rule, f"write posthoc: [{method}] under evaluation")]
    if metric in _curvature_metrics({}, metric):
        return [Fault(place, f"{metric} is not measured: see evaluation.curvature", "let it measure this loss")]
    hint = did_you_mean(metric, (*known, *posthoc, *hessian)).removeprefix("; ")
    return [Fault(place, f"unknown metric {metric!r}", hint)]


def _names(evaluation: Mapping[str, object]) -> list[str]:
    """Return the labels of the post-hoc methods that an evaluation names."""
    posthoc = evaluation.get("posthoc")
    methods = [each for each in posthoc if isinstance(each, Mapping)] if isinstance(posthoc, list) else []
    return [entry_label(each) for each in methods if isinstance(each.get("name"), str)]


def _of_methods(names: Mapping[str, object] | list[str], metric: str) -> Iterator[tuple[str, str]]:
    """Yield the metrics of these post-hoc methods, each with its method; none where `metric` is no such thing."""
    if metric.startswith(POSTHOC):
        from trainables.training.evaluation import POSTHOC_METRICS  # brings torch along

        yield from ((f"{POSTHOC}{column_label(name)}_{each}", name) for name in names for each in POSTHOC_METRICS)


def _curvature_metrics(curvature: object, metric: str) -> list[str]:
    """Return the Hessian's columns that an evaluation measures; none where `metric` is no such thing."""
    if not metric.startswith(HESSIAN) or not isinstance(curvature, Mapping):
        return []
    from trainables.curvature import CURVATURE_FIELDS  # brings torch along

    losses = curvature.get("losses", HESSIAN_LOSSES)
    named = losses if isinstance(losses, (list, tuple)) else HESSIAN_LOSSES
    return [f"{HESSIAN}{loss}_{field}" for loss in named for field in CURVATURE_FIELDS]
