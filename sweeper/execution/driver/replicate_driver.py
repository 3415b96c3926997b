"""The driver of a sweep whose replicates are trained in separate processes: `packing: trials`.

An assignment is one replicate on its way to its configuration's next rung. There its process reports and is free for
others; nothing waits in memory, the replicate continues from its checkpoint. When the last of a configuration's
replicates has reported, their reports are merged into one, which the scheduler judges as it judges any other, and on
`continue` all of them go to the head of the queue.

Every replicate's report becomes a `replicate` record before anything follows from it, so a driver that takes over finds
each of them, merges what its predecessor did not live to merge, and continues as that one would have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sweeper.core.ids import trial_name
from sweeper.execution.driver.driver import Driver, TakenOver
from sweeper.execution.driver.failures import ERROR, HUNG, Failure, next_try
from sweeper.execution.driver.judging import last_failure, merged_report
from sweeper.journal.records import Failed, Learned, ReplicateReported, Started
from sweeper.journal.state import ENDED, FAILED, RUNNING, ReplicateState
from trainables.training.lanes.packing import TRIALS
from trainables.worker.checkpoints import replicate_folder
from trainables.worker.hang_watchdog import last_reason
from trainables.worker.trial_reports import NON_FINITE, TrialReport


class ReplicateDriver(Driver):
    """Hands out single replicates; an assignment is `[configuration, replicate]`."""

    def begin(
        self,
        reusable: Mapping[int, Iterable[TakenOver]] | None = None,
        learned: Iterable[Learned] = (),
    ) -> None:
        """Journal that this driver takes the sweep up; judge what has been reported in full but never judged."""
        super().begin(reusable, learned)
        unfinished, self._queue = list(self._queue), deque()
        self._pieces = deque(
            (configuration, number)
            for configuration in unfinished
            for number in range(self.settings.seeds.count)
            if not self._rests(configuration, number)
        )
        for configuration in unfinished:
            if self.state.trials[configuration].stop_kind is None:  # else it failed, and has not been started again yet
                self._settle(configuration)

    def next_assignment(self) -> list[int] | None:
        """Return the next replicate as `[configuration, replicate]`; `None` when there is none to give now."""
        while not self.closing and self._has_room and (self._pieces or self._suggest()):
            while self._queue:  # what was suggested just now
                configuration = self._queue.popleft()
                self._pieces.extend((configuration, number) for number in range(self.settings.seeds.count))
            piece = self._pieces.popleft()
            if self.state.trials[piece[0]].status not in ENDED:
                self._in_flight.add(piece)
                return list(piece)
        return None

    @property
    def _waiting(self) -> int:
        """How many replicates there are to give out."""
        return len(self._pieces) + self.settings.seeds.count * len(self._unsuggested)

    def describe(self, assignment: Sequence[int]) -> list[list[object]]:
        """Return an assignment as plain values for the worker: configuration, trial, values, seed, replicate."""
        configuration, number = assignment
        seeds = [self.settings.seeds.of(configuration)[number]]
        return [[configuration, trial_name(configuration), self._values.of(configuration), seeds, number]]

    def share_of(self, assignment: Sequence[int]) -> float | None:
        """Return the share of a GPU for a replicate: what was measured, or more after memory ran out."""
        configuration, number = assignment
        return self._shares.of(configuration, self._state_of(configuration, number).share)

    def on_started(self, assignment: Sequence[int]) -> None:
        """Record that a replicate's process has begun."""
        self._in_flight.begin(assignment)
        configuration, number = assignment
        self._recorder.record(Started(configuration, self.state.attempt, replicate=number))

    def on_reports(self, assignment: Sequence[int], reports: Sequence[TrialReport], exhausted: bool) -> bool:
        """Journal what a replicate's process reports; return whether its assignment is over, as it is at every rung."""
        configuration, number = assignment
        for report in reports:
            first = min((row["epoch"] for row in report.epochs), default=0)
            if first > self._state_of(configuration, number).epochs + 1:
                place = replicate_folder(Path(trial_name(configuration)), number)
                self.keeper.remove_checkpoints(place.as_posix(), now=True)
                reason = f"its checkpoint of epoch {report.epoch} is ahead of the journal; it starts again"
                self.on_failure(assignment, Failure(ERROR, reason))
                return True
            self._on_replicate(configuration, number, self._shares.noted(report, self.share_of(assignment)))
        self.flush()
        over = self._state_of(configuration, number).status != RUNNING
        if over:
            self._in_flight.retire(assignment)
        elif exhausted:
            self.on_failure(assignment, Failure(ERROR, "its process ended without a last report"))
        return over or exhausted

    def on_failure(self, assignment: Sequence[int], failure: Failure) -> None:
        """Journal a process's death; put its replicate back in the queue, or continue without it."""
        configuration, number = assignment
        if assignment not in self._in_flight:
            return
        failure = self._taken_back(assignment, failure)
        replicate = self._state_of(configuration, number)
        failure, larger, given_up = next_try(failure, replicate, self.share_of(assignment), self.settings.retries)
        body = Failed(
            configuration,
            self.state.attempt,
            replicate.epochs,
            failure.kind,
            f"replicate {number}: {failure.reason}",
            counts=failure.counts,
            final=False,
            replicate=number,
            given_up=given_up,
            share=larger,
        )
        self._recorder.record(body)
        if given_up:
            self._settle(configuration)
        else:
            self._pieces.appendleft((configuration, number))

    def _hung(self, assignment: Sequence[int]) -> Failure | None:
        configuration, number = assignment
        reason = last_reason(replicate_folder(self.paths.trial_checkpoints(configuration), number))
        return Failure(HUNG, reason) if reason else None

    def _state_of(self, configuration: int, number: int) -> ReplicateState:
        return self.state.trials[configuration].replicates.get(number, ReplicateState())

    def _rests(self, configuration: int, number: int) -> bool:
        """Return whether a replicate has nothing to do: it has failed, or stands at a rung that is not judged yet."""
        trial, replicate = self.state.trials[configuration], self._state_of(configuration, number)
        return replicate.status == FAILED or self._is_open_rung(trial.epochs, replicate.epochs)

    def _is_open_rung(self, judged: int, epoch: int) -> bool:
        return epoch > judged and epoch in self.rungs.epochs

    def _on_replicate(self, configuration: int, number: int, report: TrialReport) -> None:
        trial, replicate = self.state.trials[configuration], self._state_of(configuration, number)
        if trial.status in ENDED or report.epoch <= replicate.epochs:
            # A replicate that continues from its checkpoint repeats its last report; the journal has it.
            return
        pauses = self._is_open_rung(trial.epochs, report.epoch)
        report = replace(
            report,
            objective=None,
            epochs=[row for row in report.epochs if row["epoch"] > replicate.epochs],
            failure_kind=(report.failure_kind or NON_FINITE) if report.failure else None,
            replicate_errors={},
        )
        self._recorder.record(ReplicateReported(report, number, self.state.attempt, pauses))
        self._settle(configuration)

    def _settle(self, configuration: int) -> None:
        """Judge a configuration as far as all its replicates have come; let them continue from a rung."""
        trial = self.state.trials[configuration]
        report = merged_report(trial, self.settings.seeds.count, self.schedule.metric, TRIALS)
        if report is not None:
            self._on_report(report)
        elif len(trial.replicates) == self.settings.seeds.count and trial.status not in ENDED:
            self._give_up(configuration)
        if report is not None and report.epoch in self.rungs.epochs and trial.status not in ENDED:
            live = [number for number, replicate in sorted(trial.replicates.items()) if replicate.status != FAILED]
            self._pieces.extendleft((configuration, number) for number in reversed(live))

    def _give_up(self, configuration: int) -> None:
        """Fail a configuration whose replicates have all failed without a new epoch to report."""
        trial = self.state.trials[configuration]
        failure = last_failure(trial.replicates)
        if failure is None or any(replicate.status != FAILED for replicate in trial.replicates.values()):
            return
        kind, reason = failure.error_kind or ERROR, failure.error or ""
        body = Failed(configuration, self.state.attempt, trial.epochs, kind, reason, counts=True, final=True)
        self._recorder.record(body)
