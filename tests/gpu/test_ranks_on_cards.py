"""Trials of several workers, a card each: what they compute, and that a killed one does not leave the others waiting.

Run with `make check-many-gpus` on a machine with two cards or more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from tests.faults.processes import below, kill_ids, wait_until
from tests.faults.reference import SMALL
from tests.patience import patient
from tests.running import started, wait_for_records, write_space
from tests.sweeper.records import fields
from tests.trainables.training.ranks.cases import CASES
from tests.trainables.training.ranks.together import alone, by_ranks, small_data

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="several cards are needed; this machine has fewer"),
]


def test_two_cards_compute_what_one_does_for_every_loss() -> None:
    # A card's dropout is another kernel's than a rank's draws: masks differ, their distribution does not.
    cases = {name: configuration for name, configuration in CASES.items() if name != "dropout"}
    data = small_data().to("cuda")
    for rank in by_ranks([*cases.values()], 2, "cuda"):
        for (name, configuration), found in zip(cases.items(), rank, strict=True):
            expected = alone(configuration, data, "cuda")
            for row, wanted in zip(found.rows, expected.rows, strict=True):
                assert row == pytest.approx(wanted, rel=1e-6), name


@pytest.mark.parametrize("victim", ["RankActor", "Trainable"])
def test_a_killed_worker_frees_all_cards_and_the_trial_is_tried_again(tmp_path: Path, victim: str) -> None:
    space = write_space(tmp_path, SMALL % {"samples": 2})
    paths = SweepPaths(tmp_path / "results" / "s")
    asked = ("--set", "resources.gpu=1", "--set", "resources.workers=2", "--set", "max_concurrent=1")
    with started("run", space, "--name", "s", "--no-mlflow", *asked, cwd=tmp_path) as process:
        wait_for_records(paths, 3, process)
        everyone = [*below(process.pid, "RankActor"), *below(process.pid, "Trainable")]
        kill_ids(*below(process.pid, victim))
        wait_until(lambda: not set(everyone) & {*below(process.pid, "RankActor"), *below(process.pid, "Trainable")})
        assert process.wait(patient(200)) == 0, (tmp_path / "driver.err").read_text()
    failures = [fields(record) for record in read_journal(paths.journal) if record.kind == "failed"]
    assert [(body["kind"], body["final"]) for body in failures] == [("crash", False)]
