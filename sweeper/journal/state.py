"""The state of every trial, folded from the journal's records in order. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sweeper.core.errors import SweeperError
from sweeper.journal.records import (
    STATUSES,
    Added,
    AddedSeed,
    Arrived,
    Attempt,
    Decision,
    Drawn,
    Ended,
    Failed,
    Judged,
    Record,
    ReplicateReported,
    Reported,
    Started,
    Suggested,
    configuration_of,
)
from trainables.registry import Configuration
from trainables.worker.trial_reports import Failure, Row, TrialReport

WAITING, RUNNING, COMPLETED, EARLY_STOPPED, FAILED, INTERRUPTED = STATUSES

#: The final statuses; only `resume --failed` reopens failed trials.
ENDED = frozenset({COMPLETED, EARLY_STOPPED, FAILED})


@dataclass
class Progress:
    """The progress of a trial, or of one of its replicates with separate processes.

    Attributes:
        status: `waiting`, `running`, `completed`, `early_stopped`, `failed` or `interrupted`. A replicate is also
            `waiting` between a rung and the scheduler's decision on all replicates.
        epochs: number of reported epochs.
        sound_epochs: number of epochs without a failed report, after which a new try continues.
        last_evaluation_epoch: epoch of its last evaluation.
        wall_seconds: time that workers have spent on it.
        failure: the last failure.
        attempt: number of the driver that changed it last.
        failures: number of failures that count against its retries.
        fruitless: number of other failures since its last report.
        share: GPU fraction for its next try, after it ran out of memory.
    """

    status: str = WAITING
    epochs: int = 0
    sound_epochs: int = 0
    last_evaluation_epoch: int | None = None
    wall_seconds: float = 0.0
    device: str | None = None
    failure: Failure | None = None
    attempt: int = 0
    failures: int = 0
    fruitless: int = 0
    share: float | None = None

    def reopen(self) -> None:
        """Try again from the last sound report, with all retries."""
        self.status, self.epochs, self.failures, self.fruitless = WAITING, self.sound_epochs, 0, 0

    def count_failure(self, body: Failed) -> None:
        """Record that a process died."""
        self.share = body.share if body.share is not None else self.share
        self.failures += body.failure.counts
        self.fruitless += not body.failure.counts
        self.status, self.failure = WAITING, body.failure


@dataclass
class ReplicateState(Progress):
    """The progress of a replicate that has a separate process; trials without separate processes have no such states.

    Attributes:
        failed_in: epoch from which it is left out of its configuration's mean.
        epoch_rows, evaluations: rows that it has reported since its configuration's last report.
    """

    failed_in: int | None = None
    epoch_rows: list[Row] = field(default_factory=list)
    evaluations: list[Row] = field(default_factory=list)

    def report(self, report: TrialReport, *, pauses: bool) -> None:
        """Record a report of its process."""
        self.epochs, self.wall_seconds, self.device = report.epoch, report.wall_seconds, report.device
        self.fruitless = 0  # a report shows progress
        self.epoch_rows += report.epochs
        self.evaluations += report.evaluations
        if report.failure:
            self.give_up(report.failure, report.epoch)
            return
        self.sound_epochs = self.epochs
        self.status = WAITING if pauses else RUNNING

    def give_up(self, failure: Failure, epoch: int) -> None:
        """Leave it out of its configuration's mean from `epoch` on."""
        self.status, self.failure, self.failed_in = FAILED, failure, epoch

    def hand_over(self, epoch: int) -> None:
        """Drop the rows up to `epoch`, which a report of its configuration now contains."""
        # The tables are written from the configuration's report; keeping the rows would make memory grow with records.
        handed = [row["epoch"] for row in self.evaluations if row["epoch"] <= epoch]
        self.last_evaluation_epoch = max(handed, default=self.last_evaluation_epoch)
        self.epoch_rows = [row for row in self.epoch_rows if row["epoch"] > epoch]
        self.evaluations = [row for row in self.evaluations if row["epoch"] > epoch]

    def reopen(self) -> None:
        """Try again from the last sound report."""
        super().reopen()
        self.failure = self.failed_in = None
        self.epoch_rows = [row for row in self.epoch_rows if row["epoch"] <= self.epochs]


