"""One attempt at a sweep, by one driver: hold the lease, fold the journal, run what is unfinished, write the end.

A first run and a resumed one differ here only in what the journal holds. A damaged journal is cut off before its first
damaged record, and what trials wrote afterwards is removed; one that is lost is found missing.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from rich.console import Console

from sweeper.core.errors import NO_SPACE, DiskFullError, InvalidSearchSpace, SweeperError, unwritable
from sweeper.core.ids import SweepPaths, trial_name
from sweeper.core.processes import at_death
from sweeper.execution.assembly import DriverContext, open_tables
from sweeper.execution.controllers.base import Interrupts
from sweeper.execution.controllers.budget import BUDGET_REACHED, WorkingTime
from sweeper.execution.driver.context import Fold
from sweeper.execution.driver.executor import Executor
from sweeper.execution.options import Outcome, RunOptions, mark_settled, retriable
from sweeper.journal.best import Spending
from sweeper.journal.journal import read_journal, set_aside_damaged
from sweeper.journal.records import Record
from sweeper.journal.segments import last_sequence, piece_of
from sweeper.journal.state import ReplicateState, SweepState
from sweeper.monitoring.notifications import Notifier
from sweeper.space.notify import Target
from sweeper.steering.requests import GOES_ON, pending
from sweeper.storage.lease import Lease
from sweeper.storage.mirror import Mirror, SharedFolder
from sweeper.storage.sweeps import Sweep, changed_trials, edited, keep
from sweeper.text.display import SafeConsole
from sweeper.text.labels import plural
from sweeper.tracking.base import kind_of
from sweeper.tracking.follower import Follower, patience
from trainables.datasets.base import DataSet
from trainables.worker.checkpoints import PARTIAL, checkpoint_epochs, checkpoint_file


@contextmanager
def redirect_output(log: Path) -> Iterator[Console]:
    """Send everything written to stdout and stderr to `log`, and yield a console on the real stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    was_terminal = os.isatty(kept[1])
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    encoding = getattr(sys.stderr, "encoding", None)
    opened = os.fdopen(os.dup(kept[1]), "w", buffering=1, encoding=encoding, errors="replace")
    with opened as real_error, _streams_to(1, 2):
        handler = logging.StreamHandler(sys.stderr)
        logging.getLogger().addHandler(handler)
        try:
            yield SafeConsole(file=real_error, force_terminal=was_terminal, soft_wrap=not was_terminal)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            logging.getLogger().removeHandler(handler)
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])


@contextmanager
def _streams_to(out: int, error: int) -> Iterator[None]:
    """Send what Python prints to these descriptors where a notebook's kernel would send it to the cell."""
    with ExitStack() as stack:
        for stream, descriptor, redirect in ((sys.stdout, out, redirect_stdout), (sys.stderr, error, redirect_stderr)):
            if hasattr(stream, "pub_thread"):
                opened = stack.enter_context(os.fdopen(os.dup(descriptor), "w", buffering=1, errors="replace"))
                stack.enter_context(redirect(opened))
        yield


def begun_trials(state: SweepState) -> frozenset[int]:
    """Return the configurations whose trials have reported and not ended: a driver that starts now continues them."""
    return frozenset(index for index in state.unfinished(failed_too=True) if state.trials[index].epochs)


def repeatability_notes(state: SweepState, begun: Collection[int], *, deterministic: bool) -> list[str]:
    """Return a sentence on the trials whose numbers may differ in rounding from an undisturbed run's; none on CPUs.

    Args:
        state: at the end of a driver.
        begun: what that driver found begun, by `begun_trials`.
        deterministic: whether the sweep's training is.
    """
    if deterministic:
        return []
    on_cards = {index: trial for index, trial in state.trials.items() if trial.device == "cuda"}
    reused = [trial for trial in on_cards.values() if trial.reused_from is not None]
    further = [trial for trial in reused if trial.epochs > (trial.reused_epochs or 0)]
    continued = [index for index in begun if index in on_cards]
    parts = []
    if reused:
        again = f" ({len(further)} trained again for more epochs, beside the reported ones)" if further else ""
        parts.append(f"{plural(len(reused), 'trial')} reused{again}")
    if continued:
        parts.append(f"{plural(len(continued), 'trial')} continued")
    if not parts:
        return []
    return [
        f"{' and '.join(parts)} on a GPU without training: {{deterministic: true}}: measurements equal those of an "
        "uninterrupted run up to rounding, not to the bit"
    ]


