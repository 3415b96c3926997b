"""What follows a failure: another try, on a larger share of a GPU where its memory ran out, or none."""

from __future__ import annotations

from dataclasses import replace

from sweeper.execution.driver.failures import GPU_OUT_OF_MEMORY, Failure, capped
from sweeper.journal.state import ReplicateState, TrialState


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


def next_try(
    failure: Failure, before: TrialState | ReplicateState, share: float | None, retries: int
) -> tuple[Failure, float | None, bool]:
    """Return a failure as it is to be journaled, the share for the next try, and whether there is none.

    Args:
        failure: this time's.
        before: what has come of the trial, or of the replicate, before it.
        share: of a GPU that it ran on; `None` where a larger one would not help.
        retries: how often it may fail in a way that counts.
    """
    failure, larger = on_a_larger_share(failure, share)
    failure = capped(failure, before.fruitless)
    given_up = failure.counts and before.failures >= retries
    if given_up and before.failures:
        failure = replace(failure, reason=f"{failure.reason} (after {before.failures + 1} tries)")
    return failure, larger, given_up