@dataclass
class TrialState(Progress):
    """The state of a trial.

    Attributes:
        configuration: index of its configuration.
        decision: the scheduler's decision that ended it.
        packing: how its replicates share their process.
        objective: last judged value of the sweep's objective (mean over replicates).
        paused: whether the trial waits at a rung to be promoted or stopped.
        replicate_errors: failures of replicates, by number, while the others continued.
        config_hash: hash of its configuration's values at its first report; `None` before.
        replicates: states of replicates with separate processes, by number; empty without these.
        arrived: report or last failure that waits for its turn to be judged.
        added: the added seed; `None` for any other trial.
    """

    configuration: int = field(kw_only=True)
    added: AddedSeed | None = None
    decision: Decision | None = None
    packing: str | None = None
    objective: float | None = None
    paused: bool = False
    replicate_errors: dict[int, Failure] = field(default_factory=dict)
    config_hash: str | None = None
    replicates: dict[int, ReplicateState] = field(default_factory=dict)
    arrived: TrialReport | Failed | None = None

    @property
    def reported_epochs(self) -> int:
        """Number of reported epochs, including a report that waits for its turn."""
        return self.arrived.epoch if isinstance(self.arrived, TrialReport) else self.epochs

    @property
    def stop_kind(self) -> str | None:
        """Kind of the failure or of the decision that ended it."""
        return self.failure.kind if self.failure else self.decision.kind if self.decision else None

    @property
    def stop_rung(self) -> int | None:
        """Rung at which the scheduler stopped it."""
        return self.decision.rung if self.decision and self.decision.kind == "stop" else None

    @property
    def epochs_trained(self) -> float:
        """Trained epochs, mean over replicates."""
        # Replicates with separate processes can be ahead of `epochs`, the number of epochs that all of them have
        # reported.
        trained = [replicate.epochs for replicate in self.replicates.values() if replicate.failed_in is None]
        return max(self.epochs, sum(trained) / len(trained)) if trained else self.reported_epochs

    def replicate(self, number: int) -> ReplicateState:
        """Return the state of a replicate with separate processes."""
        return self.replicates.setdefault(number, ReplicateState())

    def reopen(self) -> None:
        """Reopen a failed trial from its last sound report, with all its retries.

        Replicates that were left out before that report stay out.
        """
        super().reopen()
        for number, replicate in self.replicates.items():
            if replicate.sound_epochs >= self.sound_epochs:
                replicate.reopen()
                self.replicate_errors.pop(number, None)

    def follow_replicates(self) -> None:
        """Derive the status of a trial that has not ended from its replicates'."""
        statuses = {replicate.status for replicate in self.replicates.values()}
        if statuses and self.status not in ENDED:
            self.status = next((s for s in (RUNNING, INTERRUPTED) if s in statuses), WAITING)


