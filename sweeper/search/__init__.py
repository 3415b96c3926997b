"""Which configuration comes next: drawn from the space, or suggested by a searcher that learns. Knows no trial.

A new searcher is one new file, which is found by its place; `base` shows what it declares.
Imports the domains of `space` and the fold of the journal; Optuna in `optuna` alone, where a search begins.
"""

from sweeper.search.base import SEARCHERS, Searcher, SearchMethod, Suggestion

SEARCHERS.discover(__name__)

__all__ = ["SEARCHERS", "SearchMethod", "Searcher", "Suggestion"]
