"""The tables that trials write themselves: which file is waited for, and which counts as lost."""

import logging
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.tables.file_list import FileList
from sweeper.tables.generations import Generations
from sweeper.tables.large_tables import ALWAYS_WRITTEN, LARGE_TABLES, LOOKS, LargeTables
from sweeper.tables.rows import FINAL
from trainables.worker.trial_tables import part_name


def test_a_seed_of_the_final_stage_owes_no_curvature(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = SweepPaths(tmp_path)
    generations = Generations(paths)
    generations.clean()
    large, shown = LargeTables(generations, {}, FileList()), generations.create()
    large.expect(
        {"trial": "c00000", "replicate": r, "epoch": 1, "stage": stage} for r, stage in ((0, "end"), (1, FINAL))
    )
    for table in LARGE_TABLES:  # the trial's own replicate wrote all its files; the added seed none
        (generations.incoming / table / part_name("c00000", 0, 1)).touch()
    with caplog.at_level(logging.WARNING):
        for _ in range(LOOKS):
            large.publish(shown)
    assert large.missing() == {table: [part_name("c00000", 1, 1)] for table in ALWAYS_WRITTEN}
    assert {record.args[0] for record in caplog.records if isinstance(record.args, tuple)} == {*ALWAYS_WRITTEN}
