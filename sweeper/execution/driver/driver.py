"""The driver's decisions: what to run next, what a report means, what a failure means. Knows nothing of Ray.

Everything the driver learns becomes a journal record first; state, rungs, tables and progress follow from the
record. The executor calls `next_assignment`, `on_started`, `on_reports` and `on_failure`, one at a time.
"""

from __future__ import annotations

import itertools
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from sweeper.core.ids import SweepPaths, code_version, trial_name
from sweeper.execution.controllers.base import Controller, Steering
from sweeper.execution.driver.context import (
    NO_SHARES,
    DriverSettings,
    Fold,
    InFlight,
    Recorder,
    Shares,
    Sink,
    Starts,
    TrialValues,
)
from sweeper.execution.driver.failures import CRASH, ERROR, HUNG, STORAGE, Failure, FullDisks, OtherNodes, next_try
from sweeper.execution.driver.judging import is_news, judged, skips_epochs
from sweeper.execution.driver.kept_checkpoints import CheckpointKeeper, KeptCheckpoints
from sweeper.journal.journal import Journal
from sweeper.journal.records import Attempt, Ended, Failed, Judged, Learned, Reused, Started
from sweeper.journal.state import EARLY_STOPPED, ENDED, WAITING, SweepState
from sweeper.scheduling.base import RungState, Settled, settled_but_for
from sweeper.search.base import Searcher, suggested_body
from sweeper.storage.mirror import SharedFolder
from trainables.worker.hang_watchdog import last_reason
from trainables.worker.trial_reports import TrialReport

TakenOver: TypeAlias = tuple[TrialReport, Reused]
"""A report of another sweep, and where it was reused from."""

BATCH_LIMIT = 8
"""The most configurations that one assignment carries: more saves nothing that shows (0.03 s a Tune trial)."""


