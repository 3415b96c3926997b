"""Draw configuration *i* of a search space as a function of (space, seed, *i*) alone.

Every domain draws from its own generator, seeded by (seed, *i*, the domain's path in the file). So adding a key to a
space changes no other draw, and any machine can draw any configuration without drawing the earlier ones. The components
of each part are balanced (`sweeper.space.balance`). Only a finite space is drawn in order, because repeats of earlier
configurations are redrawn (`DistinctDraws`). Grid points are taken
in turn: configuration *i* has grid point *i* mod (number of grid points). The driver writes the configurations of a
sweep to the journal, and every reader takes them from there (`Configurations`).

This module also checks the paths of strata (`scheduler.within`, `keep.per`) against the space, and counts their sizes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast, overload

import numpy as np

from sweeper.core.domains.base import Fields, Interval, Members, Node
from sweeper.core.domains.tree import (
    Uniforms,
    at_grid_point,
    draw_configuration,
    every_value,
    extremes,
    grid_size,
    plain,
    random_sizes,
    walk,
)
from sweeper.core.domains.values import Plain, join_path, repeats
from sweeper.core.errors import Fault, SweeperError
from sweeper.core.ids import configuration_seed, is_added, seed_from
from sweeper.core.labels import PARTS, plural
from sweeper.journal.journal import read_kind
from sweeper.journal.records import Added, Body, Drawn, Suggested
from sweeper.scheduling.base import WITHIN
from sweeper.scheduling.strata import Stratified, stratum_name
from sweeper.space.balance import Balanced, BalancedMembers
from trainables.registry.configuration import NAME, Configuration, columns_of
from trainables.registry.names import hint

if TYPE_CHECKING:
    from sweeper.space.spec import SweepSpec


#: Number of configurations examined before a sweep starts: enough to reach every branch of the space, and for shares to
#: converge.
EXAMPLES = 2000


class Configurations(Sequence[Configuration]):
    """All configurations of a sweep, read from its journal or drawn from its space on access.

    The driver journals a configuration before its trial begins, whether drawn or suggested. So a trial keeps its values
    even if a later release would draw others. If the searcher learns, the journal is the only source of configurations.
    So it is for the configurations of added seeds. They have an index, but do not count as configurations of the space.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> drawn = configurations(load_spec("quickstart"))
        >>> len(drawn), drawn[0]["optimizer"]["name"], drawn[7] == drawn[7]
        (16, 'sgd', True)
    """

    def __init__(
        self,
        count: int,
        draw: Callable[[int], Configuration] | None,
        journal: Path | None = None,
        misfit: Callable[[Configuration], str | None] = lambda values: None,
    ) -> None:
        """Prepare access to the configurations of a sweep.

        Args:
            count: number of configurations.
            draw: returns a configuration that the journal lacks; `None` if a searcher chooses them.
            journal: folder of the sweep's journal, read on demand; `None` for a space without one.
            misfit: returns why a journaled configuration does not belong to the space, `None` if it does.
        """
        self._count, self._draw, self._journal, self._misfit = count, draw, journal, misfit
        self._known: dict[int, Configuration] = {}
        self._newest, self._read = -1, False

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Configuration: ...
    @overload
    def __getitem__(self, index: slice) -> list[Configuration]: ...
    def __getitem__(self, index: int | slice) -> Configuration | list[Configuration]:
        """Return a configuration.

        Raises:
            IndexError: the sweep has fewer configurations.
            LookupError: the searcher has not suggested it yet.
            SweeperError: its journal record does not fit the space.
        """
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self) and not is_added(i):
            raise IndexError(f"configuration {index} of {len(self)}")
        if self._journaled(i):
            return self._known[i]
        if is_added(i):
            raise IndexError(f"no seed was added as configuration {index}")
        if self._draw is None:
            # Not an IndexError, which would silently end an iteration.
            raise LookupError(f"configuration {i} has not been suggested yet")
        return self._draw(i)

    def _journaled(self, index: int) -> bool:
        """Return whether the journal has a configuration."""
        # If configurations are drawn, the journal is read once, because a missing configuration can be drawn.
        # Suggestions and added seeds come only from the journal, so it is read again for new records.
        drawn = self._draw is not None and not is_added(index)
        if index not in self._known and self._journal is not None and not (self._read and drawn):
            self._read, begun = True, self._newest
            for record in (r for kind in _SOURCES for r in read_kind(self._journal, kind, after=begun)):
                journaled = _values_in(record.body)
                # A results folder can come from somebody else: its values must not reach code unchecked.
                for number, values in journaled.items():
                    if (reason := self._misfit(values)) is not None:
                        raise SweeperError(
                            f"record {record.sequence} of the journal in {self._journal} gives configuration {number}, "
                            f"which does not fit the search space: {reason}",
                            "restore sweep.yaml and the journal from the same sweep",
                        )
                self._known |= journaled
                self._newest = max(self._newest, record.sequence)
        return index in self._known


#: The kinds of journal records that have values of configurations.
_SOURCES = (Drawn, Suggested, Added)


def _values_in(body: Body) -> dict[int, Configuration]:
    """Return the configurations in a journal record, by index."""
    match body:
        case Drawn():
            return dict(enumerate(body.values, body.first))
        case Suggested():
            return {body.configuration: body.values}
        case Added():
            return {seed.configuration: seed.values for seed in body.seeds}
    return {}


def configurations(spec: SweepSpec, samples: int | None = None) -> Configurations:
    """Draw configurations from the space.

    If the searcher learns, these configurations are random; the sweep's own configurations are in its journal.

    Args:
        spec: the checked search space.
        samples: number of configurations per grid point; by default the sweep's number. If it is given, configurations
            can repeat.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> drawn = configurations(load_spec("quickstart"))
        >>> sorted(drawn[0])
        ['architecture', 'loss', 'optimizer']
    """
    points, repeating = grid_size(spec.space), samples is not None
    distinct: dict[int, DistinctDraws | None] = {}

    balanced = BalancedMembers(spec.space, spec.seed, PARTS)

    def random(index: int, seed: int) -> Configuration:
        uniforms = Uniforms(lambda path: _uniform(seed, path))
        return draw_configuration(spec.space, index % points, Balanced(balanced.at(index), uniforms))

    def draw(index: int) -> Configuration:
        point = index % points
        if index >= points and not repeating and point not in distinct:
            space = at_grid_point(spec.space, point)
            # A space with one configuration has nothing else to draw; an infinite one practically never repeats.
            finite = 1 < random_sizes(space)[1] < math.inf
            distinct[point] = DistinctDraws(random, space, spec.seed) if finite else None
        draws = distinct.get(point)
        if index < points or draws is None:
            return random(index, configuration_seed(spec.seed, index))
        return draws.upto(range(point, index + 1, points))

    count = points * (spec.samples if samples is None else samples)
    return Configurations(count, draw)


def configurations_of(spec: SweepSpec, journal: Path | None) -> Configurations:
    """Return a sweep's own configurations from its journal; missing ones are drawn, unless the searcher learns."""
    drawn = configurations(spec)
    types: dict[str, type] = {}

    def misfit(values: Configuration) -> str | None:
        if not types:  # walking a large space takes a while, and most readers need no configuration
            types.update(column_types(spec.space))
        for column, value in values.columns.items():
            if column not in types:
                return f"it has no {column}"
            kind = (int, float) if types[column] is float else types[column]
            if value is not None and types[column] is not str and not isinstance(value, kind):
                return f"{column} is {value!r}"
        return None

    return Configurations(len(drawn), None if spec.searcher.learns else drawn.__getitem__, journal, misfit)


