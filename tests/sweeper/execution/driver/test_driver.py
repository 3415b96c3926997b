"""Whatever is killed whenever: every configuration ends once, every row is journaled once, every decision stands."""

import collections
import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.ids import SweepPaths, replicate_seed, trial_name
from sweeper.execution.driver.judging import FRUITLESS_TRIES, memory_failure, pause_before
from sweeper.journal.state import ENDED, fold
from sweeper.scheduling.asha import Halving, Promotion
from sweeper.scheduling.base import audit
from sweeper.scheduling.run_to_end import RunToEnd
from sweeper.scheduling.strata import stratified
from tests.sweeper.fake_executor import CRASHED, PREEMPTION, FakeSweep, Worker, alone, fails_at, value_of
from tests.sweeper.records import fields, record_names
from trainables.registry.configuration import Configuration
from trainables.worker.trial_reports import CRASH, NON_FINITE, STORAGE, Failure
from trainables.worker.trial_settings import Assignment

HALVING = Halving("val_nll", "min", 27, 3, 3)
TO_THE_END = RunToEnd("val_nll", "min", 27)
COUNT = 14
KEPT = stratified(
    Promotion("val_nll", "min", 27, 3, 3, keep_at_least=1),
    ["loss"],
    [Configuration({"loss": {"name": ("cross_entropy", "focal", "brier")[index % 7 % 3]}}) for index in range(16)],
)
"""Strata of five trials or so, the best of which are promoted in any case."""


def _sweep(tmp_path, schedule=HALVING, name="sweep", **options):
    return FakeSweep(SweepPaths(tmp_path / name), schedule, options.pop("configurations", COUNT), **options)


def _decisions(sweep):
    return [
        (fields(r)["configuration"], fields(r)["epoch"], fields(r)["decision"])
        for r in sweep.records()
        if r.kind == "report" and fields(r)["decision"] is not None
    ]


def _endings(sweep):
    ended = [
        fields(r)["configuration"]
        for r in sweep.records()
        if (r.kind == "report" and fields(r)["status"] in ENDED) or (r.kind == "failed" and fields(r)["final"])
    ]
    return collections.Counter(ended)


def _check_invariants(sweep):
    """What must hold of every journal, whatever happened."""
    records = list(sweep.records())
    state = fold(records, sweep.configurations)
    assert _endings(sweep) == dict.fromkeys(range(sweep.configurations), 1)
    _, differences = audit(sweep.schedule, records)
    assert differences == []
    for table in ("epochs", "evaluations"):
        rows = [
            (fields(r)["configuration"], row["replicate"], row["epoch"])
            for r in records
            if r.kind == "report"
            for row in fields(r)[table]
        ]
        assert len(rows) == len(set(rows)), table
        for index, trial in state.trials.items():
            epochs = sorted(
                epoch for configuration, replicate, epoch in rows if (configuration, replicate) == (index, 1)
            )
            if trial.stop_kind == "crash":
                continue
            rungs = [rung for rung in sweep.schedule.rungs if rung <= trial.sound_epochs]
            assert epochs == (list(range(1, trial.epochs + 1)) if table == "epochs" else rungs), (table, index)
    return state


def test_the_first_report_of_each_trial_holds_its_configurations_digest(tmp_path):
    sweep = _sweep(tmp_path)
    driver = sweep.run(np.random.default_rng(1))
    records = list(sweep.records())
    digests = collections.defaultdict(list)
    for record in records:
        if record.kind == "report":
            digests[fields(record)["configuration"]].append(fields(record).get("config_hash"))
    assert {index: [each for each in found if each] for index, found in digests.items()} == {
        index: [driver.configurations[index].digest] for index in range(COUNT)
    }
    assert all(found[0] for found in digests.values())


def _expected_best(state, mode="min"):
    sound = [t for t in state.trials.values() if t.status in ("completed", "early_stopped")]
    sign = -1 if mode == "min" else 1
    return max(sound, key=lambda t: (t.status == "completed", sign * t.objective, -t.configuration)).configuration


