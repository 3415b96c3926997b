"""Durations, failures, kills, resumes and slots never change the sequence of judgements in canonical order."""

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.ids import SweepPaths
from sweeper.journal.state import ENDED, fold
from sweeper.scheduling.asha import Halving, Promotion
from sweeper.scheduling.base import Scheduler, audit
from sweeper.scheduling.median_stopping import MedianStopping
from sweeper.scheduling.order import audit_order
from sweeper.scheduling.run_to_end import RunToEnd
from sweeper.scheduling.strata import stratified
from tests.sweeper.fake_executor import FakeSweep
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
            told.append((record.kind, body["configuration"], body["epoch"], body["decision"], body.get("objective")))
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
    assert (found.differences, found.chance) == ([], None) and found.checked >= sweep.configurations


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
