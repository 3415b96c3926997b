"""One attempt at a sweep by one driver: hold the lease, fold the journal, run unfinished trials, write the report.

A first run and a resumed one differ here only in the journal's contents (`sweeper.execution.resuming`). Once the
executor knows its resources, the driver is built with its searcher, tables, sinks and trial settings.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console

from sweeper.core.errors import NO_SPACE, DiskFullError, SweeperError, unwritable
from sweeper.core.ids import SweepPaths
from sweeper.core.processes import at_death, prepare
from sweeper.execution import resuming
from sweeper.execution.driver.context import DriverSettings, Fold, Sink
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.executor import Executor, Job, Session
from sweeper.execution.driver.steering import BudgetWatch, Interrupts, WorkingTime, answered
from sweeper.execution.options import Outcome, RunOptions
from sweeper.journal.best import Spending
from sweeper.journal.journal import read_journal
from sweeper.journal.reasons import reason_text
from sweeper.journal.records import Added
from sweeper.journal.segments import last_sequence
from sweeper.journal.state import SweepState
from sweeper.planning.preparation import data_keys
from sweeper.planning.user_code_checks import loop_columns
from sweeper.reporting.live import FreshReport, redirect_output
from sweeper.reporting.snapshot import MetricsSink, Publish
from sweeper.scheduling.contenders import requested
from sweeper.search.base import Searcher
from sweeper.space.loading import searcher_for
from sweeper.space.spec import Budget, final_stage
from sweeper.space.user_code import kept_archive, own_names
from sweeper.storage.lease import Lease
from sweeper.storage.metadata import read_manifest
from sweeper.storage.mirror import Mirror, SharedFolder
from sweeper.storage.sweeps import Sweep, keep
from sweeper.tracking.base import kind_of
from sweeper.tracking.follower import Follower, patience
from trainables.datasets.base import DataSet
from trainables.datasets.sharing import content_key
from trainables.worker.trial_reports import Reason
from trainables.worker.trial_settings import TrialSettings


@contextmanager
def endings_told(named: str) -> Iterator[None]:
    """Print how to continue if a second Ctrl-C or a full disk ends the driver.

    Raises DiskFullError instead of the operating system's error.
    """
    try:
        yield
    except KeyboardInterrupt:  # a second Ctrl-C; after the first, the driver ends in order and reports it itself
        sys.stderr.write(f"interrupted: all results so far are kept; continue with `sweeper resume {named}`\n")
        raise
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        remedy = f"free space, then run `sweeper resume {named}`; all results so far are kept"
        raise unwritable(f"{error.filename or 'the results folder'} cannot be written to", remedy, error) from error


def drive(
    sweep: Sweep, dataset: DataSet, options: RunOptions, mirror: Mirror | SharedFolder, executor: Executor
) -> Outcome:
    """Hold the lease, fold the journal, run unfinished trials on an executor, and update tables, report and tracker."""
    started, paths = time.monotonic(), sweep.paths
    named = paths.in_commands if mirror.store is None else mirror.address
    goodbye = (
        f"the driver died: it was killed, or the Ray head was lost (see {paths.log})\n"
        f"  all results so far are kept; continue with `sweeper resume {named}`"
    )
    with (
        endings_told(named),
        Lease(paths.lease) as lease,
        # A process killed by SIGKILL cannot print, so another process waits for its death.
        at_death('printf "%s\\n" "$1" >&2', goodbye),
        redirect_output(paths.log) as terminal,
    ):
        if options.settings:
            keep(sweep)  # only with the lease: another driver may be using the file
        paths.stop_marker.unlink(missing_ok=True)  # a request to an earlier driver
        attempt = Attempt(sweep, dataset, options, mirror, lease, terminal)
        with attempt.interrupts.listening(), attempt.progress, attempt.follower:
            ended = attempt.run_unfinished(executor)
            try:
                with attempt.interrupts.skippable():
                    attempt.notes += attempt.write_end(ended, started)
            except KeyboardInterrupt:
                attempt.notes.append("tables and report were skipped; the next `sweeper resume` writes them")
    options.timings.note("processes ended")
    seconds = time.monotonic() - started
    return Outcome(sweep, attempt.state, seconds, ended or "finished", attempt.notes, attempt.reported)


class Attempt:
    """State and display of the sweep that one driver holds.

    Attributes:
        sweep: The sweep.
        mirror: Mirror of the sweep's folder to its store.
        state: State of all trials, folded from the journal.
        notes: Remarks for the user at the end, one sentence each.
        progress: Display of the run.
        follower: Process that logs the run to the tracker.
        interrupts: Handler of Ctrl-C.
        reported: Whether the report could be written.
    """

    def __init__(
        self,
        sweep: Sweep,
        dataset: DataSet,
        options: RunOptions,
        mirror: Mirror | SharedFolder,
        lease: Lease,
        terminal: Console,
    ) -> None:
        """Fold the journal of a sweep whose `lease` is held, rebuild its tables, and report missing rows."""
        self.sweep, self._dataset, self._options, self.mirror, self._lease = sweep, dataset, options, mirror, lease
        paths, schedule = sweep.paths, sweep.spec.schedule
        self.notes = resuming.discard_damaged(paths, mirror) if options.discard_damaged else []
        self.state, self._rungs = SweepState(len(sweep.configurations)), schedule.begin()
        self._order = sweep.spec.order(self._rungs)
        self._worked, self._spending = WorkingTime(), Spending()
        self.reported = True
        self._tables = resuming.open_tables(sweep, dataset, mirror)
        if last_sequence(paths.journal) >= 0 or self.notes or mirror.store is not None:
            # One pass over the journal feeds all of them: parsing is the largest part of a resume's start.
            ordered = [] if self._order is None else [self._order]
            folds: list[Fold] = [self.state, self._rungs, *ordered, self._worked, self._spending]
            self._tables.rebuild(
                resuming.folded(paths, folds, lambda: resuming.check_trials(self.state, self._tables.config_hashes))
            )
            for sentence in self._tables.missing():
                terminal.print(sentence, markup=False)
        if self.notes:
            resuming.remove_checkpoints_ahead(paths, self.state)
        self.follower = Follower(paths, options.tracker)
        self.progress = options.progress(terminal, self.state, schedule, sweep.describe)
        self.interrupts = Interrupts(self.progress.say)
        self._final_stage = final_stage(sweep.spec)

    def tick(self, steering: object) -> None:
        """Renew the lease on every turn of the driver. Raises LeaseLostError if another driver has taken it."""
        self._lease.beat()
        self.follower.keep_alive()
        self.mirror.require()

    def run_unfinished(self, executor: Executor) -> str | None:
        """Run the unfinished trials; return the outcome, `None` if the sweep had ended before."""
        state, options = self.state, self._options
        # All trials may have ended without a recorded outcome: the last driver died after the last report.
        unfinished = bool(state.unfinished(failed_too=options.failed_too)) or not state.attempt
        unfinished = unfinished or bool(self._additions(state))
        if not unfinished and state.outcome is not None:
            return None
        driver = self.run(executor) if unfinished else self.take_up()
        outcome, reason = driver.finish(), driver.closing
        self.notes += [f"stopped: {reason_text(reason)}"] if reason else []
        return outcome

    def run(self, executor: Executor) -> Driver:
        """Run the unfinished trials on the executor; the caller closes the sweep."""
        job = Job(self.sweep, self.progress, self.interrupts, self._settings, self._metrics)
        with executor.session(job) as session, FreshReport(self.sweep.paths) as report:
            budget = self._budget(session.resources)
            driver = self._driver(session, budget, report)
            driver.begin(self.sweep.spec.resolved())
            self.progress.stage("running")
            ask = driver.steering.ask_to_stop  # `Interrupts` does the same for Ctrl-C
            with answered(signal.SIGTERM, lambda *_: ask(Reason("signal", {"name": signal.SIGTERM.name}))):
                session.execute(driver)
        return driver

    def take_up(self) -> Driver:
        """Return a driver for a sweep that has no trial left to run; the caller closes the sweep."""
        prepare(self._options.address)  # a searcher imports Ray
        driver = self._driver(Session({}, 1, lambda driver: None))
        driver.begin(self.sweep.spec.resolved())
        return driver

    def write_end(self, ended: str | None, started: float) -> list[str]:
        """Write tables and report, and wait for the tracker for a limited time; return remarks for the user."""
        options, state, mirror = self._options, self.state, self.mirror
        self.progress.stage("writing tables and report")
        self.follower.hurry()  # it works while tables and report are written
        self._tables.flush()  # asks the store for the last predictions, which the final list of files then has
        mirror.collect()
        self._tables.close()
        written = ended is None and not self._tables.notes and _report_is_fresh(self.sweep.paths)
        lacking = [] if written else _report_lacking(self.sweep)
        self.reported = not lacking
        options.timings.note("tables and report written")
        mirror.complete(ended=not state.unfinished())
        if options.tracker is not None:
            self.progress.stage(f"finishing {kind_of(options.tracker).name} logging")
        lacking += self._tables.notes + self.follower.wait(patience(time.monotonic() - started), self.progress.tracked)
        options.timings.note("tracking complete")
        return lacking

    def _settings(self, resources: dict[str, float]) -> TrialSettings:
        """Return the settings of all trials, each with these resources."""
        spec, paths, store = self.sweep.spec, self.sweep.paths, self.mirror.store
        manifest = read_manifest(paths.manifest)
        return TrialSettings(
            dataset=spec.dataset,
            max_epochs=spec.scheduler.max_epochs,
            rungs=tuple(spec.schedule.rungs),
            objective=spec.objective.metric,
            evaluation=replace(spec.evaluation.settings, cross_fitted=tuple(spec.cross_fitted)),
            tables=self._tables.incoming,
            checkpoints=paths.checkpoints,
            store=store.uri if store is not None else None,
            checkpoint_seconds=spec.checkpoint.every_seconds,
            checkpoints_kept=spec.checkpoint.keep,
            threads=max(1, int(resources["cpu"])),
            device="cuda" if resources["gpu"] else "cpu",
            gpu=resources["gpu"],
            packing=spec.replicates.packing,
            lanes=spec.replicates.lane_count,
            training=spec.training.settings,
            choices=paths.root / "packing" if store is None else None,
            # A custom training loop loads its own data: this data set only holds the targets to predict.
            data_key=content_key(self._dataset) if spec.loop is None else None,
            data_keys=data_keys(spec),
            timeout_seconds=spec.trial_timeout,
            hang_seconds=spec.hang_timeout,
            extensions=kept_archive(paths, spec, manifest),
            own_names=[name for _, name in own_names(spec)],
            loop=spec.loop,
            loop_columns=loop_columns(manifest),
        )

    def _budget(self, resources: Mapping[str, float]) -> BudgetWatch:
        limits = self.sweep.spec.budget or Budget()
        return BudgetWatch(limits, self._spending, self._worked, resources)

    def _searcher(self) -> Searcher | None:
        """Return the searcher, replayed from the journal; `None` if configurations follow from the space alone."""
        if not self.sweep.spec.searcher.learns:
            return None

        searcher = searcher_for(self.sweep.spec)
        for record in read_journal(self.sweep.paths.journal):
            searcher.apply(record)
        return searcher

    def _metrics(self, publish: Publish, resources: Mapping[str, float]) -> MetricsSink:
        return MetricsSink(
            self.sweep.name,
            self.state,
            self.sweep.spec.schedule,
            publish,
            spending=self._spending,
            samples_per_epoch=len(self._dataset.train) * self.sweep.spec.replicates.count,
            gpu=resources["gpu"],
        )

    def _additions(self, state: SweepState) -> Sequence[Added]:
        """Return the seeds to add after all trials have ended: from `--set replicates`, else from the final stage."""
        count, seeds = self._options.replicates, self.sweep.spec.replicate_seeds
        added = [] if count is None else requested(state, seeds, count, self._options.trials)
        return added or ([] if self._final_stage is None else self._final_stage.next(state))

    def _driver(self, session: Session, budget: BudgetWatch | None = None, *sinks: Sink) -> Driver:
        spec, configurations = self.sweep.spec, self.sweep.configurations
        watches = [] if budget is None else [budget]
        return Driver(
            self.sweep.paths,
            configurations,
            DriverSettings.of(spec, configurations),
            journal=self.mirror.journal(alone=self._lease.locked),
            keeper=self.mirror,
            shares=session.shares,
            state=self.state,
            rungs=self._rungs,
            order=self._order,
            sinks=[self._tables, self.progress, *session.sinks, *sinks],
            controllers=[self, *watches, *session.controllers],
            additions=self._additions,
            folds=[self._worked, self._spending],
            failed_too=self._options.failed_too,
            slots=session.slots,
            searcher=self._searcher(),
            other_nodes=session.other_nodes,
        )


def _report_is_fresh(paths: SweepPaths) -> bool:
    """Return whether the report was written after the last change of the journal and of the recalibrations."""
    if not paths.report.exists():
        return False
    sources = [folder for folder in (paths.journal, paths.recalibrations) if folder.exists()]
    return all(folder.stat().st_mtime < paths.report.stat().st_mtime for folder in sources)


def _report_lacking(sweep: Sweep) -> list[str]:
    """Write the report; if that fails, return a note instead of an error, since the sweep itself is complete.

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
