"""An executor without Ray: workers that train nothing, checkpoint to disk, crash and get killed with their driver.

`Workers` answers as `trainables.worker.trainable` does, and `drive` calls the driver as
`sweeper.execution.ray.executor` does, in an order drawn from a generator. A kill is an exception out of a sink or out
of the loop: whatever the driver had in memory is gone, what it journaled and what workers wrote stays.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sweeper.core.ids import ReplicateSeeds, SweepPaths
from sweeper.execution.driver.context import DriverSettings
from sweeper.execution.driver.driver import Driver
from sweeper.journal.journal import Journal, read_journal
from sweeper.journal.records import Record
from sweeper.journal.state import SweepState, fold
from sweeper.scheduling.base import RungState, Scheduler
from sweeper.scheduling.order import VirtualOrder
from sweeper.scheduling.strata import Stratified
from sweeper.search.base import Searcher
from sweeper.space.configurations import Configurations
from sweeper.storage.mirror import SharedFolder
from trainables.registry.configuration import Configuration
from trainables.worker.trial_reports import CRASH, NON_FINITE, PREEMPTED, Failure, TrialReport

REPLICATES = 2
PREEMPTION = Failure(PREEMPTED, counts=False)
CRASHED = Failure(CRASH)


class KilledError(Exception):
    """The driver was killed here."""


def value_of(configuration: int, epoch: int) -> float:
    """Return a trial's objective: fixed by configuration and epoch, on a grid so that some tie."""
    return round(math.sin(configuration * 12.9898) * 3) / 4 + 2 / (1 + epoch)


def fails_at(configuration: int) -> int | None:
    """Return the epoch in which a configuration's loss stops being a number: a few do."""
    return {0: 4, 5: 3, 11: 1}.get(configuration)


@dataclass
class Worker:
    """A process with an assignment, as `SweepTrainable` and `Trial` behave."""

    paths: SweepPaths
    schedule: Scheduler
    rng: np.random.Generator
    assignment: list[int]
    left: list[int] = field(init=False)
    epoch: int = 0
    current: int | None = None
    repeat: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.left = list(self.assignment)

    def step(self) -> tuple[list[TrialReport], bool]:
        """Return reports of at least one configuration, and whether the assignment is over."""
        reports: list[dict[str, Any]] = []
        while self.left or self.current is not None:
            if self.current is None:
                self._begin(self.left.pop(0))
            reports.append(self._advance())
            if self.epoch < self.schedule.max_epochs and not reports[-1].get("failure"):
                break
            self.current = None
            if self.rng.random() < 0.5:
                break
        return [TrialReport.from_dict(report) for report in reports], not self.left and self.current is None

    def _begin(self, configuration: int) -> None:
        self.current, self.epoch, self.repeat = configuration, 0, None
        files = sorted(self.paths.trial_checkpoints(configuration).glob("e*.pt"))
        if files:
            self.repeat = json.loads(files[-1].read_text())
            self.epoch = self.repeat["epoch"]

    def _advance(self) -> dict[str, Any]:
        assert self.current is not None
        if self.repeat is not None:
            report, self.repeat = self.repeat, None
            return report
        folder, first = self.paths.trial_checkpoints(self.current), self.epoch + 1
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("e*.pt"):
            if file.name < f"e{self.epoch:05d}.pt":
                file.unlink()
        failed = False
        while not failed:
            self.epoch += 1
            failed = self.epoch == fails_at(self.current)
            if self.epoch in self.schedule.rungs or self.rng.random() < 0.2:
                break
        report = self._report(first, failed)
        if not failed:
            (folder / f"e{self.epoch:05d}.pt").write_text(json.dumps(report))
        return report

    def _report(self, first: int, failed: bool) -> dict[str, Any]:
        assert self.current is not None
        keys = [(r, e) for e in range(first, self.epoch + 1) for r in range(REPLICATES)]
        at_rung = self.epoch in self.schedule.rungs and not failed
        return {
            "configuration": self.current,
            "epoch": self.epoch,
            "objective": math.nan if failed else value_of(self.current, self.epoch),
            "failure": Failure(NON_FINITE, {"epoch": self.epoch}).to_dict() if failed else None,
            "device": "cpu",
            "packing": "sequential",
            "wall_seconds": float(self.epoch),
            "epochs": [{"replicate": r, "epoch": e, "val_nll": value_of(self.current, e)} for r, e in keys],
            "evaluations": [
                {"replicate": r, "epoch": self.epoch, "split": "val"} for r in range(REPLICATES) if at_rung
            ],
        }


class KillingSink:
    """Kills the driver right after its n-th further record was journaled, before anything follows from it."""

    def __init__(self, records: int | None) -> None:
        self.left = records

    def append(self, record: Record) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KilledError

    def flush_if_due(self) -> None:
        """There is nothing to flush."""