def drive(
    sweep: Sweep,
    dataset: DataSet,
    options: RunOptions,
    mirror: Mirror | SharedFolder,
    targets: Sequence[Target],
    executor: Executor,
) -> Outcome:
    """Hold the lease, fold the journal, run what is unfinished on an executor, and bring what follows up to date."""
    started = time.monotonic()
    paths, schedule = sweep.paths, sweep.spec.schedule
    named = paths.in_commands if mirror.store is None else mirror.address
    goodbye = (
        f"the driver died: it was killed, or the Ray head was lost (see {paths.log})\n"
        f"  all results so far are kept; continue with `sweeper resume {named}`"
    )
    with (
        interruption_told(named),
        translate_disk_full(named),
        Lease(paths.lease) as lease,
        at_death('printf "%s\\n" "$1" >&2', goodbye),
        redirect_output(paths.log) as terminal,
    ):
        if options.settings:
            keep(sweep)  # not before the lease: the file may be another driver's until then
        paths.stop_marker.unlink(missing_ok=True)
        notes = discard_damaged(paths, mirror) if options.discard_damaged else []
        state, rungs = SweepState(len(sweep.configurations)), schedule.begin()
        worked, spending = WorkingTime(), Spending()
        tables = open_tables(sweep, dataset, mirror)
        if last_sequence(paths.journal) >= 0 or notes or mirror.store is not None:
            folds: list[Fold] = [state, rungs, worked, spending]
            tables.rebuild(folded(paths, folds, lambda: check_trials(state, tables.config_hashes)))
            for sentence in tables.missing():
                terminal.print(sentence, markup=False)
        if notes:
            remove_checkpoints_ahead(paths, state)
        follower = Follower(paths, options.tracker)
        progress = options.progress(terminal, state, schedule, sweep.describe)
        notifier = Notifier(targets, sweep, state, mirror.address)
        interrupts = Interrupts(progress.say)
        with interrupts.listening(), progress, follower, notifier:
            context = DriverContext(
                sweep,
                options,
                state,
                rungs,
                tables,
                progress,
                lease,
                mirror,
                dataset,
                worked,
                spending,
                notifier,
                interrupts,
            )
            ended = _run_unfinished(context, executor, notes)
            try:
                with interrupts.skippable():
                    notes += _write_end(context, follower, ended, started)
            except KeyboardInterrupt:
                notes.append("tables and report were skipped; the next `sweeper resume` writes them")
    options.timings.note("processes ended")
    outcome, reason = ended or ("finished", None)
    late = outcome == "finished" or (reason or "").startswith(BUDGET_REACHED)
    goes_on = reason == GOES_ON or (late and bool(pending(paths)))
    return Outcome(sweep, outcome, state, time.monotonic() - started, notes, goes_on)


def _run_unfinished(context: DriverContext, executor: Executor, notes: list[str]) -> tuple[str, str | None] | None:
    """Run what is unfinished; return how that ended and why it stopped, `None` where a driver had ended it before.

    Things to know are added to `notes`.
    """
    state, options = context.state, context.options
    # Nothing may be left to do but to say so: the last driver died between the last report and the end.
    unfinished = bool(state.unfinished(failed_too=options.failed_too)) or not state.attempt
    if not unfinished and state.outcome is not None and not pending(context.sweep.paths):
        return None
    begun = begun_trials(state)
    driver = context.run(executor) if unfinished else context.take_up()
    outcome, reason = driver.finish(), driver.closing
    notes += [f"stopped: {reason}"] if reason else []
    notes += repeatability_notes(state, begun, deterministic=context.sweep.spec.training.deterministic)
    return outcome, reason


def folded(paths: SweepPaths, folds: Sequence[Fold], check: Callable[[], None]) -> Iterator[Record]:
    """Yield the journal's records, each folded into `folds` first, and `check` at the end: each is parsed once."""
    for record in read_journal(paths.journal):
        for fold in folds:
            fold.apply(record)
        yield record
    check()


def _report_lacking(sweep: Sweep) -> list[str]:
    """Write the report; return a note where it cannot be made, for the sweep is complete without it.

    Raises DiskFullError.
    """
    from sweeper.reporting.page import write_report

    named = sweep.paths.in_commands
    try:
        write_report(sweep.paths.root)
    except DiskFullError as error:
        remedy = f"free space, then run `sweeper resume {named}`; all results so far are kept"
        raise DiskFullError(error.message, remedy) from error
    except (SweeperError, OSError, MemoryError, ImportError) as error:  # ImportError: too little memory for scipy
        why = str(error).partition("\n")[0] or "there is too little memory"
        return [f"the report could not be written: {why}; `sweeper report {named}` writes it"]
    return []


def _write_end(
    context: DriverContext, follower: Follower, ended: tuple[str, str | None] | None, started: float
) -> list[str]:
    """Write tables and report, notify of the end, and give the tracker a bounded time; return things to know."""
    options, state, mirror, progress = context.options, context.state, context.mirror, context.progress
    progress.stage("writing tables and report")
    mirror.collect()
    context.tables.close()
    if ended is not None and ended[1] == GOES_ON:
        return []
    lacking = _report_lacking(context.sweep)
    options.timings.note("tables and report written")
    mirror.complete(ended=not state.unfinished())
    if ended is not None:
        context.notifier.ended(*ended)
    if options.tracker is not None:
        progress.stage(f"finishing {kind_of(options.tracker).name} logging")
    lacking += context.tables.notes + follower.wait(patience(time.monotonic() - started))
    notes = lacking + context.notifier.wait()
    options.timings.note("tracking complete")
    if mirror.store is None and not lacking and not state.unfinished() and not context.sweep.spec.confirm.count:
        mark_settled(context.sweep.paths, state.count(), options.tracker, retriable(state))
    return notes


