"""What the benchmark beside peers computes from epochs, and the probe that writes them down."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.peers.outcomes import Epoch, Killed, Measured, differing, epochs_of, table, target_of, time_to
from tests.benchmarks.peers.probe import observe


def epochs(*each: tuple[float, int, int, float]) -> list[Epoch]:
    return [Epoch(*values) for values in each]


def test_the_probe_writes_each_epoch_and_changes_nothing(tmp_path: Path) -> None:
    class Replicate:
        seed = 7

        def train_epoch(self, after_step: Callable[[], None] | None = None) -> dict[str, Any]:
            if after_step is not None:
                after_step()
            return {"epoch": 3, "val_nll": 0.25, "lr": 0.1}

    file, steps = tmp_path / "probe.jsonl", list[int]()
    observe(Replicate, str(file))
    assert Replicate().train_epoch(lambda: steps.append(1)) == {"epoch": 3, "val_nll": 0.25, "lr": 0.1}
    assert steps == [1]
    file.write_text(file.read_text() + '{"time": 12.0, "se')  # cut off by a SIGKILL
    (found,) = epochs_of(file, {7: 5}, began=0.0)
    assert (found.configuration, found.epoch, found.val_nll) == (5, 3, 0.25)


def test_the_target_is_the_best_quarter_of_what_was_trained_to_the_end() -> None:
    final = [(1.0, index, 27, value) for index, value in enumerate([0.5, 0.1, 0.3, 0.2, math.nan, 0.6, 0.7, 0.8, 0.9])]
    assert target_of(epochs((0.0, 9, 9, 0.01), *final), 27) == 0.2  # two of eight
    with pytest.raises(ValueError, match="no configuration was trained to epoch 27"):
        target_of(epochs((0.0, 9, 9, 0.01)), 27)


def test_the_first_epoch_with_the_target_counts_whatever_its_place_in_the_file() -> None:
    found = epochs((9.0, 0, 1, 0.2), (4.0, 1, 1, 0.2), (2.0, 2, 1, 0.3))
    assert time_to(0.2, found) == 4.0
    assert time_to(0.1, found) == math.inf


def test_epochs_that_differ_between_runs_are_found() -> None:
    one, other = epochs((1.0, 0, 1, 0.5), (2.0, 1, 1, 0.4)), epochs((5.0, 0, 1, 0.5), (6.0, 1, 1, 0.4000001))
    assert differing([one, other]) == (2, 1)
    assert differing([one, epochs((5.0, 0, 2, 0.3))]) == (0, 0)


def test_repeated_epochs_are_those_trained_both_before_and_after_a_kill() -> None:
    before = epochs((1.0, 0, 1, 0.5), (2.0, 0, 2, 0.4))
    after = epochs((1.0, 0, 2, 0.4), (2.0, 0, 3, 0.3))
    assert Killed(2.0, before, {(0, 1)}, after, {(0, 1), (0, 2), (0, 3)}).repeated == 1


def test_the_table_has_medians_ranges_and_who_could_not_be_measured() -> None:
    runs = [epochs((2.0, 0, 1, 0.1)), epochs((3.0, 0, 1, 0.1), (4.0, 1, 1, 0.2)), epochs((5.0, 0, 1, 0.1))]
    killed = Killed(2.0, runs[1], {(0, 1)}, None, {(0, 1)}, "resuming failed: no file")
    lines = table(
        [Measured("one", [10.0, 12.0, 11.0], runs, [killed]), Measured("other", fault="no wheel")], 0.1
    ).splitlines()
    assert lines[2:] == [
        "| one | 11.0 s (10.0 … 12.0) | 3.0 s (2.0 … 5.0) | 1 (1 … 2) | 1 of 2 configurations, 1 of 2 epochs "
        "| 0; resuming failed: no file |",
        "| other | not measured: no wheel | | | | |",
    ]
