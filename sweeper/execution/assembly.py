"""Assembly of a driver once the cluster's resources are known: searcher, sinks, settings of trials."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.core.ray_environment import prepare
from sweeper.execution.controllers.base import Controller, Directive, Situation
from sweeper.execution.controllers.budget import BudgetWatch, WorkingTime
from sweeper.execution.controllers.capacity import PENDING_TRIALS, CapacityWatch, ClusterView
from sweeper.execution.controllers.gpu_shares import CardShares
from sweeper.execution.controllers.interrupts import Interrupts
from sweeper.execution.controllers.priority import Peers
from sweeper.execution.controllers.trial_shares import shares_of
from sweeper.execution.driver.cohort_driver import CohortDriver
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.full_disks import OtherNodes
from sweeper.execution.driver.recorder import Sink
from sweeper.execution.driver.replicate_driver import ReplicateDriver
from sweeper.execution.driver.settings import DriverSettings
from sweeper.execution.driver.shares import NO_SHARES, Shares
from sweeper.execution.early_imports import FOR_THE_END, import_meanwhile
from sweeper.execution.local.executor import execute, this_machine
from sweeper.execution.local.processes import ForkServer
from sweeper.execution.options import RunOptions
from sweeper.execution.reuse import reusable_trials
from sweeper.execution.warm_start import lessons
from sweeper.journal.journal import read_journal
from sweeper.journal.spending import Spending
from sweeper.journal.state import SweepState
from sweeper.monitoring.live import Progress
from sweeper.monitoring.prometheus import METRICS, MetricsSink, Publish
from sweeper.notifications.notifier import Notifier
from sweeper.planning.preparation import data_keys, dataset_facts
from sweeper.planning.prices import price_from
from sweeper.scheduling.base import RungState
from sweeper.search.base import Searcher
from sweeper.space.spec import Budget
from sweeper.space.training import Resources
from sweeper.space.user_code import kept_archive
from sweeper.storage.lease import Lease
from sweeper.storage.metadata import read_manifest
from sweeper.storage.mirror import Mirror, SharedFolder
from sweeper.storage.sweeps import Sweep
from sweeper.tables.writer import ParquetSink
from trainables.datasets.base import DataSet
from trainables.datasets.sharing import content_key
from trainables.training.cohorts import COHORT
from trainables.training.lanes.packing import AUTO, TRIALS
from trainables.worker.object_store import is_store_address


@dataclass(frozen=True)
class Parts:
    """What a driver is made of once Ray runs and says how much fits."""

    sweep: Sweep
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

    def run(self, options: RunOptions, server: ForkServer | None) -> Driver:
        """Run the unfinished trials, in processes that `server` forks or on Ray; the sweep is not closed yet."""
        return self._run_on_ray(options) if server is None else self._run_here(options, server)

    def _run_here(self, options: RunOptions, server: ForkServer) -> Driver:
        """Run the unfinished trials in forked processes of this machine."""
        resources, slots = share_out(self.sweep.spec.resources, this_machine(options.cpus))
        prepare(None)  # a searcher imports Ray
        settings = _settings(self.sweep, resources, self.tables.incoming, self.mirror)
        settings |= {"data_key": content_key(self.dataset), "data_keys": data_keys(self.sweep.spec)}
        settings |= {"processes": slots, "most_lanes": self._lanes_for(slots)}
        driver = self._driver(slots, options, [self._budget(self._of_trial(resources))], together=True)
        self._begin(driver, options)
        with _stopped_by_signal(driver):
            idle = functools.partial(import_meanwhile, *FOR_THE_END)
            log = self.sweep.paths.log
            execute(driver, settings, server, slots=slots, log=log, winding_down=idle, interrupts=self.interrupts)
        return driver

    def _run_on_ray(self, options: RunOptions) -> Driver:
        """Start or join Ray, run the unfinished trials, leave Ray."""
        prepare(options.address)
        # Ray reads its environment when it is imported, and importing it takes a second that other commands save.
        from sweeper.execution.ray.card_probe import card_probe
        from sweeper.execution.ray.executor import execute as execute_on_ray
        from sweeper.execution.ray.session import ray_session
        from sweeper.execution.ray.view import KeyValueBoard, gauges, glance_at_cluster, look_at_cluster, other_nodes

        self.progress.stage(f"{self.sweep.name}: starting Ray")
        import_meanwhile(*FOR_THE_END)
        with ray_session(options.address, options.cpus):
            cluster = replace(look_at_cluster(), autoscales=False) if options.address is None else look_at_cluster()
            resources, slots = share_out(self.sweep.spec.resources, cluster)
            workers = self.sweep.spec.resources.workers
            settings = _settings(self.sweep, resources, self.tables.incoming, self.mirror)
            settings |= {"data_key": content_key(self.dataset), "data_keys": data_keys(self.sweep.spec)}
            if self.sweep.spec.resources.gpu == "auto" and 0 < resources["gpu"] < 1:
                self.progress.stage("measuring how much GPU memory the networks need")
            with card_probe(settings, resources["cpu"]) as probe:
                shares = shares_of(self.sweep, resources["gpu"], probe)
            if isinstance(shares, CardShares):
                resources["gpu"] = shares.smallest
                slots = cluster.trials_at_once(resources)
            # Waiting trials are what makes an autoscaler start nodes; elsewhere none needs to wait.
            least = PENDING_TRIALS if cluster.autoscales else 1
            watch = CapacityWatch(
                glance_at_cluster,
                resources,
                self.progress.say,
                workers=workers,
                at_least=least,
                patience=options.wait_for_nodes,
            )
            slots, of_trial = max(slots, least), self._of_trial(resources)
            metrics = self._metrics(gauges(METRICS), of_trial)
            peers = Peers(self.sweep.name, self.sweep.spec.priority, KeyValueBoard(), self.progress.say)
            shared: Sequence[Controller] = [watch, peers] if options.address else []
            controllers = [self._budget(of_trial), *shared]
            sinks = [metrics] if options.address else []
            others = functools.partial(other_nodes, resources, workers)
            driver = self._driver(slots, options, controllers, sinks, others, Shares(shares, of_trial["gpu"]))
            self._begin(driver, options)
            if cluster.autoscales:
                watch.see(cluster)
            with _stopped_by_signal(driver):
                execute_on_ray(
                    driver, settings, resources=resources, workers=workers, pending=slots, interrupts=self.interrupts
                )
            if options.address:
                metrics.publish(running=False)
                peers.leave()
        return driver

    def _of_trial(self, resources: Mapping[str, float]) -> dict[str, float]:
        """Return a trial's resources from those of one of its workers."""
        return {name: amount * self.sweep.spec.resources.workers for name, amount in resources.items()}

    def _begin(self, driver: Driver, options: RunOptions) -> None:
        """Let the driver take the sweep up, with what earlier sweeps have to give."""
        learned = lessons(self.sweep.spec, dataset_facts(self.dataset), self._beside(options), known=self.state.learned)
        reusable = reusable_trials(self.sweep, self.state.unfinished(), options.output, self.tables.incoming)
        driver.begin(reusable, [lesson.record() for lesson in learned])
        self.progress.stage("running")

    def _budget(self, resources: Mapping[str, float]) -> BudgetWatch:
        limits, told = self.sweep.spec.budget or Budget(), self.notifier.budget_reached
        return BudgetWatch(limits, self.spending, self.worked, resources, os.environ, tell=told)

    def take_up(self, options: RunOptions) -> Driver:
        """Resume a sweep in which nothing is left to run; return the driver, whose sweep is not closed yet."""
        prepare(options.address)  # a searcher imports Ray
        driver = self._driver(1, options)
        driver.begin()
        return driver

    def _beside(self, options: RunOptions) -> str | Path:
        """Return where earlier sweeps are: next to this one, which may be resumed by its path from anywhere."""
        return options.output if is_store_address(options.output) else self.sweep.paths.root.parent

    def _searcher(self) -> Searcher | None:
        """Return what chooses configurations, told of the journal; `None` where they follow from the space."""
        if not self.sweep.spec.searcher.learns:
            return None
        from sweeper.space.searchers import searcher_for

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
        self,
        slots: int,
        options: RunOptions,
        controllers: Sequence[Controller] = (),
        more_sinks: Sequence[Sink] = (),
        others: OtherNodes = lambda nodes: False,
        shares: Shares = NO_SHARES,
        together: bool = False,
    ) -> Driver:
        """Return the driver; `together` lets trials train in cohorts, where the space asks for it."""
        spec, configurations = self.sweep.spec, self.sweep.configurations
        kind: type[Driver] = ReplicateDriver if spec.replicates.packing == TRIALS else Driver
        if together and spec.replicates.packing in (COHORT, AUTO):
            kind = CohortDriver
        return kind(
            self.sweep.paths,
            configurations,
            DriverSettings.of(spec, configurations),
            journal=self.mirror.journal(alone=self.lease.locked),
            keeper=self.mirror,
            shares=shares,
            state=self.state,
            rungs=self.rungs,
            sinks=[self.tables, self.progress, self.notifier, *more_sinks],
            controllers=[_Heartbeat(self.lease, self.mirror), *controllers],
            folds=[self.worked, self.spending],
            failed_too=options.failed_too,
            slots=slots,
            searcher=self._searcher(),
            other_nodes=others,
        )

    def _lanes_for(self, slots: int) -> int:
        """Return how many lanes each of `slots` processes could fill with this sweep's trials."""
        lanes = len(self.sweep.configurations) * self.sweep.spec.replicates.count
        return -(-lanes // slots)


class _Heartbeat:
    """Renews the driver's lease on every turn, and ends the driver of a sweep that another has taken over."""

    def __init__(self, lease: Lease, mirror: Mirror | SharedFolder) -> None:
        self._lease, self._mirror = lease, mirror

    def tick(self, situation: Situation) -> Directive:
        """Renew the heartbeat; ask for nothing. Raises LeaseLostError."""
        self._lease.beat()
        self._mirror.require()
        return Directive()


def share_out(asked: Resources, cluster: ClusterView) -> tuple[dict[str, float], int]:
    """Return a worker's resources and how many trials fit on a cluster as it is now: none, where it may yet grow.

    Where the space says `gpu: auto`, a trial takes a quarter of a GPU if there is one, until it is measured; of several
    workers each takes a whole one.
    Raises SweeperError when a worker asks for several cards, as an older sweep that is resumed may, and when not even
    one trial fits and no autoscaler could change that.
    """
    if asked.cards_fault is not None:
        raise SweeperError(asked.cards_fault.rule, f"{asked.cards_fault.remedy}: --set resources.gpu=1")
    if asked.gpu == "auto" and cluster.autoscales and not cluster.total("GPU"):
        raise SweeperError(
            "resources.gpu is auto, but it is unknown yet whether the autoscaler will start nodes with GPUs",
            "set what a trial needs: --set resources.gpu=0.25 for a quarter of a GPU, or --set resources.gpu=0",
        )
    usual = 0.25 if asked.workers == 1 else 1.0
    gpu = float(asked.gpu) if asked.gpu != "auto" else (usual if cluster.total("GPU") else 0.0)
    resources = {"cpu": float(asked.cpu), "gpu": gpu}
    slots = cluster.trials_at_once(resources, asked.workers)
    if not slots and not cluster.autoscales:
        have = ", ".join(f"{cluster.total(name.upper()):g} {name}" for name in resources)
        need = ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
        need = need if asked.workers == 1 else f"{asked.workers} workers of {need} each"
        raise SweeperError(
            f"no trial fits: a trial needs {need}, the cluster has {have}",
            "lower `resources` in the search space (e.g. --set resources.gpu=0), or use a larger cluster",
        )
    return resources, slots


def _settings(sweep: Sweep, resources: dict[str, float], tables: Path, mirror: Mirror | SharedFolder) -> dict[str, Any]:
    spec, paths = sweep.spec, sweep.paths
    return {
        "dataset": spec.dataset,
        "max_epochs": spec.scheduler.max_epochs,
        "rungs": list(spec.schedule.rungs),
        "objective": spec.objective.metric,
        "evaluation": {**spec.evaluation.model_dump(mode="json"), "cross_fitted": spec.cross_fitted},
        "tables": str(tables),
        "checkpoints": str(paths.checkpoints),
        "store": mirror.store.uri if mirror.store is not None else None,
        "threads": max(1, int(resources["cpu"])),
        "device": "cuda" if resources["gpu"] else "cpu",
        "gpu": resources["gpu"],
        "workers": spec.resources.workers,
        "packing": spec.replicates.packing,
        "lanes": 0 if spec.replicates.lanes == AUTO else spec.replicates.lanes,
        "training": spec.training.model_dump(mode="json"),
        "choices": str(paths.root / "packing") if mirror.store is None else None,
        "timeout_seconds": spec.trial_timeout,
        "hang_seconds": spec.hang_timeout,
        "checkpoint_seconds": spec.checkpoint.every_seconds,
        "checkpoints_kept": spec.checkpoint.keep,
        "extensions": kept_archive(paths, spec, read_manifest(paths.manifest)),
    }


@contextmanager
def _stopped_by_signal(driver: Driver) -> Iterator[None]:
    """Let SIGTERM ask the sweep to stop; `Interrupts` does the same for Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: object) -> None:
        driver.ask_to_stop(f"{signal.Signals(number).name} was received")

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
