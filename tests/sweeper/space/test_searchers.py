"""What each searcher asks of a space: every domain that does not suit it is named, with what to write instead."""

from __future__ import annotations

import json

import pytest

from sweeper.core.errors import InvalidSearchSpace
from sweeper.space.configurations import configurations_of
from sweeper.space.loading import build_spec
from sweeper.space.plug_ins import SchedulerSettings
from tests.sweeper.searches import SPACE, searched_spec
from tests.sweeper.small_registries import MINIMAL, REGISTRIES

FINITE = {
    "loss": {"one_of": ["cross_entropy", {"name": "focal", "gamma": {"quniform": [1, 2, 0.5]}}]},
    "architecture": {"name": "mlp", "width": {"randint": [8, 9]}},
    "optimizer": {"name": "sgd", "lr": {"choice": [0.1, 0.2]}, "momentum": {"grid": [0.0, 0.9]}},
}


def _spec(searcher, space=FINITE, **changes):
    return build_spec({**MINIMAL, "space": space, "searcher": searcher, **changes}, REGISTRIES)


def _faults(searcher, space=FINITE, **changes):
    with pytest.raises(InvalidSearchSpace) as raised:
        _spec(searcher, space, **changes)
    return {fault.path: (fault.rule, fault.remedy) for fault in raised.value.faults}


def test_grid_takes_every_member_of_every_domain_in_turn():
    spec = _spec("grid")
    drawn = [json.dumps(values, sort_keys=True) for values in configurations_of(spec, None)]
    assert len(drawn) == len(set(drawn)) == (1 + 3) * 2 * 2 * 2
    assert spec.samples == 1
    again = build_spec(spec.resolved(), REGISTRIES)
    assert again == spec and [json.dumps(v, sort_keys=True) for v in configurations_of(again, None)] == drawn


def test_grid_names_each_domain_without_members():
    found = _faults("grid", SPACE)
    places = ("loss.one_of[1].gamma.uniform", "loss.one_of[2].nu.loguniform", "optimizer.lr.loguniform")
    assert found.keys() == {f"space.{place}" for place in (*places, "optimizer.momentum.uniform")}
    rule, remedy = found["space.optimizer.lr.loguniform"]
    assert rule == "loguniform has no finite list of members for the searcher grid"
    assert remedy == "write grid or choice with the values to try, or searcher: random"


def test_grid_refuses_members_that_stand_twice_and_steps_too_fine():
    space = {**FINITE, "optimizer": {"name": "sgd", "lr": {"choice": [0.1, 0.1]}}}
    assert _faults("grid", space)["space.optimizer.lr.choice[1]"][0] == "0.1 appears twice"
    space = {**FINITE, "optimizer": {"name": "sgd", "lr": {"quniform": [0.0001, 2, 0.0001]}}}
    rule, _ = _faults("grid", space)["space.optimizer.lr.quniform"]
    assert rule == "quniform has 20,000 members, more than a grid's 10,000"


def test_optuna_refuses_grids_wherever_they_stand():
    space = {
        "loss": {"grid": ["cross_entropy", {"name": "focal", "gamma": {"grid": [1, 2]}}]},
        "architecture": "mlp",
        "optimizer": {"name": "sgd", "lr": {"loguniform": [0.01, 1]}},
    }
    found = _faults("optuna", space, samples=4)
    assert found.keys() == {"space.loss.grid", "space.loss.grid[1].gamma.grid"}
    assert found["space.loss.grid"][1] == "write choice instead of grid, or searcher: grid"


def test_optuna_needs_something_to_choose_and_a_number_of_samples():
    rule, _ = _faults("optuna", MINIMAL["space"])["searcher"]
    assert rule == "optuna has nothing to search: every value of the space is fixed"
    assert "samples" in _faults("optuna", SPACE)


def test_options_belong_to_optuna_and_have_defaults():
    assert searched_spec(startup=None).searcher.settings == {"startup": 10}
    assert searched_spec(searcher={"name": "optuna", "warm_start": "a"}).searcher.warm_start == ["a"]
    found = _faults({"name": "random", "startup": 3, "warm_start": ["a"]}, samples=2)
    assert found.keys() == {"searcher.startup", "searcher.warm_start"}
    assert "searcher.startup" in _faults({"name": "optuna", "startup": 0}, SPACE, samples=2)
    assert _faults({"name": "optuna", "warmstart": ["a"]}, SPACE, samples=2)["searcher.warmstart"][1].startswith(
        "did you mean 'warm_start'"
    )


def test_a_random_searcher_leaves_no_trace_and_others_come_back():
    assert "searcher" not in _spec("random", samples=3).resolved()
    assert _spec(None, samples=3) == _spec("random", samples=3)
    spec = searched_spec()
    assert spec.resolved()["searcher"] == {"name": "optuna", "startup": 4}
    assert build_spec(spec.resolved(), REGISTRIES) == spec


@pytest.mark.parametrize("settings", [{"name": "x"}, {"grace_epochs": "x"}, {"reduction_factor": 0.5}, {"unknown": 1}])
def test_a_scheduler_of_a_file_that_is_only_read_is_refused_in_one_sentence(settings):
    chosen = SchedulerSettings.model_validate({"name": "asha", "max_epochs": 9, **settings})
    with pytest.raises(InvalidSearchSpace, match="scheduler: "):
        chosen.built("val_nll", "min")
