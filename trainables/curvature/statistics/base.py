"""What a curvature statistic is, and the registry of all of them by name.

Adding one: a file of this folder with a function of a `Measurement`, and the `COMPONENTS` that describe it; no other
file lists them. The table `evaluations` gets its columns `hessian_<loss>_<name>`; leaderboard, trial pages, model
cards and reports show those that declare themselves a `headline`.

    def condition(found: Measurement) -> float:
        return found.ends.lambda_max / abs(found.ends.lambda_min)

    COMPONENTS = (
        Statistic("condition", condition, label="κ", summary="largest eigenvalue over the smallest", headline=True),
    )

Its test compares it with the dense Hessian of a small network, as `tests/trainables/curvature/test_measure.py` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainables.registry import Component, Registry

if TYPE_CHECKING:
    from trainables.curvature.hessian import HessianOperator
    from trainables.curvature.lanczos import Lanczos
    from trainables.curvature.trace import TraceEstimate

PREFIX = "hessian_"
"""What the columns' names begin with."""

LOSS_WORDS = {"cross_entropy": "cross-entropy", "training": "training"}
"""The losses whose Hessian may be measured, in words; cross-entropy's can be compared among training losses."""


@dataclass(frozen=True)
class Measurement:
    """What was computed of one loss's Hessian H.

    Attributes:
        operator: gives products with H, the gradient, and how many products were taken.
        ends: the Lanczos run for both ends of the spectrum.
        trace: the estimate of Tr(H).
        samples: the samples that the loss is a mean over.
    """

    operator: HessianOperator
    ends: Lanczos
    trace: TraceEstimate
    samples: int


@dataclass(frozen=True)
class Statistic(Component):
    """One number of a Hessian; `build` computes it from a `Measurement`.

    Attributes:
        label: how tables and figures call it.
        headline: whether leaderboard, trial pages, model cards and reports show it; the others say how it was measured.
        counted: whether it is a whole number.
    """

    label: str = ""
    headline: bool = False
    counted: bool = False


STATISTICS = Registry("curvature statistic")


def headline_columns() -> tuple[str, ...]:
    """Return the columns that people are shown, loss by loss."""
    shown = [each.name for each in STATISTICS.built_in() if isinstance(each, Statistic) and each.headline]
    return tuple(f"{PREFIX}{loss}_{name}" for loss in LOSS_WORDS for name in shown)


def statistic_of(column: str) -> tuple[str, Statistic] | None:
    """Return the loss and the statistic whose column this is, or `None` for another column."""
    if column.startswith(PREFIX):
        for loss in LOSS_WORDS:
            name = column.removeprefix(f"{PREFIX}{loss}_")
            found = STATISTICS[name] if name != column and name in STATISTICS else None
            if isinstance(found, Statistic):
                return loss, found
    return None


def statistic_words(column: str) -> str | None:
    """Return how a column is called, e.g. `cross-entropy λ_max`; `None` for one that is no statistic's."""
    found = statistic_of(column)
    return None if found is None else f"{LOSS_WORDS[found[0]]} {found[1].label}"
