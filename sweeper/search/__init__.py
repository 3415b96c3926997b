"""Which configuration comes next: drawn from the space, or suggested by a searcher that learns. Knows no trial.

A new searcher is one new file that registers itself, and one import below. Imports the domains of `space` and the fold
of the journal; `ray` in `optuna` alone.
"""

from importlib import import_module

from sweeper.search.base import SEARCHERS, Searcher, SearchMethod, Suggestion

import_module("sweeper.search.random")
import_module("sweeper.search.grid")
import_module("sweeper.search.tpe")

__all__ = ["SEARCHERS", "SearchMethod", "Searcher", "Suggestion"]
