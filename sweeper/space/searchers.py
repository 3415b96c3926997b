"""The part `searcher` of a search space: checked against the space, and ready to be told of the journal."""

from __future__ import annotations

from typing import Any

from sweeper.core.errors import Fault
from sweeper.search.base import SHARED_SETTINGS, Searcher, SearchMethod
from sweeper.space.components import resolve_plain_component
from sweeper.space.configurations import parsed_space
from sweeper.space.domains.domains import Node
from sweeper.space.models import SearcherSettings, SweepSpec
from trainables.registry import Registry


def check_searcher(
    values: dict[str, Any], nodes: dict[str, Node], registry: Registry, faults: list[Fault]
) -> dict[str, Node]:
    """Check the searcher against the space, fill in its defaults, and return the space as it will be searched.

    Args:
        values: of the file; those of `searcher` are completed in place. A wrong type is the structure's business.
        nodes: the parts of the space, resolved.
        registry: of searchers.
        faults: takes every rule that is broken.
    """
    given = values.get("searcher")
    if not isinstance(given, dict):
        return nodes
    given = {"name": SearcherSettings().name} | {key: value for key, value in given.items() if value is not None}
    shared = {key: given.pop(key) for key in SHARED_SETTINGS if key in given}
    resolved = resolve_plain_component(given, registry, "searcher", faults)
    values["searcher"] = {**resolved, **_listed(shared)}
    if not resolved:
        return nodes
    method: SearchMethod = registry.build(**resolved)
    if not method.learns:
        rule = "{} is for searchers that learn, and the searcher is {}"
        faults += [
            Fault(f"searcher.{key}", rule.format(key, given["name"]), "remove it") for key in shared if shared[key]
        ]
    return method.suit(nodes, faults)


def _listed(shared: dict[str, Any]) -> dict[str, Any]:
    return {key: [value] if isinstance(value, str) else value for key, value in shared.items()}


def searcher_for(spec: SweepSpec) -> Searcher:
    """Return what chooses the configurations of `spec`, whose searcher learns; it has been told nothing yet."""
    goal = spec.objective
    return spec.searcher.method.begin(parsed_space(spec), metric=goal.metric, mode=goal.mode, seed=spec.seed)
