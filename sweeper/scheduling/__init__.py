"""Which trials continue: decisions as pure functions of what reached each rung before, and of a report.

How one is added is said in `base`, with what holds for all of them: the end of a trial, and values that are no numbers.
`base.audit` recomputes any scheduler's decisions from the journal.
"""

from sweeper.scheduling.base import DEFAULT, SCHEDULERS, RungState, Scheduler, decide

SCHEDULERS.discover(__name__)

__all__ = ["DEFAULT", "SCHEDULERS", "RungState", "Scheduler", "decide"]
