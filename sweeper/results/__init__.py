"""Read sweeps, finished or running: tables by SQL and as Arrow; leaderboards.

Start with `load(name)`.
"""

from sweeper.results.queries import QueryError
from sweeper.results.results import Results, load
from sweeper.storage.lookup import UnknownSweepError, is_sweep, sweep_names

__all__ = ["QueryError", "Results", "UnknownSweepError", "is_sweep", "load", "sweep_names"]
