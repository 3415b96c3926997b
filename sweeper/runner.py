"""Running a sweep from its first trial to its report, and taking it up again: the parts put together.

`run_sweep` claims a name and drives; `resume_sweep` folds the journal and drives what is left. Both end the
same way: journal closed, tables compacted, report written, MLflow given a bounded time to catch up.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeper.amendments import amend
from sweeper.budget import BudgetWatch, WorkingTime
from sweeper.capacity import PATIENCE_SECONDS, PENDING_TRIALS, CapacityWatch, ClusterView
from sweeper.card_shares import CardShares
from sweeper.damage import discard_damaged, remove_checkpoints_ahead
from sweeper.driver import Driver, Sink
from sweeper.errors import SweeperError
from sweeper.journal import read_journal
from sweeper.last_words import last_words
from sweeper.lease import Lease
from sweeper.manifest import build_manifest
from sweeper.mirror import Mirror, SharedFolder, mirror_of
from sweeper.notifications import Notifier
from sweeper.notify_targets import Target, option_notifications, resolve_targets
from sweeper.output import chatter_to
from sweeper.own_components import code_of, keep, manifest_part, take_up_kept
from sweeper.own_lanes import lane_notes
from sweeper.peers import Peers
from sweeper.places import DRIVING, place_of, split_name
from sweeper.preparation import dataset_facts, prepare_dataset
from sweeper.progress import Progress
from sweeper.ray_environment import prepare
from sweeper.rehearsal import rehearsal_name
from sweeper.replicate_driver import ReplicateDriver
from sweeper.report import write_report
from sweeper.reuse import MANIFEST_KEY, choose_sources, reusable_trials
from sweeper.scheduler import Rungs
from sweeper.searcher import Searcher
from sweeper.sharing import shares_of
from sweeper.sinks.follower import MlflowFollower, patience
from sweeper.sinks.metrics import METRICS, MetricsSink, Publish, price_from
from sweeper.sinks.parquet import ParquetSink
from sweeper.space import column_types
from sweeper.spec import load_spec
from sweeper.spec_models import Budget, Resources, SweepSpec
from sweeper.state import SweepState
from sweeper.suggested import configurations_of
from sweeper.sweep import Sweep, create_sweep, open_sweep
from sweeper.tables import epoch_columns, evaluation_columns, table_schemas
from sweeper.warm_start import MANIFEST_KEY as LEARNED
from sweeper.warm_start import lessons
from trainables.acceleration import TrainingSettings
from trainables.datasets.base import DataSet
from trainables.datasets.sharing import content_key, node_copy
from trainables.packing import TRIALS
from trainables.storage import is_store_address


@dataclass(frozen=True)
class RunOptions:
    """How to run, as opposed to what.

    Attributes:
        output: the folder of results folders, or the address of a store for them.
        address: of a Ray cluster; `None` starts one on this machine.
        cpus: cores a started one may use; `None` for all.
        tracking_uri: of MLflow's store; `None` for none at all.
        failed_too: on resume, run failed trials again.
        rehearse: scale the sweep down to minutes, see `sweeper.rehearsal`.
        discard_damaged: on resume, set the first damaged journal record and all later ones aside.
        reuse: take over trials that other sweeps of this output have trained already.
        reuse_from: take them over from these sweeps.
        settings: on resume, changes of what does not concern the measurements, see `sweeper.amendments`.
        wait_for_nodes: seconds that an autoscaler has to start a first node that holds a trial.
        notify: webhooks and commands to tell of this run, besides those of the search space.
        progress: what shows the run while it lasts.
    """

    output: str | Path
    address: str | None = None
    cpus: int | None = None
    tracking_uri: str | None = None
    rehearse: bool = False
    failed_too: bool = False
    discard_damaged: bool = False
    settings: Sequence[str] = ()
    reuse: bool = False
    reuse_from: Sequence[str] = ()
    wait_for_nodes: float = PATIENCE_SECONDS
    notify: Sequence[str] = ()
    progress: type[Progress] = Progress


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        sweep: the sweep.
        outcome: `finished`, `stopped` or `interrupted`.
        state: of all trials.
        seconds: wall time of this run, Ray's start included.
        notes: things the user should know, one sentence each.
    """

    sweep: Sweep
    outcome: str
    state: SweepState
    seconds: float
    notes: Sequence[str]


