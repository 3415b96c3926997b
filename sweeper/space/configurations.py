"""Configuration *i* of a search space: a function of (space, seed, *i*) alone.

Every domain draws from its own generator, seeded by (seed, *i*, the domain's path in the file), so a key that is
added to a space changes no other draw, and any configuration can be drawn again on any machine without those before it.
A finite space is drawn in order, because a configuration that came before is drawn again (`DistinctDraws`). Grid points
come in turn: configuration *i* has grid point *i* mod (number of grid points). Once drawn for a sweep, it is in the
journal, where everybody reads it (`Configurations`).

Also the strata that `scheduler.within` and `keep.per` make of configurations: their paths are checked against the
space, and their sizes counted.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from sweeper.core import domains
from sweeper.core.domains import Configuration, Fields, Members, Node
from sweeper.core.errors import Fault, SweeperError
from sweeper.core.ids import config_hash, configuration_seed, flatten_configuration, seed_from
from sweeper.core.json_types import Plain, join_path, part_of
from sweeper.core.labels import plural
from sweeper.journal.journal import read_kind
from sweeper.journal.records import Drawn, Suggested
from sweeper.scheduling.base import TOO_SMALL, WITHIN
from sweeper.scheduling.strata import Stratified, stratum_name
from sweeper.space.distinct import DistinctDraws
from trainables.registry.names import hint

if TYPE_CHECKING:
    from sweeper.space.spec import SweepSpec


#: Configurations that are examined before a sweep starts: enough to meet every branch, and for shares to converge.
EXAMPLES = 2000


class Configurations(Sequence[Configuration]):
    """All configurations of a sweep: as its journal has them, else drawn from its space on access.

    A driver journals what it draws before a trial begins, and what a searcher suggests. So a trial keeps its values
    whatever a later release would draw, and a sweep whose searcher learns has only those that are in the journal.
    """

    def __init__(
        self,
        count: int,
        draw: Callable[[int], Configuration] | None,
        journal: Path | None = None,
        misfit: Callable[[Configuration], str | None] = lambda values: None,
    ) -> None:
        """Take the configurations of a sweep.

        Args:
            count: how many there are.
            draw: returns a configuration that the journal lacks; `None` where a searcher chooses them.
            journal: the folder of the sweep's journal, read when it is needed; `None` for a space without one.
            misfit: returns why a journaled configuration cannot be one of the space: somebody else may have written it.
        """
        self._count, self._draw, self._journal, self._misfit = count, draw, journal, misfit
        self._found: dict[int, Configuration] = {}
        self._newest, self._read = -1, False

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Configuration: ...
    @overload
    def __getitem__(self, index: slice) -> list[Configuration]: ...
    def __getitem__(self, index: int | slice) -> Configuration | list[Configuration]:
        """Return a configuration.

        Raises IndexError, LookupError for one that is not suggested yet, or SweeperError for a damaged record.
        """
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"configuration {index} of {len(self)}")
        if self._journaled(i):
            return self._found[i]
        if self._draw is None:
            # No IndexError, which would end an iteration as if there were no more.
            raise LookupError(f"configuration {i} has not been suggested yet")
        return self._draw(i)

    def known(self, index: int) -> bool:
        """Return whether configuration `index` is known: drawn, or suggested by now."""
        return self._draw is not None or self._journaled(index)

    def _journaled(self, index: int) -> bool:
        """Return whether the journal has a configuration; it is read again where a searcher may have suggested it."""
        if index not in self._found and self._journal is not None and not (self._read and self._draw is not None):
            self._read, begun = True, self._newest
            for record in (each for kind in (Drawn, Suggested) for each in read_kind(self._journal, kind, after=begun)):
                body = record.body
                if isinstance(body, Drawn):
                    found = dict(enumerate(map(dict, body.values), body.first))
                else:
                    assert isinstance(body, Suggested)
                    found = {body.configuration: dict(body.values)}
                for number, values in found.items():
                    if (reason := self._misfit(values)) is not None:
                        raise SweeperError(
                            f"record {record.sequence} of the journal in {self._journal} gives configuration {number}, "
                            f"which is none of the search space: {reason}",
                            "restore sweep.yaml and journal as they were when the sweep was driven",
                        )
                self._found |= found
                self._newest = max(self._newest, record.sequence)
        return index in self._found


def configurations(spec: SweepSpec, samples: int | None = None) -> Configurations:
    """Return the sweep's configurations, nested dicts such as `{"loss": {"name": "focal", "gamma": 3.0}, …}`.

    They are drawn: `samples` a grid point, by default as many as the sweep has. Where the searcher learns, they are not
    the sweep's own, which its journal has, but as many random ones, and these may repeat.
    """
    points, repeating = domains.grid_size(spec.space), samples is not None
    distinct: dict[int, DistinctDraws | None] = {}

    def random(point: int, seed: int) -> Configuration:
        return domains.draw_configuration(spec.space, point, domains.Uniforms(lambda path: _uniform(seed, path)))

    def draw(index: int) -> Configuration:
        point = index % points
        if index >= points and not repeating and point not in distinct:
            space = domains.at_grid_point(spec.space, point)
            finite = 1 < domains.random_sizes(space)[1] < math.inf
            distinct[point] = DistinctDraws(functools.partial(random, point), space, spec.seed) if finite else None
        draws = distinct.get(point)
        if index < points or draws is None:
            return random(point, configuration_seed(spec.seed, index))
        return draws.upto(range(point, index + 1, points))

    count = points * (spec.samples if samples is None else samples)
    return Configurations(count, draw)


def configurations_of(spec: SweepSpec, journal: Path | None) -> Configurations:
    """Return a sweep's own configurations: as its journal has them; others are drawn, unless the searcher learns."""
    drawn = configurations(spec)
    types: dict[str, type] = {}

    def misfit(values: Configuration) -> str | None:
        if not types:
            types.update(column_types(spec.space))
        for column, value in flatten_configuration(values).items():
            if column not in types:
                return f"it has no {column}"
            kind = (int, float) if types[column] is float else types[column]
            if value is not None and types[column] is not str and not isinstance(value, kind):
                return f"{column} is {value!r}"
        return None

    return Configurations(len(drawn), None if spec.searcher.learns else drawn.__getitem__, journal, misfit)


