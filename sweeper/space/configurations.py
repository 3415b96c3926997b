"""Draw configuration *i* of a search space as a function of (space, seed, *i*) alone.

Every domain draws from its own generator, seeded by (seed, *i*, the domain's path in the file). So adding a key to a
space changes no other draw, and any machine can draw any configuration without drawing the earlier ones. The components
of each part are balanced (`BalancedMembers`). Only a finite space is drawn in order, because repeats of earlier
configurations are redrawn (`DistinctDraws`). Grid points are taken in turn: configuration *i* has grid point *i* mod
(number of grid points). The driver writes the configurations of a sweep to the journal, and every reader takes them
from there (`Configurations`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from sweeper.core.domains.nodes import Fields, Members, Uniforms
from sweeper.core.domains.space import Space
from sweeper.core.errors import SweeperError
from sweeper.core.ids import configuration_seed, is_added, seed_from
from sweeper.core.labels import PARTS, plural
from sweeper.journal.journal import read_kind
from sweeper.journal.records import Added, Body, Drawn, Suggested
from trainables.registry import Configuration

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
    points, repeating = spec.space.points, samples is not None
    distinct: dict[int, DistinctDraws | None] = {}
    balanced = BalancedMembers(spec.space, spec.seed, PARTS)

    def random(index: int, seed: int) -> Configuration:
        choose = Balanced(lambda path: _uniform(seed, path), balanced.at(index))
        return spec.space.configuration(index % points, choose)

    def draw(index: int) -> Configuration:
        point = index % points
        if index >= points and not repeating and point not in distinct:
            space = spec.space.at_point(point)
            # A space with one configuration has nothing else to draw; an infinite one practically never repeats.
            finite = 1 < space.sizes[1] < math.inf
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

    def misfit(values: Configuration) -> str | None:
        types = spec.space.column_types  # walking a large space takes a while, and most readers need no configuration
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


def _uniform(seed: int, path: str) -> float:
    """Return one number in [0, 1) from the generator of the domain at `path`."""
    # PCG64 by name: numpy may change what `default_rng` uses, and configurations must stay the same.
    return float(np.random.Generator(np.random.PCG64(seed_from(seed, path))).random())


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
        >>> from sweeper.core.domains.base import parse
        >>> space = Space({"loss": parse({"choice": ["focal", "mmce"]}, "loss", [])})
        >>> repeating = Configuration({"loss": "focal"})
        >>> draws = DistinctDraws(lambda index, seed: repeating, space, seed=0)
        >>> draws.upto([0]).plain(), draws.upto([0, 1]).plain()
        ({'loss': 'focal'}, {'loss': 'mmce'})
    """

    def __init__(self, draw: Callable[[int, int], Configuration], space: Space, seed: int) -> None:
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
        """Return the configuration of the last index in `numbers`, which are all indices of the grid point up to it."""
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
        every = self._space.every_configuration()
        unseen = [*itertools.islice((value for value in every if value not in self._seen), LISTED)]
        if unseen:
            return unseen[seed % len(unseen)]
        self._seen.clear()  # every configuration has been drawn: a new round begins
        return first


class BalancedMembers:
    """The losses and networks that configurations get, a function of (space, seed, index) alone.

    Losses are compared as tuned, so one with more draws has an advantage. The members of the parts' `choice` and
    `one_of` are therefore drawn in turn, in an order that depends on the seed. Everything else is drawn at random.

    Draw t takes member t mod n₁ of the first part, member (t + ⌊t / lcm(n₁, n₂)⌋) mod n₂ of the second, and so on. So
    after every draw, the numbers of each part's members differ by at most 1, and so do those of pairs of members of the
    first two parts. Grid points are a part before the others. A member that stands twice is drawn twice as often. A
    further part changes no draw of the parts before it.

    Example:
        >>> from sweeper.core.domains.base import parse
        >>> space = parse({"loss": {"choice": ["a", "b"]}, "architecture": {"choice": ["x", "y"]}}, "", [])
        >>> members = BalancedMembers(space, 0, parts=["loss", "architecture"])
        >>> sorted((of["loss"], of["architecture"]) for of in map(members.at, range(4)))
        [(0, 0), (0, 1), (1, 0), (1, 1)]
    """

    def __init__(self, space: Fields, seed: int, parts: Sequence[str]) -> None:
        """Prepare the draws of a space.

        Args:
            space: the parsed space.
            seed: seed of the sweep.
            parts: keys of the parts that are balanced; those without a `choice` or `one_of` are left out.
        """
        nodes = {part: node for part in parts if isinstance(node := space.nodes.get(part), Members)}
        self._orders = {
            part: np.random.Generator(np.random.PCG64(seed_from(seed, part))).permutation(len(node.nodes)).tolist()
            for part, node in nodes.items()
            if not node.in_turn
        }
        self._points = space.points

    def at(self, index: int) -> dict[str, int]:
        """Return part → member of configuration `index`."""
        members, before = dict[str, int](), self._points
        for part, order in self._orders.items():
            # Combinations of the parts so far repeat after this many draws.
            t = index % (before * len(order))
            members[part] = order[(t + t // math.lcm(before, len(order))) % len(order)]
            before *= len(order)
        return members


@dataclass(frozen=True)
class Balanced(Uniforms):
    """Chooses given members for some parts, and everything else at random."""

    members: Mapping[str, int]

    def member(self, path: str, members: Members) -> int:
        """Return a member's index."""
        return self.members[path] if path in self.members else super().member(path, members)
