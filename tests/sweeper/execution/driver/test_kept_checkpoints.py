"""Checkpoints of the best trials are there whenever one of them is asked for."""

import math
import random

import pytest

import sweeper
from sweeper.core.ids import FIRST_ADDED, configuration_index, trial_name
from sweeper.execution.driver.context import Keeping, KeptCheckpoints
from sweeper.journal.best import best_trials
from sweeper.journal.records import AddedSeed, Decision
from sweeper.journal.state import SweepState, TrialState
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.scheduling.contenders import REQUEST
from tests.running import SPACE, write_space
from trainables.registry.configuration import Configuration
from trainables.worker.trial_reports import CRASH, Failure


class Shelf:
    """A place for checkpoints, of which every trial has one until it is removed."""

    def __init__(self, trials: int) -> None:
        self.names = {trial_name(index) for index in range(trials)}

    def remove_checkpoints(self, place: str, *, now: bool = False) -> None:
        self.names.remove(place)

    def trials_with_checkpoints(self) -> set[str]:
        return set(self.names)


def ended(index: int, rng: random.Random) -> TrialState:
    """Return a trial that has ended: complete, stopped or diverged, with values that are often equal."""
    kind = rng.choice(["complete", "complete", "complete", "stop", "fail"])
    status = {"complete": "completed", "stop": "early_stopped", "fail": "failed"}[kind]
    value = math.nan if kind == "fail" else rng.choice([0.1, 0.2, 0.3, rng.random()])
    decision = Decision(kind, "test", 3)
    return TrialState(configuration=index, status=status, decision=decision, objective=value)


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("best", [1, 3])
def test_the_best_of_every_stratum_keep_theirs_at_every_moment(best, seed):
    rng, count = random.Random(seed), 30
    strata = [rng.choice("ab") for _ in range(count)]
    state, shelf = SweepState(count), Shelf(count)
    keeping = Keeping(best, lambda index: strata[index])
    checkpoints = KeptCheckpoints(shelf, state, "min", keeping)
    for index in rng.sample(range(count), count):
        state.trials[index] = ended(index, rng)
        checkpoints.tidy(index)
        waiting = {each for each, trial in state.trials.items() if trial.status == "waiting"}
        for stratum in "ab":
            done = [each for each in best_trials(state, "min", count) if strata[each.configuration] == stratum]
            kept = {int(name[1:]) for name in shelf.names if strata[int(name[1:])] == stratum}
            assert kept - waiting == {each.configuration for each in done[:best]}
        # A driver that takes up here removes nothing more.
        before = set(shelf.names)
        KeptCheckpoints(shelf, state, "min", keeping).remove_leftovers()
        assert shelf.names == before
    assert len(shelf.names) < count


@pytest.mark.slow
def test_a_sweep_keeps_the_best_of_each_loss(tmp_path):
    space = write_space(tmp_path, SPACE + "keep: {best: 1, per: [loss]}\n")
    done = sweeper.run(space, output=tmp_path / "results", mlflow=False, executor="local")
    rows = leaderboard(Results(done.folder)).rows
    best = {row["loss"]: row["trial"] for row in reversed(rows)}
    assert len(best) == 3 and {path.name for path in (done.folder / "checkpoints").iterdir()} == {*best.values()}


def test_a_crashed_trial_keeps_its_checkpoint_for_a_retry():
    state, shelf = SweepState(2), Shelf(2)
    checkpoints = KeptCheckpoints(shelf, state, "min")
    state.trials[0] = TrialState(
        configuration=0, status="completed", decision=Decision("complete", "last_epoch", 3), objective=0.5
    )
    state.trials[1] = TrialState(configuration=1, status="failed", failure=Failure(CRASH), objective=0.4)
    checkpoints.tidy(0)
    checkpoints.tidy(1)
    assert shelf.names == {"c00000", "c00001"}


def added_seed(own: int, trial: int, replicate: int, question: str, value: float) -> TrialState:
    """Return a fresh seed that has ended."""
    seed = AddedSeed(own, trial, replicate, 0, Configuration({"loss": {"name": "focal"}}), question)
    decision = Decision("complete", "last_epoch", 3)
    return TrialState(configuration=own, added=seed, status="completed", decision=decision, objective=value)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("best", [1, 2])
@pytest.mark.parametrize("question", ["network", REQUEST])
def test_fresh_seeds_of_the_best_configurations_keep_theirs(question, best, seed):
    rng, state = random.Random(seed), SweepState(4)
    shelf = Shelf(0)
    for index in range(4):
        state.trials[index] = ended(index, rng)
    # Configurations of the space, and one that was added and has the index of its first seed.
    order = [(trial, replicate) for replicate in (1, 2, 3) for trial in (0, 1, 2, FIRST_ADDED)]
    owns = {FIRST_ADDED + at: place for at, place in enumerate([(FIRST_ADDED, 1), *order[:3], *order[4:]])}
    checkpoints = KeptCheckpoints(shelf, state, "min", Keeping(best))
    values: dict[int, dict[int, float]] = {}
    for own in rng.sample([*owns], len(owns)):
        trial, replicate = owns[own]
        values.setdefault(trial, {})[own] = rng.choice([0.1, 0.2, 0.3])
        state.trials[own] = added_seed(own, trial, replicate, question, values[trial][own])
        shelf.names.add(trial_name(own))
        checkpoints.tidy(own)
        held = {owns[configuration_index(name)][0] for name in shelf.names}
        assert held == values.keys(), "any of them can still become the best"
        assert len(shelf.names) == (len(held) if question == REQUEST else sum(map(len, values.values())))
        before = set(shelf.names)
        KeptCheckpoints(shelf, state, "min", Keeping(best)).remove_leftovers()
        assert shelf.names == before, "a driver that takes up here removes nothing more"
    before = {name: owns[configuration_index(name)][0] for name in shelf.names}
    KeptCheckpoints(shelf, state, "min", Keeping(best)).keep_best_seeds()
    means = {trial: round(sum(own.values()) / len(own), 9) for trial, own in values.items()}
    winners = {trial for trial, mean in means.items() if sum(other < mean for other in means.values()) < best}
    assert shelf.names == {name for name, trial in before.items() if trial in winners}