def examples(spec: SweepSpec) -> Configurations:
    """Return configurations to examine before a sweep starts: the sweep's own, or random ones if a searcher learns."""
    return configurations(spec, EXAMPLES if spec.searcher.learns else None)


def first_examples(spec: SweepSpec) -> list[Configuration]:
    """Return the first `EXAMPLES` configurations to examine. More would only repeat the same components."""
    return examples(spec)[:EXAMPLES]


def column_types(space: Fields) -> dict[str, type]:
    """Return the type of every hyperparameter column over all branches: `{"config_loss_gamma": float, …}`.

    Types are bool, int, float and str. If branches have different types, the column is float for numbers and str
    otherwise. Lists are JSON text, as `Configuration.columns` has them.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> column_types(load_spec("quickstart").space)["config_optimizer_lr"]
        <class 'float'>
    """
    types: dict[str, type] = {}
    for _, column, value in _column_values(space):
        kind = type(value) if isinstance(value, (bool, int, float)) else str
        before = types.setdefault(column, kind)
        if before is not kind:
            types[column] = float if {before, kind} <= {int, float} else str
    return types


def varying_columns(space: Fields) -> tuple[str, ...]:
    """Return the columns that vary: component names, and hyperparameters with several values for one component.

    A hyperparameter that two components share only by name (the width of two architectures) does not count as varying.
    """
    values: dict[str, dict[str, set[object]]] = {}
    for component, column, value in _column_values(space):
        values.setdefault(column, {}).setdefault(component, set()).add(value)
    return tuple(column for column, seen in values.items() if any(len(s) > 1 for s in seen.values()))


