"""Checking what a sweep optimises: metrics that its trials measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sweeper.core.errors import Fault
from sweeper.core.schemas import HESSIAN_LOSSES
from sweeper.space.evaluation import further_metric_labels
from sweeper.space.registries import Registries
from trainables.registry import column_label
from trainables.registry.nearest import did_you_mean

POSTHOC, HESSIAN = "val_posthoc_", "hessian_"


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
    posthoc = evaluation.get("posthoc")
    methods = [each.get("name") for each in posthoc if isinstance(each, Mapping)] if isinstance(posthoc, list) else []
    return [name for name in methods if isinstance(name, str)]


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
