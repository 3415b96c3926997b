"""The driver: choose the next trial, judge reports, handle failures. Independent of Ray.

Everything the driver learns becomes a journal record first; state, rungs, tables and progress follow from the record.
The executor asks `work` for assignments, and calls `on_started`, `on_reports` and `on_failure`, one at a time.

With `packing: trials` every replicate's report becomes a `replicate` record before anything follows from it. When the
last of a configuration's replicates has reported, the driver merges their reports into one. The scheduler judges the
merged report like any other. On `continue`, all replicates go to the head of the queue. If a driver was killed before
merging, the next driver merges the reports.

In canonical order, a report at a rung, or of a failure, is judged when its turn comes (`sweeper.scheduling.order`). If
it comes early, it becomes an `arrived` record, which only the state knows; the ordinary record follows in its turn. So
everything that follows from the journal sees the same sequence, whichever process was faster.

In cohorts, several reports come at once, and a process that dies takes several trials with it. To the journal, the
scheduler, retries, budgets and searchers, a lane is a normal trial.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TypeAlias

from sweeper.core.ids import SweepPaths, code_version
from sweeper.execution.driver import judging
from sweeper.execution.driver.assignments import Assignments, Unit, place_of_unit
from sweeper.execution.driver.context import NO_SHARES, DriverSettings, Fold, KeptCheckpoints, Shares, Sink, TrialValues
from sweeper.execution.driver.steering import Controller, Steering
from sweeper.journal.journal import Journal
from sweeper.journal.records import Added, Arrived, Attempt, Body, Ended, Failed, Judged, ReplicateReported, Started
from sweeper.journal.state import EARLY_STOPPED, ENDED, FAILED, WAITING, SweepState, TrialState
from sweeper.scheduling.base import RungState
from sweeper.scheduling.order import VirtualOrder
from sweeper.search.base import Searcher
from sweeper.storage.mirror import Mirror, SharedFolder
from trainables.registry import Configuration
from trainables.training.lanes.packing import TRIALS
from trainables.worker.hang_watchdog import last_hang
from trainables.worker.trial_reports import CRASH, ERROR, STORAGE, Failure, Reason, TrialReport

#: If a process reports within this many seconds, its start is not recorded. This halves the records of short trials.
START_SECONDS = 1.0

#: An assignment, the reports of its process, and whether these are the last.
Reports: TypeAlias = tuple[Sequence[int], Sequence[TrialReport], bool]


@dataclass(eq=False)
class Driver:
    """Runs a sweep's unfinished configurations, starting from the state folded from its journal.

    Attributes:
        paths: Paths of the sweep.
        configurations: All configurations, by index; with a searcher, only the configurations in `state`.
        settings: Settings, the same for every driver of the sweep.
        journal: Journal, open for appending.
        state: State of the trials, folded from the journal.
        rungs: State of the rungs, folded from the journal.
        keeper: Folder or mirror that removes checkpoints.
        sinks: Receivers of every record after it is journaled.
        order: Order in which reports are judged, folded from the journal; `None` for the order of arrival.
        folds: Further folds of the journal, updated before sinks and controllers.
        searcher: See `Assignments`.
        shares: See `Assignments`.
        slots: See `Assignments`.
        failed_too: See `Assignments`.
        clock: See `Assignments`.
        controllers: Controllers, called on every turn.
        additions: Function that returns the seeds to add after all trials have ended; empty for none.
        other_nodes: Function that returns whether a node for trials has free disk space.
        broken: Exception raised in an executor's own thread.
        work: Queue and assignments in flight.
    """

    paths: SweepPaths
    configurations: Sequence[Configuration]
    settings: DriverSettings
    _: KW_ONLY
    journal: Journal
    state: SweepState
    rungs: RungState
    keeper: Mirror | SharedFolder
    order: VirtualOrder | None = None
    sinks: Sequence[Sink] = ()
    folds: Sequence[Fold] = ()
    searcher: Searcher | None = None
    controllers: Sequence[Controller] = ()
    additions: Callable[[SweepState], Sequence[Added]] = lambda state: ()
    shares: Shares = NO_SHARES
    slots: int = 1
    failed_too: bool = False
    clock: Callable[[], float] = time.monotonic
    other_nodes: judging.OtherNodes = lambda nodes: False
    broken: Exception | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Rank the ended trials' checkpoints, and reopen failed trials if they are run again."""
        searching = [] if self.searcher is None else [self.searcher]
        ordered = [] if self.order is None else [self.order]
        self._folded: Sequence[Fold] = [self.state, self.rungs, *ordered, *searching, *self.folds]
        self.steering = Steering(self.controllers, self.paths.stop_marker, self.clock)
        self._values = TrialValues(self.configurations, self.state, self._record)
        self.work = Assignments(
            *(self.settings, self.state, self.rungs, self._values, self.steering, self._commit),
            order=self.order,
            searcher=self.searcher,
            shares=self.shares,
            slots=self.slots,
            failed_too=self.failed_too,
            clock=self.clock,
        )
        self.full_disks = judging.FullDisks(self.paths.root, self.other_nodes)
        #: Configuration → start of its process, until its start or a report is recorded.
        self._began: dict[int, float] = {}
        #: Configuration → report, or last failure, that waits for its turn and is not journaled.
        self._pending: dict[int, TrialReport | Failed] = {}
        self._checkpoints = KeptCheckpoints(self.keeper, self.state, self.settings.schedule.mode, self.settings.keeping)
        if self.failed_too:
            self.state.reopen_failed()
            if self.order is not None:
                self.order.reopen()

    @property
    def closing(self) -> Reason | None:
        """Reason why no trial starts any more: a requested stop, or an exhausted budget."""
        return self.steering.closing

    def _record(self, body: Body) -> None:
        """Journal one record, then update every fold and sink."""
        record = self.journal.append(body)
        for fold in self._folded:
            fold.apply(record)
        for sink in self.sinks:
            sink.append(record)

    def _commit(self, body: Body) -> None:
        """Journal one record durably."""
        self._record(body)
        self.journal.settle()

    def begin(self) -> None:
        """Journal the start of this driver, and finish the steps that its predecessor left open."""
        here, count = (socket.gethostname(), os.getpid(), code_version()), len(self.configurations)
        self._commit(Attempt(self.state.attempt + 1, *here, self.settings.space, count))
        # The predecessor may have died between journaling a trial's end and removing its checkpoints.
        self._checkpoints.remove_leftovers(unknown=self.work.unsuggested)
        self._take_turns()
        self._follow_up()
        if self.settings.apart:
            for index in self.work.leave_out(self.work.rests):
                if self.state.trials[index].stop_kind is None:  # otherwise it failed and is to be retried
                    self._settle(index)
            self._take_turns()

    def _take_turns(self) -> None:
        """Judge the reports whose turn it is, and journal those that came early."""
        if self.order is None:
            return
        self.work.take_virtually()
        while (first := self.order.first) is not None and (due := self._due(first)) is not None:
            if isinstance(due, TrialReport):
                self._judge(due)
            else:
                self._record(replace(due, attempt=self.state.attempt, final=True, waits=False))
            self.work.take_virtually()
        if self.settings.apart:  # the replicates' reports are journaled
            return
        for early in self._pending.values():
            if isinstance(early, TrialReport):
                self._record(Arrived(early, self.state.attempt))
            else:
                self._record(replace(early, final=False, waits=True))
        self._pending.clear()

    def _due(self, index: int) -> TrialReport | Failed | None:
        """Return what a configuration has reported and waits to be judged, perhaps in a predecessor's time."""
        return self._pending.pop(index, None) or self.state.trials[index].arrived

    def _follow_up(self) -> None:
        """If nothing is left to run, stop paused trials, because they can no longer be promoted, and add seeds."""
        if not self.work.done:
            return
        for index in [index for index, trial in self.state.trials.items() if trial.paused]:
            epoch = self.state.trials[index].epochs
            decision = self.rungs.never_promoted(epoch, index)
            self._record(Judged(index, self.state.attempt, epoch, EARLY_STOPPED, decision))
            self._checkpoints.tidy(index)
        self.journal.settle()
        additions = self.additions(self.state)
        if not additions:
            self._checkpoints.keep_best_seeds()
        for body in additions:
            self._record(body)
            for seed in body.seeds if self.order is None else ():
                self.work.add(seed.configuration)
        self.work.take_virtually()
        self.journal.settle()

    def on_started(self, assignment: Sequence[int]) -> None:
        """Note the start of an assignment's process.

        A replicate's start is recorded at once. A configuration's start is recorded only if its first report takes more
        than a second.
        """
        if self.settings.apart:
            index, number = assignment
            self._record(Started(index, self.state.attempt, replicate=number))
        else:
            self._began.update(dict.fromkeys(assignment, self.clock()))

    def on_reports(self, news: Iterable[Reports], *, trained: bool = False) -> list[Sequence[int]]:
        """Journal reports in the order of assignments; return the assignments that are over.

        `trained` means that the reports are of newly trained epochs, so their trials are no longer suspected of having
        ended a process. A report that a restarted trial only repeats clears no suspicion.
        """
        given_up, taken = list[Sequence[int]](), list[Reports]()
        # Sorted: decisions at a rung must not depend on the order in which lanes report.
        for assignment, reports, last in sorted(news, key=lambda item: list(item[0])):
            if trained:
                self.work.clear(assignment)
            if self._take_in(assignment, reports):
                taken.append((assignment, reports, last))
            else:
                given_up.append(assignment)
        self._take_turns()
        if taken or given_up:
            self.flush()  # once for all of them: a decision takes effect only after it is durable
        return given_up + [item[0] for item in taken if self._ends(*item)]

    def _take_in(self, assignment: Sequence[int], reports: Sequence[TrialReport]) -> bool:
        """Record reports; return whether all fit the journal. A unit that is ahead of it is restarted instead."""
        for report in reports:
            unit = (report.configuration, assignment[1] if self.settings.apart else None)
            if judging.skips_epochs(report, self.work.state_of(unit)):
                self.keeper.remove_checkpoints(place_of_unit(unit), now=True)
                self.on_failure(assignment, Failure(ERROR, {"checkpoint_epoch": report.epoch}))
                return False
            report = self.shares.noted(report, self.work.share_of(assignment))
            if unit[1] is None:
                self._on_report(report)
            else:
                self._on_replicate(unit[1], report)
        return True

    def _ends(self, assignment: Sequence[int], reports: Sequence[TrialReport], exhausted: bool) -> bool:
        """Return whether an assignment whose reports are durable is over; end it if so."""
        over = self.work.leaves(assignment) or all(self.work.is_over(unit) for unit in self.work.units(assignment))
        # If the budget is spent, a trial ends at its next rung, where it is evaluated. A larger budget lets it
        # continue.
        over = over or (self.steering.winding_down is not None and any(report.evaluations for report in reports))
        if over:
            self.work.take_back(assignment)
            self._follow_up()
        elif exhausted:
            self.on_failure(assignment, Failure(ERROR, {"lacks": "last report"}))
        return over or exhausted

    def on_failure(self, assignment: Sequence[int], failure: Failure) -> None:
        """Journal a process's death; put its units back in the queue, or give up the unit that failed."""
        if not self.work.take_back(assignment):
            # The process died after its last report: nothing is lost.
            return
        if failure.kind == STORAGE:
            # If every other trial would meet the same full disk, end the sweep instead of failing them one by one.
            self.steering.ask_to_stop(self.full_disks.met(failure))
        if failure.kind == CRASH:
            # If a watchdog killed the process, it has written the reason beside the checkpoints.
            hangs = (last_hang(self.paths.checkpoints / place_of_unit(unit)) for unit in self.work.units(assignment))
            failure = next(filter(None, hangs), failure)
        left = [unit for unit in self.work.units(assignment) if not self.work.has_ended(unit)]
        if len(left) > 1:
            # It is unknown which configuration failed, because reports of short configurations are sent together.
            self.work.suspect(index for index, _ in left)
            failure = replace(failure.having(shared_with=len(left) - 1, then="alone"), counts=False)
        if judging.waits(failure):
            failure = self._hold(left, failure)
        if left:
            self._fail(left[0], failure)
        self._take_turns()
        self.work.put_back(left)
        self._follow_up()

    def _hold(self, units: Sequence[Unit], failure: Failure) -> Failure:
        """Keep units from starting for a while, longer after each failure; return the failure with the pause."""
        known = [self.work.state_of(unit) for unit in units]
        pause = judging.pause_before(max((state.failures + state.fruitless for state in known), default=0))
        self.work.hold(units, pause)
        return failure.having(pause=pause)

    def on_shared_failure(self, assignments: Sequence[Sequence[int]], failure: Failure) -> None:
        """Journal the death of a process that had several trials; put the trials back in the queue.

        It is unknown which trial failed, so the failure counts against none of them, and each trains in its own process
        until it has trained an epoch. A trial that died alone is also retried alone, because it could end a shared
        process. If memory ran out, the trials continue in smaller cohorts. Preemption does not count against any trial.
        """
        suspects = self.settings.together and failure.kind not in judging.BLAMELESS
        if len(assignments) > 1:
            failure = failure.having(shared_with=len(assignments) - 1, **({"then": "alone"} if suspects else {}))
            failure = replace(failure, counts=False)
        # In reverse, because each goes to the head of the queue: the lowest ends up first.
        for assignment in sorted(assignments, key=list, reverse=True):
            if suspects:
                self.work.suspect(assignment)
            self.on_failure(assignment, failure)

    def flush(self) -> None:
        """Settle the journal, flush sinks and call controllers; executors call it on every turn, reports or not."""
        latest = self.clock() - START_SECONDS
        for index in [index for index, began in self._began.items() if began <= latest]:
            self._record_start(index)
        self.journal.settle()
        for sink in self.sinks:
            sink.flush_if_due()
        self.steering.follow()
        if self.steering.slots is not None:
            self.work.fit(self.steering.slots)

    def finish(self) -> str:
        """Journal the outcome of the sweep and return it: `finished`, `stopped` or `interrupted`."""
        unfinished = self.state.unfinished()
        outcome = "finished" if not unfinished else "stopped" if self.closing else "interrupted"
        self._record(Ended(self.state.attempt, outcome, self.closing))
        self.journal.settle()
        return outcome

    def take_over(self, index: int, reports: Iterable[TrialReport]) -> None:
        """Judge a configuration's imported reports as if they came from a worker; if they end it, it is not trained."""
        for report in reports:
            self._on_report(report)
            self._take_turns()
            if self.work.is_over((index, None)):
                break
        self.work.leave_out(self.work.is_over)
        self.flush()

    def _on_report(self, report: TrialReport) -> None:
        """Judge a report, now or in its turn, unless the journal has it already."""
        index = report.configuration
        trial = self.state.trials[index]
        waits = index in self._pending or trial.arrived is not None
        if waits or trial.status in ENDED or report.epoch <= trial.epochs:  # a resumed trial repeats its last report
            return
        if trial.stop_kind is None and trial.sound_epochs == 0:
            self._began.pop(index, None)  # the first report implies the start
        self._record_start(index)
        if self.order is None or not judging.ends_assignment(report, self.work.rungs_of(index)):
            self._judge(report)
        else:
            self._pending[index] = report

    def _judge(self, report: TrialReport) -> None:
        """Journal a report and the scheduler's decision."""
        index = report.configuration
        digest, trial = self._values.digest(index), self.state.trials[index]
        body = judging.judged(report, trial, self.rungs, self.state.attempt, digest)
        continues = body.decision is not None and body.decision.kind == "continue"
        if continues and not self.work.goes_on(index, report.epoch):
            body = replace(body, status=WAITING)  # until a process trains it again
        self._record(body)
        self._checkpoints.tidy(index)

    def _fail(self, unit: Unit, failure: Failure) -> None:
        """Journal a failure and whether it was the last try; continue without a replicate that is given up."""
        index, number = unit
        self._record_start(index)
        known = self.work.state_of(unit)
        share = self.shares.of(index, known.share) if failure.counts else None
        failure, larger, given_up = judging.next_try(failure, known, share, self.settings.retries)
        alone = number is not None
        body = Failed(
            index,
            self.state.attempt,
            known.epochs,
            failure,
            final=given_up and not alone,
            replicate=number,
            given_up=given_up and alone,
            share=larger,
        )
        self._note(body)
        if body.given_up:
            self._settle(index)

    def _record_start(self, index: int) -> None:
        """Record the start of a configuration's process, unless it is recorded."""
        if self._began.pop(index, None) is not None:
            self._record(Started(index, self.state.attempt))

    def _on_replicate(self, number: int, report: TrialReport) -> None:
        """Journal a replicate's report, unless the journal has it: a resumed replicate repeats its last report."""
        index = report.configuration
        epochs = self.work.state_of((index, number)).epochs
        if self.state.trials[index].status in ENDED or report.epoch <= epochs:
            return
        pauses = self.work.is_open_rung(index, report.epoch)
        report = replace(
            report, objective=None, epochs=[row for row in report.epochs if row["epoch"] > epochs], replicate_errors={}
        )
        self._record(ReplicateReported(report, number, self.state.attempt, pauses))
        self._settle(index)

    def _settle(self, index: int) -> None:
        """Judge a configuration at the epoch that all its replicates have reached, and let them continue."""
        trial = self.state.trials[index]
        count = len(self.work.numbers(index))
        report = judging.merged_report(trial, count, self.settings.schedule.metric, TRIALS)
        if report is not None:
            self._on_report(report)
        elif len(trial.replicates) == count and trial.status not in ENDED:
            self._give_up(trial)
        goes_on = self.order is None and report is not None and report.epoch in self.work.rungs_of(index)
        if goes_on and trial.status not in ENDED:
            self.work.put_back((index, number) for number in sorted(trial.replicates))

    def _give_up(self, trial: TrialState) -> None:
        """Fail a configuration whose replicates have all failed without a new epoch to report."""
        failure = judging.last_failure(trial.replicates)
        if failure is None or any(replicate.status != FAILED for replicate in trial.replicates.values()):
            return
        why = replace(failure.failure or Failure(ERROR), counts=True)
        self._note(Failed(trial.configuration, self.state.attempt, trial.epochs, why, final=True))

    def _note(self, body: Failed) -> None:
        """Record a failure; in canonical order, a trial's last one when its turn comes."""
        if body.final and self.order is not None:
            self._pending[body.configuration] = body
        else:
            self._record(body)
