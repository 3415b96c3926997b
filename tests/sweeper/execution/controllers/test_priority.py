"""Several sweeps on one cluster: who goes first."""

from __future__ import annotations

import collections
import json
from collections import deque

import numpy as np
import pytest

from sweeper.core.ids import SweepPaths
from sweeper.execution.controllers.base import Situation
from sweeper.execution.controllers.capacity import SILENCE_SECONDS, TELL_SECONDS, PriorityController
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


def shares(users, slots, seconds, seed):
    """Return user → mean of the slots held, over the second half of a simulation of sweeps that never end.

    The cluster serves requests in their order; each sweep has one ahead of those that run, as `Assignments` keeps.
    """
    rng, board, now = np.random.default_rng(seed), _Board(), [0.0]
    peers = {
        name: PriorityController(name, 0, board, lambda text: None, clock=lambda: now[0], user=user)
        for name, user in users.items()
    }
    ends, asked, held = {name: [] for name in users}, deque(), collections.Counter()
    while now[0] < seconds:
        now[0] += 1.0
        for name, peer in sorted(peers.items(), key=lambda each: rng.random()):
            ends[name] = [end for end in ends[name] if end > now[0]]
            answer = peer.tick(Situation(wants_more=True, running=len(ends[name])))
            if answer.yields_to is None and name not in asked:
                asked.append(name)
        while asked and sum(map(len, ends.values())) < slots:
            ends[asked.popleft()].append(now[0] + rng.exponential(120))
        if now[0] > seconds / 2:
            for name, found in ends.items():
                held[users[name]] += len(found)
    return {user: count / (seconds / 2) for user, count in held.items()}


@pytest.mark.parametrize("seed", range(3))
def test_users_have_equal_shares_however_many_sweeps_each_has(seed):
    found = shares({"a1": "ann", "a2": "ann", "a3": "ann", "b": "ben"}, 8, 4000, seed)
    assert abs(found["ann"] - found["ben"]) < 1.8, found  # the cluster alone would give 6 and 2
    assert sum(found.values()) > 7.5, "no slot stays empty for it"
    three = shares({"a1": "ann", "a2": "ann", "b": "ben", "c": "cid"}, 9, 4000, seed)
    assert max(three.values()) - min(three.values()) < 1.2, three  # and 4.5, 2.25, 2.25
    alone = shares({"a1": "ann", "a2": "ann"}, 8, 1000, seed)
    assert alone["ann"] > 7.5


def test_a_user_whose_trials_cannot_run_holds_nobody_up():
    board, now = _Board(), [0.0]
    board["other"] = json.dumps({"priority": 0, "waiting": True, "turn": 1, "user": "ben", "running": 0})
    board["older"] = json.dumps({"priority": 0, "waiting": True, "turn": 1})
    peer = PriorityController("mine", 0, board, lambda text: None, clock=lambda: now[0], user="ann")
    assert peer.tick(Situation(wants_more=True, running=5)).yields_to is None
