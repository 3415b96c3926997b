"""Seeds that join a sweep after its trials have ended give what a sweep with so many seeds would have given."""

from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import resume_sweep, run_sweep
from sweeper.journal.journal import read_journal
from sweeper.results import load
from sweeper.scheduling.base import audit
from tests.running import write_space
from tests.trainables.training.test_own_loop import LOOPED

NETWORKS = """
dataset: {name: digits}
scheduler: {name: none, max_epochs: 3}
samples: 3
replicates: {count: 1, seeds: common}
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 5]}}]}
  architecture: {name: mlp, width: 8}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, batch_size: 128}
resources: {cpu: 1}
evaluation: {bins: 15, posthoc: [temperature], curvature: false, bootstrap: 0}
"""

LOOPS = """
loop: "grown:Loop"
scheduler: {name: none, max_epochs: 3}
samples: 3
replicates: {count: 1, seeds: common}
space: {lr: {loguniform: [0.01, 0.3]}}
evaluation: {bins: 15, bootstrap: 0}
"""

MEASURED = (
    "SELECT trial, replicate, seed, epoch, split, nll, ece, accuracy, status, (SELECT count(*) FROM predictions AS p "
    "WHERE (p.trial, p.replicate, p.epoch, p.split) = (f.trial, f.replicate, f.epoch, f.split)) AS samples "
    "FROM final AS f ORDER BY ALL"
)


def _grow(folder: Path, *steps: tuple[str, ...], executor: str = "local") -> list[dict[str, object]]:
    for settings in steps:
        options = RunOptions(folder / "results", cpus=2, settings=settings, executor=executor)
        outcome = resume_sweep("s", options)
        assert outcome.outcome == "finished" and not outcome.state.unfinished()
    records = list(read_journal(outcome.sweep.paths.journal))
    assert audit(outcome.sweep.spec.schedule, records)[1] == []
    return load(outcome.sweep.paths.root).rows(MEASURED)


def _whole(folder: Path, space: Path, count: int, *settings: str) -> list[dict[str, object]]:
    options = RunOptions(folder / "results", cpus=2, executor="local")
    outcome = run_sweep(space, [*settings, f"replicates.count={count}"], "whole", options)
    return load(outcome.sweep.paths.root).rows(MEASURED)


@pytest.mark.integration
@pytest.mark.parametrize(
    "settings",
    [
        (),
        pytest.param(("replicates.packing=lanes",), marks=pytest.mark.slow),
        pytest.param(("replicates.packing=trials",), marks=pytest.mark.slow),
        pytest.param(("loop",), marks=pytest.mark.slow),
    ],
)
def test_a_sweep_that_grew_twice_equals_one_that_had_all_seeds(tmp_path: Path, settings: tuple[str, ...]) -> None:
    text = LOOPS if settings == ("loop",) else NETWORKS
    (tmp_path / "grown.py").write_text(LOOPED)
    space, settings = write_space(tmp_path, text), tuple(each for each in settings if each != "loop")
    run_sweep(space, settings, "s", RunOptions(tmp_path / "results", cpus=2, executor="local"))
    grown = _grow(tmp_path, ("replicates=2",), ("replicates.count=4",))
    assert len(grown) == 3 * 4 * 2 and all(row["status"] == "completed" for row in grown)
    assert grown == _whole(tmp_path, space, 4, *settings)


def test_seeds_of_their_own_are_followed_by_common_ones(tmp_path: Path) -> None:
    space = write_space(tmp_path, NETWORKS.replace(", seeds: common", ""))
    run_sweep(space, (), "s", RunOptions(tmp_path / "results", cpus=2, executor="local"))
    rows = _grow(tmp_path, ("replicates=2", "trials=c00000, c00002"), ("replicates=3",))
    seeds = {(row["trial"], row["replicate"]): row["seed"] for row in rows}
    names = [f"c{index:05d}" for index in range(3)]
    assert seeds.keys() == {(name, replicate) for name in names for replicate in range(3)}
    assert len({seeds[name, 0] for name in names}) == 3
    assert all(len({seeds[name, replicate] for name in names}) == 1 for replicate in (1, 2))
    for settings in (("replicates=many",), ("trials=c00001",), ("replicates=4", "trials=c00007")):
        with pytest.raises(SweeperError):
            _grow(tmp_path, settings)
