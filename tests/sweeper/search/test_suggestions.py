"""A driver whose searcher learns: one configuration for each number, whatever is killed whenever, and nothing lost."""

import collections
import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.errors import SweeperError
from sweeper.core.ids import FIRST_ADDED, SweepPaths
from sweeper.execution.driver.context import TOGETHER, TrialValues
from sweeper.journal.journal import Journal
from sweeper.journal.records import Drawn, Record
from sweeper.journal.state import ENDED, SweepState, fold
from sweeper.reporting.figures import hyperparameters
from sweeper.reporting.summary import searcher_lines
from sweeper.results import load
from sweeper.scheduling.asha import Halving
from sweeper.scheduling.base import audit
from sweeper.scheduling.run_to_end import RunToEnd
from sweeper.search.base import Searcher, Suggestion, audit_suggestions
from sweeper.space.configurations import Configurations, configurations, configurations_of
from sweeper.space.loading import searcher_for
from tests.sweeper.fake_executor import CRASHED, PREEMPTION, FakeSweep, KilledError, KillingSink, Worker, alone
from tests.sweeper.fake_replicates import ApartSweep
from tests.sweeper.inline_sweep import Inline
from tests.sweeper.records import fields, made_body, record_names
from tests.sweeper.searches import searched_spec
from trainables.registry.configuration import Configuration
from trainables.worker.trial_reports import Reason

COUNT = 10
SPEC = searched_spec(COUNT)
HALVING = Halving("val_nll", "min", 27, 3, 3)
TO_THE_END = RunToEnd("val_nll", "min", 27)


def _sweep(tmp_path, name="sweep", schedule=HALVING, kind=FakeSweep, count=COUNT, **options):
    return kind(SweepPaths(tmp_path / name), schedule, count, searcher=lambda: searcher_for(SPEC), **options)


def _suggestions(sweep):
    bodies = [fields(record) for record in sweep.records() if record.kind == "suggested"]
    assert [body["configuration"] for body in bodies] == list(range(len(bodies))), "in order, each once"
    return [(body["choices"], body["values"]) for body in bodies]


def _decisions(sweep):
    reports = [fields(record) for record in sweep.records() if record.kind == "report"]
    return [(body["configuration"], body["epoch"], body["decision"]) for body in reports if body["decision"]]


def _check(sweep):
    """What must hold of every journal, whatever happened."""
    records = list(sweep.records())
    suggested = {}
    for record in records:
        if record.kind == "suggested":
            suggested[fields(record)["configuration"]] = record.sequence
        elif "configuration" in fields(record):
            assert suggested[fields(record)["configuration"]] < record.sequence, "nothing happens to it before"
    assert len(_suggestions(sweep)) == COUNT
    state = fold(records, COUNT)
    assert all(trial.status in ENDED for trial in state.trials.values())
    assert audit(sweep.schedule, records)[1] == []
    found = audit_suggestions(lambda: searcher_for(SPEC), records)
    assert (found.checked, found.differences) == (COUNT, [])
    ended = [fields(r)["configuration"] for r in records if r.kind == "report" and fields(r)["status"] in ENDED]
    assert max(collections.Counter(ended).values()) == 1
    assert state.configurations == {index: values for index, (_, values) in enumerate(_suggestions(sweep))}


@pytest.mark.parametrize("schedule", [HALVING, TO_THE_END])
@pytest.mark.parametrize("seed", range(2))
def test_one_at_a_time_kills_change_no_suggestion_and_no_decision(tmp_path, seed, schedule):
    undisturbed, disturbed = (_sweep(tmp_path, name, schedule) for name in ("undisturbed", "disturbed"))
    undisturbed.run(np.random.default_rng(seed))
    disturbed.run(np.random.default_rng(seed + 100), kills=25, trouble=0.05)
    assert json.dumps(_suggestions(disturbed)) == json.dumps(_suggestions(undisturbed))
    assert _decisions(disturbed) == _decisions(undisturbed)
    for sweep in (undisturbed, disturbed):
        _check(sweep)