@contextmanager
def interruption_told(named: str) -> Iterator[None]:
    """Say how to continue when a second Ctrl-C ends the driver wherever it is; the first one lets it say so itself."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted: all results so far are kept; continue with `sweeper resume {named}`\n")
        raise


@contextmanager
def translate_disk_full(named: str) -> Iterator[None]:
    """Raise DiskFullError in place of the operating system's error when no space is left, wherever that shows."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        remedy = f"free space, then run `sweeper resume {named}`; all results so far are kept"
        raise unwritable(f"{error.filename or 'the results folder'} cannot be written to", remedy, error) from error


def check_unchanged(sweep: Sweep, *, unreadable: bool = False) -> None:
    """Raise InvalidSearchSpace, naming each difference, when `sweep.yaml` is not what the journal was driven with.

    `unreadable` accepts a journal in which that cannot be read; otherwise SweeperError names the damaged record.
    """
    try:
        faults = edited(sweep)
    except SweeperError:
        if not unreadable:
            raise
        return
    if faults:
        raise InvalidSearchSpace(faults, source=str(sweep.paths.sweep_file))


def check_trials(state: SweepState, config_hashes: Sequence[str | None]) -> None:
    """Raise SweeperError when configurations are drawn that are not those which the journal has."""
    changed = changed_trials({index: trial.config_hash for index, trial in state.trials.items()}, config_hashes)
    if changed:
        count = f"{len(changed)} configurations differ" if len(changed) > 1 else "1 configuration differs"
        raise SweeperError(
            f"{count} from the journal, e.g. {trial_name(changed[0])}: this release draws others from the same space",
            "resume with the release that started the sweep (`versions` in manifest.json), or start a new sweep",
        )


_PARTS = ("[0-9]*-[0-9]*.parquet", "c*.parquet")

#: What a sweep has only once its journal has records: in words, and where it lies.
_OF_A_JOURNAL = {
    "results in its tables": [f"{place}/*/{part}" for place in ("tables", "generations/*") for part in _PARTS],
    "checkpoints": ["checkpoints/c*/**/e*.pt"],
}


def refuse_lost_journal(paths: SweepPaths) -> None:
    """Raise SweeperError when there is no journal, but what only a sweep with a journal has: it would start from zero.

    Records that were quarantined, all of them, are no lost journal.
    """
    if last_sequence(paths.journal) >= 0 or any(paths.journal.glob("*.damaged")):
        return
    there = {word: any(any(paths.root.glob(each)) for each in patterns) for word, patterns in _OF_A_JOURNAL.items()}
    left = [word for word, found in there.items() if found]
    if left:
        raise SweeperError(
            f"the sweep {paths.name!r} has {' and '.join(left)}, and no journal: {paths.journal} is empty or missing",
            "restore that folder from a backup, and resume again; or, to train all trials again from the start, begin "
            f"a new sweep: `sweeper run {paths.sweep_file} --name NAME`. Its results remain readable",
        )


def remove_checkpoints_ahead(paths: SweepPaths, state: SweepState) -> None:
    """Remove checkpoints of epochs that a cut-off journal no longer knows: trials cannot continue from there.

    Left in place, the driver would find out trial by trial, and each would go to the back of the queue.
    """
    for index in state.unfinished():
        trial, folder = state.trials[index], paths.trial_checkpoints(index)
        known = {folder: trial.epochs}
        for own in folder.glob("r*"):
            known[own] = trial.replicates.get(int(own.name[1:]), ReplicateState()).epochs
        for place, epochs in known.items():
            (place / PARTIAL).unlink(missing_ok=True)  # only its inside says of which epoch it is
            for epoch in checkpoint_epochs(place):
                if epoch > epochs:
                    checkpoint_file(place, epoch).unlink(missing_ok=True)


def discard_damaged(paths: SweepPaths, mirror: Mirror | SharedFolder) -> list[str]:
    """Cut the journal off before its first damaged record; return what was done, in a sentence, if anything."""
    names = set_aside_damaged(paths.journal)
    mirror.set_aside(names)
    if not names:
        return []
    count = sum(piece.last - piece.first + 1 for name in names if (piece := piece_of(name)))
    return [
        f"{count} journal records from {names[0]} on were quarantined (as ….damaged in {paths.journal.name}/): "
        "their results were measured again"
    ]
