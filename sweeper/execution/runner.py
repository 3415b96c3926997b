"""Run a sweep from its first trial to its report, and resume it.

`run_sweep` claims a name and drives; `resume_sweep` folds the journal and drives what is left. Both end the
same way: journal closed, tables compacted, report written, MLflow given a bounded time to catch up.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from search_spaces import locate
from sweeper.core.errors import NO_SPACE, SweeperError, unwritable
from sweeper.core.ids import SweepPaths
from sweeper.core.schemas import epoch_columns, evaluation_columns, table_schemas
from sweeper.execution.amendments import amend, check_trials, check_unchanged
from sweeper.execution.assembly import Parts
from sweeper.execution.choice import check_can_start, runs_here
from sweeper.execution.controllers.budget import WorkingTime
from sweeper.execution.controllers.interrupts import Interrupts
from sweeper.execution.damage import discard_damaged, refuse_lost_journal, remove_checkpoints_ahead
from sweeper.execution.driver.recorder import Fold
from sweeper.execution.exit_notice import last_words
from sweeper.execution.local.processes import ForkServer, early_server
from sweeper.execution.options import RunOptions
from sweeper.execution.redirect_output import chatter_to
from sweeper.execution.repeatability import begun_trials, repeatability_notes
from sweeper.execution.reuse import MANIFEST_KEY, choose_sources
from sweeper.execution.settled import mark_settled
from sweeper.execution.warm_start import MANIFEST_KEY as LEARNED
from sweeper.execution.warm_start import lessons
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Record
from sweeper.journal.segments import last_sequence
from sweeper.journal.spending import Spending
from sweeper.journal.state import FAILED, SweepState
from sweeper.monitoring.live import Progress
from sweeper.notifications.notifier import Notifier
from sweeper.planning.lane_notes import lane_notes
from sweeper.planning.preparation import dataset_facts, prepare_dataset
from sweeper.space.configurations import column_types
from sweeper.space.loading import load_spec
from sweeper.space.notify import (
    Target,
    asked_by_file,
    folder_of,
    option_notifications,
    remember_allowed,
    require_allowed,
    resolve_targets,
)
from sweeper.space.rehearsal import rehearsal_name
from sweeper.space.spec import SweepSpec
from sweeper.space.strata import pool_notes
from sweeper.space.suggested import configurations_of
from sweeper.space.user_code import code_of, keep, manifest_part, take_up_kept
from sweeper.storage.lease import Lease, holder
from sweeper.storage.manifest import build_manifest
from sweeper.storage.metadata import read_manifest
from sweeper.storage.mirror import Mirror, SharedFolder, mirror_of
from sweeper.storage.places import DRIVING, Place, place_of, split_name
from sweeper.storage.store_lease import stored_holder
from sweeper.storage.sweeps import Sweep, create_sweep, open_sweep
from sweeper.tables.writer import ParquetSink
from sweeper.tracking.follower import MlflowFollower, patience
from trainables.datasets.base import DataSet
from trainables.datasets.sharing import node_copy
from trainables.datasets.shifts import build_shift
from trainables.metrics.tokens import KEPT
from trainables.training.acceleration import TrainingSettings
from trainables.worker.object_store import StoreError
from trainables.worker.trial_reports import NON_FINITE

__all__ = ["Outcome", "RunOptions", "resume_sweep", "run_sweep"]


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

    @property
    def paths(self) -> SweepPaths:
        """The sweep's files."""
        return self.sweep.paths

    @property
    def counts(self) -> Mapping[str, int]:
        """Trials by status."""
        return self.state.count()

    @property
    def unfinished(self) -> int:
        """How many trials a resume would continue with."""
        return len(self.state.unfinished())

    @property
    def retriable(self) -> int:
        """How many failed trials may end otherwise if retried; one that diverged diverges again."""
        return _retriable(self.state)


