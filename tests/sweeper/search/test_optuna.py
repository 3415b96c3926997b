"""Optuna: what it is told, and that the journal's fold and a number are all it depends on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.domains.nodes import Choice
from sweeper.search.base import Searcher, audit_suggestions
from sweeper.space.configurations import configurations
from sweeper.space.loading import searcher_for
from tests.sweeper.records import fields
from tests.sweeper.searches import Journaled, objective, random_history, searched_spec
from trainables.registry.configuration import Configuration

SPEC = searched_spec()
COUNT = 14


def _late(journaled: Journaled) -> Searcher:
    """Return a searcher that hears of everything at once, as that of a driver which takes the sweep up."""
    searcher = searcher_for(SPEC)
    for record in journaled.records:
        searcher.apply(record)
    return searcher


def _suggested(journaled: Journaled) -> dict[int, tuple[Any, Any]]:
    bodies = [fields(record) for record in journaled.records if record.kind == "suggested"]
    return {body["configuration"]: (body["values"], body["choices"]) for body in bodies}


@pytest.mark.integration
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_one_that_hears_of_everything_at_once_suggests_what_one_does_that_was_there(seed, at_once):
    journaled, late = Journaled(searcher_for(SPEC)), {}
    rng = np.random.default_rng(seed)
    for index in random_history(journaled, rng, COUNT, at_once):
        suggestion = _late(journaled).suggest(index)
        late[index] = (suggestion.values, suggestion.choices)
    assert late == _suggested(journaled)
    audited = audit_suggestions(lambda: searcher_for(SPEC), journaled.records)
    assert (audited.checked, audited.differences, audited.unchecked) == (COUNT, [], 0)


CHOICES: dict[str, Choice] = {
    "loss": 1,
    "loss.one_of[1].gamma": 3.0,
    "architecture": 1,
    "optimizer.lr": 0.1,
    "optimizer.momentum": 0.9,
}


def _study(searcher: Searcher) -> Any:
    assert searcher._study is not None
    return searcher._study


def test_what_it_observes_of_each_kind_of_ending():
    journaled = Journaled(searcher_for(SPEC))
    for index in range(5):
        journaled.suggest(index)
    journaled.complete(0, 0.25)
    journaled.report(1, "running", 3, 0.5)
    journaled.stop(1, 0.4, rung=9)
    journaled.add("failed", {"configuration": 2, "final": False})
    journaled.add("failed", {"configuration": 3, "final": True})
    journaled.report(4, "failed", 3, None, "fail")
    for searcher in (journaled.searcher, _late(journaled)):
        searcher.suggest(5)
        trials = _study(searcher).get_trials(deepcopy=False)
        assert [trial.state.name for trial in trials[:5]] == ["COMPLETE", "PRUNED", "RUNNING", "FAIL", "FAIL"]
        assert [trials[0].value, trials[1].value] == [0.25, 0.4]
        assert trials[1].intermediate_values == {3: 0.5, 9: 0.4}


def test_a_failed_trial_that_is_run_again_counts_as_it_ends_then():
    journaled = Journaled(searcher_for(SPEC))
    for index in range(2):
        journaled.suggest(index)
    journaled.add("failed", {"configuration": 0, "final": True})
    journaled.complete(1, 0.5)
    journaled.suggest(2)
    journaled.complete(0, 0.1)
    expected = _late(journaled).suggest(3)
    assert journaled.suggest(3) == expected
    assert [trial.state.name for trial in _study(journaled.searcher).trials[:2]] == ["COMPLETE"] * 2


def test_random_starts_are_spread_over_branches_and_seeds():
    suggestions = [searcher_for(searched_spec(seed=seed)).suggest(0).choices for seed in range(30)]
    assert {choices["loss"] for choices in suggestions} == {0, 1, 2}
    assert len({choices["optimizer.lr"] for choices in suggestions}) == 30


def test_it_finds_better_configurations_than_chance():
    """On a function that is best in one branch; n = 6 seeds of 30 trials, the last 15 of each."""
    gains = []
    for seed in range(6):
        spec = searched_spec(30, seed=seed, startup=10)
        journaled = Journaled(searcher_for(spec))
        for index in range(30):
            value = objective(journaled.suggest(index).values)
            journaled.complete(index, value) if index % 2 else journaled.stop(index, value + 1)
        found = [objective(values) for values, _ in _suggested(journaled).values()][15:]
        chance = [objective(configurations(spec)[index]) for index in range(15, 30)]
        gains.append(np.mean(chance) - np.mean(found))
    assert np.mean(gains) > 3 * np.std(gains, ddof=1) / np.sqrt(len(gains))


MISLED = "its values do not follow from its choices"


def _sequence(journaled: Journaled, index: int) -> int:
    found = (r for r in journaled.records if r.kind == "suggested" and fields(r)["configuration"] == index)
    return next(found).sequence


def test_an_audit_names_what_does_not_follow_from_the_records_before_it():
    journaled = Journaled(searcher_for(SPEC))
    for _ in random_history(journaled, np.random.default_rng(1), 8, 2):
        pass

    def audited(change: dict[str, Any], index: int = 5) -> Any:
        records = [
            replace(r, body=replace(r.body, **change))
            if r.kind == "suggested" and fields(r)["configuration"] == index
            else r
            for r in journaled.records
        ]
        return audit_suggestions(lambda: searcher_for(SPEC), records)

    other = audited({"choices": CHOICES})
    assert (other.checked, len(other.differences), other.unchecked) == (6, 1, 2)
    assert "suggestion of c00005: journaled {'loss': 1" in other.differences[0]
    foreign = audited({"searcher": "optuna 4.0.0"})
    assert (foreign.checked, foreign.differences, foreign.unchecked) == (7, [], 1)
    other = configurations(SPEC)[3]
    assert "its hash does not match its values" in audited({"values": other}).differences[0]
    forged = audited({"values": other, "config_hash": Configuration(other).digest})
    assert forged.differences == [f"record {_sequence(journaled, 5)}: suggestion of c00005: {MISLED}"]
    twice = audited({"configuration": 4})
    assert "its index is not 5" in twice.differences[0]
