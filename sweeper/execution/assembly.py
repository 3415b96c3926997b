"""Assembly of a driver once it is known how much fits: searcher, tables, sinks, settings of trials."""

from __future__ import annotations

import functools
import importlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.core.processes import prepare
from sweeper.core.schemas import epoch_columns, evaluation_columns, table_schemas
from sweeper.execution.controllers.base import Controller, Interrupts, Steering
from sweeper.execution.controllers.budget import BudgetWatch, WorkingTime, price_from
from sweeper.execution.driver.context import DriverSettings, Sink
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.executor import Executor, Job, Session
from sweeper.execution.options import RunOptions
from sweeper.execution.reuse import lessons, reusable_trials
from sweeper.journal.best import Spending
from sweeper.journal.journal import read_journal
from sweeper.journal.state import SweepState
from sweeper.monitoring.live import FreshReport, Progress
from sweeper.monitoring.notifications import Notifier
from sweeper.monitoring.snapshot import MetricsSink, Publish
from sweeper.planning.preparation import data_keys, dataset_facts
from sweeper.planning.user_code_checks import loop_settings
from sweeper.scheduling.base import RungState
from sweeper.search.base import Searcher
from sweeper.space.configurations import column_types
from sweeper.space.spec import Budget
from sweeper.space.user_code import code_settings
from sweeper.steering.requests import GOES_ON, POLL_SECONDS, done, follows, pending
from sweeper.storage.lease import Lease
from sweeper.storage.metadata import read_manifest
from sweeper.storage.mirror import Mirror, SharedFolder
from sweeper.storage.sweeps import Sweep, keep
from sweeper.tables.writer import ParquetSink
from trainables.datasets.base import DataSet
from trainables.datasets.sharing import content_key
from trainables.datasets.splits import build_split
from trainables.files.stores.base import is_store_address
from trainables.metrics.tokens import KEPT
from trainables.training.lanes.packing import AUTO

#: What the report needs: two thirds of a second that every command would wait for, were it imported at the start.
FOR_THE_END = ("sweeper.reporting.page", "scipy.stats")


def import_meanwhile(*modules: str) -> threading.Thread:
    """Import modules one after the other in a thread, and return it; one that fails is left to who needs it."""

    def load() -> None:
        with suppress(ImportError, MemoryError):
            for name in modules:
                importlib.import_module(name)

    thread = threading.Thread(target=load, daemon=True, name="imports")
    thread.start()
    return thread