def run_sweep(
    space: Path | str | Mapping[str, Any], overrides: Sequence[str], name: str | None, options: RunOptions
) -> Outcome:
    """Read a search space, or take its values, claim a name for it and run it to its end.

    Raises InvalidSearchSpace or SweeperError before anything was started.
    """
    spec = load_spec(space, overrides, rehearse=options.rehearse)
    targets = notification_targets(spec, options)
    place = place_of(options.output, DRIVING)
    if place.store is not None:
        place.store.check()
    dataset = prepare_dataset(spec)
    stem = "sweep" if isinstance(space, Mapping) else Path(space).stem
    if spec.is_rehearsal:
        stem, name = rehearsal_name(stem), name if name is None else rehearsal_name(name)
    own, own_notes = code_of(spec), lane_notes(spec, dataset)
    dataset, facts = node_copy(dataset), dataset_facts(dataset)
    digest = own.digest if own is not None else None
    sources = choose_sources(spec, facts, options.output, digest, every=options.reuse, named=options.reuse_from)
    reused = {MANIFEST_KEY: sources.names} if sources.names else {}
    learned = {LEARNED: [lesson.summary() for lesson in lessons(spec, facts, options.output)]}
    learned = learned if spec.searcher.warm_start else {}
    manifest = {**build_manifest(spec, facts), **reused, **learned, **manifest_part(own)}
    sweep = create_sweep(spec, stem, name, place.folder, manifest, place.has)
    keep(own, sweep.paths)
    with mirror_of(sweep.paths, place) as mirror:
        outcome = _drive(sweep, dataset, options, mirror, targets)
    return replace(outcome, notes=[*sources.notes, *own_notes, *outcome.notes])


def resume_sweep(name: str, options: RunOptions) -> Outcome:
    """Fold a sweep's journal and run what is unfinished; a sweep in a store is brought here first.

    Raises SweeperError when there is no such sweep, or another driver has it.
    """
    name, output = split_name(name, options.output)
    place = place_of(output, DRIVING)
    with mirror_of(place.find(name), place) as mirror:
        sweep = amend(open_sweep(name, place.folder), options.settings)
        take_up_kept(sweep.paths)
        targets = notification_targets(sweep.spec, options)
        return _drive(sweep, node_copy(prepare_dataset(sweep.spec)), options, mirror, targets)


def notification_targets(spec: SweepSpec, options: RunOptions) -> list[Target]:
    """Return whom to tell of a run. Raises SweeperError when what they need is missing on this machine."""
    return resolve_targets([*spec.notify, *option_notifications(options.notify)], os.environ)


def _drive(
    sweep: Sweep, dataset: DataSet, options: RunOptions, mirror: Mirror | SharedFolder, targets: Sequence[Target]
) -> Outcome:
    """Hold the lease, fold the journal, run what is unfinished, and bring everything that follows up to date."""
    started = time.monotonic()
    paths, halving = sweep.paths, sweep.spec.halving
    goodbye = (
        f"the driver died: it was killed, or the Ray cluster's head is gone (see {paths.log})\n"
        f"  every result so far is kept: continue with `sweeper resume {mirror.address}`"
    )
    with Lease(paths.lease) as lease, last_words(goodbye), chatter_to(paths.log) as terminal:
        paths.stop_marker.unlink(missing_ok=True)
        notes = discard_damaged(paths, mirror) if options.discard_damaged else []
        state, rungs = SweepState(len(sweep.configurations)), Rungs(halving)
        sweep = replace(sweep, configurations=configurations_of(sweep.spec, state.suggested))
        worked = WorkingTime()
        for record in read_journal(paths.journal):
            state.apply(record)
            rungs.apply(record)
            worked.apply(record)
        if notes:
            remove_checkpoints_ahead(paths, state)
        tables = _open_tables(sweep, dataset.classes, mirror)
        if state.attempt or notes or mirror.store is not None:
            tables.rebuild(read_journal(paths.journal))
        follower = MlflowFollower(paths, options.tracking_uri)
        progress = options.progress(terminal, state, halving, sweep.describe)
        notifier = Notifier(targets, sweep, state, mirror.address)
        with progress, follower, notifier:
            outcome, reason = "finished", None
            driven = bool(state.unfinished(failed_too=options.failed_too)) or not state.attempt
            if driven:
                parts = _Parts(sweep, state, rungs, tables, progress, lease, mirror, dataset, worked, notifier)
                driver = parts.run(options)
                outcome, reason = driver.finish(), driver.closing
                notes += [f"stopped: {reason}"] if reason else []
            progress.stage("writing tables and report")
            mirror.collect()
            tables.close()
            write_report(paths.root)
            mirror.complete(ended=not state.unfinished())
            if driven:
                notifier.ended(outcome, reason)
            if options.tracking_uri is not None:
                progress.stage("MLflow: logging what is left")
            notes += tables.notes + follower.wait(patience(time.monotonic() - started)) + notifier.wait()
    return Outcome(sweep, outcome, state, time.monotonic() - started, notes)


