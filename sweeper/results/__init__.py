"""Reading sweeps, finished or running: SQL, Arrow, pandas, Polars over their tables; leaderboards; several as one."""

from sweeper.results.queries import QueryError
from sweeper.results.results import Results, load, sql
from sweeper.storage.lookup import UnknownSweepError, is_sweep, sweep_names

__all__ = ["QueryError", "Results", "UnknownSweepError", "is_sweep", "load", "sql", "sweep_names"]
