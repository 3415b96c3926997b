"""The searcher `optuna`: Optuna's tree-structured Parzen estimator, which chooses from what was observed.

So no domain may be a `grid`: that every member comes in turn is a promise which a searcher that chooses cannot keep.
How it asks Optuna is in `sweeper.search.optuna`, which imports Ray and Optuna; here nothing slow is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sweeper.core.domains import Fields, Members, Node, is_random
from sweeper.core.errors import Fault
from sweeper.core.json_types import join_path
from sweeper.search.base import SEARCHERS, WARM_START, Searcher, SearchMethod
from trainables.registry import Component, Hyperparameter

STARTUP = 10
"""Trials drawn at random before TPE begins: `n_startup_trials` of Optuna's TPESampler, whose default this is."""


@dataclass(frozen=True)
class TpeSearch(SearchMethod):
    """Searches with Optuna's TPE.

    Attributes:
        startup: trials that are drawn at random before it begins to model.
    """

    learns: ClassVar[bool] = True
    startup: int = STARTUP

    @property
    def course(self) -> str:
        """Trials at random, then those from what was observed."""
        return f"{self.startup} trials at random, then from what was observed"

    def suit(self, nodes: dict[str, Node], faults: list[Fault]) -> dict[str, Node]:
        """Refuse every `grid`, and a space in which nothing can be chosen."""
        for key, node in nodes.items():
            _refuse_grids(node, join_path("space", key), faults)
        if not any(map(is_random, nodes.values())) and not any(map(_has_grid, nodes.values())):
            rule = "optuna has nothing to search: every value of the space is fixed"
            faults.append(Fault("searcher", rule, "give a domain, e.g. lr: {loguniform: [0.01, 0.3]}"))
        return nodes

    def begin(self, space: Fields, *, metric: str, mode: str, seed: int) -> Searcher:
        """Return what chooses, with an empty history. Imports Ray and Optuna."""
        from sweeper.search.optuna import OptunaSearcher

        return OptunaSearcher(space, metric=metric, mode=mode, seed=seed, startup=self.startup)


def _refuse_grids(node: Node, path: str, faults: list[Fault]) -> None:
    if isinstance(node, Members) and node.kind == "grid":
        rule = "grid tries every member, but the searcher optuna chooses among them"
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


SEARCHERS.register(
    Component(
        "optuna",
        TpeSearch,
        (
            Hyperparameter(
                "startup",
                "integer",
                STARTUP,
                minimum=1,
                maximum=1_000_000,
                reason="the model needs at least one observation, and no sweep has more trials",
                source="Optuna's TPESampler, n_startup_trials",
            ),
            WARM_START,
        ),
        "learns from finished trials with Optuna's TPE; warm_start names earlier sweeps to learn from",
        "Bergstra et al. 2011 (Algorithms for Hyper-Parameter Optimization), section 4",
    )
)
