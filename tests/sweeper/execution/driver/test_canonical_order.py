"""Durations, failures, kills, resumes and slots never change the sequence of judgements in canonical order."""

import collections
import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Record
from sweeper.journal.state import ENDED, fold
from sweeper.scheduling.asha import Halving, Promotion
from sweeper.scheduling.base import Scheduler, audit, narrow_decisions
from sweeper.scheduling.median_stopping import MedianStopping
from sweeper.scheduling.order import OrderAudit, VirtualOrder, audit_order
from sweeper.scheduling.run_to_end import RunToEnd
from sweeper.scheduling.strata import stratified
from tests.sweeper.fake_executor import REPLICATES, FakeSweep
from tests.sweeper.fake_replicates import ApartSweep
from tests.sweeper.records import fields
from trainables.registry.configuration import Configuration

COUNT = 16
LOSSES = [
    Configuration({"loss": {"name": ("cross_entropy", "focal", "brier")[index % 7 % 3]}}) for index in range(COUNT)
]
SCHEDULERS = {
    "stopping": Halving("val_nll", "min", 27, 3, 3),
    "promotion": Promotion("val_nll", "min", 27, 3, 3),
    "strata": stratified(Promotion("val_nll", "min", 27, 3, 3, keep_at_least=1), ["loss"], LOSSES),
    "median": MedianStopping("val_nll", "min", 27, 9),
    "none": RunToEnd("val_nll", "min", 27),
}


def _sequence(sweep: FakeSweep) -> list[Any]:
    """Return every decision in order, and every suggestion and final failure between them."""
    told: list[Any] = []
    for record in sweep.records():
        body = fields(record)
        if record.kind in ("report", "judged") and body["decision"] is not None:
            told.append(
                (record.kind, body["configuration"], body["epoch"], body["decision"], repr(body.get("objective")))
            )
        elif record.kind == "suggested":
            told.append((record.kind, body["configuration"], body["choices"]))
        elif record.kind == "failed" and body["final"]:
            told.append((record.kind, body["configuration"]))
    return told


def _rows(sweep: FakeSweep, table: str) -> collections.Counter[str]:
    bodies = [fields(record) for record in sweep.records() if record.kind == "report"]
    return collections.Counter(f"{body['configuration']} {row}" for body in bodies for row in body[table])


def _check(sweep: FakeSweep) -> None:
    records = list(sweep.records())
    state = fold(records, sweep.configurations)
    assert all(trial.status in ENDED and trial.arrived is None for trial in state.trials.values())
    assert audit(sweep.schedule, records)[1] == []
    order = sweep.order(sweep.schedule.begin())
    assert order is not None
    found = audit_order(order, records)
    assert (found.differences, found.failed) == ([], None) and found.checked >= sweep.configurations


def _sweep(folder: Path, schedule: Scheduler, kind: type[FakeSweep] = FakeSweep, **options: Any) -> FakeSweep:
    return kind(SweepPaths(folder), schedule, COUNT, **options)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 7),
    width=st.sampled_from([1, 3, 5, 32]),
    named=st.sampled_from([*SCHEDULERS]),
    kills=st.integers(0, 8),
    apart=st.booleans(),
)
def test_nothing_but_the_width_changes_the_sequence(
    tmp_path_factory: pytest.TempPathFactory, seed: int, slots: int, width: int, named: str, kills: int, apart: bool
) -> None:
    kind, folder = (
        ApartSweep if apart and named not in ("promotion", "strata") else FakeSweep,
        tmp_path_factory.mktemp("s"),
    )
    quiet = _sweep(folder / "quiet", SCHEDULERS[named], kind, width=width)
    quiet.run(np.random.default_rng(0))
    busy = _sweep(folder / "busy", SCHEDULERS[named], kind, width=width, slots=slots)
    busy.run(np.random.default_rng(seed), kills=kills, trouble=0.08)
    assert _sequence(busy) == _sequence(quiet)
    for table in ("epochs", "evaluations"):
        assert _rows(busy, table) == _rows(quiet, table)
    for sweep in (quiet, busy):
        _check(sweep)


