"""The scheduler `asha` as a search space names it, with its settings and variants."""

from __future__ import annotations

from typing import Any, Literal

from sweeper.scheduling.asha import Halving
from sweeper.scheduling.base import GRACE_EPOCHS, MAX_EPOCHS, TOO_SMALL, WITHIN, grace_before_the_end
from sweeper.scheduling.promotion import Promotion
from trainables.registry import Component, Hyperparameter

KEEP_AT_LEAST = Hyperparameter(
    "keep_at_least",
    "integer",
    minimum=1,
    reason="it counts trials of each stratum, or of the sweep, that continue from every rung",
    source="none by default, as in Li et al. 2020",
)

VARIANT = Hyperparameter(
    "variant",
    "text",
    choices=("stopping", "promotion"),
    source="stopping by default: no worker waits, and no trial is resumed",
)


def build(metric: str, mode: Literal["min", "max"], *, variant: str | None = None, **settings: Any) -> Halving:
    """Return the scheduler in the variant that a search space names; `stopping` where it names none."""
    return (Promotion if variant == "promotion" else Halving)(metric, mode, **settings)


COMPONENTS = (
    Component(
        "asha",
        build,
        (
            MAX_EPOCHS,
            GRACE_EPOCHS,
            Hyperparameter(
                "reduction_factor",
                "integer",
                3,
                minimum=2,
                reason="below 2, more than half of the trials would continue",
                source="Li et al. 2018 (Hyperband), section 2.6: the theory's optimum is e ≈ 2.72",
            ),
            KEEP_AT_LEAST,
            VARIANT,
            WITHIN,
            TOO_SMALL,
        ),
        "asynchronous successive halving: a trial continues if it is among the best 1/reduction_factor at its rung",
        "Li et al. 2020 (arXiv:1810.05934); unless variant is promotion, the stopping variant of Ray Tune",
        check=grace_before_the_end,
    ),
)