def _kept(sweep):
    return {path.name for path in sweep.paths.checkpoints.iterdir() if any(path.iterdir())}


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", range(6))
def test_one_at_a_time_kills_change_no_decision(tmp_path, seed, mode):
    schedule = dataclasses.replace(HALVING, mode=mode)
    undisturbed = _sweep(tmp_path, schedule, "undisturbed")
    undisturbed.run(np.random.default_rng(seed))
    disturbed = _sweep(tmp_path, schedule, "disturbed")
    disturbed.run(np.random.default_rng(seed + 100), kills=25, trouble=0.05)
    assert _decisions(disturbed) == _decisions(undisturbed)
    for sweep in (undisturbed, disturbed):
        state = _check_invariants(sweep)
        assert _kept(sweep) == {trial_name(_expected_best(state, mode))}


@pytest.mark.parametrize("seed", range(4))
def test_records_lost_at_the_journals_end_leave_no_gap(tmp_path, seed):
    """As after a power cut, or where damaged records were set aside: checkpoints are then ahead of the journal."""
    undisturbed, robbed = _sweep(tmp_path, name="undisturbed"), _sweep(tmp_path, name="robbed")
    undisturbed.run(np.random.default_rng(seed))
    rng = np.random.default_rng(seed + 100)
    for _ in range(6):
        robbed.run_until_killed(rng)
        names = record_names(robbed.paths.journal)
        for name in names[len(names) - int(rng.integers(0, 1 + min(9, len(names)))) :]:
            (robbed.paths.journal / name).unlink()
    robbed.run(rng)
    assert _decisions(robbed) == _decisions(undisturbed)
    _check_invariants(robbed)


@pytest.mark.parametrize("seed", range(6))
def test_one_at_a_time_kills_change_no_promotion(tmp_path, seed):
    undisturbed, disturbed = _sweep(tmp_path, KEPT, "undisturbed"), _sweep(tmp_path, KEPT, "disturbed")
    undisturbed.run(np.random.default_rng(seed))
    disturbed.run(np.random.default_rng(seed + 100), kills=25, trouble=0.05)
    assert _decisions(disturbed) == _decisions(undisturbed)
    for sweep in (undisturbed, disturbed):
        state = fold(sweep.records(), COUNT)
        assert audit(KEPT, sweep.records())[1] == []
        assert {KEPT.drawn_stratum(i) for i, t in state.trials.items() if t.status == "completed"} == {
            "cross_entropy", "focal", "brier"
        }  # fmt: skip


def test_what_a_stratum_keeps_is_promoted_while_others_have_trials_to_begin(tmp_path):
    drawn = [Configuration({"loss": {"name": "focal" if index < 2 else "brier"}}) for index in range(4)]
    sweep = _sweep(tmp_path, dataclasses.replace(KEPT, configurations=drawn), configurations=4, slots=2)
    driver, rng = sweep.driver(), np.random.default_rng(0)
    driver.begin()
    for _ in (0, 1):
        alone(sweep.worker(driver.work.next(), rng), driver)
    assert driver.work.next() == [min((0, 1), key=lambda index: value_of(index, 3))], "of two none is a third"
    assert driver.work.next() == [2]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.sampled_from([HALVING, TO_THE_END]), st.integers(0, 15))
def test_several_at_a_time_every_configuration_ends_once(tmp_path_factory, seed, slots, schedule, kills):
    sweep = _sweep(tmp_path_factory.mktemp("sweep"), schedule, slots=slots, configurations=16)
    sweep.run(np.random.default_rng(seed), kills=kills, trouble=0.08)
    state = _check_invariants(sweep)
    for trial in state.trials.values():
        assert (trial.status == "failed") == (
            fails_at(trial.configuration) is not None and fails_at(trial.configuration) <= trial.epochs
        )
    assert _kept(sweep) == {trial_name(_expected_best(state))}