def named_components(part: Node) -> list[str]:
    """Return the distinct names of the components that a part of a space, such as `space.nodes["loss"]`, can draw.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> named_components(load_spec("quickstart").space.nodes["architecture"])
        ['mlp', 'resnet8']
    """
    return [*dict.fromkeys(str(plain(component.nodes["name"])) for component in components_of(part))]


def line_domains(space: Fields) -> dict[str, dict[str, Node]]:
    """Return path → component → domain, for hyperparameters that the space draws from several values.

    The path of a part with several components is `loss.name`, and its domains are the components. A hyperparameter of a
    user's training loop belongs to no component, so its component is empty.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> [*line_domains(load_spec("quickstart").space)]
        ['loss.name', 'loss.gamma', 'loss.coverage', 'loss.nu', 'loss.score', 'architecture.name', 'optimizer.lr']
    """
    lines: dict[str, dict[str, Node]] = {}
    for part, node in space.nodes.items():
        components = [*components_of(node)]
        if not components and _draws_values(node):
            lines[part] = {"": node}
        if len(components) > 1 and len(named_components(node)) > 1:
            lines[f"{part}.{NAME}"] = {str(plain(component.nodes[NAME])): component for component in components}
        for component in components:
            own = {key: domain for key, domain in component.nodes.items() if key != NAME and _draws_values(domain)}
            for key, domain in own.items():
                lines.setdefault(f"{part}.{key}", {})[str(plain(component.nodes[NAME]))] = domain
    return lines


def _draws_values(node: Node) -> bool:
    values = [value for _, value in extremes(node)]
    return len({*map(repr, values)}) > 1 and not any(isinstance(value, list | dict) for value in values)


def _uniform(seed: int, path: str) -> float:
    """Return one number in [0, 1) from the generator of the domain at `path`."""
    # PCG64 by name: numpy may change what `default_rng` uses, and configurations must stay the same.
    return float(np.random.Generator(np.random.PCG64(seed_from(seed, path))).random())


def _column_values(node: Node, column: str = "config", component: str = "") -> Iterator[tuple[str, str, object]]:
    """Yield (component, column, value) for every value of a column. An interval yields its two ends.

    The component is the name to which the hyperparameter belongs; it is empty for the names themselves.
    """
    if isinstance(node, Fields):
        name = str(plain(node.nodes["name"])) if "name" in node.nodes else component
        for key, member in node.nodes.items():
            yield from _column_values(member, f"{column}_{key}", "" if key == "name" else name)
    elif isinstance(node, Members):
        for member in node.nodes:
            yield from _column_values(member, column, component)
    else:
        for _, value in extremes(node):
            yield from ((component, name, leaf) for name, leaf in columns_of(column, value))


