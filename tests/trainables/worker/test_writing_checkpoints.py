"""Checkpoints are written from a copy, one at a time, no more often than asked for; what fails is raised later."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainables.small_data import small_digits
from tests.trainables.small_trials import assignment, finished, timeless
from tests.trainables.worker.test_trial import CASES, SETTINGS, named
from trainables.worker import checkpoints
from trainables.worker.checkpoints import (
    PARTIAL,
    CheckpointWriter,
    HostCopy,
    TrialFiles,
    checkpoint_epochs,
    checkpoint_file,
    load_newest_checkpoint,
    load_partial,
    write_checkpoint,
)
from trainables.worker.trial import Trial


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _writer(folder, every=10.0, keep=1):
    clock = _Clock()
    files = TrialFiles(Path("c00007"), tables=None, checkpoints=folder)
    return CheckpointWriter(files, every, keep, clock), clock


@pytest.fixture
def slow(monkeypatch):
    """The disk waits for a word with every checkpoint; how many are under way is counted."""
    go, most, under_way = threading.Semaphore(0), [0], [0]
    write = checkpoints.write_checkpoint

    def slowly(*arguments):
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        go.acquire()
        under_way[0] -= 1
        return write(*arguments)

    monkeypatch.setattr(checkpoints, "write_checkpoint", slowly)
    return go, most


def test_what_is_written_is_the_state_of_that_moment(tmp_path, slow):
    writer, _ = _writer(tmp_path)
    state = {"weights": torch.ones(3), "nested": [{"moments": torch.zeros(2)}], "epoch": 1}
    writer.write(1, state)
    state["weights"].fill_(7), state["nested"][0]["moments"].fill_(7)
    assert not (tmp_path / "c00007").exists()
    slow[0].release()
    writer.settle()
    found = load_newest_checkpoint(tmp_path / "c00007")
    assert found["weights"].tolist() == [1, 1, 1] and found["nested"][0]["moments"].tolist() == [0, 0]


def test_one_is_due_when_its_time_has_come_and_none_is_under_way(tmp_path, slow):
    writer, clock = _writer(tmp_path)
    assert not writer.due
    clock.now = 10
    assert writer.due
    writer.write(1, {})
    clock.now = 40
    assert not writer.due, "the first is still being written"
    slow[0].release(2)
    writer.write(2, {})
    writer.settle()
    assert slow[1] == [1], "never two at once"
    clock.now = 49
    assert not writer.due
    clock.now = 50
    assert writer.due and checkpoint_epochs(tmp_path / "c00007") == [2, 1]


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_stay(tmp_path, keep):
    writer, _ = _writer(tmp_path, keep=keep)
    for epoch in range(1, 6):
        writer.write(epoch, {})
    writer.settle()
    assert checkpoint_epochs(tmp_path / "c00007") == [5, 4, 3, 2, 1], "until the newest one's report is journaled"
    writer.prune()
    assert checkpoint_epochs(tmp_path / "c00007") == [5, 4, 3][:keep]


def test_what_kept_one_from_being_written_is_raised_at_the_next(tmp_path):
    (tmp_path / "c00007").write_text("a file in the way")
    writer, _ = _writer(tmp_path)
    writer.write(1, {})
    with pytest.raises(OSError, match="c00007"):
        writer.write(2, {})


def test_shared_and_sliced_tensors_are_copied_as_they_are():
    whole = torch.arange(10.0)
    copy = HostCopy()({"slice": whole[2:4], "pair": (whole, 3), "none": None})
    assert copy["slice"].untyped_storage().nbytes() == 8 and copy["pair"][0].equal(whole) and copy["pair"][1] == 3


@pytest.mark.parametrize("case", CASES[:2], ids=named)
def test_a_trial_with_few_checkpoints_resumes_to_the_same_bits(tmp_path, case):
    """It reports every epoch and has checkpoints at rungs alone: epochs after them are trained again, and equal."""
    dataset = small_digits()
    settings = replace(SETTINGS, checkpoints=tmp_path, report_seconds=0.0, rungs=(2, 4), checkpoint_seconds=1e9)
    expected = finished(Trial(case, settings, dataset))
    folder = tmp_path / "c00007"
    assert checkpoint_epochs(folder) == [4, 2]
    checkpoint_file(folder, 4).unlink(), checkpoint_file(folder, 2).unlink()
    trial = Trial(case, settings, dataset)
    seen = [trial.advance() for _ in range(3)]
    assert [report.epoch for report in seen] == [1, 2, 3] and checkpoint_epochs(folder) == [2]
    resumed = Trial(case, settings, dataset)
    assert resumed.epoch == 2
    assert timeless(finished(resumed)) == timeless(expected[1:])


def test_a_trial_that_is_left_has_a_checkpoint_of_its_last_report(tmp_path):
    dataset = small_digits()
    settings = replace(SETTINGS, checkpoints=tmp_path, report_seconds=0.0, rungs=(4,), checkpoint_seconds=1e9)
    expected = finished(Trial(assignment(), settings, dataset))
    checkpoint_file(tmp_path / "c00007", 4).unlink()
    trial = Trial(assignment(), settings, dataset)
    trial.advance(), trial.advance()
    assert checkpoint_epochs(tmp_path / "c00007") == []
    trial.leave()
    resumed = Trial(assignment(), settings, dataset)
    assert resumed.epoch == 2
    assert timeless(finished(resumed)) == timeless(expected[1:])


def test_an_epoch_that_lasts_long_is_written_in_its_midst_and_a_short_one_is_not(tmp_path):
    writer, clock = _writer(tmp_path)
    clock.now = 9.0
    writer.begin_epoch()
    clock.now = 12.0
    assert writer.due and not writer.due_within, "it will be due when the epoch ends"
    clock.now = 19.0
    assert writer.due_within
    writer.write(None, {"epoch": 0})
    writer.settle()
    assert load_partial(tmp_path / "c00007") == {"epoch": 0}
    assert not writer.due_within
    clock.now = 29.0
    assert writer.due_within
    never, clock = _writer(tmp_path, every=0.0)
    clock.now = 1e9
    assert not never.due_within


def test_the_epochs_own_checkpoint_takes_the_place_of_the_one_in_its_midst(tmp_path):
    writer, clock = _writer(tmp_path)
    clock.now = 10.0
    writer.write(None, {"epoch": 0})
    writer.write(1, {"epoch": 1})
    writer.settle()
    assert not (tmp_path / "c00007" / PARTIAL).exists() and checkpoint_epochs(tmp_path / "c00007") == [1]
    write_checkpoint(tmp_path / "c00007", None, {"epoch": 0})  # as a process leaves it that dies between the two
    assert load_partial(tmp_path / "c00007") is None
