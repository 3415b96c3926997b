"""Replicates in processes of their own: the journal tells what one process for all of them would have told."""

import collections
import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.ids import SweepPaths, replicate_seed, trial_name
from sweeper.journal.state import ENDED, fold
from sweeper.scheduling.asha import Halving
from sweeper.scheduling.base import audit
from sweeper.scheduling.run_to_end import RunToEnd
from tests.sweeper.fake_executor import CRASHED, PREEMPTION, alone
from tests.sweeper.fake_replicates import COUNT, Apart, ApartSweep, TogetherSweep, diverges_at
from tests.sweeper.records import fields, record_names
from trainables.worker.trial_reports import CRASH, STORAGE, Failure

HALVING = Halving("val_nll", "min", 27, 3, 3)
TO_THE_END = RunToEnd("val_nll", "min", 27)
CONFIGURATIONS = 12


def _apart(tmp_path, schedule=HALVING, name="apart", **options):
    return ApartSweep(SweepPaths(tmp_path / name), schedule, options.pop("configurations", CONFIGURATIONS), **options)


def _together(tmp_path, schedule=HALVING):
    sweep = TogetherSweep(SweepPaths(tmp_path / "together"), schedule, CONFIGURATIONS)
    sweep.run(np.random.default_rng(0))
    return sweep


def _told(sweep):
    """Return all that tables and decisions are made of: decisions in order, rows by key, how replicates ended."""
    records = [record for record in sweep.records() if record.kind == "report"]
    decisions = [
        (fields(r)["configuration"], fields(r)["epoch"], fields(r)["decision"])
        for r in records
        if fields(r)["decision"]
    ]
    rows = collections.Counter(
        (table, fields(r)["configuration"], json.dumps(row)) for r in records for table in ("epochs", "evaluations")
        for row in fields(r)[table]
    )  # fmt: skip
    state = fold(sweep.records(), sweep.configurations)
    endings = [
        (t.status, t.stop_kind, t.decision, t.stop_rung, t.epochs, t.last_evaluation_epoch, t.objective,
         t.failure, t.replicate_errors)
        for t in state.trials.values()
    ]  # fmt: skip
    return json.dumps(decisions), rows, repr(endings)


def _kept(sweep):
    return {path.name for path in sweep.paths.checkpoints.iterdir() if any(path.rglob("e*.pt"))}


@pytest.mark.parametrize("schedule", [HALVING, TO_THE_END, dataclasses.replace(HALVING, mode="max")])
@pytest.mark.parametrize("seed", range(2))
def test_replicates_apart_end_as_they_do_together_through_kills_and_crashes(tmp_path, seed, schedule):
    together, apart = _together(tmp_path, schedule), _apart(tmp_path, schedule)
    apart.run(np.random.default_rng(seed), kills=30, trouble=0.05)
    assert _told(apart) == _told(together)
    assert audit(schedule, apart.records())[1] == []
    assert _kept(apart) == _kept(together)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 7), st.sampled_from([HALVING, TO_THE_END]), st.integers(0, 15))
def test_several_at_a_time_end_once_and_lose_no_row(tmp_path_factory, seed, slots, schedule, kills):
    sweep = _apart(tmp_path_factory.mktemp("sweep"), schedule, slots=slots)
    sweep.run(np.random.default_rng(seed), kills=kills, trouble=0.08)
    records = list(sweep.records())
    reports = [fields(record) for record in records if record.kind == "report"]
    ended = collections.Counter(body["configuration"] for body in reports if body["status"] in ENDED)
    assert ended == dict.fromkeys(range(CONFIGURATIONS), 1)
    assert audit(schedule, records)[1] == []
    state = fold(records, CONFIGURATIONS)
    for index, trial in state.trials.items():
        for number, replicate in trial.replicates.items():
            epochs = [
                row["epoch"]
                for body in reports
                if body["configuration"] == index
                for row in body["epochs"]
                if row["replicate"] == number
            ]
            last = min(trial.epochs, diverges_at(index, number) or trial.epochs)
            assert epochs == list(range(1, last + 1)), (index, number)
            assert replicate.epochs == last
            assert not replicate.epoch_rows and not replicate.evaluations, "nothing is left unmerged"
            assert replicate.status == ("failed" if number in trial.replicate_errors else trial.status)


def test_the_journal_tells_the_drivers_own_state(tmp_path):
    sweep = _apart(tmp_path, slots=4)
    driver = sweep.run(np.random.default_rng(5), trouble=0.1)
    assert repr(vars(fold(sweep.records(), CONFIGURATIONS))) == repr(vars(driver.state))


@pytest.mark.parametrize("seed", range(4))
def test_records_lost_at_the_journals_end_leave_no_gap(tmp_path, seed):
    together, robbed = _together(tmp_path), _apart(tmp_path)
    rng = np.random.default_rng(seed)
    for _ in range(8):
        robbed.run_until_killed(rng)
        names = record_names(robbed.paths.journal)
        for name in names[len(names) - int(rng.integers(0, 1 + min(9, len(names)))) :]:
            (robbed.paths.journal / name).unlink()
    robbed.run(rng)
    assert _told(robbed) == _told(together)