def components_of(node: Node) -> Iterator[Fields]:
    """Yield the components that a part of a space can draw."""
    if isinstance(node, Fields):
        yield node
    elif isinstance(node, Members):
        for member in node.nodes:
            yield from components_of(member)


PLACE = f"scheduler.{WITHIN.name}"


def within_faults(paths: Plain, space: Fields, place: str = PLACE) -> list[Fault]:
    """Return the faults of the paths that divide trials into strata; other checks report wrong types.

    Args:
        paths: the paths as the file has them.
        space: the resolved space.
        place: path of the setting in the file.
    """
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return []
    if not paths:
        key = place.rpartition(".")[2]
        return [Fault(place, f"{key} names no path", "name e.g. [architecture, loss], or leave it out for one pool")]
    named = [str(path) for path in paths]
    faults = repeats(named, place, "{!r} is named twice", "name each path once")
    return faults + [f for index, path in enumerate(named) for f in _path_faults(path, join_path(place, index), space)]


def _path_faults(path: str, place: str, space: Fields) -> list[Fault]:
    part, _, key = path.partition(".")
    if part not in space.nodes:
        return [Fault(place, f"{path!r} is not a path of the space", hint(part, space.nodes))]
    components = list(components_of(space.nodes[part]))
    keys = [*dict.fromkeys(name for component in components for name in component.nodes)]
    if key and key not in keys:
        return [Fault(place, f"no {part} of the space has {key!r}", hint(key, keys))]
    drawn = [node for c in components if key in c.nodes for _, node in walk(c.nodes[key])]
    if any(isinstance(node, Interval) and node.size == math.inf for node in drawn):
        rule = f"{path} is drawn from a range, so every trial would be its own stratum"
        return [Fault(place, rule, "divide trials by names, choices or grids")]
    return []


def stratum_sizes(spec: SweepSpec) -> dict[str, float]:
    """Return stratum → number of trials, in the order of the strata's first trials.

    The sweep must have strata. The numbers are exact if configurations are drawn from the space. If a searcher chooses,
    they are counted over random configurations.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> sizes = stratum_sizes(load_spec("quickstart", ["scheduler.within=[architecture]", "samples=20"]))
        >>> sorted(sizes), sum(sizes.values()) % 20
        (['mlp', 'resnet8'], 0.0)
    """
    schedule, examined = spec.schedule, examples(spec)
    assert isinstance(schedule, Stratified)
    counts = Counter(stratum_name(configuration, schedule.within) for configuration in examined)
    trials = spec.samples if spec.searcher.learns else len(examined)
    return {name: count * trials / len(examined) for name, count in counts.items()}


def size_faults(spec: SweepSpec) -> list[Fault]:
    """Return a fault if a stratum has too few trials for its scheduler."""
    schedule = spec.schedule
    if not isinstance(schedule, Stratified):
        return []
    sizes = stratum_sizes(spec)
    small = {name: size for name, size in sizes.items() if size < schedule.smallest_pool}
    if not small:
        return []
    name = min(small, key=small.__getitem__)
    more = f" (and {len(small) - 1} more of {len(sizes)} strata)" if len(small) > 1 else ""
    trials = f"{small[name]:.3g} trial{'' if small[name] == 1 else 's'}"
    rule = (
        f"the stratum {name} has {trials}{more}, but {spec.scheduler.name} with these settings needs "
        f"{schedule.smallest_pool} to compare"
    )
    needed = samples_needed(spec)
    more = "" if needed is None else f"raise samples to {needed:,}, "
    return [Fault(PLACE, rule, f"{more}write grid instead of choice or one_of, or remove a path")]