@pytest.mark.integration
def test_a_kill_after_any_single_record_changes_nothing(tmp_path):
    """Also between a suggestion and its trial's start, for each of them."""
    undisturbed = _sweep(tmp_path, "undisturbed", count=6)
    undisturbed.run(np.random.default_rng(0))
    expected, struck = json.dumps(_suggestions(undisturbed)), list[str]()
    for moment in range(1, 200):
        sweep = _sweep(tmp_path, f"killed{moment}", count=6)
        driver = sweep.driver(KillingSink(moment))
        try:
            driver.begin()
            sweep._drive(driver, np.random.default_rng(3), 0.0)
            break
        except KilledError:
            struck.append([*sweep.records()][-1].kind)
        sweep.run(np.random.default_rng(4))
        assert json.dumps(_suggestions(sweep)) == expected, moment
    assert struck.count("suggested") == 6 and len(struck) > 12


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.sampled_from([HALVING, TO_THE_END]), st.integers(0, 12))
def test_several_at_a_time_each_number_is_suggested_once(tmp_path_factory, seed, slots, schedule, kills):
    sweep = _sweep(tmp_path_factory.mktemp("sweep"), schedule=schedule, slots=slots)
    sweep.run(np.random.default_rng(seed), kills=kills, trouble=0.08)
    _check(sweep)


@pytest.mark.integration
@pytest.mark.parametrize("slots", [1, 3])
def test_replicates_in_processes_of_their_own(tmp_path, slots):
    undisturbed, disturbed = (_sweep(tmp_path, name, kind=ApartSweep, slots=slots) for name in ("whole", "killed"))
    undisturbed.run(np.random.default_rng(1))
    disturbed.run(np.random.default_rng(2), kills=10, trouble=0.05)
    for sweep in (undisturbed, disturbed):
        _check(sweep)
    if slots == 1:
        assert json.dumps(_suggestions(disturbed)) == json.dumps(_suggestions(undisturbed))


@pytest.mark.parametrize("seed", range(3))
def test_records_lost_at_the_journals_end_are_made_again(tmp_path, seed):
    undisturbed, robbed = _sweep(tmp_path, "undisturbed"), _sweep(tmp_path, "robbed")
    undisturbed.run(np.random.default_rng(seed))
    rng = np.random.default_rng(seed + 100)
    for _ in range(6):
        robbed.run_until_killed(rng)
        names = record_names(robbed.paths.journal)
        for name in names[len(names) - int(rng.integers(0, 1 + min(9, len(names)))) :]:
            (robbed.paths.journal / name).unlink()
    robbed.run(rng)
    assert json.dumps(_suggestions(robbed)) == json.dumps(_suggestions(undisturbed))
    assert _decisions(robbed) == _decisions(undisturbed)
    _check(robbed)


def test_checkpoints_of_a_trial_that_the_journal_does_not_know_are_removed(tmp_path):
    sweep = _sweep(tmp_path)
    folder = sweep.paths.trial_checkpoints(7)
    folder.mkdir(parents=True)
    (folder / "e00003.pt").write_text("of a configuration that was number 7 before its record was lost")
    sweep.driver().begin()
    assert not folder.exists()


def test_a_suggestion_is_durable_before_its_trial_is_given_out(tmp_path):
    sweep, happened = _sweep(tmp_path), []

    class Settling(Journal):
        def append(self, body):
            happened.append(body.kind)
            return super().append(body)

        def settle(self):
            happened.append("settled")
            super().settle()

    driver = sweep.driver()
    driver.journal = Settling(sweep.paths.journal, durable=False)
    driver.begin()
    happened.clear()
    assert driver.work.next() == [0]
    assert happened == ["suggested", "settled"]


def test_it_is_asked_only_when_a_trial_could_start_at_once(tmp_path):
    sweep = _sweep(tmp_path, slots=2)
    driver = sweep.driver()
    driver.begin()
    assert [driver.work.next() for _ in range(3)] == [[0], [1], None]
    assert driver.work.outstanding and not driver.work.exhausted
    alone(Worker(sweep.paths, HALVING, np.random.default_rng(0), [0]), driver)
    assert [driver.work.next(), driver.work.next()] == [[2], None]
    driver.work.resize(4)
    assert [driver.work.next() for _ in range(3)] == [[3], [4], None]


