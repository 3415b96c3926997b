"""Several sweeps on one cluster: who goes first."""

from __future__ import annotations

import collections
import json
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from sweeper.core.ids import SweepPaths
from sweeper.execution.driver.capacity import SILENCE_SECONDS, TELL_SECONDS, PriorityController
from sweeper.execution.driver.steering import Steering
from sweeper.scheduling.asha import Halving
from tests.sweeper.fake_executor import FakeSweep

HALVING = Halving("val_nll", "min", 9, 1, 3)


class _Board(dict):
    def write(self, name, text):
        self[name] = text

    def read(self):
        return dict(self)

    def remove(self, name):
        self.pop(name, None)


def test_a_sweep_starts_nothing_while_one_of_higher_priority_waits(tmp_path):
    board, now, said = _Board(), [0.0], []
    drivers, peers = {}, {}
    for name, priority in (("low", 0), ("high", 5)):
        peers[name] = PriorityController(name, priority, board, said.append, clock=lambda: now[0])
        drivers[name] = FakeSweep(SweepPaths(tmp_path / name), HALVING, 4).driver(controllers=[peers[name]])
        drivers[name].begin()

    def turn(*names):
        now[0] += TELL_SECONDS
        for name in names:
            drivers[name].flush()

    turn("low")
    assert drivers["low"].steering.alone and drivers["low"].steering.yields_to is None
    turn("high", "low")
    assert drivers["low"].steering.yields_to == "high" and drivers["low"].next_assignment() is None
    assert said == ["starting no trials while high, of higher priority, has some waiting"]
    turn("low", "high")
    assert drivers["high"].steering.yields_to is None
    first = drivers["high"].next_assignment()
    assert first is not None and drivers["high"].next_assignment() is None, "beside others, one ahead is enough"
    drivers["high"].on_started(first)
    assert drivers["high"].next_assignment() is not None
    drivers["high"].steering.winding_down = "enough"
    turn("high", "low")
    assert drivers["low"].steering.yields_to is None and json.loads(board["high"])["waiting"] is False
    drivers["high"].steering.winding_down = None
    turn("high", "low")
    assert drivers["low"].steering.yields_to == "high"
    for _ in range(int(SILENCE_SECONDS / TELL_SECONDS) + 1):
        turn("low")
    assert drivers["low"].steering.yields_to is None, "a sweep that is silent has no driver any more"
    peers["high"].leave()
    assert "high" not in board


def shares(users, slots, seconds, seed, fair=True):
    """Return sweep → mean of the slots held, over the second half of a simulation of sweeps that never end.

    A process that has trained a trial takes the next one of its sweep, unless that yields; slots that are free go to
    who asked first. The sweeps come one after the other.
    """
    rng, board, now = np.random.default_rng(seed), _Board(), [0.0]
    peers = {
        name: PriorityController(name, 0, board, lambda text: None, clock=lambda: now[0], user=user)
        for name, user in users.items()
    }
    steering = {name: Steering([peer], Path("none"), lambda: now[0]) for name, peer in peers.items()}
    ends, asked, held = {name: [] for name in users}, deque(), collections.Counter()
    while now[0] < seconds:
        now[0] += 1.0
        for name in [*peers][: int(now[0] / 60)]:
            running = [end for end in ends[name] if end > now[0]]
            steering[name].follow(wants_more=True, running=len(running))
            yields = steering[name].yields_to is not None and fair
            again = 0 if yields else len(ends[name]) - len(running)
            ends[name] = running + [now[0] + rng.exponential(120) for _ in range(again)]
            if not yields and name not in asked:
                asked.append(name)
        while asked and sum(map(len, ends.values())) < slots:
            ends[asked.popleft()].append(now[0] + rng.exponential(120))
        if now[0] > seconds / 2:
            held.update({name: len(found) / (seconds / 2) for name, found in ends.items()})
    return held


@pytest.mark.parametrize("seed", range(3))
def test_users_have_equal_shares_however_many_sweeps_each_has(seed):
    found = shares({"a1": "ann", "a2": "ann", "b": "ben"}, 8, 6000, seed)
    assert abs(found["a1"] + found["a2"] - found["b"]) < 1.6 and abs(found["a1"] - found["a2"]) < 0.8, found
    assert found.total() > 7.5, "no slot stays empty for it"
    hogged = shares({"a1": "ann", "a2": "ann", "b": "ben"}, 8, 1000, seed, fair=False)
    assert hogged["a1"] == pytest.approx(8, abs=0.1) and not hogged["b"]


def test_a_sweep_whose_trials_may_have_no_node_yet_holds_nobody_up():
    board, tell = _Board(), [].append
    board["other"] = json.dumps({"priority": 0, "waiting": True, "turn": 1, "user": "ben", "running": 0})
    board["older"] = json.dumps({"priority": 0, "waiting": True, "turn": 1})
    for autoscales, first in ((True, None), (False, "other")):
        peer = PriorityController("mine", 0, board, tell, lambda: 0.0, "ann", autoscales=autoscales)
        steering = Steering([peer], Path("none"), lambda: 0.0)
        steering.follow(wants_more=True, running=5)
        assert steering.yields_to == first