def _retriable(state: SweepState) -> int:
    return sum(trial.stop_kind != NON_FINITE for trial in state.trials.values() if trial.status == FAILED)


def run_sweep(
    space: Path | str | Mapping[str, Any],
    overrides: Sequence[str],
    name: str | None,
    options: RunOptions,
    server: ForkServer | None = None,
) -> Outcome:
    """Read a search space, or take its values, claim a name for it and run it to its end.

    `server` forks trial processes where these run on this machine; one is started where none is given.

    Raises InvalidSearchSpace or SweeperError before anything was started.
    """
    with early_server(options.executor, options.address, server) as running:
        return _run_with(running, space, overrides, name, options)


def _run_with(
    server: ForkServer | None,
    space: Path | str | Mapping[str, Any],
    overrides: Sequence[str],
    name: str | None,
    options: RunOptions,
) -> Outcome:
    spec = load_spec(space, overrides, rehearse=options.rehearse)
    asked = [] if isinstance(space, Mapping) else asked_by_file(spec.notify, overrides)
    require_allowed(asked, folder_of(locate(str(space))) if asked else "", allowed=options.allow_notify)
    server = server if runs_here(options, spec.resources) else None
    check_can_start(options, spec.resources, here=server is not None)
    targets = notification_targets(spec, options)
    place = place_of(options.output, DRIVING)
    if place.store is not None:
        place.store.check()
    dataset = prepare_dataset(spec)
    stem = "sweep" if isinstance(space, Mapping) else Path(space).stem
    if spec.is_rehearsal:
        stem, name = rehearsal_name(stem), name if name is None else rehearsal_name(name)
    own, own_notes = code_of(spec), [*pool_notes(spec), *lane_notes(spec, dataset, here=server is not None)]
    dataset, facts = node_copy(dataset), dataset_facts(dataset)
    digest = own.digest if own is not None else None
    sources = choose_sources(spec, facts, options.output, digest, every=options.reuse, named=options.reuse_from)
    reused = {MANIFEST_KEY: sources.names} if sources.names else {}
    learned = {LEARNED: [lesson.summary() for lesson in lessons(spec, facts, options.output)]}
    learned = learned if spec.searcher.warm_start else {}
    manifest = {
        **build_manifest(spec, facts),
        **reused,
        **learned,
        **manifest_part(own),
        "executor": "ray" if server is None else "local",
    }
    options.timings.note("search space checked")
    sweep = create_sweep(spec, stem, name, place.folder, manifest, place.has, functools.partial(keep, own))
    mirror = mirror_of(sweep.paths, place)
    try:
        with mirror:
            remember_allowed(spec.notify, mirror.location)
            outcome = _drive(sweep, dataset, options, mirror, targets, server)
    except (SweeperError, StoreError) as error:
        if _gives_name_back(sweep, place, held=mirror.held):
            error.message += "; nothing was started"
        raise
    return replace(outcome, notes=[*sources.notes, *own_notes, *outcome.notes])


def _gives_name_back(sweep: Sweep, place: Place, *, held: bool) -> bool:
    """Remove the folder of a sweep whose driver has failed before it began; tell whether its name is free again.

    It is not where anything was journaled, or another driver has taken the sweep up.
    """
    if not held or last_sequence(sweep.paths.journal) >= 0 or holder(sweep.paths.lease) is not None:
        return False
    if place.store is not None:
        store = place.store.child(sweep.name)
        try:
            if stored_holder(store) is not None:
                return False
            store.delete(store.entries())
        except StoreError:
            return False
    shutil.rmtree(sweep.paths.root, ignore_errors=True)
    return True