def test_what_failed_for_now_comes_before_another_suggestion(tmp_path):
    driver = _sweep(tmp_path).driver()
    driver.begin()
    first = driver.work.next()
    for failure in (PREEMPTION, CRASHED):
        driver.on_failure(first, failure)
        assert driver.work.next() == first
    assert len(driver.state.configurations) == 1


def test_a_sweep_that_was_asked_to_stop_suggests_nothing(tmp_path):
    sweep = _sweep(tmp_path)
    driver = sweep.driver()
    driver.begin()
    driver.steering.ask_to_stop(Reason("test"))
    assert driver.work.next() is None and driver.work.exhausted
    assert driver.finish() == "stopped"
    assert not any(record.kind == "suggested" for record in sweep.records())


def test_a_searchers_fault_loses_nothing(tmp_path):
    sweep = _sweep(tmp_path)

    def faulty() -> Searcher:
        searcher = searcher_for(SPEC)
        suggest = searcher.suggest

        def suggest_or_fail(configuration: int) -> Suggestion:
            if configuration == 3:
                raise RuntimeError("out of ideas")
            return suggest(configuration)

        searcher.suggest = suggest_or_fail
        return searcher

    sweep.searcher = faulty
    with pytest.raises(RuntimeError, match="out of ideas"):
        sweep.run(np.random.default_rng(0))
    sweep.searcher = lambda: searcher_for(SPEC)
    sweep.run(np.random.default_rng(0))
    _check(sweep)


def test_failed_trials_run_again_with_the_configuration_they_had(tmp_path):
    sweep = _sweep(tmp_path)
    sweep.run(np.random.default_rng(0))
    before = _suggestions(sweep)
    failed = [index for index, trial in fold(sweep.records(), COUNT).trials.items() if trial.status == "failed"]
    driver = sweep.driver(failed_too=True)
    driver.begin()
    assert driver.work.next() == [failed[0]]
    assert driver.work.describe([failed[0]])[0].values == before[failed[0]][1]
    assert _suggestions(sweep) == before


def test_configurations_are_drawn_once_and_then_as_the_journal_has_them(tmp_path):
    """Another release may draw others from the same space; what was drawn for a trial stays its own."""
    sweep = FakeSweep(SweepPaths(tmp_path / "plain"), HALVING, COUNT)
    sweep.run(np.random.default_rng(0), kills=3)
    drawn = [record.body for record in sweep.records() if isinstance(record.body, Drawn)]
    assert [(body.first, len(body.values)) for body in drawn] == [(0, COUNT)], "one record, whatever was killed"
    others = Configurations(COUNT + 2, lambda index: {"other": index}, sweep.paths.journal)
    assert others[:COUNT] == [{"index": index} for index in range(COUNT)]
    assert others[COUNT:] == [{"other": COUNT}, {"other": COUNT + 1}], "those that no trial has begun with are drawn"


def test_a_forged_configuration_is_refused_by_record_and_column(tmp_path):
    journal = Journal(tmp_path, durable=False)
    journal.append(made_body("attempt", {"attempt": 1}))
    own = configurations_of(SPEC, tmp_path)
    values = configurations(SPEC)[0]
    for wrong, said in (
        ({**values, "loss": 5}, "it has no config_loss"),
        ({**values, "optimizer": {**values["optimizer"], "lr": "fast"}}, "config_optimizer_lr is 'fast'"),
    ):
        journal = Journal(tmp_path, durable=False)
        journal.append(made_body("drawn", {"first": 0, "values": [wrong]}))
        with pytest.raises(SweeperError, match=f"gives configuration 0, which does not fit the search space: {said}"):
            own[0]
        set_aside(tmp_path)
    journal = Journal(tmp_path, durable=False)
    journal.append(made_body("drawn", {"first": 0, "values": [values]}))
    assert own[0] == values