def test_the_journal_tells_the_drivers_own_state(tmp_path):
    sweep = _sweep(tmp_path, slots=3)
    driver = sweep.run(np.random.default_rng(5), trouble=0.1)
    assert repr(vars(fold(sweep.records(), COUNT))) == repr(vars(driver.state))


def test_a_trial_whose_loss_is_not_a_number_fails_at_once(tmp_path):
    sweep = _sweep(tmp_path)
    sweep.run(np.random.default_rng(0))
    trial = fold(sweep.records(), COUNT).trials[0]
    assert (trial.status, trial.epochs, trial.stop_rung) == ("failed", 4, None)
    assert trial.failure == Failure(NON_FINITE, {"epoch": 4}) and trial.stop_kind == NON_FINITE


def test_crashes_count_until_the_retries_are_spent(tmp_path):
    sweep = _sweep(tmp_path, configurations=2, retries=2)
    driver = sweep.driver()
    driver.begin()
    for attempt in range(3):
        assignment = driver.work.next()
        assert assignment == [0], "it is tried again before anything else"
        driver.on_started(assignment)
        driver.on_failure(assignment, CRASHED)
        assert driver.state.trials[0].failures == attempt + 1
    assert driver.state.trials[0].status == "failed"
    assert driver.state.trials[0].failure == Failure(CRASH, {"tries": 3})
    assert driver.work.next() == [1]


def test_failures_that_do_not_count_are_capped_where_no_epoch_comes_in_between(tmp_path):
    sweep = _sweep(tmp_path, configurations=1, retries=1)
    driver = sweep.driver()
    driver.begin()

    def preempt():
        assignment = driver.work.next()
        driver.on_started(assignment)
        driver.on_failure(assignment, PREEMPTION)

    for _ in range(FRUITLESS_TRIES):
        preempt()
    assert driver.state.trials[0].failures == 0
    assignment = driver.work.next()
    driver.on_started(assignment)
    driver.on_reports([(assignment, sweep.worker(assignment, np.random.default_rng(0)).step()[0], False)])
    driver.on_failure(assignment, PREEMPTION)
    assert driver.state.trials[0].fruitless == 1, "a report is progress"
    driver = sweep.driver()
    driver.begin()
    for _ in range(FRUITLESS_TRIES - 1):
        preempt()
    assert (driver.state.trials[0].failures, driver.work.exhausted) == (0, False)
    preempt()
    assert (driver.state.trials[0].failures, driver.work.exhausted) == (1, False)
    preempt()
    assert driver.state.trials[0].status == "failed" and driver.work.exhausted
    assert "fruitless" in driver.state.trials[0].failure.values


def test_a_trial_waits_where_others_took_the_memory_and_no_other_does(tmp_path):
    now = [0.0]
    driver = _sweep(tmp_path, configurations=4, retries=1).driver(clock=lambda: now[0])
    driver.begin()

    def fails(assignment, held):
        driver.on_started(assignment)
        driver.on_failure(assignment, memory_failure(held))

    first, second = driver.work.next(), driver.work.next()
    fails(first, held=0.01)
    assert (driver.work.next(), driver.work.outstanding) == ([2], 3), "three that may start, one of which has"
    fails(second, held=0.5)
    assert driver.work.next() == second, "it may be to blame: the try counts, and it does not wait"
    assert (driver.work.next(), driver.work.next()) == ([3], None) and not driver.work.exhausted
    now[0] = pause_before(0)
    assert driver.work.next() == first
    fails(first, held=0.01)
    now[0] += pause_before(1) - 0.1
    assert driver.work.next() is None
    now[0] += 0.1
    assert driver.work.next() == first
    assert [driver.state.trials[index].failures for index in (*first, *second)] == [0, 1]


