"""The searcher `grid`: every combination of the domains' members, so every domain must be finite."""

from __future__ import annotations

import math

from sweeper.core.domains.base import Interval
from sweeper.core.domains.grid import Grid
from sweeper.core.domains.nodes import INVALID, Constant, Fields, Members, Node, refused
from sweeper.core.domains.values import join_path, repeats
from sweeper.core.errors import Fault
from sweeper.search.base import SEARCHERS, SearchMethod

#: Largest number of members of one `randint` or `quniform` in a grid (our choice). A finer domain is probably meant as
#: an interval.
MOST_MEMBERS = 10_000


@SEARCHERS.add("grid")
class GridSearch(SearchMethod):
    """Tries every combination of the values of all domains.

    Takes the members of every domain in turn, as if each were a `grid`.

    Example:
        >>> from sweeper.core.domains.randint import RandInt
        >>> from sweeper.core.domains.uniform import Uniform
        >>> faults = []
        >>> GridSearch().adapt({"depth": RandInt(1, 3)}, faults)["depth"].kind, faults
        ('grid', [])
        >>> space = GridSearch().adapt({"lr": Uniform(0.0, 1.0)}, faults)
        >>> faults[0].rule
        'uniform has no finite list of members for the searcher grid'
    """

    def adapt(self, nodes: dict[str, Node], faults: list[Fault]) -> dict[str, Node]:
        """Replace every domain with a `grid`. A domain without a finite list of members is a fault."""
        return {key: _enumerated(node, join_path("space", key), faults) for key, node in nodes.items()}


def _enumerated(node: Node, path: str, faults: list[Fault]) -> Node:
    """Replace every domain of a node with a `grid`. Append a fault for a domain with infinitely or too many members."""
    if isinstance(node, Fields):
        return Fields({key: _enumerated(member, join_path(path, key), faults) for key, member in node.nodes.items()})
    if isinstance(node, Interval):
        return _members_of(node, join_path(path, node.kind), faults)
    if isinstance(node, Members):
        inner = join_path(path, node.kind)
        # A `choice` can repeat a value to give it more weight, but a grid would train it twice. Invalid members are all
        # equal (None).
        if not any(member is INVALID for member in node.nodes):
            faults += repeats([member.plain() for member in node.nodes], inner)
        nodes = (_enumerated(member, join_path(inner, index), faults) for index, member in enumerate(node.nodes))
        return Grid(tuple(nodes))
    return node


def _members_of(node: Interval, path: str, faults: list[Fault]) -> Node:
    remedy = "write grid or choice with the values to try, or searcher: random"
    # The other intervals are continuous. Choosing a spacing here would be invisible to the user.
    if node.size == math.inf:
        return refused(faults, path, f"{node.kind} has no finite list of members for the searcher grid", remedy)
    if node.size > MOST_MEMBERS:
        rule = f"{node.kind} has {int(node.size):,} members, more than a grid's {MOST_MEMBERS:,}"
        return refused(faults, path, rule, remedy)
    return Grid(tuple(map(Constant, node.every_value())))