def set_aside(folder):
    """Remove the newest record."""
    (folder / record_names(folder)[-1]).unlink()


def test_more_samples_are_drawn_and_journaled_beside_those_before():
    state, recorded = SweepState(TOGETHER + 5), []

    def record(body):
        recorded.append((body.first, len(body.values)))
        state.apply(Record(len(recorded), 0.0, body))

    values = TrialValues([Configuration({"index": index}) for index in range(3)], state, record)
    assert values.of(1) == {"index": 1} and values.of(2) == {"index": 2}
    values = TrialValues([Configuration({"other": index}) for index in range(TOGETHER + 5)], state, record)
    assert values.of(TOGETHER + 1) == {"other": TOGETHER + 1} and values.of(4) == {"other": 4}
    assert values.of(0) == {"index": 0} and values.digest(0) == Configuration({"index": 0}).digest
    assert recorded == [(0, 3), (TOGETHER, 5), (3, TOGETHER - 3)]


def test_configurations_as_the_journal_has_them(tmp_path):
    journal = Journal(tmp_path, durable=False)
    journal.append(made_body("attempt", {"attempt": 1}))
    known = Configurations(3, None, tmp_path)
    assert len(known) == 3
    with pytest.raises(LookupError, match="configuration 0 has not been suggested yet"):
        known[0]
    values = {"loss": {"name": "focal", "gamma": 3.0}}
    body = {
        "configuration": 0,
        "values": values,
        "choices": {},
        "config_hash": Configuration(values).digest,
        "searcher": "x 1",
    }
    journal.append(made_body("suggested", body))
    assert known[0] == known[-3] == values, "the journal grew"
    with pytest.raises(IndexError, match="configuration 3 of 3"):
        known[3]
    with pytest.raises(LookupError):
        known[:]


def test_configurations_of_added_seeds_are_read_from_the_journal(tmp_path):
    journal = Journal(tmp_path, durable=False)
    known = Configurations(3, lambda index: Configuration({"index": index}), tmp_path)
    assert known[2] == {"index": 2}
    with pytest.raises(IndexError):
        known[FIRST_ADDED]
    values = {"loss": {"name": "cross_entropy"}}
    seeds = [{"configuration": FIRST_ADDED + at, "trial": FIRST_ADDED, "replicate": 1 + at, "seed": at,
              "values": values, "question": "gamma"} for at in range(2)]  # fmt: skip
    journal.append(made_body("added", {"round": 1, "seeds": seeds}))
    assert known[FIRST_ADDED] == known[FIRST_ADDED + 1] == values, "the journal grew"
    assert len(known) == 3 and [*known] == known[:] == [{"index": index} for index in range(3)]
    with pytest.raises(IndexError):
        known[FIRST_ADDED + 2]
    refusing = Configurations(
        3, lambda index: Configuration({"index": index}), tmp_path, lambda values: "too good to be true"
    )
    with pytest.raises(SweeperError, match="too good"):
        refusing[FIRST_ADDED]


@pytest.mark.integration
def test_tables_and_report_have_every_configuration_that_was_chosen(tmp_path, monkeypatch):
    inline = Inline(tmp_path)
    searched = inline.run("searched", "searcher=optuna", "searcher.startup=2", "samples=6", "scheduler.max_epochs=3")
    results = load(searched.paths.root)
    rows = results.rows("SELECT config_hash, config_optimizer_lr AS lr FROM trials ORDER BY trial, replicate")
    known = [searched.configurations[index] for index in range(6)]
    assert [row["config_hash"] for row in rows[::2]] == [Configuration(values).digest for values in known]
    assert [row["lr"] for row in rows[::2]] == [values["optimizer"]["lr"] for values in known]
    assert searcher_lines(results) == ["optuna chose 6 configurations: 2 trials at random, then from what was observed"]
    assert json.loads(searched.paths.manifest.read_text())["versions"]["optuna"]
    monkeypatch.setattr(hyperparameters, "MINIMUM_TRIALS", 6)
    assert "A searcher chose these configurations" in hyperparameters.draw_importance(results).caption
