"""A store that does not answer is given up on; a machine that has no time for us is not."""

from __future__ import annotations

import time

from sweeper.tracking.projection import Watchdog

ANSWERS_WITHIN = 0.4


def _compute(seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        pass


def test_a_call_that_waits_too_long_is_given_up_when_the_sweep_is_over() -> None:
    given_up: list[bool] = []
    watchdog = Watchdog(over=lambda: True, give_up=lambda: given_up.append(True))
    with watchdog.asking(ANSWERS_WITHIN):
        time.sleep(3 * ANSWERS_WITHIN)
    assert given_up == [True]


def test_a_call_that_computes_is_not_given_up() -> None:
    """Making a store's tables takes seconds of our own, and minutes at the lowest priority beside busy cores."""
    given_up: list[bool] = []
    watchdog = Watchdog(over=lambda: True, give_up=lambda: given_up.append(True))
    with watchdog.asking(ANSWERS_WITHIN):
        _compute(4 * ANSWERS_WITHIN)
    assert not given_up


def test_nothing_is_given_up_before_the_sweep_is_over_or_while_the_store_answers() -> None:
    given_up: list[bool] = []
    watchdog = Watchdog(over=lambda: False, give_up=lambda: given_up.append(True))
    with watchdog.asking(ANSWERS_WITHIN):
        time.sleep(2 * ANSWERS_WITHIN)
    watchdog = Watchdog(over=lambda: True, give_up=lambda: given_up.append(True))
    with watchdog.asking(3.0):
        for _ in range(3):
            time.sleep(1.5)
            watchdog.heard()
    assert not given_up
