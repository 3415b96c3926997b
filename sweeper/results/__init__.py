"""Reading sweeps, finished or running: SQL, Arrow, pandas and Polars over their tables, leaderboards, several at once."""

from sweeper.results.queries import QueryError
from sweeper.results.results import Results, UnknownSweepError, is_sweep, load, sql, sweep_names

__all__ = ["QueryError", "Results", "UnknownSweepError", "is_sweep", "load", "sql", "sweep_names"]