def test_a_full_disk_of_one_node_sends_its_trial_elsewhere(tmp_path):
    asked = []

    def other_nodes(avoided):
        asked.append(set(avoided))
        return len(avoided) < 2

    driver = _sweep(tmp_path, configurations=2, retries=0).driver(other_nodes=other_nodes)
    driver.begin()
    for node, stops in (("ab", False), ("cd", True)):
        assignment = driver.work.next()
        driver.on_started(assignment)
        driver.on_failure(assignment, Failure(STORAGE, {"node": node}, counts=False))
        assert bool(driver.closing) is stops
    assert asked == [{"ab"}, {"ab", "cd"}] and driver.full_disks.nodes == {"ab", "cd"}
    assert driver.closing == Failure(STORAGE, {"node": "cd", "others": "no"}, counts=False)
    assert [trial.status for trial in driver.state.trials.values()] == ["waiting", "waiting"]


def test_retries_are_counted_across_drivers(tmp_path):
    sweep = _sweep(tmp_path, configurations=1, retries=1)
    for status in ("waiting", "failed"):
        driver = sweep.driver()
        driver.begin()
        driver.on_failure(driver.work.next(), CRASHED)
        assert driver.state.trials[0].status == status


def test_a_death_after_the_last_report_changes_nothing(tmp_path):
    sweep = _sweep(tmp_path, configurations=1)
    driver = sweep.driver()
    driver.begin()
    assignment = driver.work.next()
    alone(Worker(sweep.paths, HALVING, np.random.default_rng(0), assignment), driver)
    before = len(list(sweep.records()))
    driver.on_failure(assignment, CRASHED)
    assert len(list(sweep.records())) == before
    assert driver.work.exhausted and driver.work.next() is None


def test_a_process_that_ends_without_a_last_report_is_a_failure(tmp_path):
    driver = _sweep(tmp_path, configurations=1, retries=1).driver()
    driver.begin()
    for status in ("waiting", "failed"):
        assert driver.on_reports([(driver.work.next(), [], True)])
        assert driver.state.trials[0].status == status
    assert driver.work.exhausted


def test_failed_trials_run_again_when_asked(tmp_path):
    sweep = _sweep(tmp_path, retries=0)
    sweep.run(np.random.default_rng(1))
    failed = [t.configuration for t in fold(sweep.records(), COUNT).trials.values() if t.status == "failed"]
    assert failed == [0, 5, 11]
    again = sweep.driver()
    again.begin()
    assert again.work.next() is None and again.work.exhausted
    driver = sweep.run(np.random.default_rng(2), failed_too=True)
    assert [t.configuration for t in driver.state.trials.values() if t.status == "failed"] == failed
    assert {i for i, n in _endings(sweep).items() if n == 2} == set(failed), "they failed again, and it shows"
    assert audit(HALVING, sweep.records())[1] == []


def test_a_failed_trial_that_works_the_second_time_is_judged_like_any_other(tmp_path, monkeypatch):
    sweep = _sweep(tmp_path)
    sweep.run(np.random.default_rng(1))
    monkeypatch.setattr("tests.sweeper.fake_executor.fails_at", lambda configuration: None)
    driver = sweep.run(np.random.default_rng(2), failed_too=True)
    assert driver.state.count()["failed"] == 0
    for index in (0, 5, 11):
        decided = [(e, d["kind"]) for i, e, d in _decisions(sweep) if i == index and d["kind"] != "fail"]
        assert [e for e, _ in decided] == list(HALVING.rungs)[: len(decided)]
        assert decided[-1][1] in ("stop", "complete")
    assert audit(HALVING, sweep.records())[1] == []


def test_a_failed_trial_whose_process_dies_before_it_starts_is_not_forgotten(tmp_path):
    sweep = _sweep(tmp_path, retries=0)
    sweep.run(np.random.default_rng(1))
    driver = sweep.driver(failed_too=True)
    driver.begin()
    assignment = driver.work.next()
    assert assignment == [0]
    driver.on_failure(assignment, PREEMPTION)
    assert driver.work.next() == [0]


