"""The part `searcher` of a search space: checked against the space and turned into a searcher."""

from __future__ import annotations

from typing import Any

from sweeper.core.errors import Fault
from sweeper.search.base import WARM_START, Searcher, written_method
from sweeper.space.components import resolve_plain_component
from sweeper.space.domains.domains import Node
from sweeper.space.plug_ins import SearcherSettings
from sweeper.space.spec import SweepSpec
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
    named = {"name": SearcherSettings().name}
    given = named | {key: value for key, value in given.items() if value not in (None, [])}
    if isinstance(given.get(WARM_START.name), str):
        given[WARM_START.name] = [given[WARM_START.name]]
    values["searcher"] = resolve_plain_component(given, registry, "searcher", faults)
    if values["searcher"]:
        values["searcher"] = {
            key: [*value] if isinstance(value, tuple) else value for key, value in values["searcher"].items()
        }
        nodes = written_method(values["searcher"]).suit(nodes, faults)
    return nodes


def searcher_for(spec: SweepSpec) -> Searcher:
    """Return what chooses the configurations of `spec`, whose searcher learns; its history is empty."""
    goal = spec.objective
    return spec.searcher.method.begin(spec.space, metric=goal.metric, mode=goal.mode, seed=spec.seed)