class Driver:
    """Runs a sweep's unfinished configurations by answering the executor's questions."""

    def __init__(
        self,
        paths: SweepPaths,
        configurations: Sequence[dict[str, Any]],
        settings: DriverSettings,
        *,
        journal: Journal,
        state: SweepState,
        rungs: RungState,
        sinks: Sequence[Sink] = (),
        folds: Sequence[Fold] = (),
        searcher: Searcher | None = None,
        keeper: CheckpointKeeper | None = None,
        controllers: Sequence[Controller] = (),
        shares: Shares = NO_SHARES,
        slots: int = 1,
        failed_too: bool = False,
        clock: Callable[[], float] = time.monotonic,
        other_nodes: OtherNodes = lambda nodes: False,
    ) -> None:
        """Take up a sweep where `state` and `rungs`, folded from its journal, left it.

        Args:
            paths: of the sweep.
            configurations: all of them, by index; where a searcher chooses them, those that `state` knows by then.
            settings: the same for every driver of the sweep.
            journal: open for appending.
            state: the fold of the journal so far.
            rungs: the same fold, as the scheduler needs it.
            sinks: take every record after it was journaled.
            folds: of the journal that others keep, up to date before sinks and controllers look.
            searcher: chooses the configurations, and has been told the journal so far; `None` where they follow from
                the space. It is asked when a trial could start at once, so that it knows as much as can be known.
            keeper: removes checkpoints; by default in the sweep's folder.
            controllers: are asked on every turn what should follow.
            shares: of a GPU.
            slots: trials that run at once, for cutting assignments; more than one configuration goes into an
                assignment only where no trial can be stopped before its last epoch: the only rung is the last.
            failed_too: run failed trials again.
            clock: seconds, for polling the stop marker and for recording starts.
            other_nodes: whether there are nodes for trials besides those whose disks are full.
        """
        self.paths, self.configurations, self.settings = paths, configurations, settings
        self.schedule, self.state, self.rungs = settings.schedule, state, rungs
        self.keeper: CheckpointKeeper = keeper if keeper is not None else SharedFolder(paths)
        self.steering = Steering(controllers, paths.stop_marker, clock)
        self.full_disks = FullDisks(paths.root, other_nodes)
        self.broken: Exception | None = None
        self._reusable: Mapping[int, Iterable[TakenOver]] = {}
        self._recorder = Recorder(journal, [state, rungs, *([searcher] if searcher is not None else []), *folds], sinks)
        self._searcher, self._shares, self._slots = searcher, shares, slots
        self._values, self._starts = TrialValues(configurations, state, self._recorder.record), Starts(clock)
        waiting = (i for i in state.unfinished(failed_too=failed_too) if i not in self._unsuggested)
        self._queue = deque(i for i in waiting if not state.trials[i].paused)
        self._alone: set[int] = set()
        self._in_flight = InFlight(settings.max_concurrent)
        self._checkpoints = KeptCheckpoints(self.keeper, state, settings.schedule, settings.keeping)
        if failed_too:
            state.reopen_failed()

    def ask_to_stop(self, reason: str) -> None:
        """Let the sweep end at the next turn, cleanly, for this reason or an earlier one."""
        self.steering.ask_to_stop(reason)

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
            Attempt(self.state.attempt + 1, socket.gethostname(), os.getpid(), code_version(), self.settings.space)
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
        self._in_flight.add(assignment)
        return assignment

    def _promote(self, fits: Callable[[int], bool] = lambda index: True) -> bool:
        """Put the paused trial that the scheduler promotes now at the head of the queue; tell whether there is one.

        One that does not fit where it would train now is not promoted yet.
        """
        found = self.rungs.promotion(self._settled) if len(self._in_flight) < self._slots else None
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
        if self.closing or self._in_flight:
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
        return range(0) if self._searcher is None else range(len(self.state.configurations), len(self.configurations))

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
        return len(self._in_flight) + len(self._queue)

    def _go_together(self, first: int, second: int) -> bool:
        alike = self.share_of([first]) == self.share_of([second])
        return alike and self._alone.isdisjoint((first, second))

    def share_of(self, assignment: Sequence[int]) -> float | None:
        """Return the share of a GPU for an assignment: what was measured, or more after memory ran out."""
        shares = [self._shares.of(index, self.state.trials[index].share) for index in assignment]
        return max((share for share in shares if share is not None), default=None)

    @property
    def closing(self) -> str | None:
        """Why no trial starts any more: the sweep was asked to stop, or its budget is exhausted."""
        return self.steering.closing

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to give out and nothing given out can come back."""
        return not self._in_flight and (not self._waiting or self.closing is not None)

    @property
    def wants_more(self) -> bool:
        """Whether it has trials that it would start if the cluster had room."""
        could_give = self._waiting > 0 and not self._in_flight.full
        return self.closing is None and (self._in_flight.ahead > 0 or could_give)

    @property
    def _waiting(self) -> int:
        """How many assignments there are to give out, at least."""
        return len(self._queue) + len(self._unsuggested) + (self.rungs.promotion(self._settled) is not None)

    @property
    def _settled(self) -> Settled:
        """The rungs that no trial can come to any more; none while a searcher may still choose trials for any."""
        if self._unsuggested:
            return lambda stratum, rung: False
        return settled_but_for(self.rungs, self._under_way)

    def _under_way(self) -> Iterator[tuple[int, int]]:
        """Yield the trials that run or are yet to begin, each with its epochs so far."""
        for index in itertools.chain(self._queue, *self._in_flight):
            yield index, self.state.trials[index].epochs

    @property
    def _has_room(self) -> bool:
        """Whether another assignment may be given out: by this sweep's limit, and among the sweeps on the cluster."""
        # What was asked of the cluster cannot be taken back: beside other sweeps, one assignment ahead is enough.
        patient = self.steering.alone or self._in_flight.ahead < 1
        return self.steering.yields_to is None and patient and not self._in_flight.full

    def describe(self, assignment: Sequence[int]) -> list[list[object]]:
        """Return an assignment as plain values for the worker: configuration, trial, values, replicate seeds."""
        seeds = self.settings.seeds
        return [[index, trial_name(index), self._values.of(index), seeds.of(index)] for index in assignment]

    def on_started(self, assignment: Sequence[int]) -> None:
        """Note that an assignment's process has begun; it is recorded when the first report takes its time."""
        self._in_flight.begin(assignment)
        self._starts.begin(assignment)

    def on_reports(self, assignment: Sequence[int], reports: Sequence[TrialReport], exhausted: bool) -> bool:
        """Journal what a process reports and return whether its assignment is over."""
        if not self._take_in(assignment, reports):
            return True
        self.flush()
        return self._ends(assignment, reports, exhausted)

    def _take_in(self, assignment: Sequence[int], reports: Sequence[TrialReport]) -> bool:
        """Record reports; return whether all could be: one that is ahead of the journal starts again."""
        for report in reports:
            if skips_epochs(report, self.state.trials[report.configuration]):
                self.keeper.remove_checkpoints(trial_name(report.configuration), now=True)
                reason = f"its checkpoint of epoch {report.epoch} is ahead of the journal; it starts again"
                self.on_failure(assignment, Failure(ERROR, reason))
                return False
            self._on_report(self._shares.noted(report, self.share_of(assignment)))
        return True

    def _ends(self, assignment: Sequence[int], reports: Sequence[TrialReport], exhausted: bool) -> bool:
        """Return whether an assignment whose reports are durable is over, and take it off then."""
        over = all(self._is_over(index) for index in assignment)
        # A spent budget ends a trial at its next rung: it is evaluated there, and goes on if the budget is raised.
        over = over or (self.steering.winding_down is not None and any(report.evaluations for report in reports))
        if over:
            self._in_flight.retire(assignment)
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
        if assignment not in self._in_flight:
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
        self._in_flight.retire(assignment)
        if failure.kind == STORAGE:
            # Where every other trial would meet the same, the sweep ends; none of them has done anything wrong.
            self.steering.ask_to_stop(self.full_disks.met(failure))
        return self._hung(assignment) or failure if failure.kind == CRASH else failure

    def _hung(self, assignment: Sequence[int]) -> Failure | None:
        """Return what a process left behind that its watchdog had to kill; `None` where there is nothing."""
        reasons = (last_reason(self.paths.trial_checkpoints(index)) for index in assignment)
        return next((Failure(HUNG, reason) for reason in reasons if reason), None)

    def flush(self) -> None:
        """Settle the journal and let the sinks show it; for every turn of the executor's loop, reports or not."""
        for index in self._starts.due():
            self._record_start(index)
        self._recorder.flush()
        slots = self.steering.follow(wants_more=self.wants_more)
        if slots is not None:
            self.resize(slots)

    def should_stop(self) -> bool:
        """Return whether the sweep was asked to stop: by its marker, a signal or a controller."""
        return self.steering.should_stop()

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

    def _on_report(self, report: TrialReport, reused: Reused | None = None) -> None:
        """Journal a report and what the scheduler decides on it, unless the journal has it already."""
        index = report.configuration
        trial = self.state.trials[index]
        if not is_news(report, trial):
            return
        if trial.stop_kind is None and trial.sound_epochs == 0:
            self._starts.take(index)  # the report tells of it
        self._record_start(index)
        digest = self._values.digest(index)
        attempt = self.state.attempt
        self._recorder.record(judged(report, trial, self.rungs, attempt=attempt, reused=reused, config_hash=digest))
        self._checkpoints.tidy(index)

    def _fail(self, index: int, failure: Failure) -> None:
        """Journal a trial's failure, and whether it was its last try."""
        self._record_start(index)
        trial = self.state.trials[index]
        share = self.share_of([index]) if failure.counts else None
        failure, larger, final = next_try(failure, trial, share, self.settings.retries)
        body = Failed(
            index,
            self.state.attempt,
            trial.epochs,
            failure.kind,
            failure.reason,
            counts=failure.counts,
            final=final,
            share=larger,
        )
        self._recorder.record(body)

    def _record_start(self, index: int) -> None:
        """Record that a configuration's process has begun, unless that was done."""
        if self._starts.take(index):
            self._recorder.record(Started(index, self.state.attempt))
