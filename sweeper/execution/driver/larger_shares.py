"""The next try of a trial that ran out of its share of a GPU's memory: on a larger share."""

from __future__ import annotations

from dataclasses import replace

from sweeper.execution.driver.failures import GPU_OUT_OF_MEMORY, Failure


def larger_share(share: float) -> float | None:
    """Return the share on which to try again what ran out of memory: twice as much; `None` after a whole GPU."""
    return min(1.0, 2 * share) if share < 1 else None


def on_a_larger_share(failure: Failure, share: float | None) -> tuple[Failure, float | None]:
    """Return a failure as it is to be journaled, and the share for the next try where the GPU's memory ran out.

    A try on too small a share does not count against a trial's retries; one on a whole GPU does.
    """
    larger = larger_share(share) if share is not None and failure.kind == GPU_OUT_OF_MEMORY else None
    if larger is None:
        return failure, None
    reason = f"{failure.reason} (on {share:g} of a card; it is tried again on {larger:g})"
    return replace(failure, reason=reason, counts=False), larger