@pytest.mark.parametrize("slots", [1, 2, 16])
def test_shares_shrink_towards_the_end(tmp_path, slots):
    driver = _sweep(tmp_path, TO_THE_END, configurations=256, slots=slots).driver()
    driver.begin()
    shares = []
    while (assignment := driver.work.next()) is not None:
        shares.append(assignment)
    sizes = [len(share) for share in shares]
    assert [index for share in shares for index in share] == list(range(256))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == min(8, math.ceil(256 / (4 * slots))) and sizes[-slots:] == [1] * slots


def test_where_a_scheduler_can_stop_trials_they_come_one_at_a_time(tmp_path):
    driver = _sweep(tmp_path, configurations=64).driver()
    assert len(driver.work.next()) == 1


def test_a_crash_in_a_shared_process_is_pinned_on_the_trial_that_causes_it(tmp_path):
    """The third of eight kills its process before the others' reports get out; only it may fail for good."""
    sweep = _sweep(tmp_path, TO_THE_END, configurations=40, retries=1)
    driver = sweep.driver()
    driver.begin()
    rng = np.random.default_rng(0)
    while (assignment := driver.work.next()) is not None:
        driver.on_started(assignment)
        if 2 in assignment:
            driver.on_failure(assignment, CRASHED)
        else:
            alone(Worker(sweep.paths, TO_THE_END, rng, assignment), driver)
    failed = {t.configuration for t in driver.state.trials.values() if t.stop_kind == "crash"}
    assert failed == {2}
    assert driver.finish() == "finished"


def test_what_a_shared_process_had_reported_before_it_died_stays(tmp_path):
    sweep = _sweep(tmp_path, TO_THE_END, configurations=64)
    driver = sweep.driver()
    driver.begin()
    assignment = driver.work.next()
    worker = Worker(sweep.paths, TO_THE_END, np.random.default_rng(3), assignment)
    while driver.state.trials[assignment[0]].status not in ENDED:
        driver.on_reports([(assignment, *worker.step())])
    left = [index for index in assignment if driver.state.trials[index].status not in ENDED]
    assert 0 < len(left) < len(assignment)
    driver.on_failure(assignment, CRASHED)
    assert [driver.work.next() for _ in left] == [[index] for index in left]


def test_the_stop_marker_is_polled_now_and_then(tmp_path):
    sweep = _sweep(tmp_path)
    now = [0.0]
    driver = sweep.driver(clock=lambda: now[0])
    driver.begin()
    assert not driver.steering.should_stop()
    sweep.paths.stop_marker.touch()
    assert not driver.steering.should_stop(), "too early to look again"
    now[0] = 1.0
    assert driver.steering.should_stop()
    assert driver.work.next() is None and driver.work.exhausted
    assert driver.finish() == "stopped"
    assert fields(list(sweep.records())[-1])["reason"]["kind"] == "asked"


def test_an_unfinished_sweep_that_nobody_stopped_was_interrupted(tmp_path):
    sweep = _sweep(tmp_path)
    driver = sweep.driver()
    driver.begin()
    assert driver.finish() == "interrupted"
    assert "reason" not in fields(list(sweep.records())[-1])


def test_workers_get_a_configuration_and_their_replicates_seeds(tmp_path):
    driver = _sweep(tmp_path).driver()
    assert driver.work.describe([7]) == [
        Assignment(7, "c00007", Configuration({"index": 7}), [replicate_seed(0, 7, 0), replicate_seed(0, 7, 1)])
    ]


def test_checkpoints_left_by_a_driver_that_died_before_tidying_are_removed(tmp_path):
    sweep = _sweep(tmp_path)
    sweep.run(np.random.default_rng(0))
    best = _kept(sweep)
    stopped = fold(sweep.records(), COUNT)
    other = next(t.configuration for t in stopped.trials.values() if t.status == "early_stopped")
    folder = sweep.paths.trial_checkpoints(other)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "e00003.pt").write_text("{}")
    (sweep.paths.checkpoints / "notes").mkdir()
    sweep.driver().begin()
    assert _kept(sweep) == best
    assert (sweep.paths.checkpoints / "notes").is_dir()
