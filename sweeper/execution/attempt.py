"""One attempt at a sweep, by one driver: hold the lease, fold the journal, run what is unfinished, write the end.

A first run and a resumed one differ here only in what the journal holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sweeper.core.ids import SweepPaths
from sweeper.execution.amendments import check_trials
from sweeper.execution.assembly import Parts
from sweeper.execution.controllers.budget import WorkingTime
from sweeper.execution.controllers.interrupts import Interrupts
from sweeper.execution.damage import discard_damaged, remove_checkpoints_ahead
from sweeper.execution.driver.recorder import Fold
from sweeper.execution.ending import Ending
from sweeper.execution.exit_notice import full_disk_told, interruption_told, last_words
from sweeper.execution.local.processes import ForkServer
from sweeper.execution.options import RunOptions
from sweeper.execution.outcome import Outcome
from sweeper.execution.redirect_output import chatter_to
from sweeper.execution.repeatability import begun_trials, repeatability_notes
from sweeper.execution.sweep_tables import open_tables
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Record
from sweeper.journal.segments import last_sequence
from sweeper.journal.spending import Spending
from sweeper.journal.state import SweepState
from sweeper.notifications.notifier import Notifier
from sweeper.space.notify import Target
from sweeper.space.suggested import configurations_of
from sweeper.storage.lease import Lease
from sweeper.storage.mirror import Mirror, SharedFolder
from sweeper.storage.sweeps import Sweep
from sweeper.tracking.follower import MlflowFollower
from trainables.datasets.base import DataSet


def drive(
    sweep: Sweep,
    dataset: DataSet,
    options: RunOptions,
    mirror: Mirror | SharedFolder,
    targets: Sequence[Target],
    server: ForkServer | None,
) -> Outcome:
    """Hold the lease, fold the journal, run what is unfinished, and bring everything that follows up to date.

    `server` forks trial processes; without it they run on Ray.
    """
    started = time.monotonic()
    paths, schedule = sweep.paths, sweep.spec.schedule
    named = paths.in_commands if mirror.store is None else mirror.address
    goodbye = (
        f"the driver died: it was killed, or the Ray head was lost (see {paths.log})\n"
        f"  all results so far are kept; continue with `sweeper resume {named}`"
    )
    with (
        interruption_told(named),
        full_disk_told(named),
        Lease(paths.lease) as lease,
        last_words(goodbye),
        chatter_to(paths.log) as terminal,
    ):
        paths.stop_marker.unlink(missing_ok=True)
        notes = discard_damaged(paths, mirror) if options.discard_damaged else []
        state, rungs, worked, spending = (
            SweepState(len(sweep.configurations)),
            schedule.begin(),
            WorkingTime(),
            Spending(),
        )
        sweep = replace(sweep, configurations=configurations_of(sweep.spec, state.suggested))
        tables = open_tables(sweep, dataset, mirror)
        if last_sequence(paths.journal) >= 0 or notes or mirror.store is not None:
            folds: list[Fold] = [state, rungs, worked, spending]
            tables.rebuild(folded(paths, folds, lambda: check_trials(state, tables.config_hashes)))
            for sentence in tables.missing():
                terminal.print(sentence, markup=False)
        if notes:
            remove_checkpoints_ahead(paths, state)
        follower = MlflowFollower(paths, options.tracking_uri)
        progress = options.progress(terminal, state, schedule, sweep.describe)
        notifier = Notifier(targets, sweep, state, mirror.address)
        interrupts = Interrupts(progress.say)
        with interrupts.listening(), progress, follower, notifier:
            parts = Parts(
                sweep, state, rungs, tables, progress, lease, mirror, dataset, worked, spending, notifier, interrupts
            )
            ended = _run_unfinished(parts, options, server, notes)
            ending = Ending(sweep, options, mirror, tables, follower, notifier, progress, started)
            try:
                with interrupts.skippable():
                    notes += ending.write(state, ended)
            except KeyboardInterrupt:
                notes.append("tables and report were skipped; the next `sweeper resume` writes them")
    options.timings.note("processes ended")
    return Outcome(sweep, ended[0] if ended else "finished", state, time.monotonic() - started, notes)


def _run_unfinished(
    parts: Parts, options: RunOptions, server: ForkServer | None, notes: list[str]
) -> tuple[str, str | None] | None:
    """Run what is unfinished; return how that ended and why it stopped, `None` where a driver had ended it before.

    Things to know are added to `notes`.
    """
    state = parts.state
    # Nothing may be left to do but to say so: the last driver died between the last report and the end.
    unfinished = bool(state.unfinished(failed_too=options.failed_too)) or not state.attempt
    if not unfinished and state.outcome is not None:
        return None
    begun = begun_trials(state)
    driver = parts.run(options, server) if unfinished else parts.take_up(options)
    outcome, reason = driver.finish(), driver.closing
    notes += [f"stopped: {reason}"] if reason else []
    notes += repeatability_notes(state, begun, deterministic=parts.sweep.spec.training.deterministic)
    return outcome, reason


def folded(paths: SweepPaths, folds: Sequence[Fold], check: Callable[[], None]) -> Iterator[Record]:
    """Yield the journal's records, each folded into `folds` first, and `check` at the end: each is parsed once."""
    for record in read_journal(paths.journal):
        for fold in folds:
            fold.apply(record)
        yield record
    check()
