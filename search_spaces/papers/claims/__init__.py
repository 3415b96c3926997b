"""The papers' main claims, each judged from result tables by a rule that was fixed before looking.

    from search_spaces.papers.claims import CLAIMS
    CLAIMS["curvature_falls_with_gamma"].judge(claim_rows(results))

A claim is judged by a pure function of rows of the view `final`, or of `epochs`. It holds if its 95 % interval lies on
its side of 0, and does not hold if the interval lies on the other side. Otherwise it is undecided, also if too few
configurations or replicates were run. Each judge's docstring states its rule; `sweeper claims` prints them.
"""

from search_spaces.papers.claims import curvature, losses, posthoc  # noqa: F401  (registers them)
from search_spaces.papers.claims.base import CLAIMS

__all__ = ["CLAIMS"]
