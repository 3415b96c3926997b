"""Reliability diagrams of runs: each of the replicates whose metrics the run has, added seeds included."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sweeper.core.ids import FIRST_ADDED, SweepPaths, trial_name
from sweeper.journal.records import AddedSeed
from sweeper.journal.state import COMPLETED, RUNNING, SweepState, TrialState
from sweeper.tracking.artifacts import missing_diagrams, reliability_of
from trainables.registry.configuration import Configuration
from trainables.worker.trial_tables import write_rows

SEED, LINE, FURTHER = FIRST_ADDED, FIRST_ADDED + 1, FIRST_ADDED + 2
"""A fresh seed of the drawn trial; a line's configuration, shown under its first seed; that configuration's second."""

#: Run → its evaluations in the table: trial, replicate, samples of the only bin that has some.
ROWS = {0: [(0, 0, 10), (0, 1, 30)], SEED: [(0, 2, 50)], LINE: [(LINE, 0, 70)], FURTHER: [(LINE, 1, 90)]}


@pytest.fixture
def sweep(tmp_path: Path) -> tuple[SweepPaths, SweepState]:
    paths, state = SweepPaths(tmp_path), SweepState(1)
    for index, trial, replicate in ((SEED, 0, 2), (LINE, LINE, 0), (FURTHER, LINE, 1)):
        seed = AddedSeed(index, trial, replicate, seed=7, values=Configuration({}), question="network")
        state.trials[index] = TrialState(configuration=index, added=seed)
    for index, trial in state.trials.items():
        trial.status, trial.last_evaluation_epoch = COMPLETED, 3
        for of, replicate, samples in ROWS[index]:
            for epoch, n in ((1, 1), (3, samples)):
                bins = [{"split": split, "bin": 0, "lower": 0.0, "upper": 1.0, "n": n, "confidence": n / 100,
                         "accuracy": 0.5} for split in ("val", "test")]  # fmt: skip
                write_rows(paths.tables, (trial_name(of), replicate, epoch), "reliability", bins)
    return paths, state


def values(bins: Any) -> list[tuple[int, float]]:
    return [(row["n"], round(row["confidence"], 9)) for row in bins]


def test_every_run_has_a_diagram_of_its_own_replicates(sweep: tuple[SweepPaths, SweepState]) -> None:
    paths, state = sweep
    drawn = missing_diagrams(paths, state, {})
    assert {index: epoch for index, (epoch, _) in drawn.items()} == dict.fromkeys(ROWS, 3)
    # The mean confidence weighs each replicate by its samples: (10 · .1 + 30 · .3) / 40.
    expected = {0: [(40, 0.25)], SEED: [(50, 0.5)], LINE: [(70, 0.7)], FURTHER: [(90, 0.9)]}
    assert {index: values(bins) for index, (_, bins) in drawn.items()} == expected


def test_only_ended_trials_whose_diagram_is_missing_or_old_are_drawn(sweep: tuple[SweepPaths, SweepState]) -> None:
    paths, state = sweep
    state.trials[FURTHER].status = RUNNING
    assert missing_diagrams(paths, state, {0: "3", SEED: "1"}).keys() == {SEED, LINE}
    assert missing_diagrams(paths, state, dict.fromkeys(ROWS, "3")) == {}


def test_the_sweeps_diagram_pools_all_replicates_of_a_trial(sweep: tuple[SweepPaths, SweepState]) -> None:
    paths, _ = sweep
    assert [row["n"] for row in reliability_of(paths, trial_name(0), 3)] == [10 + 30 + 50]
    assert pq.ParquetFile(next(paths.tables.glob("reliability/*.parquet"))).metadata.num_rows == 2
