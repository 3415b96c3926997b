"""Draws of a finite space without repeats: each configuration is drawn once before any is drawn again.

A draw that repeats an earlier one of its grid point is redrawn from a further seed of the same index. So configuration
i remains a function of (space, seed, i), and raising `samples` changes no earlier draw. A draw that repeats nothing is
the same as in an infinite space. If few configurations are left, they are listed and one of them is chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast

from sweeper.core.domains import Configuration, Node, every_value
from sweeper.core.ids import config_hash, configuration_seed, seed_from

#: Number of draws before the remaining configurations are listed (our choice). Listing costs more than a draw, and
#: repeated draws rarely all fail.
ATTEMPTS = 20

#: Largest number of remaining configurations that are listed (our choice): listing a whole large space would take too
#: long.
LISTED = 1000


class DistinctDraws:
    """The draws of one grid point, in order.

    Example:
        >>> from sweeper.core.domains import Constant, Fields, Members
        >>> space = Fields({"loss": Members("choice", (Constant("focal"), Constant("mmce")))})
        >>> draws = DistinctDraws(lambda seed: {"loss": "focal"}, space, seed=0)  # a draw that always repeats
        >>> draws.upto([0]), draws.upto([0, 1])
        ({'loss': 'focal'}, {'loss': 'mmce'})
    """

    def __init__(self, draw: Callable[[int], Configuration], space: Node, seed: int) -> None:
        """Begin without draws.

        Args:
            draw: returns a random configuration from a seed.
            space: the finite space, without grids.
            seed: seed of the sweep.
        """
        self._draw, self._space, self._seed = draw, space, seed
        self._seen: set[str] = set()
        self._drawn: list[Configuration] = []

    def upto(self, numbers: Sequence[int]) -> Configuration:
        """Return the draw with the last of these indices. They must be all indices of the grid point up to the last."""
        # Draws are made in order, because each depends on the earlier ones. Earlier draws are kept.
        for index in numbers[len(self._drawn) :]:
            configuration = self._next(index)
            self._seen.add(config_hash(configuration))
            self._drawn.append(configuration)
        return self._drawn[len(numbers) - 1]

    def _next(self, index: int) -> Configuration:
        seed = configuration_seed(self._seed, index)
        first = self._draw(seed)
        for attempt in range(ATTEMPTS):
            # Attempt 0 uses the index's own seed, so a draw that repeats nothing is the same as in an infinite space.
            configuration = self._draw(seed_from(seed, attempt)) if attempt else first
            if config_hash(configuration) not in self._seen:
                return configuration
        every = (cast(Configuration, value) for value in every_value(self._space))
        unseen = [*itertools.islice((value for value in every if config_hash(value) not in self._seen), LISTED)]
        if unseen:
            return unseen[seed % len(unseen)]
        self._seen.clear()  # every configuration has been drawn: a new round begins
        return first
