"""When a head asks for another start, and when it has seen enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.execution.slurm.head import fruitless
from sweeper.journal.journal import Journal
from sweeper.journal.segments import last_sequence
from tests.sweeper.records import made_body


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([], True),  # nothing was ever trained
        (["attempt"], True),
        (["attempt", "started", "failed", "ended"], True),  # a driver that starts trials and dies writes, too
        (["attempt", "started", "report"], False),
        (["attempt", "started", "replicate"], False),
    ],
)
def test_starts_that_measure_nothing_are_fruitless_whatever_they_write(
    tmp_path: Path, written: list[str], expected: bool
) -> None:
    journal, starts = Journal(tmp_path, durable=False), list[int]()
    for kind in ("attempt", "started", "report"):  # of an earlier start, which trained
        journal.append(made_body(kind))
    for _ in range(3):
        assert not fruitless(tmp_path, starts), "after too few starts"
        starts.append(last_sequence(tmp_path))
        for kind in written:
            journal.append(made_body(kind))
    assert fruitless(tmp_path, starts) == expected


def test_a_sweep_without_a_journal_has_come_to_nothing(tmp_path: Path) -> None:
    assert fruitless(tmp_path / "journal", [-1, -1, -1]) and not fruitless(tmp_path / "journal", [-1, -1])
