"""The searcher `random`: each configuration drawn independently, and the members of every `grid` in turn."""

from __future__ import annotations

from sweeper.search.base import SEARCHERS, SearchMethod
from trainables.registry import Component

SEARCHERS.register(
    Component(
        "random",
        SearchMethod,
        summary="draws each configuration independently; cycles through the values of every grid",
        source="Bergstra and Bengio 2012 (Random Search for Hyper-Parameter Optimization)",
    )
)
