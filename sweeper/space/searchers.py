"""The searcher that a search space file asks for, ready to be told of the journal."""

from __future__ import annotations

from sweeper.search.base import Searcher
from sweeper.space.models import SweepSpec


def searcher_for(spec: SweepSpec) -> Searcher:
    """Return what chooses the configurations of `spec`, whose searcher learns; it has been told nothing yet."""
    from sweeper.search.optuna import OptunaSearcher  # imports Ray

    goal = spec.objective
    return OptunaSearcher(
        spec.space, metric=goal.metric, mode=goal.mode, seed=spec.seed, startup=spec.searcher.startup or 0
    )
