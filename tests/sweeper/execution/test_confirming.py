"""`confirm: n`: what may be the best is trained again on fresh seeds, and these alone say what the winner is worth."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeper
from sweeper.analysis.selection import best_set_line, candidates, confirmation_of, confirmed_value
from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.plan import plan
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.overview import headline, overview
from sweeper.space.loading import build_spec

SPACE: dict[str, Any] = {
    "dataset": {"name": "digits"},
    "objective": {"metric": "val_nll", "mode": "min"},
    "scheduler": {"name": "asha", "max_epochs": 4, "grace_epochs": 1, "reduction_factor": 2},
    "samples": 4,
    "replicates": 2,
    "confirm": 3,
    "space": {
        "loss": {"name": "focal", "gamma": {"uniform": [0.5, 5]}},
        "architecture": "mlp",
        "optimizer": {"name": "sgd", "lr": {"loguniform": [0.01, 0.3]}, "batch_size": 256},
    },
    "evaluation": {"posthoc": [], "curvature": False},
}

ROWS = "SELECT nll FROM final WHERE split = 'val' AND trial = 'c00000' ORDER BY replicate"


@pytest.mark.integration
def test_the_best_are_trained_again_on_seeds_that_chose_nothing(tmp_path: Path) -> None:
    sweeper.run(SPACE, name="one", output=tmp_path, tracking_uri="none")
    first, again = Results(tmp_path / "one"), Results(tmp_path / "one-confirmed")
    board = leaderboard(first)
    chosen = candidates(first, board)
    assert again.specification["confirms"]["sweep"] == "one"
    trials = [f"c{number:05d}" for number in again.specification["confirms"]["configurations"]]
    assert trials == chosen[: len(trials)] and confirmation_of(first) is not None
    hashes = {name: {row["trial"]: row["config_hash"] for row in found.rows("SELECT * FROM trials")}
              for name, found in (("first", first), ("again", again))}  # fmt: skip
    assert [hashes["again"][f"c{at:05d}"] for at in range(len(trials))] == [hashes["first"][trial] for trial in trials]
    seeds = [{row["seed"] for row in found.rows("SELECT seed FROM trials")} for found in (first, again)]
    assert seeds[0].isdisjoint(seeds[1]) and len(seeds[1]) == 3 * len(trials)
    rows = again.rows(ROWS)
    value = float(np.mean([float(str(row["nll"])) for row in rows]))
    line = best_set_line(first, board)
    assert line.startswith("Confirmed on 3 fresh seeds each by one-confirmed: ")
    said = headline(board, overview(first), confirmed_value(first, board))
    assert f": {value:.3g} (95 % " in said and "on the seeds that picked it" in said and "3 fresh seeds" in said

    shutil.rmtree(tmp_path / "one-confirmed")
    assert confirmation_of(first) is None
    sweeper.resume("one", output=tmp_path, tracking_uri="none")
    once_more = Results(tmp_path / "one-confirmed").rows(
        "SELECT nll FROM final WHERE split = 'val' AND trial = 'c00000'"
    )
    assert once_more == rows, "the same configurations and seeds, whenever they are confirmed"


def test_fresh_seeds_follow_from_the_sweeps_and_are_none_of_its_own() -> None:
    spec = build_spec(SPACE)
    confirms = {"sweep": "one", "configurations": [2, 0]}
    other = build_spec({**spec.resolved(), "confirm": 0, "confirms": confirms, "replicates": {"count": 3}})
    own = {seed for at in range(4) for seed in spec.replicate_seeds.of(at)}
    assert own.isdisjoint({seed for at in range(2) for seed in other.replicate_seeds.of(at)})
    assert build_spec(other.resolved()).confirms == other.confirms


def test_plan_prices_it_and_a_searcher_that_learns_is_refused() -> None:
    lines = dict(plan(build_spec(SPACE)).lines())
    assert lines["confirmation"] == "at most 8 configurations on fresh seeds: 48 epochs more"
    with pytest.raises(InvalidSearchSpace, match="confirm trains configurations of the space again"):
        build_spec({**SPACE, "searcher": {"name": "optuna"}})
    assert "confirm" not in build_spec({**SPACE, "confirm": 0}).resolved()
