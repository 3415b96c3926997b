"""Checking `scheduler.within` and `keep.per`: paths against the space, and the sizes of the strata that they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sweeper.core.domains import Fields, Interval, Members, Node
from sweeper.core.errors import Fault
from sweeper.core.json_types import Plain, join_path
from sweeper.scheduling.base import TOO_SMALL, WITHIN
from sweeper.scheduling.strata import Stratified, stratum_name
from sweeper.space.configurations import components_of, examples
from sweeper.space.spec import SweepSpec
from trainables.registry.names import hint

PLACE = f"scheduler.{WITHIN.name}"


def within_faults(paths: Plain, space: Fields, place: str = PLACE) -> list[Fault]:
    """Return what is wrong with the paths that divide trials into strata; values of a wrong type are found elsewhere.

    Args:
        paths: what the file gives.
        space: the resolved space.
        place: where it gives them.
    """
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return []
    if not paths:
        key = place.rpartition(".")[2]
        return [Fault(place, f"{key} names no path", "name e.g. [architecture, loss], or leave it out for one pool")]
    named = [str(path) for path in paths]
    found = [
        Fault(join_path(place, index), f"{path!r} is named twice", "name each path once")
        for index, path in enumerate(named)
        if path in named[:index]
    ]
    return found + [f for index, path in enumerate(named) for f in _path_faults(path, join_path(place, index), space)]


def _path_faults(path: str, place: str, space: Fields) -> list[Fault]:
    part, _, key = path.partition(".")
    if part not in space.nodes:
        return [Fault(place, f"{path!r} is not a path of the space", hint(part, space.nodes))]
    components = list(components_of(space.nodes[part]))
    keys = [*dict.fromkeys(name for component in components for name in component.nodes)]
    if key and key not in keys:
        return [Fault(place, f"no {part} of the space has {key!r}", hint(key, keys))]
    if key and any(_is_drawn_from_a_range(c.nodes[key]) for c in components if key in c.nodes):
        rule = f"{path} is drawn from a range, so that every trial would be a stratum of its own"
        return [Fault(place, rule, "divide trials by names, choices or grids")]
    return []


def stratum_sizes(spec: SweepSpec) -> dict[str, float]:
    """Return stratum → how many trials it has, in the order of the strata's first trials.

    Exact where configurations follow from the space; where a searcher chooses them, what random ones would give.
    Raises ValueError when the sweep has no strata.
    """
    schedule = spec.schedule
    if not isinstance(schedule, Stratified):
        raise ValueError("the sweep has no strata: its scheduler compares all trials")
    looked_at = examples(spec)
    counts = Counter(stratum_name(looked_at[index], schedule.within) for index in range(len(looked_at)))
    trials = spec.samples if spec.searcher.learns else len(looked_at)
    return {name: count * trials / len(looked_at) for name, count in counts.items()}


def falls_back(spec: SweepSpec) -> bool:
    """Return whether a search space asks for one pool where its strata are too small."""
    return spec.scheduler.settings.get(TOO_SMALL.name) == "one_pool"


def in_one_pool(values: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return a search space's values without its strata; that it falls back stays written down."""
    scheduler = values["scheduler"]
    assert isinstance(scheduler, Mapping)
    return {**values, "scheduler": {key: value for key, value in scheduler.items() if key != WITHIN.name}}


def pool_notes(spec: SweepSpec) -> list[str]:
    """Return a sentence where trials compete in one pool because strata would have been too small."""
    if not falls_back(spec) or spec.is_rehearsal or isinstance(spec.schedule, Stratified):
        return []
    return [f"trials compete in one pool: with {spec.samples} samples, strata would be too small to compare within"]


def size_faults(spec: SweepSpec) -> list[Fault]:
    """Return a fault when a stratum has too few trials for its scheduler; a rehearsal's may be as small as they are."""
    schedule = spec.schedule
    if not isinstance(schedule, Stratified) or spec.is_rehearsal:
        return []
    sizes = stratum_sizes(spec)
    small = {name: size for name, size in sizes.items() if size < schedule.smallest_pool}
    if not small:
        return []
    name = min(small, key=small.__getitem__)
    more = f" (and {len(small) - 1} more of {len(sizes)} strata)" if len(small) > 1 else ""
    trials = f"{small[name]:.3g} trial{'' if small[name] == 1 else 's'}"
    rule = (
        f"the stratum {name} has {trials}{more}, but {spec.scheduler.name} with these settings takes "
        f"{schedule.smallest_pool} to compare"
    )
    return [Fault(PLACE, rule, "raise samples, write grid instead of choice or one_of, or remove a path")]


def _is_drawn_from_a_range(node: Node) -> bool:
    if isinstance(node, Members):
        return any(map(_is_drawn_from_a_range, node.nodes))
    return isinstance(node, Interval) and node.kind in ("uniform", "loguniform")
