"""Balanced draws: each loss and each network gets the same number of configurations, ± 1, whatever the number of draws.

Losses are compared as tuned, so one with more draws has an advantage. The members of the parts' `choice` and `one_of`
are therefore drawn in turn instead of independently, in an order that depends on the seed. After as many draws as there
are combinations of members, each combination has occurred once. Everything else is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.core.domains.base import Choice, Fields, Interval, Members
from sweeper.core.domains.tree import Uniforms, grid_size
from sweeper.core.ids import seed_from


class BalancedMembers:
    """The members that configurations get, a function of (space, seed, index) alone.

    Draw t takes member t mod n₁ of the first part, member (t + ⌊t / lcm(n₁, n₂)⌋) mod n₂ of the second, and so on. So
    after every draw, the numbers of each part's members differ by at most 1, and so do those of pairs of members of the
    first two parts. Grid points are a part before the others. A member that stands twice is drawn twice as often. A
    further part changes no draw of the parts before it.

    Example:
        >>> from sweeper.core.domains.tree import parse
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
        self._points = grid_size(space)

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
class Balanced:
    """Chooses given members for some parts, and everything else at random."""

    members: Mapping[str, int]
    others: Uniforms

    def member(self, path: str, members: Members) -> int:
        """Return a member's index."""
        return self.members[path] if path in self.members else self.others.member(path, members)

    def number(self, path: str, interval: Interval) -> Choice:
        """Return a choice, distributed as the interval says."""
        return self.others.number(path, interval)
