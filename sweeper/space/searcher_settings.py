"""The part `searcher` of a search space: who chooses configurations, and what that asks of the domains.

`random` draws each configuration by itself and takes the members of every `grid` in turn. `grid` takes the members of
every domain in turn, so each must have a countable few. `optuna` chooses from what was observed, so none may be a
`grid`: that every member comes in turn is a promise which a searcher that chooses cannot keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.core.errors import Fault
from sweeper.core.key_paths import join_path
from sweeper.space.domains.domains import INVALID, Constant, Fields, Interval, Members, Node, is_random, plain

STARTUP = 10
"""Trials drawn at random before TPE begins: `n_startup_trials` of Optuna's TPESampler, whose default this is."""

MOST_MEMBERS = 10_000
"""Of one `randint` or `quniform` that is taken member by member; a finer one is meant as an interval. Our choice."""

OPTUNA_ONLY = ("startup", "warm_start")


def check_searcher(values: dict[str, Any], nodes: dict[str, Node], faults: list[Fault]) -> dict[str, Node]:
    """Check the searcher against the space, fill in its defaults, and return the space as it will be searched.

    Args:
        values: of the file; those of `searcher` are completed in place. A wrong type is the structure's business.
        nodes: the parts of the space, resolved.
        faults: takes every rule that is broken.
    """
    searcher = values.get("searcher")
    if not isinstance(searcher, dict):
        return nodes
    name = searcher.get("name", "random")
    if name != "optuna":
        faults += [
            Fault(join_path("searcher", key), f"{key} is an option of optuna, and the searcher is {name}", "remove it")
            for key in OPTUNA_ONLY
            if searcher.get(key)
        ]
    if name == "grid":
        return {key: _enumerated(node, join_path("space", key), faults) for key, node in nodes.items()}
    if name == "optuna":
        named = searcher.get("warm_start")
        values["searcher"] = {
            **searcher,
            "startup": STARTUP if searcher.get("startup") is None else searcher["startup"],
            "warm_start": [named] if isinstance(named, str) else named or [],
        }
        for key, node in nodes.items():
            _refuse_grids(node, join_path("space", key), faults)
        if not any(map(is_random, nodes.values())) and not any(map(_has_grid, nodes.values())):
            rule = "optuna has nothing to choose: every value of the space is fixed"
            faults.append(Fault("searcher", rule, "give a domain, e.g. lr: {loguniform: [0.01, 0.3]}"))
    return nodes


def _enumerated(node: Node, path: str, faults: list[Fault]) -> Node:
    """Return the node with a `grid` in place of every domain; one that has no countable few members is a fault."""
    if isinstance(node, Fields):
        return Fields({key: _enumerated(member, join_path(path, key), faults) for key, member in node.nodes.items()})
    if isinstance(node, Interval):
        return _members_of(node, join_path(path, node.kind), faults)
    if isinstance(node, Members):
        inner = join_path(path, node.kind)
        members = [plain(member) for member in node.nodes]
        for index, member in enumerate(members):
            if member in members[:index]:
                faults.append(Fault(join_path(inner, index), f"{member!r} stands twice", "remove one of the two"))
        nodes = (_enumerated(member, join_path(inner, index), faults) for index, member in enumerate(node.nodes))
        return Members("grid", tuple(nodes))
    return node


def _members_of(node: Interval, path: str, faults: list[Fault]) -> Node:
    remedy = "write grid or choice with the values to try, or searcher: random"
    if node.kind not in ("randint", "quniform"):
        faults.append(Fault(path, f"{node.kind} has no members that the searcher grid could take in turn", remedy))
        return INVALID
    count = node.steps + 1 if node.kind == "quniform" else int(node.high) - int(node.low) + 1
    if count > MOST_MEMBERS:
        faults.append(Fault(path, f"{node.kind} has {count:,} members, more than a grid's {MOST_MEMBERS:,}", remedy))
        return INVALID
    if node.kind == "quniform":
        return Members("grid", tuple(Constant(node.on_step(k)) for k in range(count)))
    return Members("grid", tuple(Constant(type(node.low)(int(node.low) + k)) for k in range(count)))


def _refuse_grids(node: Node, path: str, faults: list[Fault]) -> None:
    if isinstance(node, Members) and node.kind == "grid":
        rule = "grid takes every member in turn, and the searcher optuna chooses among them"
        faults.append(Fault(join_path(path, "grid"), rule, "write choice instead of grid, or searcher: grid"))
    below: Mapping[str, Node] = node.nodes if isinstance(node, Fields) else {}
    for key, member in below.items():
        _refuse_grids(member, join_path(path, key), faults)
    if isinstance(node, Members):
        for index, member in enumerate(node.nodes):
            _refuse_grids(member, join_path(join_path(path, node.kind), index), faults)


def _has_grid(node: Node) -> bool:
    if isinstance(node, Fields):
        return any(map(_has_grid, node.nodes.values()))
    return isinstance(node, Members) and (node.kind == "grid" or any(map(_has_grid, node.nodes)))
