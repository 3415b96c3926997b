"""What a scheduler decided about a trial, as journal and tables keep it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from sweeper.journal.fields import boolean, number, numbers, said, text, whole

DecisionKind = Literal["continue", "stop", "complete", "fail", "pause"]


@dataclass(frozen=True)
class Decision:
    """What the scheduler did with a trial at a rung, and why.

    Attributes:
        rung: the rung in epochs, or `None` when the decision was not made at a rung.
        kind: `continue`, `stop` (early), `pause` (until it is promoted or stopped), `complete` (reached the last
            epoch) or `fail`.
        reason: one sentence.
        metric: the trial's value of the objective; `None` where that is not a finite number, whatever was given.
        cutoff: the value it was compared with, or `None` when there was none.
        competitors: how many trials had reached the rung before it.
        stratum: the stratum within which it was compared; `None` where all trials compete in one pool.
        feasible: whether a trial that is complete keeps to the sweep's constraints, beside those complete before it.
        constrained: what a complete trial measured of the constraints' metrics, means over replicates; `None` where
            there are no constraints.
    """

    rung: int | None
    kind: DecisionKind
    reason: str
    metric: float | None
    cutoff: float | None
    competitors: int
    stratum: str | None = None
    feasible: bool = True
    constrained: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.metric is not None and not math.isfinite(self.metric):
            # A decision equals the one that is read back, and NaN equals nothing.
            object.__setattr__(self, "metric", None)

    def to_dict(self) -> dict[str, object]:
        """Return the decision as plain JSON values; what older journals lack is left out where it says nothing."""
        unsaid = {"stratum": None, "feasible": True, "constrained": None}
        return {key: value for key, value in vars(self).items() if key not in unsaid or value != unsaid[key]}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> Decision:
        """Read what `to_dict` wrote. Raises ValueError for a field that is missing or odd."""
        return Decision(
            whole(fields, "rung") if said(fields, "rung") else None,
            cast(DecisionKind, text(fields, "kind", get_args(DecisionKind))),
            text(fields, "reason"),
            number(fields, "metric") if said(fields, "metric") else None,
            number(fields, "cutoff") if said(fields, "cutoff") else None,
            whole(fields, "competitors"),
            text(fields, "stratum") if said(fields, "stratum") else None,
            boolean(fields, "feasible", True),
            numbers(fields, "constrained") if said(fields, "constrained") else None,
        )