@dataclass(frozen=True)
class _Parts:
    """What a driver is made of once Ray runs and says how much fits."""

    sweep: Sweep
    state: SweepState
    rungs: Rungs
    tables: ParquetSink
    progress: Progress
    lease: Lease
    mirror: Mirror | SharedFolder
    dataset: DataSet
    worked: WorkingTime
    notifier: Notifier

    def run(self, options: RunOptions) -> Driver:
        """Start or join Ray, run the unfinished trials, leave Ray; return the driver, whose sweep is not closed yet."""
        prepare(options.address)
        # Ray reads its environment when it is imported, and importing it takes a second that other commands save.
        from sweeper.executor import card_probe, execute, ray_session
        from sweeper.ray_view import KeyValueBoard, gauges, glance_at_cluster, look_at_cluster

        self.progress.stage(f"{self.sweep.name}: starting Ray")
        with ray_session(options.address, options.cpus):
            cluster = replace(look_at_cluster(), autoscales=False) if options.address is None else look_at_cluster()
            resources, slots = share_out(self.sweep.spec.resources, cluster)
            settings = _settings(self.sweep, resources, self.tables.incoming, self.mirror)
            settings["data_key"] = content_key(self.dataset)
            if self.sweep.spec.resources.gpu == "auto" and resources["gpu"]:
                self.progress.stage("measuring how much of a card the networks take")
            with card_probe(settings, resources["cpu"]) as probe:
                shares = shares_of(self.sweep, resources["gpu"], probe)
            if isinstance(shares, CardShares):
                resources["gpu"] = shares.smallest
                slots = cluster.trials_at_once(resources)
            # Waiting trials are what makes an autoscaler start nodes; elsewhere none needs to wait.
            least = PENDING_TRIALS if cluster.autoscales else 1
            watch = CapacityWatch(
                glance_at_cluster, resources, self.progress.say, at_least=least, patience=options.wait_for_nodes
            )
            slots = max(slots, least)
            metrics = self._metrics(gauges(METRICS), resources)
            peers = Peers(self.sweep.name, self.sweep.spec.priority, KeyValueBoard(), self.progress.say)
            sinks: list[Sink] = [watch, metrics, peers] if options.address else []
            budget = BudgetWatch(self.sweep.spec.budget or Budget(), self.state, self.worked, resources, os.environ)
            spec, facts = self.sweep.spec, dataset_facts(self.dataset)
            learned = lessons(spec, facts, self._beside(options), known=self.state.learned)
            driver = self._driver(slots, shares, options, [budget, *sinks])
            watch.driver = budget.driver = peers.driver = self.notifier.driver = driver
            reusable = reusable_trials(self.sweep, self.state.unfinished(), options.output, self.tables.incoming)
            driver.begin(reusable, [lesson.record() for lesson in learned])
            self.progress.stage("running")
            if cluster.autoscales:
                watch.see(cluster)
            with _stopped_by_signal(driver):
                execute(driver, settings, resources=resources, pending=slots)
            if options.address:
                metrics.publish(running=False)
                peers.leave()
        return driver

    def _beside(self, options: RunOptions) -> str | Path:
        """Return where earlier sweeps lie: beside this one, which may be resumed by its path from anywhere."""
        return options.output if is_store_address(options.output) else self.sweep.paths.root.parent

    def _searcher(self) -> Searcher | None:
        """Return what chooses configurations, told of the journal; `None` where they follow from the space."""
        if not self.sweep.spec.searcher.learns:
            return None
        from sweeper.optuna_search import OptunaSearcher  # imports Ray

        searcher = OptunaSearcher(self.sweep.spec)
        for record in read_journal(self.sweep.paths.journal):
            searcher.apply(record)
        return searcher

    def _metrics(self, publish: Publish, resources: Mapping[str, float]) -> MetricsSink:
        named = self.sweep.spec.budget.gpu_hour_price if self.sweep.spec.budget else None
        return MetricsSink(
            self.sweep.name,
            self.state,
            self.sweep.spec.halving,
            publish,
            samples_per_epoch=len(self.dataset.train) * self.sweep.spec.replicates.count,
            gpu=resources["gpu"],
            gpu_hour_price=price_from(os.environ) if named is None else named,
        )

    def _driver(
        self, slots: int, shares: Callable[[int], float] | None, options: RunOptions, more_sinks: Sequence[Sink]
    ) -> Driver:
        spec, paths = self.sweep.spec, self.sweep.paths
        kind = ReplicateDriver if spec.replicates.packing == TRIALS else Driver
        return kind(
            paths,
            self.sweep.configurations,
            seed=spec.seed,
            replicates=spec.replicates.count,
            halving=spec.halving,
            journal=self.mirror.journal(),
            keeper=self.mirror,
            shares=shares,
            state=self.state,
            rungs=self.rungs,
            sinks=[self.tables, self.progress, _Heart(self.lease), self.notifier, *more_sinks],
            retries=spec.retries,
            failed_too=options.failed_too,
            slots=slots,
            max_concurrent=spec.max_concurrent,
            searcher=self._searcher(),
        )


