"""Run a sweep from its first trial to its report, and resume it.

`run_sweep` claims a name and drives; `resume_sweep` folds the journal and drives what is left. Both end the
same way: journal closed, tables compacted, report written, MLflow given a bounded time to catch up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeper.core.schemas import epoch_columns, evaluation_columns, table_schemas
from sweeper.execution.amendments import amend
from sweeper.execution.assembly import Parts
from sweeper.execution.choice import runs_here
from sweeper.execution.controllers.budget import WorkingTime
from sweeper.execution.damage import discard_damaged, remove_checkpoints_ahead
from sweeper.execution.exit_notice import last_words
from sweeper.execution.local.processes import ForkServer, early_server
from sweeper.execution.options import RunOptions
from sweeper.execution.redirect_output import chatter_to
from sweeper.execution.reuse import MANIFEST_KEY, choose_sources
from sweeper.execution.warm_start import MANIFEST_KEY as LEARNED
from sweeper.execution.warm_start import lessons
from sweeper.journal.journal import read_journal
from sweeper.journal.state import SweepState
from sweeper.notifications.notifier import Notifier
from sweeper.planning.lane_notes import lane_notes
from sweeper.planning.preparation import dataset_facts, prepare_dataset
from sweeper.space.configurations import column_types
from sweeper.space.loading import load_spec
from sweeper.space.models import SweepSpec
from sweeper.space.notify import Target, option_notifications, resolve_targets
from sweeper.space.rehearsal import rehearsal_name
from sweeper.space.suggested import configurations_of
from sweeper.space.user_code import code_of, keep, manifest_part, take_up_kept
from sweeper.storage.lease import Lease
from sweeper.storage.manifest import build_manifest
from sweeper.storage.mirror import Mirror, SharedFolder, mirror_of
from sweeper.storage.places import DRIVING, place_of, split_name
from sweeper.storage.sweeps import Sweep, create_sweep, open_sweep
from sweeper.tables.writer import ParquetSink
from sweeper.tracking.follower import MlflowFollower, patience
from trainables.datasets.base import DataSet
from trainables.datasets.sharing import node_copy
from trainables.training.acceleration import TrainingSettings

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
    server = server if runs_here(options, spec.resources) else None
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
    manifest = {
        **build_manifest(spec, facts),
        **reused,
        **learned,
        **manifest_part(own),
        "executor": "ray" if server is None else "local",
    }
    options.timings.note("search space checked")
    sweep = create_sweep(spec, stem, name, place.folder, manifest, place.has)
    keep(own, sweep.paths)
    with mirror_of(sweep.paths, place) as mirror:
        outcome = _drive(sweep, dataset, options, mirror, targets, server)
    return replace(outcome, notes=[*sources.notes, *own_notes, *outcome.notes])


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
        sweep = amend(open_sweep(name, place.folder), options.settings)
        server = running if runs_here(options, sweep.spec.resources) else None
        take_up_kept(sweep.paths)
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
    goodbye = (
        f"the driver died: it was killed, or the Ray head was lost (see {paths.log})\n"
        f"  all results so far are kept; continue with `sweeper resume {mirror.address}`"
    )
    with Lease(paths.lease) as lease, last_words(goodbye), chatter_to(paths.log) as terminal:
        paths.stop_marker.unlink(missing_ok=True)
        notes = discard_damaged(paths, mirror) if options.discard_damaged else []
        state, rungs = SweepState(len(sweep.configurations)), schedule.begin()
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
        progress = options.progress(terminal, state, schedule, sweep.describe)
        notifier = Notifier(targets, sweep, state, mirror.address)
        with progress, follower, notifier:
            outcome, reason = "finished", None
            unfinished = bool(state.unfinished(failed_too=options.failed_too)) or not state.attempt
            # Nothing may be left to do but to say so: the last driver died between the last report and the end.
            driven = unfinished or state.outcome is None
            if driven:
                parts = Parts(sweep, state, rungs, tables, progress, lease, mirror, dataset, worked, notifier)
                driver = parts.run(options, server) if unfinished else parts.take_up(options)
                outcome, reason = driver.finish(), driver.closing
                notes += [f"stopped: {reason}"] if reason else []
            progress.stage("writing tables and report")
            mirror.collect()
            tables.close()
            from sweeper.reporting import write_report  # at the start it would delay the first trial

            write_report(paths.root)
            options.timings.note("tables and report written")
            mirror.complete(ended=not state.unfinished())
            if driven:
                notifier.ended(outcome, reason)
            if options.tracking_uri is not None:
                progress.stage("finishing MLflow logging")
            notes += tables.notes + follower.wait(patience(time.monotonic() - started)) + notifier.wait()
            options.timings.note("MLflow complete")
    options.timings.note("processes ended")
    return Outcome(sweep, outcome, state, time.monotonic() - started, notes)


def _open_tables(sweep: Sweep, classes: int, mirror: Mirror | SharedFolder) -> ParquetSink:
    spec = sweep.spec
    measured = spec.evaluation
    own = [metric["name"] for metric in measured.metrics]
    columns = evaluation_columns(measured.posthoc, own, spec.cross_fitted)
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
        common_seeds=spec.replicates.common_seeds,
        arrivals=mirror.arrivals,
    )
