"""When another try follows a failure, and how long it waits."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sweeper.execution.driver.judging import (
    FRUITLESS_TRIES,
    LITTLE_MEMORY,
    LONGEST_PAUSE,
    memory_failure,
    next_try,
    pause_before,
    waits,
)
from sweeper.journal.state import TrialState
from trainables.worker.trial_reports import CRASH, PREEMPTED, Failure


def test_what_does_not_count_is_capped() -> None:
    preempted = Failure(PREEMPTED, counts=False)
    assert next_try(preempted, TrialState(configuration=0, fruitless=FRUITLESS_TRIES - 1), None, 2)[0] is preempted
    counted = next_try(preempted, TrialState(configuration=0, fruitless=FRUITLESS_TRIES), None, 2)[0]
    assert counted == Failure(PREEMPTED, {"fruitless": FRUITLESS_TRIES + 1}, counts=True)
    crash = Failure(CRASH)
    assert next_try(crash, TrialState(configuration=0, fruitless=1000), None, 2)[0] is crash


def test_the_last_of_several_tries_says_how_many_there_were() -> None:
    failure, _, given_up = next_try(Failure(CRASH), TrialState(configuration=0, failures=2), None, 2)
    assert given_up and failure.values == {"tries": 3}


@pytest.mark.parametrize(("held", "blamed"), [(LITTLE_MEMORY / 2, False), (LITTLE_MEMORY, True), (1.0, True)])
def test_what_held_little_memory_waits_and_is_not_to_blame(held: float, blamed: bool) -> None:
    failure = memory_failure(held)
    assert failure.counts is blamed and waits(failure) is not blamed


def test_pauses_double_and_are_bounded() -> None:
    pauses = [pause_before(tries) for tries in range(100)]
    assert all(later == min(2 * one, LONGEST_PAUSE) for one, later in pairwise(pauses)) and pauses[0] > 0
