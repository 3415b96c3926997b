"""The key `space` of a search space file: from its values to the tree of domains that the spec keeps."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.core.errors import Fault
from sweeper.core.key_paths import join_path
from sweeper.core.plain import Plain
from sweeper.space.components import resolve_component
from sweeper.space.domains.domains import (
    INVALID,
    Constant,
    Fields,
    Members,
    Node,
    grid_size,
    is_random,
    resolved_faults,
)
from sweeper.space.models import MAXIMUM_CONFIGURATIONS
from sweeper.space.registries import Registries
from sweeper.space.searcher_settings import check_searcher
from trainables.registry.nearest import did_you_mean


def checked_space(values: dict[str, Plain], registries: Registries, faults: list[Fault]) -> Fields:
    """Return the space of a file's values as a tree: names checked, defaults filled in, as its searcher takes it.

    Args:
        values: of the file, with a mapping at `space`; `searcher` and `samples` are completed in place.
        registries: the names to check against.
        faults: takes every rule that is broken.
    """
    space = values["space"]
    parts = _resolved_parts(space if isinstance(space, dict) else {}, registries, faults)
    tree = Fields(check_searcher(values, parts, faults))
    if not faults:
        faults += resolved_faults(tree, "space")
    faults += _count_faults(values, tree)
    return tree


def _resolved_parts(space: Mapping[str, Plain], registries: Registries, faults: list[Fault]) -> dict[str, Node]:
    parts = registries.space
    for key in space:
        if key not in parts:
            hint = did_you_mean(key, tuple(parts)).removeprefix("; ")
            faults.append(Fault(join_path("space", key), f"unknown key {key!r}", hint))
    nodes = {}
    for key, registry in parts.items():
        if key in space:
            nodes[key] = resolve_component(space[key], registry, join_path("space", key), faults)
        else:
            known = ", ".join(registry)
            faults.append(Fault(join_path("space", key), f"the space has no {key}", f"name one of: {known}"))
    return nodes


def _count_faults(values: dict[str, Plain], space: Fields) -> list[Fault]:
    """Fill in `samples` where it may be left out, and check how many configurations there are."""
    if any(_invalid(node) for node in space.nodes.values()):
        values.setdefault("samples", 1)
        return []
    points = grid_size(space)
    if values.get("samples") is None:
        if points == 1 and is_random(space):
            values["samples"] = 1
            return [Fault("samples", "missing: how many configurations to draw", "write e.g. samples: 48")]
        values["samples"] = 1
    samples, replicates = values["samples"], values.get("replicates")
    common = isinstance(replicates, dict) and replicates.get("seeds") == "common"
    if common and isinstance(samples, int) and samples > 1 and not is_random(space):
        rule = f"samples = {samples} would train every grid point {samples} times on the same seeds, which are common"
        return [Fault("samples", rule, "leave it out, and raise replicates.count")]
    if isinstance(samples, int) and 0 < samples <= MAXIMUM_CONFIGURATIONS < points * samples:
        rule = f"{points} grid points × {samples} samples are more than {MAXIMUM_CONFIGURATIONS} configurations"
        return [Fault("samples", rule, "shorten the grids, or use choice instead of grid")]
    return []


def _invalid(node: Node) -> bool:
    if isinstance(node, Members):
        return any(map(_invalid, node.nodes))
    return node is INVALID or isinstance(node, Constant)
