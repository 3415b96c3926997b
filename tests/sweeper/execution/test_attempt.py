"""What a driver says of repeatability, and what it imports meanwhile."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sweeper.execution.attempt import import_meanwhile
from sweeper.execution.resuming import begun_trials, repeatability_notes
from sweeper.journal.state import COMPLETED, SweepState


def _state(device: str) -> SweepState:
    """Four trials: two finished, one begun, one waiting."""
    state = SweepState(4)
    for index, (epochs, status) in enumerate([(9, COMPLETED), (9, COMPLETED), (4, "interrupted")]):
        trial = state.trials[index]
        trial.device, trial.epochs, trial.status = device, epochs, status
    return state


def test_what_a_driver_continues_are_the_trials_that_have_reported_and_not_ended() -> None:
    assert begun_trials(_state("cuda")) == {2}


def test_continued_trials_are_told_on_a_gpu() -> None:
    state = _state("cuda")
    (note,) = repeatability_notes(state, begun_trials(state), deterministic=False)
    assert note.startswith("1 trial continued on a GPU without training: {deterministic: true}")
    assert "not to the bit" in note


@pytest.mark.parametrize(("device", "deterministic"), [("cpu", False), ("cuda", True), ("cpu", True)])
def test_nothing_is_said_where_bits_repeat(device: str, deterministic: bool) -> None:
    assert repeatability_notes(_state(device), (2,), deterministic=deterministic) == []
    assert repeatability_notes(SweepState(4), (), deterministic=False) == []


def test_modules_are_there_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needed_at_the_end.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_meanwhile("needed_at_the_end").join(60)
    assert sys.modules["needed_at_the_end"].VALUE == 3


def test_a_missing_module_is_left_to_who_needs_it(recwarn: pytest.WarningsRecorder) -> None:
    thread = import_meanwhile("there_is_no_such_module")
    thread.join(60)
    assert not thread.is_alive()
    assert not recwarn.list