def resume_sweep(name: str, options: RunOptions, server: ForkServer | None = None) -> Outcome:
    """Fold a sweep's journal and run what is unfinished; a sweep in a store is brought here first.

    `server` is as in `run_sweep`.

    Raises SweeperError when there is no such sweep, or another driver has it.
    """
    name, output = split_name(name, options.output)
    place = place_of(output, DRIVING)
    with (
        early_server(options.executor, options.address, server) as running,
        mirror_of(place.find(name), place) as mirror,
    ):
        sweep = open_sweep(name, place.folder)
        read_manifest(sweep.paths.manifest)  # the report needs it at the end
        refuse_lost_journal(sweep.paths)
        check_unchanged(sweep, unreadable=options.discard_damaged)
        sweep = amend(sweep, options.settings)
        server = running if runs_here(options, sweep.spec.resources) else None
        take_up_kept(sweep.paths, sweep.spec, read_manifest(sweep.paths.manifest), trust=options.trust)
        asked = asked_by_file(sweep.spec.notify, options.settings)
        require_allowed(asked, mirror.location, allowed=options.allow_notify)
        targets = notification_targets(sweep.spec, options)
        return _drive(sweep, node_copy(prepare_dataset(sweep.spec)), options, mirror, targets, server)


def notification_targets(spec: SweepSpec, options: RunOptions) -> list[Target]:
    """Return who is notified of a run. Raises SweeperError when what they need is missing on this machine."""
    return resolve_targets([*spec.notify, *option_notifications(options.notify)], os.environ)


def _drive(
    sweep: Sweep,
    dataset: DataSet,
    options: RunOptions,
    mirror: Mirror | SharedFolder,
    targets: Sequence[Target],
    server: ForkServer | None,
) -> Outcome:
    """Hold the lease, fold the journal, run what is unfinished, and bring everything that follows up to date."""
    started = time.monotonic()
    paths, schedule = sweep.paths, sweep.spec.schedule
    named = paths.in_commands if mirror.store is None else mirror.address
    goodbye = (
        f"the driver died: it was killed, or the Ray head was lost (see {paths.log})\n"
        f"  all results so far are kept; continue with `sweeper resume {named}`"
    )
    with (
        _interruption_told(named),
        _full_disk_told(named),
        Lease(paths.lease) as lease,
        last_words(goodbye),
        chatter_to(paths.log) as terminal,
    ):
        paths.stop_marker.unlink(missing_ok=True)
        notes = discard_damaged(paths, mirror) if options.discard_damaged else []
        state, rungs = SweepState(len(sweep.configurations)), schedule.begin()
        sweep = replace(sweep, configurations=configurations_of(sweep.spec, state.suggested))
        worked, spending = WorkingTime(), Spending()
        tables = _open_tables(sweep, dataset, mirror)
        if last_sequence(paths.journal) >= 0 or notes or mirror.store is not None:
            folds: list[Fold] = [state, rungs, worked, spending]
            tables.rebuild(folded(paths, folds, lambda: check_trials(state, tables.config_hashes)))
            for sentence in tables.missing():
                terminal.print(sentence, markup=False)
        if notes:
            remove_checkpoints_ahead(paths, state)
        begun = begun_trials(state)
        follower = MlflowFollower(paths, options.tracking_uri)
        progress = options.progress(terminal, state, schedule, sweep.describe)
        notifier = Notifier(targets, sweep, state, mirror.address)
        interrupts = Interrupts(progress.say)
        with interrupts.listening(), progress, follower, notifier:
            outcome, reason = "finished", None
            # Nothing may be left to do but to say so: the last driver died between the last report and the end.
            unfinished = bool(state.unfinished(failed_too=options.failed_too)) or not state.attempt
            driven = unfinished or state.outcome is None
            if driven:
                parts = Parts(
                    sweep, state, rungs, tables, progress, lease, mirror, dataset, worked, spending, notifier,
                    interrupts,
                )  # fmt: skip
                driver = parts.run(options, server) if unfinished else parts.take_up(options)
                outcome, reason = driver.finish(), driver.closing
                notes += [f"stopped: {reason}"] if reason else []
                notes += repeatability_notes(state, begun, deterministic=sweep.spec.training.deterministic)
            ending = _Ending(sweep, options, mirror, tables, follower, notifier, progress, started)
            try:
                with interrupts.skippable():
                    notes += ending.write(state, (outcome, reason) if driven else None)
            except KeyboardInterrupt:
                notes.append("tables and report were skipped; the next `sweeper resume` writes them")
    options.timings.note("processes ended")
    return Outcome(sweep, outcome, state, time.monotonic() - started, notes)


