"""Which trials continue: decisions as pure functions of what reached each rung before, and of a report.

A new scheduler is one new file that registers itself, and one import below. What holds for all of them, the end of a
trial and values that are no numbers, is in `base`; `audit` recomputes any scheduler's decisions from the journal.
"""

from importlib import import_module

from sweeper.scheduling.base import DEFAULT, SCHEDULERS, RungState, Scheduler, decide

import_module("sweeper.scheduling.asha_variants")
import_module("sweeper.scheduling.median_stopping")
import_module("sweeper.scheduling.run_to_end")

__all__ = ["DEFAULT", "SCHEDULERS", "RungState", "Scheduler", "decide"]
