"""Trials with shares of a card on a real Ray, which counts a card that is not there: who runs beside whom, on how much.

One trial runs out of memory as CUDA's allocator would make it; everything else is as in a sweep.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from sweeper.driver import Driver
from sweeper.ids import SweepPaths
from sweeper.journal import Journal, read_journal
from sweeper.ray_environment import prepare
from sweeper.scheduler import Rungs, audit
from sweeper.space import configurations
from sweeper.spec import build_spec
from sweeper.state import SweepState, fold

SPACE = {
    "dataset": "digits",
    "scheduler": {"name": "asha", "max_epochs": 4, "grace_epochs": 2, "reduction_factor": 2},
    "samples": 6,
    "space": {
        "loss": "cross_entropy",
        "architecture": {"name": "mlp", "width": 8},
        "optimizer": {"name": "sgd", "lr": {"loguniform": [0.01, 0.1]}, "batch_size": 64},
    },
    "evaluation": {"posthoc": [], "curvature": False, "bootstrap": 0},
}
HUNGRY = 1


@pytest.fixture
def one_card():
    """A Ray of its own that counts one card, for processes that never touch CUDA."""
    prepare(None)
    import ray

    ray.init(address="local", num_cpus=3, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def _trainable(folder: Path):
    import ray
    import torch

    from trainables.trainable import SweepTrainable

    class Watched(SweepTrainable):
        """Notes from when to when a configuration ran on which share; the hungry one needs more than half a card."""

        def step(self):
            share = ray.get_runtime_context().get_assigned_resources().get("GPU")
            assert share == self._settings.gpu, "what Ray reserves is what the process is capped at"
            trial = self._trial.assignment if self._trial is not None else self._assignments[0]
            began = time.time()
            time.sleep(0.3)
            try:
                if trial.configuration == HUNGRY and share <= 0.5:
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
                return super().step()
            finally:
                note = {"configuration": trial.configuration, "share": share, "from": began, "to": time.time()}
                (folder / f"{time.time_ns()}.json").write_text(json.dumps(note))

    return Watched


def test_a_trial_that_runs_out_gets_more_of_the_card_and_its_neighbours_end_well(one_card, tmp_path):
    from sweeper.executor import execute

    spec, paths = build_spec(SPACE), SweepPaths(tmp_path / "sweep")
    state, rungs = SweepState(spec.samples), Rungs(spec.halving)
    driver = Driver(
        paths, configurations(spec), seed=0, replicates=1, halving=spec.halving, journal=Journal(paths.journal),
        state=state, rungs=rungs, retries=0, slots=3, shares=lambda index: 0.25,
    )  # fmt: skip
    driver.begin()
    settings = {
        "dataset": spec.dataset, "max_epochs": 4, "rungs": list(spec.halving.rungs), "objective": "val_nll",
        "evaluation": spec.evaluation.model_dump(mode="json"), "checkpoints": str(paths.checkpoints),
    }  # fmt: skip
    notes = tmp_path / "notes"
    notes.mkdir()
    execute(driver, settings, resources={"cpu": 1, "gpu": 0.25}, pending=3, trainable=_trainable(notes))
    assert driver.finish() == "finished"
    records = list(read_journal(paths.journal))
    ended = fold(records, spec.samples)
    assert {trial.status for trial in ended.trials.values()} <= {"completed", "early_stopped"}
    failed = [record.body for record in records if record.kind == "failed"]
    assert [(body["configuration"], body["kind"], body["counts"], body["share"]) for body in failed] == [
        (HUNGRY, "gpu_out_of_memory", False, 0.5), (HUNGRY, "gpu_out_of_memory", False, 1.0)
    ]  # fmt: skip
    assert audit(spec.halving, records)[1] == []
    _check_neighbours([json.loads(path.read_text()) for path in sorted(notes.iterdir())])


def _check_neighbours(steps):
    hungry = [step for step in steps if step["configuration"] == HUNGRY]
    others = [step for step in steps if step["configuration"] != HUNGRY]
    assert sorted({step["share"] for step in hungry}) == [0.25, 0.5, 1.0]
    assert {step["share"] for step in others} == {0.25}
    events = sorted(
        (moment, change) for s in steps for moment, change in ((s["from"], s["share"]), (s["to"], -s["share"]))
    )
    taken = [sum(change for _, change in events[: i + 1]) for i in range(len(events))]
    assert max(taken) <= 1.0 + 1e-9, "never more than the card"
    assert any(_overlap(one, other) for one in others for other in others if one is not other), "they share the card"
    alone = [step for step in hungry if step["share"] == 1.0]
    assert not any(_overlap(one, other) for one in alone for other in others), "a whole card is a whole card"


def _overlap(one, other):
    return one["from"] < other["to"] and other["from"] < one["to"]
