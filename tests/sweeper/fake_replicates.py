"""Processes without Ray whose replicates differ and diverge: all of a configuration together, or one in each.

`Together` masks what diverges as `trainables.worker.trial.Trial` does and is the reference: whatever `Apart` goes
through, the journal must tell the same of it in the end.
"""

import json
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.journal.state import fold
from tests.sweeper.fake_executor import FakeSweep, Worker
from trainables.worker.checkpoints import replicate_folder
from trainables.worker.trial_reports import NON_FINITE, Failure

COUNT = 3


def value_of(configuration: int, replicate: int, epoch: int) -> float:
    """Return a replicate's objective; not a number from the epoch on in which it diverges."""
    diverges = diverges_at(configuration, replicate)
    if diverges is not None and epoch >= diverges:
        return math.nan
    return math.sin(configuration * 12.9898 + replicate * 0.37) / 2 + (2 + replicate / 7) / (1 + epoch)


def diverges_at(configuration: int, replicate: int) -> int | None:
    """Return the epoch in which a replicate's loss stops being a number: for some never, for one all, at rungs too."""
    return {
        (1, 0): 2, (2, 1): 3, (2, 2): 3, (4, 0): 1, (4, 1): 5, (4, 2): 5, (6, 2): 9, (7, 1): 11, (9, 0): 27, (9, 1): 4
    }.get((configuration, replicate))  # fmt: skip


@dataclass
class Together(Worker):
    """A process with all replicates of a configuration, reporting at rungs or, now and then, before."""

    interim: float = 0.2

    @property
    def numbers(self) -> list[int]:
        """The replicates that are trained here."""
        return list(range(COUNT))

    @property
    def folder(self) -> Path:
        """Where the checkpoints are."""
        assert self.current is not None
        return self.paths.trial_checkpoints(self.current)

    def _begin(self, configuration: int) -> None:
        self.current, self.epoch, self.repeat = configuration, 0, None
        files = sorted(self.folder.glob("e*.pt"))
        if files:
            self.repeat = json.loads(files[-1].read_text())
            self.epoch = self.repeat["epoch"]

    def _advance(self) -> dict[str, Any]:
        if self.repeat is not None:
            report, self.repeat = self.repeat, None
            return report
        assert self.current is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.glob("e*.pt"):
            if file.name < f"e{self.epoch:05d}.pt":
                file.unlink()
        rows: list[dict[str, Any]] = []
        dead = False
        while not dead:
            live = self._live()
            self.epoch += 1
            values = [(r, value_of(self.current, r, self.epoch)) for r in live]
            rows += [{"replicate": r, "epoch": self.epoch, "val_nll": v} for r, v in values]
            dead = not self._live()
            if self.epoch in self.schedule.rungs or self.rng.random() < self.interim:
                break
        report = self._report_of(rows, dead)
        if not dead:
            (self.folder / f"e{self.epoch:05d}.pt").write_text(json.dumps(report))
        return report

    def _live(self) -> list[int]:
        assert self.current is not None
        return [r for r in self.numbers if not math.isnan(value_of(self.current, r, self.epoch))]

    def _report_of(self, rows: list[dict[str, Any]], dead: bool) -> dict[str, Any]:
        assert self.current is not None
        live = self._live()
        errors = {
            str(r): Failure(NON_FINITE, {"replicate": r, "epoch": diverges_at(self.current, r) or 0}).to_dict()
            for r in self.numbers
            if r not in live
        }
        values = [value_of(self.current, r, self.epoch) for r in live]
        evaluated = live if self.epoch in self.schedule.rungs and not dead else []
        report = {
            "configuration": self.current,
            "epoch": self.epoch,
            "objective": math.nan if dead else math.fsum(values) / len(values),
            "failure": errors[str(rows[-1]["replicate"] if len(self.numbers) == 1 else self._last())] if dead else None,
            "device": "cpu",
            "packing": "sequential" if len(self.numbers) > 1 else "trials",
            "wall_seconds": float(self.epoch),
            "epochs": rows,
            "evaluations": [
                {"replicate": r, "epoch": self.epoch, "split": split} for r in evaluated for split in ("val", "test")
            ],
        }
        return report | ({"replicate_errors": errors} if errors else {})

    def _last(self) -> int:
        """The first of the replicates that diverged last."""
        assert self.current is not None
        return max(self.numbers, key=lambda r: (diverges_at(self.current or 0, r) or 0, -r))


@dataclass
class Apart(Together):
    """A process with one replicate."""

    number: int = field(init=False)

    def __post_init__(self) -> None:
        self.left, self.number = [self.assignment[0]], self.assignment[1]

    @property
    def numbers(self) -> list[int]:
        """The replicate that is trained here."""
        return [self.number]

    @property
    def folder(self) -> Path:
        """Where its checkpoints are."""
        return replicate_folder(super().folder, self.number)


@dataclass
class TogetherSweep(FakeSweep):
    """A sweep whose processes train all replicates of a configuration."""

    replicates: int = COUNT

    def worker(self, assignment: list[int], rng: np.random.Generator) -> Worker:
        """Start a process on an assignment."""
        return Together(self.paths, self.schedule, rng, assignment)


@dataclass
class ApartSweep(FakeSweep):
    """A sweep whose processes train one replicate."""

    replicates: int = COUNT
    apart: bool = True

    def worker(self, assignment: list[int], rng: np.random.Generator) -> Worker:
        """Start a process on an assignment."""
        return Apart(self.paths, self.schedule, rng, assignment)

    def _lose_a_checkpoint(self, rng: np.random.Generator) -> None:
        """Now and then a replicate goes back to an older checkpoint, or to its start."""
        unfinished = fold(self.records(), self.configurations).unfinished()
        folders = [own for index in unfinished for own in sorted(self.paths.trial_checkpoints(index).glob("r*"))]
        if folders and rng.random() < 0.4:
            folder = folders[int(rng.integers(len(folders)))]
            files = sorted(folder.glob("e*.pt"))
            if files and rng.random() < 0.5:
                files[-1].unlink()
            else:
                shutil.rmtree(folder)