def samples_needed(spec: SweepSpec) -> int | None:
    """Return the fewest samples at which each stratum is large enough; None if 128 times as many do not suffice."""

    def suffice(samples: int) -> bool:
        schedule, sizes = spec.schedule, stratum_sizes(spec.model_copy(update={"samples": samples}))
        assert isinstance(schedule, Stratified)
        return min(sizes.values()) >= schedule.smallest_pool

    enough = next(filter(suffice, (spec.samples * 2**power for power in range(1, 8))), None)
    if enough is None:
        return None
    return next(filter(suffice, range(enough // 2 + 1, enough + 1)))


def repeat_notes(spec: SweepSpec) -> list[str]:
    """Return a sentence if trials of a sweep repeat the configuration of an earlier one."""
    if spec.searcher.learns:
        return []
    every = configurations(spec)[:EXAMPLES]
    repeats = len(every) - len({*every})
    if not repeats:
        return []
    seeds = "the same seeds, so they repeat its numbers" if spec.replicates.common_seeds else "other seeds"
    return [f"{repeats} of {plural(len(every), 'trial')} repeat the configuration of an earlier one on {seeds}"]


#: Number of draws before the remaining configurations are listed (our choice). Listing costs more than a draw, and
#: repeated draws rarely all fail.
ATTEMPTS = 20

#: Largest number of remaining configurations that are listed (our choice): listing a whole large space would take too
#: long.
LISTED = 1000


class DistinctDraws:
    """The draws of one grid point, in order: each configuration is drawn once before any is drawn again.

    A draw that repeats an earlier one of its grid point is redrawn from a further seed of the same index. So
    configuration i remains a function of (space, seed, i), and raising `samples` changes no earlier draw. A draw that
    repeats nothing is the same as in an infinite space. If few configurations are left, they are listed and one of them
    is chosen.

    Example:
        >>> from sweeper.core.domains.base import Constant, Fields
        >>> from sweeper.core.domains.choice import OneMember
        >>> space = Fields({"loss": OneMember((Constant("focal"), Constant("mmce")))})
        >>> repeating = Configuration({"loss": "focal"})
        >>> draws = DistinctDraws(lambda index, seed: repeating, space, seed=0)
        >>> draws.upto([0]).plain(), draws.upto([0, 1]).plain()
        ({'loss': 'focal'}, {'loss': 'mmce'})
    """

    def __init__(self, draw: Callable[[int, int], Configuration], space: Node, seed: int) -> None:
        """Begin without draws.

        Args:
            draw: returns a random configuration from its index and a seed.
            space: the finite space, without grids.
            seed: seed of the sweep.
        """
        self._draw, self._space, self._seed = draw, space, seed
        self._seen: set[Configuration] = set()
        self._drawn: list[Configuration] = []

    def upto(self, numbers: Sequence[int]) -> Configuration:
        """Return the draw with the last of these indices. They must be all indices of the grid point up to the last."""
        # Draws are made in order, because each depends on the earlier ones. Earlier draws are kept.
        for index in numbers[len(self._drawn) :]:
            configuration = self._next(index)
            self._seen.add(configuration)
            self._drawn.append(configuration)
        return self._drawn[len(numbers) - 1]

    def _next(self, index: int) -> Configuration:
        seed = configuration_seed(self._seed, index)
        first = self._draw(index, seed)
        for attempt in range(ATTEMPTS):
            # Attempt 0 uses the index's own seed, so a draw that repeats nothing is the same as in an infinite space.
            configuration = self._draw(index, seed_from(seed, attempt)) if attempt else first
            if configuration not in self._seen:
                return configuration
        every = (Configuration(cast(dict[str, Plain], value)) for value in every_value(self._space))
        unseen = [*itertools.islice((value for value in every if value not in self._seen), LISTED)]
        if unseen:
            return unseen[seed % len(unseen)]
        self._seen.clear()  # every configuration has been drawn: a new round begins
        return first
