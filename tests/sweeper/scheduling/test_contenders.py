"""Seeds that join a sweep: which configurations get which."""

from __future__ import annotations

import itertools

import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import FIRST_ADDED, ReplicateSeeds
from sweeper.journal.records import Added, Body, Decision, Drawn, Record, Reported
from sweeper.journal.state import SweepState
from sweeper.scheduling.contenders import requested
from trainables.worker.trial_reports import TrialReport

SEEDS = ReplicateSeeds(0, 1, common=True)


def ended(configuration: int, value: float, status: str = "completed") -> Reported:
    kind = {"completed": "complete", "early_stopped": "stop", "failed": "fail"}[status]
    report = TrialReport(configuration=configuration, epoch=9, objective=value, device="cpu", wall_seconds=1.0)
    return Reported(report, 1, status, Decision(kind, "test", 9, value))  # type: ignore[arg-type]


def sweep(*bodies: Body, count: int = 4) -> SweepState:
    state = SweepState(count)
    values = [{"loss": {"name": "focal"}, "place": index} for index in range(count)]
    for sequence, body in enumerate([Drawn(0, values), *bodies]):
        state.apply(Record(sequence, 0.0, body))
    return state


def follow(state: SweepState, *bodies: Body) -> None:
    for body in bodies:
        state.apply(Record(state.sequence + 1, 0.0, body))


def test_those_that_reached_the_end_get_what_they_lack_and_no_more() -> None:
    state = sweep(ended(0, 0.1), ended(1, 0.2, "early_stopped"), ended(2, 0.3), ended(3, 0.4, "failed"))
    for wanted in (3, 5, 5):
        bodies = requested(state, SEEDS, wanted)
        follow(state, *bodies)
        had = sorted((each.added.trial, each.added.replicate) for each in state.added if each.added)
        assert had == sorted(itertools.product((0, 2), range(1, wanted)))
    seeds = {(s.trial, s.replicate): s for each in state.added if (s := each.added)}
    assert [each.configuration for each in state.added] == [FIRST_ADDED + at for at in range(8)]
    for replicate in range(1, 5):
        one, other = seeds[0, replicate], seeds[2, replicate]
        assert one.seed == other.seed == ReplicateSeeds(0, 5, common=True).of(0)[replicate]
        assert (one.values, other.values) == (state.configurations[0], state.configurations[2])
    assert requested(state, SEEDS, 4) == []


def test_named_ones_get_them_wherever_they_ended() -> None:
    state = sweep(ended(0, 0.1), ended(1, 0.2, "early_stopped"))
    (body,) = requested(state, SEEDS, 2, [1])
    assert isinstance(body, Added) and [seed.trial for seed in body.seeds] == [1]
    with pytest.raises(SweeperError, match="c00009"):
        requested(state, SEEDS, 2, [9])
