"""What several controllers ask for, and presses of Ctrl-C."""

import os
import signal
import threading
from pathlib import Path

import pytest

from sweeper.execution.driver.steering import ACKNOWLEDGED, HURRIED, Interrupts, Steering
from trainables.worker.trial_reports import Reason


class Asks:
    """A controller that asks for a stop."""

    def __init__(self, kind: str) -> None:
        self.reason = Reason(kind)

    def tick(self, steering: Steering) -> None:
        steering.ask_to_stop(self.reason)


def test_nothing_is_asked_for_without_controllers(tmp_path: Path) -> None:
    steering = Steering([], tmp_path / "stop", lambda: 0.0)
    steering.follow()
    assert steering.closing is None and steering.slots is None


def test_the_first_reason_counts(tmp_path: Path) -> None:
    steering = Steering([Asks("first"), Asks("second")], tmp_path / "stop", lambda: 0.0)
    for _ in range(2):
        steering.follow()
        assert steering.closing == steering.stop_requested == Reason("first")


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_each_press_is_answered_at_once_and_none_raises_while_trials_train() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(said.append).listening() as interrupts:
        press()
        assert said == [ACKNOWLEDGED] and interrupts.presses == 1
        press()
        assert said == [ACKNOWLEDGED, HURRIED] and interrupts.presses == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_what_follows_goes_on_after_one_press_and_is_skipped_by_the_second() -> None:
    with Interrupts().listening() as interrupts:
        press()
        with interrupts.skippable():
            pass
        with pytest.raises(KeyboardInterrupt), interrupts.skippable():
            press()
            raise AssertionError("the second press did not end the block")
        with pytest.raises(KeyboardInterrupt), interrupts.skippable():
            raise AssertionError("a second press before the block did not skip it")


def test_one_press_while_tables_are_written_does_not_lose_them() -> None:
    said: list[str] = []
    with Interrupts(said.append).listening() as interrupts, interrupts.skippable():
        press()
    assert said == [ACKNOWLEDGED]


def test_in_another_thread_nothing_is_changed() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def listen() -> None:
        with Interrupts().listening():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [before]
