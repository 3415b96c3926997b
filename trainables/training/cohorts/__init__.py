"""Cohorts: networks of several configurations, trained side by side as lanes of one batched network.

A lane has its own loss, learning rate, momentum, decay, clipping, schedule, order of data and random numbers, and may
be at another epoch than its neighbours. Lanes come and go between epochs. Imports `trainables.training.lanes` and what
that imports; `trainables.worker` fills cohorts with trials.
"""

from trainables.training.cohorts.cohort import COHORT, Cohort, CohortAlone
from trainables.training.cohorts.membership import cohort_fault, cohort_key

__all__ = ["COHORT", "Cohort", "CohortAlone", "cohort_fault", "cohort_key"]
