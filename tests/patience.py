"""How long tests wait before they give up: limits that grow with how slow and how busy this machine is.

A limit only ends what hangs. What a test waits for never depends on it, so a generous one costs nothing.
"""

import functools
import os
import time

REFERENCE_SECONDS = 0.02
"""Processor time of `_work` on the machine on which the limits were chosen."""

MOST = 8.0
"""A limit grows eightfold at most: what hangs must end in an hour, too."""


def patient(seconds: float) -> float:
    """Return a limit of so many seconds on a quiet, fast machine as one of this machine, as busy as it is now."""
    return seconds * slowness()


def slowness() -> float:
    """Return how many times longer than on a quiet, fast machine things may take here and now; at least 2."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(MOST, _speed() * max(2.0, waiting))


@functools.cache
def _speed() -> float:
    """Return how many times slower this machine computes than the reference; the best of three, so load is no part."""
    return max(1.0, min(_work() for _ in range(3)) / REFERENCE_SECONDS)


def _work() -> float:
    began = time.process_time()
    sum(number * number for number in range(300_000))
    return time.process_time() - began
