"""Searchers: choose the next configuration, drawn from the space or suggested by a method that learns.

To add a searcher, add one file to this folder; `base` shows its declarations.
Imports domains and the journal; only `optuna` imports Optuna, when a search begins.
"""

from sweeper.search.base import SEARCHERS, Searcher, SearchMethod, Suggestion

SEARCHERS.discover(__name__)

__all__ = ["SEARCHERS", "SearchMethod", "Searcher", "Suggestion"]
