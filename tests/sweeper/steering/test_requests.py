"""Steering: what is asked is checked, done once wherever a driver dies, and every decision still stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeper
from sweeper.core.errors import InvalidSearchSpace, SweeperError
from sweeper.core.ids import SweepPaths, trial_name
from sweeper.core.schemas import evaluation_columns, table_schemas
from sweeper.execution.attempt import SteeringController
from sweeper.execution.driver.context import DriverSettings
from sweeper.execution.driver.driver import Driver
from sweeper.journal.journal import Journal, read_journal
from sweeper.journal.records import Record, Steered
from sweeper.journal.state import EARLY_STOPPED, ENDED, STEERED, SweepState, fold
from sweeper.results import Results
from sweeper.scheduling.asha import Halving, Promotion
from sweeper.scheduling.base import audit
from sweeper.space.configurations import column_types
from sweeper.space.loading import load_spec
from sweeper.steering.requests import GOES_ON, ask, pending
from sweeper.storage.mirror import SharedFolder
from sweeper.storage.sweeps import Sweep, create_sweep, edited, open_sweep
from sweeper.tables.writer import ParquetSink
from tests.running import SPACE, write_space
from tests.sweeper.fake_executor import FakeSweep

SCHEDULES = {"stopping": Halving("val_nll", "min", 27, 3, 3), "promotion": Promotion("val_nll", "min", 27, 3, 3)}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(8))
def test_trials_that_are_stopped_anywhere_report_no_more_and_every_decision_stands(
    tmp_path: Path, seed: int, schedule: str
) -> None:
    rng = np.random.default_rng(seed)

    def steered(driver: Driver) -> None:
        left = [index for index, trial in driver.state.trials.items() if trial.status not in ENDED]
        if left and (not driver.state.steered or rng.random() < 0.05):
            some = rng.choice(left, size=min(2, len(left)), replace=False)
            stopped = {trial_name(int(index)): driver.state.trials[int(index)].epochs for index in some}
            request = str(len(driver.state.steered))
            driver.steer(Steered(driver.state.attempt, request, "somebody", "stop", 0, stopped, {}))

    sweep = FakeSweep(SweepPaths(tmp_path / "sweep"), SCHEDULES[schedule], 14, slots=2)
    sweep.run(rng, kills=12, trouble=0.05, steered=steered)
    records = list(sweep.records())
    state = fold(records, 14)
    assert audit(sweep.schedule, records)[1] == [] and not state.unfinished()
    gone = [(record.sequence, index) for record in records if isinstance(record.body, Steered)
            for index in record.body.indices]  # fmt: skip
    assert gone and len({index for _, index in gone}) == len(gone)
    for sequence, index in gone:
        assert (state.trials[index].status, state.trials[index].stop_kind) == (EARLY_STOPPED, STEERED)
        later = [r for r in records[sequence + 1 :] if getattr(r.body, "configuration", None) == index]
        assert not [r for r in later if r.kind in ("report", "judged")]


def test_a_record_of_steering_is_read_back_and_a_damaged_one_refused() -> None:
    body = Steered(2, "ab", "me", "extend --samples 4", 9, {"c00001": 3}, {"samples": 4}, 4)
    record = Record(0, 1.0, body)
    assert Record.from_bytes(record.to_bytes()).body == body
    assert body.sentence == "steered after rung 9 by me: extend --samples 4"
    with pytest.raises(ValueError, match="not a trial name"):
        Steered.from_json({**body.to_json(), "stopped": {"../x": 3}})
    state = SweepState(2)
    state.apply(record)
    assert len(state.trials) == 4 and state.trials[1].stop_reason == body.sentence


@pytest.fixture
def begun(tmp_path: Path) -> Sweep:
    """A sweep of ten configurations of which none has begun, with its tables."""
    spec = load_spec(write_space(tmp_path, SPACE))
    sweep = create_sweep(spec, "s", "s", tmp_path / "results", {"created": "2026-01-01"})
    _tables(sweep)
    return sweep


def _tables(sweep: Sweep) -> ParquetSink:
    schemas = table_schemas(column_types(sweep.spec.space), 10, evaluation_columns(["temperature"]))
    return ParquetSink(sweep.paths, schemas, sweep.configurations, sweep.spec.replicate_seeds)


def _driver(sweep: Sweep, said: list[str]) -> Driver:
    """Take a sweep up as a driver does, and do what was asked of it."""
    state, rungs = SweepState(len(sweep.configurations)), sweep.spec.schedule.begin()
    for record in read_journal(sweep.paths.journal):
        state.apply(record)
        rungs.apply(record)
    steered = SteeringController(sweep, said.append)
    driver = Driver(
        sweep.paths, sweep.configurations, DriverSettings.of(sweep.spec, sweep.configurations),
        journal=Journal(sweep.paths.journal, durable=False),
        keeper=SharedFolder(sweep.paths), state=state, rungs=rungs, steered=steered,
        sinks=[_tables(sweep)],
    )  # fmt: skip
    driver.begin()
    steered(driver)
    return driver


def _asked(sweep: Sweep, verb: str, *what: str, **options: Any) -> str:
    return sweeper.steer(sweep.name, verb, what, output=sweep.paths.root.parent, **options)


def test_what_is_asked_is_done_when_a_driver_begins_and_shows(begun: Sweep) -> None:
    focal = [i for i, each in enumerate(begun.configurations) if each["loss"]["name"] == "focal"]
    said = _asked(begun, "stop", where="config_loss_name = 'focal'")
    assert "the next `sweeper resume s --output" in said
    driver = _driver(begun, [])
    stopped = [index for index, trial in driver.state.trials.items() if trial.stop_kind == STEERED]
    assert stopped == focal and not pending(begun.paths) and driver.closing is None
    given = [driver.next_assignment() for _ in range(20)]
    assert [each[0] for each in given if each] == [index for index in range(10) if index not in focal]
    (sentence,) = Results(begun.paths.root).marks
    assert sentence.startswith("this sample was steered before the first rung by ") and "config_loss_name" in sentence
    with pytest.raises(SweeperError, match="no trial that runs or waits has config_loss_name = 'mae'"):
        _asked(begun, "stop", where="config_loss_name = 'mae'")


def test_a_sweep_grows_by_samples_and_by_a_clone_and_begins_again(begun: Sweep) -> None:
    _asked(begun, "extend", samples=12)
    _asked(begun, "clone", "c00003", "optimizer.lr=0.123")
    driver = _driver(begun, [])
    assert driver.closing == GOES_ON and len(driver.state.trials) == 13 and driver.finish() == "stopped"
    again = open_sweep("s", begun.paths.root.parent)
    assert (again.spec.samples, len(again.configurations)) == (13, 13)
    assert [*again.configurations[:12]] == [*load_grown(begun, 12)[:12]]
    cloned = again.configurations[12]
    assert cloned["optimizer"]["lr"] == 0.123 and cloned["loss"] == again.configurations[3]["loss"]
    assert sum(isinstance(record.body, Steered) for record in read_journal(begun.paths.journal)) == 2


def test_a_boosted_configuration_is_trained_again_on_fresh_seeds(begun: Sweep) -> None:
    count = begun.spec.replicates.count
    _asked(begun, "boost", "c00003", replicates=2 * count - 1)
    driver = _driver(begun, [])
    assert driver.closing == GOES_ON and len(driver.state.trials) == 12
    again = open_sweep("s", begun.paths.root.parent)
    assert [dict(again.configurations[each]) for each in (10, 11)] == [begun.configurations[3]] * 2
    seeds = [seed for index in (3, 10, 11) for seed in again.spec.replicate_seeds.of(index)]
    assert len(set(seeds)) == 3 * count
    (mark,) = Results(begun.paths.root).marks
    assert f"boost c00003 --replicates {2 * count - 1}" in mark


def test_what_is_drawn_after_a_space_was_narrowed_lies_there(begun: Sweep) -> None:
    _asked(begun, "narrow", "space.optimizer.lr=[0.05,0.06]")
    driver = _driver(begun, [])
    assert driver.closing == GOES_ON and driver.state.steered
    _asked(begun, "extend", samples=14)
    _asked(begun, "narrow", "optimizer.lr=[0.052,0.06]")
    _driver(open_sweep("s", begun.paths.root.parent), [])
    again = open_sweep("s", begun.paths.root.parent)
    assert [each.first for each in again.spec.narrowed] == [0, 0], "none had begun"
    assert all(0.052 <= float(str(each["optimizer"]["lr"])) <= 0.06 for each in again.configurations)
    assert [{**each, "optimizer": 0} for each in again.configurations[:10]] == [
        {**each, "optimizer": 0} for each in begun.configurations
    ], "all else is drawn as before"
    assert edited(again) == [] and "narrow space.optimizer.lr=[0.05,0.06]" in Results(begun.paths.root).marks[0]


def test_what_was_drawn_before_a_space_was_narrowed_stays(begun: Sweep) -> None:
    driver = _driver(begun, [])
    assert driver.describe(driver.next_assignment() or ())  # with it, those that are drawn together are journaled
    before = [*begun.configurations]
    _asked(begun, "narrow", "space.optimizer.lr=[0.05,0.06]")
    _asked(begun, "extend", samples=13)
    _driver(begun, [])
    again = open_sweep("s", begun.paths.root.parent)
    assert [*again.configurations[:10]] == before and again.spec.narrowed[0].first == 10
    assert all(0.05 <= float(str(each["optimizer"]["lr"])) <= 0.06 for each in again.configurations[10:])


def load_grown(sweep: Sweep, samples: int) -> list[Any]:
    spec = sweep.spec.model_copy(update={"samples": samples})
    return [*create_sweep(spec, "grown", "grown", sweep.paths.root.parent, {}).configurations]


def test_a_request_whose_driver_died_before_it_was_removed_is_done_once(begun: Sweep) -> None:
    _asked(begun, "clone", "c00003", "optimizer.lr=0.123")
    (file,) = begun.paths.steering.iterdir()
    kept = file.read_bytes()
    _driver(begun, [])
    begun.paths.sweep_file.write_text(begun.paths.sweep_file.read_text().replace("samples: 11", "samples: 10"))
    file.write_bytes(kept)  # the driver died after the record, before it wrote the space
    _driver(open_sweep("s", begun.paths.root.parent), [])
    again = open_sweep("s", begun.paths.root.parent)
    assert len(again.configurations) == 11 and again.configurations[10]["optimizer"]["lr"] == 0.123
    assert sum(isinstance(record.body, Steered) for record in read_journal(begun.paths.journal)) == 1


def test_a_budget_is_changed_and_one_that_cannot_be_is_refused(begun: Sweep) -> None:
    _asked(begun, "budget", "gpu_hours=2.5", "wall_hours=1")
    driver = _driver(begun, [])
    assert driver.closing is None and open_sweep("s", begun.paths.root.parent).spec.budget.gpu_hours == 2.5  # type: ignore[union-attr]
    _asked(begun, "extend", samples=20)
    _asked(begun, "extend", samples=15)
    said: list[str] = []
    grown = open_sweep("s", begun.paths.root.parent)
    _driver(grown, said)
    assert open_sweep("s", begun.paths.root.parent).spec.samples == 20
    assert said and "samples can only grow" in said[0] and not pending(begun.paths)


@pytest.mark.parametrize(
    ("verb", "what", "options", "said"),
    [
        ("pause", (), {}, "'pause' is no way to steer"),
        ("stop", (), {}, "stop needs to know which trials"),
        ("stop", (), {"where": "nonsense = 1"}, "nonsense"),
        ("stop", (), {"where": "1 = 1; DROP TABLE trials"}, "syntax error"),
        ("extend", (), {"samples": 10}, "the sweep has 10 samples"),
        ("extend", (), {"samples": 10**9}, "samples"),
        ("budget", (), {}, "budget takes gpu_hours"),
        ("budget", ("keep=x",), {}, "budget takes gpu_hours"),
        ("budget", ("gpu_hours=-1",), {}, "must be greater than 0"),
        ("clone", (), {}, "clone needs a trial"),
        ("clone", ("c00099", "optimizer.lr=1"), {}, "configuration 99 of 10"),
        ("clone", ("c00003",), {}, "nothing differs"),
        ("clone", ("c00003", "optimizer.lr=-1"), {}, "lr = -1 is outside"),
        ("clone", ("c00003", "optimizer.speed=1"), {}, "speed"),
        ("clone", ("c00003", "loss={name: label_smoothing}"), {}, "it is no configuration of the search space"),
        ("clone", ("c00003", "loss={name: brier}"), {}, "the space has no loss 'brier'"),
        ("boost", ("c00003",), {}, "boost needs to know how many"),
        ("boost", ("c00099",), {"replicates": 2}, "configuration 99 of 10"),
        ("boost", ("c00003",), {"replicates": 10**9}, "samples"),
        ("narrow", (), {}, "narrow needs an interval"),
        ("narrow", ("space.optimizer.lr=0.1",), {}, "narrow needs an interval"),
        ("narrow", ("space.optimizer.lr=[0.2,0.1]",), {}, "does not lie in loguniform: [0.01, 0.3]"),
        ("narrow", ("space.optimizer.lr=[0.2,1]",), {}, "does not lie in"),
        ("narrow", ("space.optimizer.speed=[0,1]",), {}, "the space has no interval optimizer.speed"),
        ("narrow", ("space.loss=[0,1]",), {}, "the space has no interval loss"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_reason(
    begun: Sweep, verb: str, what: tuple[str, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises((SweeperError, InvalidSearchSpace)) as error:
        _asked(begun, verb, *what, **options)
    assert said in str(error.value) and not pending(begun.paths)


def test_a_file_that_is_no_request_is_set_aside(begun: Sweep) -> None:
    begun.paths.steering.mkdir()
    request = {"identity": "a", "time": 0, "by": "x", "asked": "y", "trials": {}, "added": []}
    (begun.paths.steering / "a.json").write_text(json.dumps({**request, "settings": {"keep": ["curl"]}}))
    (begun.paths.steering / "b.json").write_text("{")
    assert pending(begun.paths) == []
    assert {file.name for file in begun.paths.steering.iterdir()} == {"a.refused", "b.refused"}


def test_a_clone_that_somebody_wrote_into_the_folder_names_no_code(begun: Sweep) -> None:
    _asked(begun, "clone", "c00003", "optimizer.lr=0.123")
    (file,) = begun.paths.steering.iterdir()
    file.write_text(file.read_text().replace('"added": [{"loss": {"name": "', '"added": [{"loss": {"name": "evil:'))
    said: list[str] = []
    driver = _driver(begun, said)
    assert "the space has no loss 'evil:" in said[0] and not driver.state.steered and not pending(begun.paths)


def test_a_clone_imports_nothing_that_the_space_does_not_have(
    begun: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steered_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SweeperError, match="the space has no loss 'steered_evil:Loss'"):
        _asked(begun, "clone", "c00003", "loss.name=steered_evil:Loss")
    assert not (tmp_path / "ran").exists()


def test_sweeps_in_stores_are_not_steered() -> None:
    with pytest.raises(SweeperError, match="object store cannot be steered"):
        ask("s", "s3://bucket/results", "stop", (), where="true")
