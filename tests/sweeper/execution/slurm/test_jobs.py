"""What a sweep's jobs say to each other: whole or not at all, whatever was written before."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.execution.slurm.jobs import Exchange, Head


def test_a_head_is_known_once_it_was_announced(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    assert exchange.head is None and exchange.over is None and exchange.starts() == []
    for attempt in (1, 2):
        exchange.announce(Head("10.0.0.1:6379", "123", attempt))
        assert Exchange(tmp_path).head == Head("10.0.0.1:6379", "123", attempt)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"address": "a"}', '{"address": 1, "job": 2, "attempt": 3, "more": 4}']
)
def test_a_damaged_announcement_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "head.json").write_text(text)
    assert Exchange(tmp_path).head is None


def test_a_sweep_that_was_over_may_go_on(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.stop.touch()
    exchange.add_start(3)
    exchange.end("finished")
    assert exchange.over == "finished"
    exchange.begin(anew=False)
    assert exchange.over is None and exchange.stop.exists() and exchange.starts() == [3]
    exchange.begin(anew=True)
    assert not exchange.stop.exists() and exchange.starts() == []


def test_starts_are_counted(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    for records in (-1, 12, 12):
        exchange.add_start(records)
    assert exchange.starts() == [-1, 12, 12]
