"""Schedulers decide which trials continue: pure functions of a report and of the earlier values at each rung.

`base` explains how to add a scheduler and holds the rules shared by all: how a trial ends, and non-finite objectives.
`base.audit` recomputes the decisions of any scheduler from the journal.
"""

from sweeper.scheduling.base import DEFAULT, SCHEDULERS, RungState, Scheduler, decide

SCHEDULERS.discover(__name__)

__all__ = ["DEFAULT", "SCHEDULERS", "RungState", "Scheduler", "decide"]