@dataclass(frozen=True)
class DriverContext:
    """What a driver is made of once Ray runs and says how much fits."""

    sweep: Sweep
    options: RunOptions
    state: SweepState
    rungs: RungState
    tables: ParquetSink
    progress: Progress
    lease: Lease
    mirror: Mirror | SharedFolder
    dataset: DataSet
    worked: WorkingTime
    spending: Spending
    notifier: Notifier
    interrupts: Interrupts

    def run(self, executor: Executor) -> Driver:
        """Run the unfinished trials where the executor has room for them; the sweep is not closed yet."""
        prepare_end = functools.partial(import_meanwhile, *FOR_THE_END)
        job = Job(self.sweep, self.progress, self.interrupts, self._settings, self._metrics, prepare_end)
        with executor.session(job) as session, FreshReport(self.sweep.paths) as report:
            budget = self._budget(session.resources)
            steered = SteeringController(self.sweep, self.progress.say, budget)
            driver = self._driver(session, [budget], report, steered=steered)
            self._begin(driver)
            steered(driver)  # before a spent budget could end it that was raised meanwhile
            with _stopped_by_signal(driver):
                session.execute(driver)
        return driver

    def _settings(self, resources: dict[str, float]) -> dict[str, Any]:
        spec, paths, store = self.sweep.spec, self.sweep.paths, self.mirror.store
        manifest = read_manifest(paths.manifest)
        return {
            "dataset": spec.dataset,
            "data_key": content_key(self.dataset) if spec.loop is None else None,  # a loop's is what it predicts
            "data_keys": data_keys(spec),
            "max_epochs": spec.scheduler.max_epochs,
            "rungs": list(spec.schedule.rungs),
            "objective": spec.objective.metric,
            "evaluation": {**spec.evaluation.model_dump(mode="json"), "cross_fitted": spec.cross_fitted},
            "tables": str(self.tables.incoming),
            "checkpoints": str(paths.checkpoints),
            "store": store.uri if store is not None else None,
            "threads": max(1, int(resources["cpu"])),
            "device": "cuda" if resources["gpu"] else "cpu",
            "gpu": resources["gpu"],
            "workers": spec.resources.workers,
            "packing": spec.replicates.packing,
            "lanes": 0 if spec.replicates.lanes == AUTO else spec.replicates.lanes,
            "training": spec.training.model_dump(mode="json"),
            "choices": str(paths.root / "packing") if store is None else None,
            "timeout_seconds": spec.trial_timeout,
            "hang_seconds": spec.hang_timeout,
            **loop_settings(spec, manifest),
            "checkpoint_seconds": spec.checkpoint.every_seconds,
            "checkpoints_kept": spec.checkpoint.keep,
            **code_settings(paths, spec, manifest),
        }

    def _begin(self, driver: Driver) -> None:
        """Let the driver take the sweep up, with what earlier sweeps have to give."""
        output = self.options.output
        # Earlier sweeps are next to this one, which may be resumed by its path from anywhere.
        beside = output if is_store_address(output) else self.sweep.paths.root.parent
        learned = lessons(self.sweep.spec, dataset_facts(self.dataset), beside, known=self.state.learned)
        reusable = reusable_trials(self.sweep, self.state.unfinished(), output, self.tables.incoming)
        driver.begin(reusable, learned)
        self.progress.stage("running")

    def _budget(self, resources: Mapping[str, float]) -> BudgetWatch:
        limits, told = self.sweep.spec.budget or Budget(), self.notifier.budget_reached
        of_trial = {name: amount * self.sweep.spec.resources.workers for name, amount in resources.items()}
        return BudgetWatch(limits, self.spending, self.worked, of_trial, os.environ, tell=told)

    def take_up(self) -> Driver:
        """Resume a sweep in which nothing is left to run; return the driver, whose sweep is not closed yet."""
        prepare(self.options.address)  # a searcher imports Ray
        steered = SteeringController(self.sweep, self.progress.say)
        driver = self._driver(Session({}, 1, lambda driver: None), steered=steered)
        driver.begin()
        steered(driver)
        return driver

    def _searcher(self) -> Searcher | None:
        """Return what chooses configurations, told of the journal; `None` where they follow from the space."""
        if not self.sweep.spec.searcher.learns:
            return None
        from sweeper.space.loading import searcher_for

        searcher = searcher_for(self.sweep.spec)
        for record in read_journal(self.sweep.paths.journal):
            searcher.apply(record)
        return searcher

    def _metrics(self, publish: Publish, resources: Mapping[str, float]) -> MetricsSink:
        named = self.sweep.spec.budget.gpu_hour_price if self.sweep.spec.budget else None
        return MetricsSink(
            self.sweep.name,
            self.state,
            self.sweep.spec.schedule,
            publish,
            spending=self.spending,
            samples_per_epoch=len(self.dataset.train) * self.sweep.spec.replicates.count,
            gpu=resources["gpu"],
            gpu_hour_price=price_from(os.environ) if named is None else named,
        )

    def _driver(
        self, session: Session, controllers: Sequence[Controller] = (), *sinks: Sink, steered: SteeringController
    ) -> Driver:
        spec, configurations = self.sweep.spec, self.sweep.configurations
        return Driver(
            self.sweep.paths,
            configurations,
            DriverSettings.of(spec, configurations),
            journal=self.mirror.journal(alone=self.lease.locked),
            keeper=self.mirror,
            shares=session.shares,
            state=self.state,
            rungs=self.rungs,
            sinks=[self.tables, self.progress, self.notifier, *session.sinks, *sinks],
            controllers=[_Heartbeat(self.lease, self.mirror), *controllers, *session.controllers],
            folds=[self.worked, self.spending],
            failed_too=self.options.failed_too,
            slots=session.slots,
            searcher=self._searcher(),
            other_nodes=session.other_nodes,
            steered=steered,
        )


