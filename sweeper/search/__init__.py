"""Which configuration comes next: drawn from the space, or suggested by a searcher that learns. Knows no trial.

Imports `spec` and the fold of the journal; `ray` in `optuna_search` alone.
"""
