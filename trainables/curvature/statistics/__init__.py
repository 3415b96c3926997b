"""Curvature statistics by name; `base` says how to add one.

The modules import nothing heavy at the top, because readers of results need only columns and labels.
"""

from trainables.curvature.statistics.base import STATISTICS, statistic_names

STATISTICS.discover(__name__)

#: Statistics measured for every loss's Hessian; each is a column `hessian_<loss>_<statistic>` in `evaluations`.
CURVATURE_FIELDS = statistic_names()
