"""The searcher `grid`: every combination of the domains' members, so every domain must be finite."""

from __future__ import annotations

from sweeper.core.domains import INVALID, Constant, Fields, Interval, Members, Node, plain, refused, repeats
from sweeper.core.errors import Fault
from sweeper.core.json_types import join_path
from sweeper.search.base import SEARCHERS, SearchMethod

#: Of one `randint` or `quniform` that is taken member by member; a finer one is meant as an interval. Our choice.
MOST_MEMBERS = 10_000


@SEARCHERS.add("grid")
class GridSearch(SearchMethod):
    """Tries every combination of the values of all domains.

    Takes the members of every domain in turn, as if each were a `grid`.
    """

    def suit(self, nodes: dict[str, Node], faults: list[Fault]) -> dict[str, Node]:
        """Return the parts of a space with a `grid` in place of every domain; one without members is a fault."""
        return {key: _enumerated(node, join_path("space", key), faults) for key, node in nodes.items()}


def _enumerated(node: Node, path: str, faults: list[Fault]) -> Node:
    """Return the node with a `grid` in place of every domain; one that has no countable few members is a fault."""
    if isinstance(node, Fields):
        return Fields({key: _enumerated(member, join_path(path, key), faults) for key, member in node.nodes.items()})
    if isinstance(node, Interval):
        return _members_of(node, join_path(path, node.kind), faults)
    if isinstance(node, Members):
        inner = join_path(path, node.kind)
        if not any(member is INVALID for member in node.nodes):  # whose plain values are all None
            faults += repeats([plain(member) for member in node.nodes], inner)
        nodes = (_enumerated(member, join_path(inner, index), faults) for index, member in enumerate(node.nodes))
        return Members("grid", tuple(nodes))
    return node


def _members_of(node: Interval, path: str, faults: list[Fault]) -> Node:
    remedy = "write grid or choice with the values to try, or searcher: random"
    if node.kind not in ("randint", "quniform"):
        return refused(faults, path, f"{node.kind} has no finite list of members for the searcher grid", remedy)
    count = node.steps + 1
    if count > MOST_MEMBERS:
        return refused(faults, path, f"{node.kind} has {count:,} members, more than a grid's {MOST_MEMBERS:,}", remedy)
    return Members("grid", tuple(Constant(node.on_step(k)) for k in range(count)))
