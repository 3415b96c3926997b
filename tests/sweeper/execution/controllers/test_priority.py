"""Several sweeps on one cluster: who goes first."""

from __future__ import annotations

import json

from sweeper.core.ids import SweepPaths
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