def test_a_replicate_at_a_rung_frees_its_process_and_all_go_on_when_the_last_has_come(tmp_path):
    sweep = _apart(tmp_path, configurations=1, schedule=HALVING)
    driver = sweep.driver()
    driver.begin()
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        assignment = driver.work.next()
        assert assignment == [0, number]
        [given] = driver.work.describe(assignment)
        assert (given.configuration, given.trial, given.replicate) == (0, trial_name(0), number)
        assert given.seeds == [replicate_seed(0, 0, number)]
        driver.on_started(assignment)
        assert driver.state.trials[0].status == "running"
        if number < COUNT - 1:
            alone(Apart(sweep.paths, HALVING, rng, assignment), driver)
            assert driver.state.trials[0].replicates[number].status == "waiting"
            assert driver.state.trials[0].epochs == 0, "nothing is judged yet"
    assert driver.work.next() is None and not driver.work.exhausted
    alone(Apart(sweep.paths, HALVING, rng, [0, COUNT - 1]), driver)
    trial = driver.state.trials[0]
    assert (trial.epochs, trial.status, trial.packing) == (3, "waiting", "trials")
    assert [driver.work.next() for _ in range(COUNT)] == [[0, number] for number in range(COUNT)]


def test_what_was_reported_in_full_but_never_judged_is_judged_by_the_next_driver(tmp_path):
    sweep = _apart(tmp_path, configurations=1)
    driver = sweep.driver()
    driver.begin()
    rng = np.random.default_rng(0)
    for _ in range(COUNT):
        assignment = driver.work.next()
        driver.on_started(assignment)
        alone(Apart(sweep.paths, HALVING, rng, assignment, interim=0.0), driver)
    last = record_names(sweep.paths.journal)[-1]
    assert "-report-" in last
    (sweep.paths.journal / last).unlink()
    again = sweep.driver()
    assert again.state.trials[0].epochs == 0
    again.begin()
    assert again.state.trials[0].epochs == 3
    assert [again.work.next() for _ in range(COUNT)] == [[0, number] for number in range(COUNT)]


def test_a_replicate_that_keeps_crashing_is_left_out_and_the_decision_says_so(tmp_path):
    sweep = _apart(tmp_path, configurations=1, retries=1)
    driver = sweep.driver()
    driver.begin()
    rng = np.random.default_rng(0)
    for _ in range(2):
        assignment = driver.work.next()
        assert assignment == [0, 0], "it is tried again before anything else"
        driver.on_started(assignment)
        driver.on_failure(assignment, CRASHED)
    for number in (1, 2):
        assignment = driver.work.next()
        assert assignment == [0, number]
        driver.on_started(assignment)
        driver.on_failure(assignment, PREEMPTION)
        assignment = driver.work.next()
        assert assignment == [0, number], "a taken node is nobody's fault"
        driver.on_started(assignment)
        alone(Apart(sweep.paths, HALVING, rng, assignment), driver)
    trial = driver.state.trials[0]
    assert trial.replicate_errors == {0: Failure(CRASH, {"tries": 2})}
    [decision] = [fields(r)["decision"] for r in sweep.records() if r.kind == "report" and fields(r)["decision"]]
    assert decision["left_out"] == 1
    assert audit(HALVING, sweep.records())[1] == []
    assert driver.work.next() == [0, 1]


def test_when_every_replicate_has_crashed_for_good_so_has_the_configuration_and_failed_ones_run_again(tmp_path):
    sweep = _apart(tmp_path, configurations=1, retries=0)
    driver = sweep.driver()
    driver.begin()
    for number in range(COUNT):
        driver.on_started([0, number])
        assert driver.work.next() == [0, number]
        driver.on_failure([0, number], CRASHED)
    trial = driver.state.trials[0]
    assert (trial.status, trial.stop_kind, trial.failure) == ("failed", "crash", CRASHED)
    assert driver.work.exhausted and driver.finish() == "finished"
    sweep.run(np.random.default_rng(0), failed_too=True)
    assert fold(sweep.records(), 1).trials[0].status == "completed"


def test_a_full_disk_stops_the_sweep_and_counts_against_no_replicate(tmp_path):
    sweep = _apart(tmp_path, configurations=1)
    driver = sweep.driver()
    driver.begin()
    assignment = driver.work.next()
    driver.on_started(assignment)
    full = Failure(STORAGE, message="the disk is full", counts=False)
    driver.on_failure(assignment, full)
    assert driver.steering.stop_requested == full
    assert driver.work.next() is None and driver.work.exhausted
    assert driver.state.trials[0].replicates[0].failures == 0
