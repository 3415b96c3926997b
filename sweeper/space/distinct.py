"""Draws of a finite space without repeats: each configuration comes once before any comes again.

A draw that would repeat an earlier one of its grid point is made again, from a further seed of the same number. So
configuration i remains a function of (space, seed, i), draws that repeat nothing are those of an infinite space, and
raising `samples` changes none. Where few configurations are left, one of them is chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast

from sweeper.core.domains import Configuration, Node, every_value
from sweeper.core.ids import config_hash, configuration_seed, seed_from

#: Draws before the remaining configurations are listed. Our choice.
ATTEMPTS = 20

#: The most remaining configurations to choose among. Our choice.
LISTED = 1000


class DistinctDraws:
    """The draws of one grid point, in order."""

    def __init__(self, draw: Callable[[int], Configuration], space: Node, seed: int) -> None:
        """Begin with none.

        Args:
            draw: returns a random configuration from a seed.
            space: finite, without grids.
            seed: the sweep's.
        """
        self._draw, self._space, self._seed = draw, space, seed
        self._seen: set[str] = set()
        self._drawn: list[Configuration] = []

    def upto(self, numbers: Sequence[int]) -> Configuration:
        """Return the draw of the last of these numbers in the sweep, which are all of the grid point up to it."""
        for index in numbers[len(self._drawn) :]:
            configuration = self._next(index)
            self._seen.add(config_hash(configuration))
            self._drawn.append(configuration)
        return self._drawn[len(numbers) - 1]

    def _next(self, index: int) -> Configuration:
        seed = configuration_seed(self._seed, index)
        first = self._draw(seed)
        for attempt in range(ATTEMPTS):
            configuration = self._draw(seed_from(seed, attempt)) if attempt else first
            if config_hash(configuration) not in self._seen:
                return configuration
        every = (cast(Configuration, value) for value in every_value(self._space))
        left = [*itertools.islice((each for each in every if config_hash(each) not in self._seen), LISTED)]
        if left:
            return left[seed % len(left)]
        self._seen.clear()  # a new round
        return first
