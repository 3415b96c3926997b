"""The driver's decisions: what to run next, what a report means, what a failure means. Knows nothing of Ray.

Everything the driver learns becomes a journal record first; state, rungs, tables and progress follow from the
record. The executor calls `next_assignment`, `on_started`, `on_reports` and `on_failure`, one at a time.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from sweeper.core.code_version import code_version
from sweeper.core.ids import ReplicateSeeds, SweepPaths, config_hash, trial_name
from sweeper.execution.controllers.base import Controller, Situation, combined
from sweeper.execution.driver.failures import CRASH, ERROR, HUNG, STORAGE, Failure, capped
from sweeper.execution.driver.full_disks import FullDisks, OtherNodes
from sweeper.execution.driver.in_flight import GivenOut
from sweeper.execution.driver.kept_checkpoints import CheckpointKeeper, Keeping, KeptCheckpoints
from sweeper.execution.driver.larger_shares import on_a_larger_share
from sweeper.execution.driver.recorder import Fold, Recorder, Sink
from sweeper.journal.decision import Decision
from sweeper.journal.journal import Journal
from sweeper.journal.records import Attempt, Ended, Failed, Judged, Learned, Reported, Reused, Started
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, ENDED, FAILED, RUNNING, WAITING, SweepState
from sweeper.scheduling.audit import decide_on
from sweeper.scheduling.base import RungState, Scheduler
from sweeper.search.base import Searcher, suggested_body
from sweeper.storage.mirror import SharedFolder
from trainables.worker.hang_watchdog import last_reason
from trainables.worker.trial_reports import NON_FINITE, TrialReport

STATUS_OF_DECISION = {
    "continue": RUNNING,
    "stop": EARLY_STOPPED,
    "complete": COMPLETED,
    "fail": FAILED,
    "pause": WAITING,
}

TakenOver: TypeAlias = tuple[TrialReport, Reused]
"""A report of another sweep, and where it was reused from."""

BATCH_LIMIT = 8
"""The most configurations that one assignment carries: more saves nothing that shows (0.03 s a Tune trial)."""

POLL_SECONDS = 0.5

START_SECONDS = 1.0
"""A process that reports within this time needs no record of its start: the report tells it, for half the writing."""


class Driver:
    """Runs a sweep's unfinished configurations by answering the executor's questions."""

    def __init__(
        self,
        paths: SweepPaths,
        configurations: Sequence[dict[str, Any]],
        *,
        seed: int,
        replicates: int,
        schedule: Scheduler,
        journal: Journal,
        state: SweepState,
        rungs: RungState,
        sinks: Sequence[Sink] = (),
        retries: int = 2,
        failed_too: bool = False,
        slots: int = 1,
        clock: Callable[[], float] = time.monotonic,
        keeper: CheckpointKeeper | None = None,
        keeping: Keeping | None = None,
        shares: Callable[[int], float] | None = None,
        gpu: float = 0.0,
        max_concurrent: int | None = None,
        common_seeds: bool = False,
        searcher: Searcher | None = None,
        controllers: Sequence[Controller] = (),
        folds: Sequence[Fold] = (),
        space: Mapping[str, object] | None = None,
        other_nodes: OtherNodes = lambda nodes: False,
    ) -> None:
        """Take up a sweep where `state` and `rungs`, folded from its journal, left it.

        Args:
            paths: of the sweep.
            configurations: all of them, by index; where a searcher chooses them, those that `state` knows by then.
            seed: the sweep's; replicates' seeds follow from it.
            replicates: of each configuration.
            schedule: the scheduler's settings.
            journal: open for appending.
            state: the fold of the journal so far.
            rungs: the same fold, as the scheduler needs it.
            sinks: take every record after it was journaled.
            keeper: removes checkpoints; by default in the sweep's folder.
            keeping: whose checkpoints stay; by default the best trial's.
            shares: the share of a GPU that a configuration needs; `None` where trials take none, or whole cards.
            gpu: the share of a GPU that each trial has where `shares` gives none.
            max_concurrent: assignments outstanding at once; `None` for no limit.
            common_seeds: replicate r has the same seed in every configuration.
            searcher: chooses the configurations, and has been told the journal so far; `None` where they follow from
                the space. It is asked when a trial could start at once, so that it knows as much as can be known.
            controllers: are asked on every turn what should follow.
            folds: of the journal that others keep, up to date before sinks and controllers look.
            space: the resolved search space, for the journal.
            other_nodes: whether there are nodes for trials besides those whose disks are full.
            retries: how often a trial may fail in a way that counts before it has failed permanently.
            failed_too: run failed trials again.
            slots: trials that run at once, for cutting assignments; more than one configuration goes into an
                assignment only where no trial can be stopped before its last epoch: the only rung is the last.
            clock: seconds, for polling the stop marker and for recording starts.
        """
        self.paths, self.configurations, self.schedule = paths, configurations, schedule
        self.keeper: CheckpointKeeper = keeper if keeper is not None else SharedFolder(paths)
        self.state, self.rungs = state, rungs
        self.stop_requested: str | None = None
        self.winding_down: str | None = None
        self.yields_to: str | None = None
        self.alone = True
        self.broken: Exception | None = None
        self._replicates, self._seeds = replicates, ReplicateSeeds(seed, replicates, common_seeds)
        self._reusable: Mapping[int, Iterable[TakenOver]] = {}
        self._controllers = controllers
        self._recorder = Recorder(journal, [state, rungs, *([searcher] if searcher is not None else []), *folds], sinks)
        self._retries, self._slots, self._clock = retries, slots, clock
        self._searcher, self._shares, self._gpu, self._space = searcher, shares, gpu, space
        self._hashes: dict[int, str] = {}
        self.full_disks = FullDisks(paths.root, other_nodes)
        waiting = (i for i in state.unfinished(failed_too=failed_too) if i not in self._unsuggested)
        self._queue = deque(i for i in waiting if not state.trials[i].paused)
        self._alone: set[int] = set()
        self._given_out = GivenOut(max_concurrent)
        self._starting: dict[int, float] = {}
        self._polled = -math.inf
        self._checkpoints = KeptCheckpoints(self.keeper, state, schedule, keeping)
        if failed_too:
            state.reopen_failed()

    def ask_to_stop(self, reason: str) -> None:
        """Let the sweep end at the next turn, cleanly, for this reason or an earlier one."""
        self.stop_requested = self.stop_requested or reason

    def resize(self, slots: int) -> None:
        """Record how many trials run at once from now on: a cluster's nodes come and go."""
        self._slots = max(1, slots)

    def begin(
        self,
        reusable: Mapping[int, Iterable[TakenOver]] | None = None,
        learned: Iterable[Learned] = (),
    ) -> None:
        """Journal that this driver takes the sweep up, and take over what another sweep has measured already.

        Args:
            reusable: configuration → its reports from elsewhere, in order; see `sweeper.execution.reuse`.
            learned: what earlier sweeps' trials came to, for the searcher to know; see `sweeper.execution.warm_start`.
                They are journaled as this attempt's.
        """
        self._recorder.record(
            Attempt(self.state.attempt + 1, socket.gethostname(), os.getpid(), code_version(), self._space)
        )
        self._recorder.settle()
        self._checkpoints.remove_leftovers(unknown=self._unsuggested)
        for each in learned:
            self._recorder.record(replace(each, attempt=self.state.attempt))
        # It may be empty for now: what a searcher will have chosen is compared then.
        self._reusable = {} if reusable is None else reusable
        self._take_over([*self._queue])
        self._end_pauses()

    def next_assignment(self) -> list[int] | None:
        """Return the configurations of the next assignment; `None` when there is none to give now."""
        if self.closing or not self._has_room or not (self._promote() or self._queue or self._suggest()):
            return None
        size = 1
        if len(self.schedule.rungs) == 1 and self._searcher is None:
            # Shares shrink towards the end, so that no process is left with a long rest to do alone.
            size = min(BATCH_LIMIT, math.ceil(len(self._queue) / (4 * self._slots)))
        assignment = [self._queue.popleft()]
        while len(assignment) < size and self._go_together(assignment[0], self._queue[0]):
            assignment.append(self._queue.popleft())
        self._given_out.add(assignment)
        return assignment

    def _promote(self, fits: Callable[[int], bool] = lambda index: True) -> bool:
        """Put the paused trial that the scheduler promotes now at the head of the queue; tell whether there is one.

        One that does not fit where it would train now is not promoted yet.
        """
        found = self.rungs.promotion(idle=self._idle) if len(self._given_out) < self._slots else None
        if found is None or not fits(found[0]):
            return False
        index, decision = found
        trial = self.state.trials[index]
        self._recorder.record(Judged(index, self.state.attempt, trial.epochs, WAITING, decision))
        self._recorder.settle()
        self._queue.appendleft(index)
        return True

    def _end_pauses(self) -> None:
        """Stop the trials that pause when nothing is left that could promote them."""
        if self.closing or self._given_out:
            return
        paused = [index for index, trial in self.state.trials.items() if trial.paused]
        if not paused or self._waiting:
            return
        for index in paused:
            epoch = self.state.trials[index].epochs
            decision = self.rungs.never_promoted(epoch, index)
            self._recorder.record(Judged(index, self.state.attempt, epoch, EARLY_STOPPED, decision))
            self._checkpoints.tidy(index)
        self._recorder.settle()

    @property
    def _unsuggested(self) -> range:
        """The configurations that the searcher has not chosen yet: all after the last that it has."""
        return range(0) if self._searcher is None else range(len(self.state.suggested), len(self.configurations))

    def _suggest(self) -> bool:
        """Have the searcher choose the next configuration, if a trial could start now; tell whether one waits then.

        It is configuration *i* from the moment its record is durable, and only then is it given out.
        """
        while self._searcher is not None and self._unsuggested and self._outstanding < self._slots:
            index = self._unsuggested[0]
            suggestion = self._searcher.suggest(index)
            self._recorder.record(suggested_body(index, suggestion, self._searcher.maker))
            self._recorder.settle()
            self._queue.append(index)
            self._take_over([index])
            if self._queue:
                return True
        return False

    @property
    def _outstanding(self) -> int:
        """How many assignments are given out or wait to be."""
        return len(self._given_out) + len(self._queue)

    def _go_together(self, first: int, second: int) -> bool:
        alike = self.share_of([first]) == self.share_of([second])
        return alike and self._alone.isdisjoint((first, second))

    def share_of(self, assignment: Sequence[int]) -> float | None:
        """Return the share of a GPU for an assignment: what was measured, or more after memory ran out."""
        if self._shares is None:
            return None
        return max(self.state.trials[index].share or self._shares(index) for index in assignment)

    def _with_share(self, assignment: Sequence[int], report: TrialReport) -> TrialReport:
        """Add to a report what its process took of a GPU, where trials take any."""
        share = self.share_of(assignment) or self._gpu
        return replace(report, gpu=share) if share else report

    @property
    def closing(self) -> str | None:
        """Why no trial starts any more: the sweep was asked to stop, or its budget is exhausted."""
        return self.stop_requested or self.winding_down

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to give out and nothing given out can come back."""
        return not self._given_out and (not self._waiting or self.closing is not None)

    @property
    def wants_more(self) -> bool:
        """Whether it has trials that it would start if the cluster had room."""
        could_give = self._waiting > 0 and not self._given_out.full
        return self.closing is None and (self._given_out.ahead > 0 or could_give)

    @property
    def _waiting(self) -> int:
        """How many assignments there are to give out, at least."""
        return len(self._queue) + len(self._unsuggested) + (self.rungs.promotion(idle=self._idle) is not None)

    @property
    def _idle(self) -> bool:
        """Whether no trial runs and none is left to begin."""
        return not (self._given_out or self._queue or self._unsuggested)

    @property
    def _has_room(self) -> bool:
        """Whether another assignment may be given out: by this sweep's limit, and among the sweeps on the cluster."""
        # What was asked of the cluster cannot be taken back: beside other sweeps, one assignment ahead is enough.
        patient = self.alone or self._given_out.ahead < 1
        return self.yields_to is None and patient and not self._given_out.full

    def describe(self, assignment: Sequence[int]) -> list[list[object]]:
        """Return an assignment as plain values for the worker: configuration, trial, values, replicate seeds."""
        return [[index, trial_name(index), self._values_of(index), self._seeds.of(index)] for index in assignment]

    def _values_of(self, index: int) -> dict[str, Any]:
        """Return a configuration's values, and remember their digest until its first report is journaled."""
        values = self.configurations[index]
        if self.state.trials[index].config_hash is None:
            self._hashes[index] = config_hash(values)
        return values

    def _digest(self, index: int) -> str | None:
        """Return the digest of a configuration's values for its first report; `None` where the journal has it."""
        if self.state.trials[index].config_hash is not None:
            return None
        return self._hashes.pop(index, None) or config_hash(self.configurations[index])

    def on_started(self, assignment: Sequence[int]) -> None:
        """Note that an assignment's process has begun; it is recorded when the first report takes its time."""
        self._given_out.begin(assignment)
        self._starting.update(dict.fromkeys(assignment, self._clock()))

    def on_reports(self, assignment: Sequence[int], reports: Sequence[TrialReport], exhausted: bool) -> bool:
        """Journal what a process reports and return whether its assignment is over."""
        if not self._take_in(assignment, reports):
            return True
        self.flush()
        return self._ends(assignment, reports, exhausted)

    def _take_in(self, assignment: Sequence[int], reports: Sequence[TrialReport]) -> bool:
        """Record reports; return whether all could be: one that is ahead of the journal starts again."""
        for report in reports:
            if self._skips_epochs(report):
                self.keeper.remove_checkpoints(trial_name(report.configuration), now=True)
                reason = f"its checkpoint of epoch {report.epoch} is ahead of the journal; it starts again"
                self.on_failure(assignment, Failure(ERROR, reason))
                return False
            self._on_report(self._with_share(assignment, report))
        return True

    def _ends(self, assignment: Sequence[int], reports: Sequence[TrialReport], exhausted: bool) -> bool:
        """Return whether an assignment whose reports are durable is over, and take it off then."""
        over = all(self._is_over(index) for index in assignment)
        # A spent budget ends a trial at its next rung: it is evaluated there, and goes on if the budget is raised.
        over = over or (self.winding_down is not None and any(report.evaluations for report in reports))
        if over:
            self._given_out.retire(assignment)
            self._end_pauses()
        elif exhausted:
            self.on_failure(assignment, Failure(ERROR, "its process ended without a last report"))
        return over or exhausted

    def _is_over(self, index: int) -> bool:
        """Return whether a trial has nothing to do: it has ended, or pauses at a rung."""
        trial = self.state.trials[index]
        return trial.status in ENDED or trial.paused

    def on_failure(self, assignment: Sequence[int], failure: Failure) -> None:
        """Journal a process's death; put its configurations back in the queue, or give the failing one up."""
        if assignment not in self._given_out:
            # Its process died after its last report: nothing is lost.
            return
        failure = self._taken_back(assignment, failure)
        left = [index for index in assignment if self.state.trials[index].status not in ENDED]
        if len(left) > 1:
            # Which of them it was cannot be told: reports of short configurations wait for each other.
            self._alone.update(left)
            reason = f"{failure.reason} (it shared the process with {len(left) - 1} more; each is tried alone)"
            failure = replace(failure, reason=reason, counts=False)
        if left:
            self._fail(left[0], failure)
        self._queue.extendleft(i for i in reversed(left) if self.state.trials[i].status not in ENDED)
        self._end_pauses()

    def _taken_back(self, assignment: Sequence[int], failure: Failure) -> Failure:
        """Take an assignment back whose process has died; return what it died of, as far as can be told."""
        self._given_out.retire(assignment)
        if failure.kind == STORAGE:
            # Where every other trial would meet the same, the sweep ends; none of them has done anything wrong.
            self.stop_requested = self.stop_requested or self.full_disks.met(failure)
        return self._hung(assignment) or failure if failure.kind == CRASH else failure

    def _hung(self, assignment: Sequence[int]) -> Failure | None:
        """Return what a process left behind that its watchdog had to kill; `None` where there is nothing."""
        reasons = (last_reason(self.paths.trial_checkpoints(index)) for index in assignment)
        return next((Failure(HUNG, reason) for reason in reasons if reason), None)

    def flush(self) -> None:
        """Settle the journal and let the sinks show it; for every turn of the executor's loop, reports or not."""
        latest = self._clock() - START_SECONDS
        for index in [index for index, began in self._starting.items() if began <= latest]:
            self._record_start(index)
        self._recorder.flush()
        self._steer()

    def _steer(self) -> None:
        """Do what the controllers ask for."""
        situation = Situation(self.wants_more, self.closing)
        asked = combined(controller.tick(situation) for controller in self._controllers)
        self.stop_requested = self.stop_requested or asked.stop
        self.winding_down = self.winding_down or asked.wind_down
        self.yields_to, self.alone = asked.yields_to, asked.alone
        if asked.slots is not None:
            self.resize(asked.slots)

    def should_stop(self) -> bool:
        """Return whether the sweep was asked to stop: by its marker, or by a signal through `stop_requested`."""
        now = self._clock()
        if self.stop_requested is None and now - self._polled >= POLL_SECONDS:
            self._polled = now
            if self.paths.stop_marker.exists():
                self.stop_requested = "`sweeper stop` was called"
        return self.stop_requested is not None

    def finish(self) -> str:
        """Journal how the sweep ended and return the outcome: `finished`, `stopped` or `interrupted`."""
        unfinished = self.state.unfinished()
        outcome = "finished" if not unfinished else "stopped" if self.closing else "interrupted"
        reason = self.closing or f"{len(unfinished)} of {len(self.configurations)} trials are unfinished"
        self._recorder.record(Ended(self.state.attempt, outcome, reason))
        self._recorder.settle()
        return outcome

    def _take_over(self, indices: Sequence[int]) -> None:
        """Judge reports from elsewhere as if they came in now; a trial that they do not carry to its end is trained."""
        reused = [index for index in indices if index in self._reusable]
        for index in reused:
            for report, source in self._reusable[index]:
                self._on_report(report, source)
                if self._is_over(index):
                    break
        if reused:
            self._queue = deque(index for index in self._queue if not self._is_over(index))
            self.flush()

    def _skips_epochs(self, report: TrialReport) -> bool:
        """Return whether epochs are missing between the journal and a report, as where records were lost since."""
        trial = self.state.trials[report.configuration]
        first = min((row["epoch"] for row in report.epochs), default=0)
        return trial.status not in ENDED and first > trial.epochs + 1

    def _on_report(self, report: TrialReport, reused: Reused | None = None) -> None:
        index = report.configuration
        trial = self.state.trials[index]
        if trial.status in ENDED or report.epoch <= trial.epochs:
            # A trial resumed from its checkpoint repeats its last report; the journal has it.
            return
        if trial.stop_kind is None and trial.sound_epochs == 0:
            self._starting.pop(index, None)
        self._record_start(index)
        # One that had to go back further measures epochs again that an earlier report brought.
        rows = [row for row in report.epochs if row["epoch"] > trial.epochs]
        decision = decide_on(self.rungs, report)
        if report.failure and decision is not None:
            decision = Decision(decision.rung, "fail", report.failure, decision.metric, None, 0)
        # The sentence is in the decision from here on.
        kind = (report.failure_kind or NON_FINITE) if decision and decision.kind == "fail" else None
        report = replace(report, epochs=rows, failure=None, failure_kind=kind)
        status = STATUS_OF_DECISION[decision.kind] if decision else RUNNING
        self._recorder.record(
            Reported(report, self.state.attempt, status, decision, reused, config_hash=self._digest(index))
        )
        self._checkpoints.tidy(index)

    def _fail(self, index: int, failure: Failure) -> None:
        self._record_start(index)
        trial = self.state.trials[index]
        failure, share = on_a_larger_share(failure, self.share_of([index]) if failure.counts else None)
        failure = capped(failure, trial.fruitless)
        final = failure.counts and trial.failures >= self._retries
        tries = f" (after {trial.failures + 1} tries)" if final and trial.failures else ""
        body = Failed(
            index,
            self.state.attempt,
            trial.epochs,
            failure.kind,
            failure.reason + tries,
            counts=failure.counts,
            final=final,
            share=share,
        )
        self._recorder.record(body)

    def _record_start(self, index: int) -> None:
        """Record that a configuration's process has begun, unless that was done."""
        if self._starting.pop(index, None) is not None:
            self._recorder.record(Started(index, self.state.attempt))
