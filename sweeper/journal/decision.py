"""What a scheduler decided about a trial, as journal and tables keep it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

DecisionKind = Literal["continue", "stop", "complete", "fail"]


@dataclass(frozen=True)
class Decision:
    """What the scheduler did with a trial at a rung, and why.

    Attributes:
        rung: the rung in epochs, or `None` when the decision was not made at a rung.
        kind: `continue`, `stop` (early), `complete` (reached the last epoch) or `fail`.
        reason: one sentence.
        metric: the trial's value of the objective.
        cutoff: the value it was held against, or `None` when there was none.
        competitors: how many trials had reached the rung before it.
    """

    rung: int | None
    kind: DecisionKind
    reason: str
    metric: float | None
    cutoff: float | None
    competitors: int

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as plain JSON values."""
        fields = asdict(self)
        if self.metric is not None and not math.isfinite(self.metric):
            fields["metric"] = None
        return fields
