"""Weights & Biases: one run per trial, all of a sweep in one group; needs the extra `wandb`.

The address `wandb:` means the project `calibration-sweeper` of your account, `wandb:project` or `wandb:entity/project`
another one. `WANDB_MODE=offline` writes files into `wandb/` of the sweep's folder, for `wandb sync` later.

A run's id follows from the sweep and the trial, so a new process continues the runs of an earlier one. It sends all
points again, and W&B drops the steps that a run has. For the same reason, points that a recalibration adds at an epoch
before a run's last one are dropped; MLflow and the tables have them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import shutil
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.journal.state import FAILED
from sweeper.tracking.base import SWEEP_RUN, Known, RunUpdate, TrackedSweep, Tracker, number_of

if TYPE_CHECKING:
    import wandb

#: The project of the address `wandb:`.
PROJECT = "calibration-sweeper"

#: W&B's own folder, which holds the files of offline runs.
FOLDER = "wandb"


class WandbTracker(Tracker):
    """The runs of one sweep."""

    name = "Weights & Biases"

    def __init__(self, address: str, sweep: TrackedSweep) -> None:
        """Prepare; nothing is sent before `connect`."""
        entity, _, project = address.partition(":")[2].rpartition("/")
        self._entity, self._project = entity or None, project or PROJECT
        self._paths = sweep.paths
        self._runs: dict[int, wandb.Run] = {}

    def connect(self, sweep_id: str, generation: str) -> Known:
        """Remove the files of an earlier process, so that all runs lack everything."""
        self._key = f"{sweep_id}/{generation}"
        self.close()  # runs of this process, which connects again after an error
        for folder in self._paths.root.glob(f"{FOLDER}/*run-*"):
            shutil.rmtree(folder, ignore_errors=True)
        return Known()

    def write(self, updates: Iterable[RunUpdate]) -> None:
        """Send updates; the sweep's run is made only if it has points or an answer."""
        for update in updates:
            if update.place == SWEEP_RUN:
                self._sweep = update
                if not update.points:
                    continue
            run = self._runs.get(update.place) or self._opened(update)
            run.summary.update(update.tags | {"status": update.status})
            # Without this order, W&B would drop all points after the first of a run's newest epoch.
            ordered = sorted(update.points, key=attrgetter("step"))
            for step, points in itertools.groupby(ordered, key=attrgetter("step")):
                run.log({point.key: point.value for point in points}, step=step)
            # `close` ends the others: offline runs, which cannot be continued, and the sweep's own, whose answer
            # follows at the step of its end.
            if update.end_time is not None and not run.offline and update.place != SWEEP_RUN:
                run.finish(exit_code=int(update.status == FAILED))
                del self._runs[update.place]

    def attach(self, answer: str, files: Iterable[tuple[Path, str | None]]) -> None:
        """Note the answer at the sweep's run."""
        run = self._runs.get(SWEEP_RUN) or self._opened(self._sweep)
        run.notes = answer

    def close(self) -> None:
        """End the runs that are open.

        W&B ends runs with the process only if it started its own service; one that a notebook has started, which child
        processes find in the environment, holds their last data back.
        """
        while self._runs:
            self._runs.popitem()[1].finish()

    def _opened(self, update: RunUpdate) -> wandb.Run:
        """Create or continue the run of a place."""
        import wandb

        numbers = {key: number_of(text) for key, text in update.params.items()}
        params = {key: text if numbers[key] is None else numbers[key] for key, text in update.params.items()}
        # Links to the newest run would be links that no sweep has, see `refuse_odd_files`.
        quiet = wandb.Settings(
            console="off", silent=True, x_disable_stats=True, disable_git=True, disable_code=True, symlink=False
        )
        run = wandb.init(
            entity=self._entity,
            project=self._project,
            group=self._paths.name,
            id=hashlib.sha256(f"{self._key}/{update.place}".encode()).hexdigest()[:16],
            name=update.name,
            config=update.identity | params,
            dir=self._paths.root,
            resume="allow",
            reinit="create_new",
            settings=quiet,
        )
        self._runs[update.place] = run
        return run

    @classmethod
    def errors(cls) -> tuple[type[Exception], ...]:
        """Return the exceptions of wandb and of files."""
        import wandb

        return (wandb.Error, OSError)

    @classmethod
    def fault(cls, address: str) -> tuple[str, str] | None:
        """Return whether the package or the API key is missing."""
        if importlib.util.find_spec("wandb") is None:
            return "Weights & Biases is not installed", "pip install 'calibration-sweeper[wandb]'"
        import wandb

        remedy = "run `wandb login`, or set WANDB_MODE=offline"
        try:
            known = wandb.setup().settings.mode != "online" or wandb.login(prompt=False)
        except wandb.Error as error:  # the key is checked by the server, which can refuse it or be away
            return f"Weights & Biases does not take the API key: {error}", remedy
        return None if known else ("Weights & Biases has no API key", remedy)

    @classmethod
    def beside_sweep(cls, address: str) -> str | None:
        """Offline runs are files in the sweep's folder."""
        import wandb

        return "log to a server, without WANDB_MODE=offline" if wandb.setup().settings.mode == "offline" else None


TRACKER = WandbTracker