class SteeringController:
    """Does what people ask of a sweep: `sweeper.steering.requests`."""

    def __init__(self, sweep: Sweep, say: Callable[[str], object], budget: BudgetWatch | None = None) -> None:
        """Steer a sweep whose `budget` is watched; `say` tells the user why a request is refused."""
        self._sweep, self._say, self._budget = sweep, say, budget
        self._looked = -math.inf

    def __call__(self, driver: Driver) -> None:
        """Look for requests, when it is due, and do them."""
        if time.monotonic() - self._looked < POLL_SECONDS:
            return
        self._looked = time.monotonic()
        for request in pending(self._sweep.paths):
            try:
                found, bodies = follows(request, self._sweep, driver.state)
                if self._budget is not None:
                    self._budget.allow(found.spec.budget or Budget())
            except SweeperError as error:
                self._say(f"not steered, {request.asked}: {error}")
                done(self._sweep.paths, request)
                continue
            driver.steer(*bodies)
            before, after = self._sweep.spec, found.spec
            grows = (before.samples, before.narrowed) != (after.samples, after.narrowed)
            self._sweep = keep(found)
            done(self._sweep.paths, request)
            if grows:
                driver.steering.ask_to_stop(GOES_ON)


class _Heartbeat:
    """Renews the driver's lease on every turn, and ends the driver of a sweep that another has taken over."""

    def __init__(self, lease: Lease, mirror: Mirror | SharedFolder) -> None:
        self._lease, self._mirror = lease, mirror

    def tick(self, steering: Steering) -> None:
        """Renew the heartbeat; ask for nothing. Raises LeaseLostError."""
        self._lease.beat()
        self._mirror.require()


@contextmanager
def _stopped_by_signal(driver: Driver) -> Iterator[None]:
    """Let SIGTERM ask the sweep to stop; `Interrupts` does the same for Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: object) -> None:
        driver.steering.ask_to_stop(f"{signal.Signals(number).name} was received")

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def open_tables(sweep: Sweep, dataset: DataSet, mirror: Mirror | SharedFolder) -> ParquetSink:
    """Open the tables for writing; they hold nothing yet, or what an earlier driver wrote."""
    spec = sweep.spec
    measured = spec.evaluation
    own = [metric["name"] for metric in measured.metrics]
    detected = [name for shift in map(build_split, measured.shifts) if shift.detected for name in shift.names]
    splits = [*measured.own_splits, *detected]
    columns = evaluation_columns(measured.posthoc, own, spec.cross_fitted, splits, measured.curvature)
    trajectory = spec.evaluation.trajectory
    own_epochs = loop_settings(spec, read_manifest(sweep.paths.manifest))["loop_columns"] or ()
    more = epoch_columns(None if trajectory is None else trajectory.model_dump()) | dict.fromkeys(own_epochs, float)
    schemas = table_schemas(
        column_types(spec.space),
        dataset.classes,
        columns,
        epoch_columns=more,
        rehearsal=spec.is_rehearsal,
        arithmetic=spec.training.settings.described,
        kept_logits=None if dataset.translation is None else min(KEPT, dataset.classes),
    )
    return ParquetSink(
        sweep.paths,
        schemas,
        [None] * len(sweep.configurations) if spec.searcher.learns else sweep.configurations,
        spec.replicate_seeds,
        arrivals=mirror.arrivals,
    )