def folded(paths: SweepPaths, folds: Sequence[Fold], check: Callable[[], None]) -> Iterator[Record]:
    """Yield the journal's records, each folded into `folds` first, and `check` at the end: each is parsed once."""
    for record in read_journal(paths.journal):
        for fold in folds:
            fold.apply(record)
        yield record
    check()


@contextmanager
def _interruption_told(named: str) -> Iterator[None]:
    """Say how to continue when a second Ctrl-C ends the driver wherever it is; the first one lets it say so itself."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted: all results so far are kept; continue with `sweeper resume {named}`\n")
        raise


@contextmanager
def _full_disk_told(named: str) -> Iterator[None]:
    """Raise DiskFullError in place of the operating system's error when no space is left, wherever that shows."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        remedy = f"free space, then run `sweeper resume {named}`; all results so far are kept"
        raise unwritable(f"{error.filename or 'the results folder'} cannot be written to", remedy, error) from error


@dataclass(frozen=True)
class _Ending:
    """What follows when the last trial has ended."""

    sweep: Sweep
    options: RunOptions
    mirror: Mirror | SharedFolder
    tables: ParquetSink
    follower: MlflowFollower
    notifier: Notifier
    progress: Progress
    started: float

    def write(self, state: SweepState, ended: tuple[str, str | None] | None) -> list[str]:
        """Write tables and report, notify of the end, and give MLflow a bounded time; return things to know."""
        options = self.options
        self.progress.stage("writing tables and report")
        self.mirror.collect()
        self.tables.close()
        from sweeper.reporting import write_report  # at the start it would delay the first trial

        write_report(self.sweep.paths.root)
        options.timings.note("tables and report written")
        self.mirror.complete(ended=not state.unfinished())
        if ended is not None:
            self.notifier.ended(*ended)
        if options.tracking_uri is not None:
            self.progress.stage("finishing MLflow logging")
        lacking = self.tables.notes + self.follower.wait(patience(time.monotonic() - self.started))
        notes = lacking + self.notifier.wait()
        options.timings.note("MLflow complete")
        if self.mirror.store is None and not lacking and not state.unfinished():
            mark_settled(self.sweep.paths, state.count(), options.tracking_uri, _retriable(state))
        return notes


def _open_tables(sweep: Sweep, dataset: DataSet, mirror: Mirror | SharedFolder) -> ParquetSink:
    spec = sweep.spec
    measured = spec.evaluation
    own = [metric["name"] for metric in measured.metrics]
    detected = [name for shift in map(build_shift, measured.shifts) if shift.detected for name in shift.names]
    columns = evaluation_columns(measured.posthoc, own, spec.cross_fitted, [*measured.own_splits, *detected])
    trajectory = spec.evaluation.trajectory
    more = epoch_columns(None if trajectory is None else trajectory.model_dump())
    return ParquetSink(
        sweep.paths,
        table_schemas(
            column_types(spec.space),
            dataset.classes,
            columns,
            epoch_columns=more,
            rehearsal=spec.is_rehearsal,
            arithmetic=TrainingSettings(**spec.training.model_dump()).described,
            kept_logits=None if dataset.translation is None else min(KEPT, dataset.classes),
        ),
        [None] * len(sweep.configurations) if spec.searcher.learns else sweep.configurations,
        replicates=spec.replicates.count,
        sweep_seed=spec.seed,
        common_seeds=spec.replicates.common_seeds,
        arrivals=mirror.arrivals,
    )