@dataclass
class FakeSweep:
    """A sweep on disk and what drives it."""

    paths: SweepPaths
    schedule: Scheduler
    configurations: int
    retries: int = 1000
    slots: int = 1
    replicates: int = REPLICATES
    kind: type[Driver] = Driver
    apart: bool = False
    together: bool = False
    searcher: Callable[[], Searcher] | None = None
    width: int | None = None

    def order(self, rungs: RungState) -> VirtualOrder | None:
        """Return the order of judgements before the first record; `None` for the order of arrival."""
        if self.width is None:
            return None
        return VirtualOrder(rungs, self.width, lambda index: self.replicates, self.searcher is not None)

    def worker(self, assignment: list[int], rng: np.random.Generator) -> Worker:
        """Start a process on an assignment."""
        return Worker(self.paths, self.schedule, rng, assignment)

    def driver(
        self, sink: KillingSink | None = None, *, changes: Mapping[str, Any] | None = None, **options: Any
    ) -> Driver:
        """Fold the journal and take the sweep up, as `sweeper.execution.attempt` does; with `changes` of settings."""
        seeds = ReplicateSeeds(0, self.replicates)
        settings = DriverSettings(self.schedule, seeds, self.retries, apart=self.apart, together=self.together)
        settings = replace(settings, **(changes or {}))
        state, rungs = SweepState(self.configurations), self.schedule.begin()
        searcher = self.searcher() if self.searcher is not None else None
        order = self.order(rungs)
        for record in self.records():
            state.apply(record)
            rungs.apply(record)
            if order is not None:
                order.apply(record)
            if searcher is not None:
                searcher.apply(record)
        drawn = self.schedule.configurations if isinstance(self.schedule, Stratified) else None
        known = drawn or [Configuration({"index": index}) for index in range(self.configurations)]
        return self.kind(
            self.paths,
            known if searcher is None else Configurations(self.configurations, None, self.paths.journal),
            settings,
            searcher=searcher,
            journal=Journal(self.paths.journal, durable=False),
            keeper=SharedFolder(self.paths),
            state=state,
            rungs=rungs,
            order=order,
            sinks=[sink or KillingSink(None)],
            slots=self.slots,
            **options,
        )

    def records(self) -> Iterator[Record]:
        """Read the journal."""
        return read_journal(self.paths.journal)

    def run(self, rng: np.random.Generator, *, kills: int = 0, trouble: float = 0.0, **options: Any) -> Driver:
        """Drive to the end through `kills` kills; `trouble` is the chance of a failure at each step."""
        for _ in range(kills):
            driver = self.run_until_killed(rng, trouble=trouble, **options)
            if driver is not None:
                return driver
            self._lose_a_checkpoint(rng)
        driver = self.driver(**options)
        driver.begin()
        self._drive(driver, rng, trouble)
        return self._finished(driver)

    def run_until_killed(self, rng: np.random.Generator, *, trouble: float = 0.0, **options: Any) -> Driver | None:
        """Drive until a kill; return the driver where the sweep came to its end before."""
        driver = self.driver(KillingSink(int(rng.integers(0, 12))), **options)
        try:
            driver.begin()
            self._drive(driver, rng, trouble, die=0.02)
            return self._finished(driver)
        except KilledError:
            return None

    def _drive(self, driver: Driver, rng: np.random.Generator, trouble: float, die: float = 0.0) -> None:
        workers: list[Worker] = []
        while not (driver.work.exhausted and not workers):
            if rng.random() < die:
                raise KilledError
            if len(workers) < self.slots and (assignment := driver.work.next()) is not None:
                driver.on_started(assignment)
                workers.append(self.worker(assignment, rng))
            if not workers:
                continue
            worker = workers[int(rng.integers(len(workers)))]
            reports, exhausted = worker.step()
            if rng.random() < trouble:
                # It wrote its checkpoint and died before anybody heard of it.
                driver.on_failure(worker.assignment, PREEMPTION if rng.random() < 0.5 else CRASHED)
                workers.remove(worker)
            elif driver.on_reports([(worker.assignment, reports, exhausted)]):
                workers.remove(worker)

    def _finished(self, driver: Driver) -> Driver:
        assert driver.finish() == "finished"
        return driver

    def _lose_a_checkpoint(self, rng: np.random.Generator) -> None:
        """Now and then a checkpoint turns out damaged and a trial goes back to an older one, or to its start."""
        unfinished = fold(self.records(), self.configurations).unfinished()
        folders = [folder for index in unfinished if (folder := self.paths.trial_checkpoints(index)).is_dir()]
        if folders and rng.random() < 0.3:
            folder = folders[int(rng.integers(len(folders)))]
            files = sorted(folder.glob("e*.pt"))
            if files and rng.random() < 0.5:
                files[-1].unlink()
            else:
                shutil.rmtree(folder)


def alone(worker: Worker, driver: Driver) -> None:
    """Run one worker's assignment to its end."""
    while True:
        reports, exhausted = worker.step()
        if driver.on_reports([(worker.assignment, reports, exhausted)]):
            return