def examples(spec: SweepSpec) -> Configurations:
    """Return what to examine before a sweep starts: its configurations, or random ones where it has none yet."""
    return configurations(spec, EXAMPLES if spec.searcher.learns else None)


def first_examples(spec: SweepSpec) -> list[Configuration]:
    """Return the first of what there is to examine: more would only repeat the same few components."""
    return examples(spec)[:EXAMPLES]


def column_types(space: Fields) -> dict[str, type]:
    """Return the type of every hyperparameter column over all branches: `{"config_loss_gamma": float, …}`.

    Types are bool, int, float and str. Where branches disagree, numbers become float and anything else str; lists are
    JSON text, as `flatten_configuration` writes them.
    """
    types: dict[str, type] = {}
    for _, column, value in _column_values(space):
        here = type(value) if isinstance(value, (bool, int, float)) else str
        before = types.setdefault(column, here)
        if before is not here:
            types[column] = float if {before, here} <= {int, float} else str
    return types


def varying_columns(space: Fields) -> tuple[str, ...]:
    """Return the hyperparameter columns that the sweep varies: names, and what differs among equal names.

    A hyperparameter that two components share by name only (the width of one architecture and of another) does not
    vary by itself.
    """
    values: dict[str, dict[str, set[object]]] = {}
    for component, column, value in _column_values(space):
        values.setdefault(column, {}).setdefault(component, set()).add(value)
    return tuple(column for column, seen in values.items() if any(len(s) > 1 for s in seen.values()))


def named_components(part: Node) -> list[str]:
    """Return the names of the components that a part of a space, such as `space.nodes["loss"]`, may draw, each once."""
    return [*dict.fromkeys(str(domains.plain(component.nodes["name"])) for component in components_of(part))]


def line_domains(space: Fields) -> dict[str, dict[str, Node]]:
    """Return loss → hyperparameter → its domain, of those of which the space draws several numbers."""
    found: dict[str, dict[str, Node]] = {}
    for component in components_of(space.nodes["loss"]):
        own = {key: node for key, node in component.nodes.items() if _draws_numbers(node)}
        found.setdefault(str(domains.plain(component.nodes["name"])), {}).update(own)
    return found


def _draws_numbers(node: Node) -> bool:
    values = [value for _, value in domains.extremes(node)]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return len(values) > 1 and numbers


def _uniform(seed: int, path: str) -> float:
    """Return one number in [0, 1) from the generator of the domain at `path`."""
    return float(np.random.Generator(np.random.PCG64(seed_from(seed, path))).random())


def _column_values(node: Node, column: str = "config", component: str = "") -> Iterator[tuple[str, str, object]]:
    """Yield (component, column, value) for every value a column may take; an interval gives its two ends.

    The component is the name whose hyperparameter the column is; empty for the names themselves.
    """
    if isinstance(node, Fields):
        name = str(domains.plain(node.nodes["name"])) if "name" in node.nodes else component
        for key, member in node.nodes.items():
            yield from _column_values(member, f"{column}_{key}", "" if key == "name" else name)
    elif isinstance(node, Members):
        for member in node.nodes:
            yield from _column_values(member, column, component)
    else:
        prefix, _, key = column.rpartition("_")
        for _, value in domains.extremes(node):
            yield from ((component, found, each) for found, each in flatten_configuration({key: value}, prefix).items())


def components_of(node: Node) -> Iterator[Fields]:
    """Yield the components that a part of a space may draw."""
    if isinstance(node, Fields):
        yield node
    elif isinstance(node, Members):
        for member in node.nodes:
            yield from components_of(member)


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
    found = domains.repeats(named, place, "{!r} is named twice", "name each path once")
    return found + [f for index, path in enumerate(named) for f in _path_faults(path, join_path(place, index), space)]


def _path_faults(path: str, place: str, space: Fields) -> list[Fault]:
    part, _, key = path.partition(".")
    if part not in space.nodes:
        return [Fault(place, f"{path!r} is not a path of the space", hint(part, space.nodes))]
    components = list(components_of(space.nodes[part]))
    keys = [*dict.fromkeys(name for component in components for name in component.nodes)]
    if key and key not in keys:
        return [Fault(place, f"no {part} of the space has {key!r}", hint(key, keys))]
    drawn = [node for c in components if key in c.nodes for _, node in domains.walk(c.nodes[key])]
    if any(isinstance(node, domains.Interval) and node.kind in ("uniform", "loguniform") for node in drawn):
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
    kept = {key: value for key, value in part_of(values, "scheduler").items() if key != WITHIN.name}
    return {**values, "scheduler": kept}


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


def repeat_notes(spec: SweepSpec) -> list[str]:
    """Return a sentence where trials of a sweep have the configuration of an earlier one."""
    if spec.searcher.learns:
        return []
    every = configurations(spec)[:EXAMPLES]
    repeats = len(every) - len({config_hash(each) for each in every})
    if not repeats:
        return []
    seeds = "the same seeds, so that they repeat its numbers" if spec.replicates.common_seeds else "other seeds"
    return [f"{repeats} of {plural(len(every), 'trial')} repeat the configuration of an earlier one on {seeds}"]