class _Heart:
    """A sink that renews the driver's lease as reports come in."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def append(self, record: Any) -> None:
        """Records do not concern the lease."""

    def flush_if_due(self) -> None:
        """Renew the heartbeat."""
        self._lease.beat()


def share_out(asked: Resources, cluster: ClusterView) -> tuple[dict[str, float], int]:
    """Return a trial's resources and how many trials fit on a cluster as it is now: none, where it may yet grow.

    Where the space says `gpu: auto`, a trial takes a quarter of a card if there is one, until it is measured.
    Raises SweeperError when not even one trial fits and no autoscaler could change that.
    """
    if asked.gpu == "auto" and cluster.autoscales and not cluster.total("GPU"):
        raise SweeperError(
            "resources.gpu is auto, and whether the cluster's autoscaler will start nodes with GPUs cannot be told yet",
            "say what a trial takes: --set resources.gpu=0.25 for a quarter of a card, or --set resources.gpu=0",
        )
    gpu = float(asked.gpu) if asked.gpu != "auto" else (0.25 if cluster.total("GPU") else 0.0)
    resources = {"cpu": float(asked.cpu), "gpu": gpu}
    slots = cluster.trials_at_once(resources)
    if not slots and not cluster.autoscales:
        have = ", ".join(f"{cluster.total(name.upper()):g} {name}" for name in resources)
        need = ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
        raise SweeperError(
            f"no trial fits: one needs {need}, the cluster has {have}",
            "lower `resources` in the search space (e.g. --set resources.gpu=0), or use a larger cluster",
        )
    return resources, slots


def _open_tables(sweep: Sweep, classes: int, mirror: Mirror | SharedFolder) -> ParquetSink:
    spec = sweep.spec
    measured = spec.evaluation
    columns = evaluation_columns([m["name"] for m in measured.posthoc], [m["name"] for m in measured.metrics])
    trajectory = spec.evaluation.trajectory
    more = epoch_columns(None if trajectory is None else trajectory.model_dump())
    return ParquetSink(
        sweep.paths,
        table_schemas(
            column_types(spec.space),
            classes,
            columns,
            epoch_columns=more,
            rehearsal=spec.is_rehearsal,
            arithmetic=TrainingSettings(**spec.training.model_dump()).described,
        ),
        [None] * len(sweep.configurations) if spec.searcher.learns else sweep.configurations,
        replicates=spec.replicates.count,
        sweep_seed=spec.seed,
        arrivals=mirror.arrivals,
    )


def _settings(sweep: Sweep, resources: dict[str, float], tables: Path, mirror: Mirror | SharedFolder) -> dict[str, Any]:
    spec, paths = sweep.spec, sweep.paths
    return {
        "dataset": spec.dataset,
        "max_epochs": spec.scheduler.max_epochs,
        "rungs": list(spec.halving.rungs),
        "objective": spec.objective.metric,
        "evaluation": spec.evaluation.model_dump(mode="json"),
        "tables": str(tables),
        "checkpoints": str(paths.checkpoints),
        "store": mirror.store.uri if mirror.store is not None else None,
        "threads": max(1, int(resources["cpu"])),
        "device": "cuda" if resources["gpu"] else "cpu",
        "gpu": resources["gpu"],
        "packing": spec.replicates.packing,
        "training": spec.training.model_dump(mode="json"),
        "choices": str(paths.root / "packing") if mirror.store is None else None,
        "timeout_seconds": spec.trial_timeout,
        "hang_seconds": spec.hang_timeout,
        "extensions": paths.extensions.read_bytes() if paths.extensions.is_file() else None,
    }


@contextmanager
def _stopped_by_signal(driver: Driver) -> Iterator[None]:
    """Let SIGTERM ask the sweep to stop; Tune itself ends in good order on SIGINT."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: object) -> None:
        driver.stop_requested = f"{signal.Signals(number).name} was received"

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