class SweepState:
    """The state of all trials of a sweep and of its driver. `apply` adds one record.

    Attributes:
        trials: state by configuration; drawn configurations, then added seeds.
        round: last round of added seeds that the sweep chose; 0 before the first.
        attempt: number of the current driver, from 1; 0 before the first.
        sequence: number of the newest record.
        started_at, updated_at: Unix times in seconds of the first and the newest record.
        outcome: how the last driver ended; `None` while it works, or if it died.
        configurations: configuration → values, as drawn or chosen by a searcher so far.
        touched: configurations in the order of their changes, with repetitions; a counter need not examine all trials.
        last_reported: configuration of the latest report; `None` before the first.
    """

    def __init__(self, configurations: int) -> None:
        """Begin with `configurations` waiting trials."""
        self.trials = {index: TrialState(configuration=index) for index in range(configurations)}
        self.round = 0
        self.attempt = 0
        self.sequence = -1
        self.started_at: float | None = None
        self.updated_at: float | None = None
        self.outcome: str | None = None
        self.configurations: dict[int, Configuration] = {}
        self.touched: list[int] = []
        self.last_reported: int | None = None

    def apply(self, record: Record) -> None:
        """Add one record. Records must come in order.

        Raises SweeperError for a record of an unknown configuration.
        """
        self.sequence = record.sequence
        self.updated_at = record.time
        match record.body:
            case Attempt() as body:
                self.attempt, self.outcome = body.attempt, None
                self.started_at = self.started_at if self.started_at is not None else record.time
                self._interrupt_running()  # the driver before may have died without a record
            case Suggested() as body:
                self.configurations[body.configuration] = body.values
            case Drawn() as body:
                self.configurations.update(enumerate(body.values, body.first))
            case Added() as body:
                self.round = max(self.round, body.round)
                self.trials |= {s.configuration: TrialState(configuration=s.configuration, added=s) for s in body.seeds}
                self.touched += [seed.configuration for seed in body.seeds]
            case Started() as body:
                self._started(self._trial(body), body)
            case ReplicateReported() as body:
                self._replicate_reported(self._trial(body), body)
            case Arrived() as body:
                self._arrived(self._trial(body), body)
            case Reported() as body:
                self._reported(self._trial(body), body)
            case Judged() as body:
                self._judged(self._trial(body), body)
            case Failed() as body:
                self._failed(self._trial(body), body)
            case Ended() as body:
                self.outcome = body.outcome
                self._interrupt_running()
        configuration = configuration_of(record.body)
        if configuration is not None:
            self.touched.append(configuration)

    def unfinished(self, *, failed_too: bool = False) -> list[int]:
        """Return the configurations that have not ended, in order."""
        done = ENDED - {FAILED} if failed_too else ENDED
        return [index for index, trial in self.trials.items() if trial.status not in done]

    def reopen_failed(self) -> None:
        """Reopen all failed trials."""
        for index, trial in self.trials.items():
            if trial.status == FAILED:
                trial.reopen()
                self.touched.append(index)

    def count(self) -> dict[str, int]:
        """Count the trials in each status, without added seeds."""
        counted = Counter(trial.status for trial in self.trials.values() if trial.added is None)
        return {status: counted[status] for status in STATUSES}

    @property
    def added(self) -> list[TrialState]:
        """The seeds that were added to the sweep, in order."""
        return [trial for trial in self.trials.values() if trial.added is not None]

    def values_of(self, index: int) -> Configuration | None:
        """Return the journal's values of a configuration or added seed; `None` if it has none."""
        trial = self.trials.get(index)
        return self.configurations.get(index) if trial is None or trial.added is None else trial.added.values

    def _trial(self, body: Started | ReplicateReported | Arrived | Reported | Judged | Failed) -> TrialState:
        trial = self._known(body.configuration)
        trial.attempt = body.attempt
        return trial

    def _known(self, index: int) -> TrialState:
        if index not in self.trials:
            raise SweeperError(
                f"the journal has records of configuration {index}, but the search space has only {len(self.trials)} "
                "configurations",
                "restore sweep.yaml as it was when the sweep was driven",
            )
        return self.trials[index]

    def _started(self, trial: TrialState, body: Started) -> None:
        if trial.status == FAILED:  # `resume --failed`
            trial.reopen()
        if trial.status in (WAITING, INTERRUPTED):
            trial.status = RUNNING
            trial.failure = trial.decision = None
        if body.replicate is not None:
            replicate = trial.replicate(body.replicate)
            replicate.status, replicate.attempt, replicate.failure = RUNNING, trial.attempt, None

    def _replicate_reported(self, trial: TrialState, body: ReplicateReported) -> None:
        trial.replicate(body.replicate).report(body.report, pauses=body.pauses)
        trial.device, trial.packing = body.report.device, body.report.packing
        trial.wall_seconds = sum(replicate.wall_seconds for replicate in trial.replicates.values())
        trial.follow_replicates()

    def _arrived(self, trial: TrialState, body: Arrived) -> None:
        # Only a judged report counts, so that the state never shows what the scheduler has not seen.
        trial.arrived, trial.status, trial.fruitless = body.report, WAITING, 0
        trial.wall_seconds, trial.device, trial.packing = (
            body.report.wall_seconds,
            body.report.device,
            body.report.packing,
        )

    def _reported(self, trial: TrialState, body: Reported) -> None:
        report, decision = body.report, body.decision
        trial.arrived = None
        self.last_reported = trial.configuration
        trial.status = body.status
        trial.config_hash = trial.config_hash or body.config_hash  # only the first report has it
        trial.fruitless = 0
        trial.epochs = report.epoch
        trial.paused = decision is not None and decision.kind == "pause"
        if trial.status != FAILED:
            trial.sound_epochs = trial.epochs
        trial.wall_seconds = report.wall_seconds
        trial.device = report.device
        trial.packing = report.packing
        if report.objective is not None:  # between rungs an objective from evaluations is not measured
            trial.objective = report.objective
        if report.evaluations:
            trial.last_evaluation_epoch = report.epoch
        trial.replicate_errors.update(report.replicate_errors)
        if decision is not None and trial.status in ENDED:
            trial.decision, trial.failure = decision, report.failure
        for replicate in trial.replicates.values():
            replicate.hand_over(trial.epochs)
            if trial.status in ENDED and replicate.status != FAILED:
                replicate.status = trial.status
        trial.follow_replicates()

    def _judged(self, trial: TrialState, body: Judged) -> None:
        trial.status, trial.paused = body.status, False
        if body.status in ENDED:  # `decision` is the decision that ended the trial; a promotion does not end it
            trial.decision = body.decision

    def _failed(self, trial: TrialState, body: Failed) -> None:
        if body.replicate is None:
            if trial.arrived is None:  # otherwise the failure was counted when it arrived
                trial.count_failure(body)
            trial.arrived = body if body.waits else None
            trial.status = FAILED if body.final else WAITING
            trial.decision = None
            return
        replicate = trial.replicate(body.replicate)
        replicate.count_failure(body)
        if body.given_up:
            replicate.give_up(body.failure, replicate.epochs + 1)
        trial.follow_replicates()

    def _interrupt_running(self) -> None:
        for index, trial in self.trials.items():
            if trial.status == RUNNING:
                trial.status = INTERRUPTED
                self.touched.append(index)
                for replicate in trial.replicates.values():
                    if replicate.status == RUNNING:
                        replicate.status = INTERRUPTED


def fold(records: Iterable[Record], configurations: int) -> SweepState:
    """Fold `records`, in order, into a state.

    Args:
        records: records of the journal.
        configurations: number of drawn configurations.
    """
    state = SweepState(configurations)
    for record in records:
        state.apply(record)
    return state
