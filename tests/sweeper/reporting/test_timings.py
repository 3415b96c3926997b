"""Phases follow each other in time and add up to the whole."""

import time
from typing import Any

import pytest

from sweeper.journal.journal import read_journal
from sweeper.journal.records import Record
from sweeper.reporting.live import Timings, process_began
from tests.sweeper.records import made_body

JOURNALED = ["ready for trials", "first report", "last report", "end recorded"]


@pytest.fixture
def records(random_sweep: Any) -> list[Record]:
    sweep = random_sweep(1, count=3)
    journal = sweep.journal()
    for kind, body in sweep.events(None, 10_000):
        journal.append(made_body(kind, body))
    return list(read_journal(sweep.paths.journal))


def test_phases_come_in_order_and_add_up(records: list[Record]) -> None:
    timings = Timings(records[0].time - 2)
    timings.read(records)
    timings.note("summary printed")
    names = [name for name, _, _ in timings.phases]
    assert names == [*JOURNALED, "summary printed"]
    ends = [end for _, end, _ in timings.phases]
    assert ends == sorted(ends)
    assert sum(took for _, _, took in timings.phases) == pytest.approx(ends[-1])
    assert timings.table().row_count == len(names)


def test_records_of_earlier_runs_do_not_count(records: list[Record]) -> None:
    timings = Timings(records[-1].time + 1)
    timings.read(records)
    assert timings.phases == []


def test_the_process_began_before_now() -> None:
    assert 0 < time.time() - process_began() < 86_400
