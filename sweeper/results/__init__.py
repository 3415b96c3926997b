"""Read sweeps, finished or running: tables by SQL, Arrow, pandas and Polars; leaderboards; several sweeps as one.

Start with `load(name)`, or `sql(name, query)` for one query.
"""

from sweeper.results.queries import QueryError
from sweeper.results.results import Results, load, sql
from sweeper.storage.lookup import UnknownSweepError, is_sweep, sweep_names

__all__ = ["QueryError", "Results", "UnknownSweepError", "is_sweep", "load", "sql", "sweep_names"]