@pytest.mark.parametrize("records", range(1, 9))
def test_a_kill_after_any_of_the_first_records_changes_nothing(
    promoted: FakeSweep, records: int, tmp_path: Path
) -> None:
    shutil.copytree(promoted.paths.journal, tmp_path / promoted.paths.journal.name)
    for later in sorted((tmp_path / promoted.paths.journal.name).glob("*.json"))[records:]:
        later.unlink()
    resumed = _sweep(tmp_path, SCHEDULERS["promotion"], width=5, slots=3)
    resumed.run(np.random.default_rng(2))
    assert _sequence(resumed) == _sequence(promoted)


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> FakeSweep:
    """A sweep on three slots, some of whose reports came early."""
    sweep = _sweep(tmp_path_factory.mktemp("promoted"), SCHEDULERS["promotion"], width=5, slots=3)
    sweep.run(np.random.default_rng(1))
    return sweep


def _audited(sweep: FakeSweep, records: list[Record], width: int = 5, pace: float = REPLICATES) -> OrderAudit:
    order = VirtualOrder(sweep.schedule.begin(), width, lambda index: pace if index == 2 else REPLICATES)
    return audit_order(order, [replace(record, sequence=place) for place, record in enumerate(records)])


def _judgements(records: list[Record]) -> list[int]:
    return [place for place, record in enumerate(records) if record.kind == "report" and fields(record)["decision"]]


def test_reports_that_are_swapped_or_moved_are_named(promoted: FakeSweep) -> None:
    records = [*promoted.records()]
    places = _judgements(records)
    assert _audited(promoted, records).differences == []
    for first, second in itertools.pairwise(places):
        swapped = [*records]
        swapped[first], swapped[second] = swapped[second], swapped[first]
        moved = [*records[:first], *records[first + 1 : second + 1], records[first], *records[second + 1 :]]
        for forged in (swapped, moved):
            found = _audited(promoted, forged)
            assert found.cut and found.differences[0].record in range(first, second + 1)


def test_a_promotion_out_of_turn_is_named(promoted: FakeSweep) -> None:
    records = [*promoted.records()]
    promotion = next(place for place, record in enumerate(records) if record.kind == "judged")
    following = next(place for place in _judgements(records) if place > promotion)
    late = [
        *records[:promotion],
        *records[promotion + 1 : following + 1],
        records[promotion],
        *records[following + 1 :],
    ]
    assert _audited(promoted, late).differences


def test_another_width_or_virtual_end_is_named(promoted: FakeSweep) -> None:
    records = [*promoted.records()]
    assert _audited(promoted, records, width=4).differences
    assert _audited(promoted, records, pace=7 * REPLICATES).differences


def test_a_journal_without_an_early_report_is_refused(promoted: FakeSweep) -> None:
    copy = promoted.paths.journal.with_name("copy")
    shutil.copytree(promoted.paths.journal, copy)
    next(copy.glob("*-arrived-*")).unlink()
    with pytest.raises(SweeperError):
        list(read_journal(copy))


def test_a_sweep_that_ended_early_is_canonical_up_to_then(promoted: FakeSweep) -> None:
    records = [*promoted.records()]
    whole, half = _audited(promoted, records), _audited(promoted, records[: len(records) // 2])
    assert half.differences == [] and 0 < half.until < whole.until and not half.cut


def test_the_first_failure_of_the_machine_limits_the_order(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, SCHEDULERS["stopping"], width=5, slots=3, retries=0)
    sweep.run(np.random.default_rng(0), trouble=0.3)
    found = _audited(sweep, [*sweep.records()])
    failed = [r for r in sweep.records() if r.kind == "failed" and fields(r)["final"]]
    assert found.differences == [] and found.failed == fields(failed[0])["configuration"]


def test_decisions_that_a_last_digit_turns_are_counted(promoted: FakeSweep) -> None:
    records = [*promoted.records()]
    assert narrow_decisions(promoted.schedule, records, 1e-9) < narrow_decisions(promoted.schedule, records, 0.5)
    with_ties = _judgements(records)
    assert 0 < narrow_decisions(promoted.schedule, records, 1e-9) < len(with_ties)
