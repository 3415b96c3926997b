"""A small sweep whose trials share one card, one of them hungry: who ran beside whom, on which share."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeper.core.ids import SweepPaths
from sweeper.execution.driver.context import DriverSettings, Shares
from sweeper.execution.driver.driver import Driver
from sweeper.journal.journal import Journal, read_journal
from sweeper.journal.state import SweepState, fold
from sweeper.scheduling.base import audit
from sweeper.space.configurations import configurations
from sweeper.space.loading import build_spec
from sweeper.storage.mirror import SharedFolder
from tests.faults.processes import wait_until
from tests.sweeper.records import fields
from trainables.worker.trial_settings import TrialSettings

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


def run_on_one_card(folder: Path, device: str, eat: Callable[[float], None], slots: int) -> list[dict[str, Any]]:
    """Run the sweep with a quarter of a card a trial and return its failures' records.

    Ray must be running. Checks that every other trial ends well, and that nobody runs beside a whole card.

    Args:
        folder: for results and notes.
        device: `cuda`, or `cpu` where Ray counts a card that is not there.
        eat: is given the share of the hungry trial's process in each of its steps, and raises when that is too little.
        slots: trials at a time.
    """
    from sweeper.execution.ray.executor import execute

    spec, paths = build_spec(SPACE), SweepPaths(folder / "sweep")
    known = configurations(spec)
    driver = Driver(
        paths, known, replace(DriverSettings.of(spec, known), retries=0), journal=Journal(paths.journal),
        keeper=SharedFolder(paths),
        state=SweepState(spec.samples), rungs=spec.schedule.begin(), slots=slots, shares=Shares(lambda index: 0.25),
    )  # fmt: skip
    driver.begin()
    evaluation = spec.evaluation.settings
    settings = TrialSettings(
        spec.dataset, 4, spec.schedule.rungs, "val_nll", evaluation, checkpoints=paths.checkpoints, device=device
    )
    notes = folder / "notes"
    notes.mkdir()
    resources = {"cpu": 1.0, "gpu": 0.25}
    execute(driver, settings, resources=resources, pending=slots, trainable=_noting(notes, eat))
    assert driver.finish() == "finished"
    records = list(read_journal(paths.journal))
    trials = fold(records, spec.samples).trials
    assert {trial.status for trial in trials.values()} <= {"completed", "early_stopped"}
    assert {trial.device for trial in trials.values()} == {device}
    assert audit(spec.schedule, records)[1] == []
    _check_neighbours([json.loads(path.read_text()) for path in sorted(notes.glob("*.json"))])
    return [fields(record) for record in records if record.kind == "failed"]


def _noting(folder: Path, eat: Callable[[float], None]) -> type:
    import ray

    from trainables.worker.trainable import SweepTrainable

    class Noting(SweepTrainable):
        """Notes from when to when a configuration ran on which share."""

        def step(self) -> dict[str, Any]:
            share = ray.get_runtime_context().get_assigned_resources().get("GPU")
            assert share == self._worker.settings.gpu, "what Ray reserves is what the process is capped at"
            configuration, *_ = json.loads(self.config["assignment"])[0]
            began = time.time()
            if configuration != HUNGRY:
                # However slowly processes start beside a busy neighbour, the first does not do all of the work alone.
                (folder / f"{os.getpid()}.begun").touch()
                wait_until(lambda: len([*folder.glob("*.begun")]) > 1, timeout=120)
            time.sleep(0.3)
            try:
                if configuration == HUNGRY:
                    eat(share)
                return super().step()
            finally:
                note = {"configuration": configuration, "share": share, "from": began, "to": time.time()}
                (folder / f"{time.time_ns()}.json").write_text(json.dumps(note))

    return Noting


def _check_neighbours(steps: list[Mapping[str, Any]]) -> None:
    others = [step for step in steps if step["configuration"] != HUNGRY]
    assert {step["share"] for step in others} == {0.25}
    begins = [(step["from"], step["share"]) for step in steps]
    events = sorted([*begins, *((step["to"], -step["share"]) for step in steps)])
    taken = [sum(change for _, change in events[: i + 1]) for i in range(len(events))]
    assert max(taken) <= 1.0 + 1e-9, "never more than the card"
    assert any(_overlap(one, other) for one in others for other in others if one is not other), "they share the card"
    whole = [step for step in steps if step["share"] == 1.0]
    assert not any(_overlap(one, other) for one in whole for other in others), "a whole card is a whole card"


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["from"] < other["to"] and other["from"] < one["to"])
