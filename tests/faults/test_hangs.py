"""Trials that hang inside an epoch, in real processes of a real cluster: ended, counted, their neighbours unhurt."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.ids import SweepPaths
from sweeper.journal import read_journal
from sweeper.results import load
from sweeper.state import ENDED, fold
from tests.faults.misbehaving import BAD, misbehave
from tests.faults.reference import SMALL, undisturbed
from tests.running import metrics_by_key, reports, same, write_space

COUNT = 4
SPACE = SMALL.replace("grace_epochs: 1", "grace_epochs: 3") % {"samples": COUNT}


def check_neighbours(paths: SweepPaths, space: Path) -> None:
    """All others ended well, with the metrics of a sweep in which nothing hangs."""
    expected = undisturbed(space).metrics
    trials = fold(read_journal(paths.journal), COUNT).trials
    assert all(trial.status in ENDED for trial in trials.values())
    for number, trial in trials.items():
        assert (trial.status == "failed") == (number == BAD)
        assert number == BAD or trial.failures == 0
    measured = metrics_by_key(reports(paths))
    for key in measured.keys() & expected.keys():
        assert all(same(value, expected[key][name]) for name, value in measured[key].items()), key
    assert {key[0] for key in measured} >= set(range(COUNT)) - {BAD}


@pytest.mark.parametrize(
    ("kind", "retries", "said"),
    [
        ("wait_for_ever", 0, "(in wait, "),
        pytest.param("lock_up", 1, ", and could not be interrupted (after 2 tries)", marks=pytest.mark.slow),
    ],
)
def test_a_trial_that_hangs_inside_an_epoch_is_ended(tmp_path: Path, kind: str, retries: int, said: str) -> None:
    text = SPACE.replace("retries: 100", f"retries: {retries}\nhang_timeout: 4")
    space = write_space(tmp_path, text)
    paths = misbehave(kind, space, tmp_path, cpus=2)
    failed = [record.body for record in read_journal(paths.journal) if record.kind == "failed"]
    assert [(body["configuration"], body["kind"], body["counts"]) for body in failed] == [(BAD, "hung", True)] * (
        retries + 1
    )
    assert [body["final"] for body in failed] == [False] * retries + [True]
    assert failed[-1]["reason"].startswith("its process did no work for") and said in failed[-1]["reason"]
    assert "hang_timeout = 4 s" in failed[-1]["reason"]
    rows = load(paths.root).rows(f"SELECT * FROM trials WHERE trial LIKE '%{BAD}'")
    assert {(row["status"], row["stop_kind"]) for row in rows} == {("failed", "hung")}
    check_neighbours(paths, space)
