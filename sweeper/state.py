"""What a journal adds up to: the state of every trial, by folding the records in order. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sweeper.journal import Record

WAITING, RUNNING, COMPLETED, EARLY_STOPPED, FAILED, INTERRUPTED = (
    "waiting",
    "running",
    "completed",
    "early_stopped",
    "failed",
    "interrupted",
)
ENDED = frozenset({COMPLETED, EARLY_STOPPED, FAILED})
"""The states a trial does not leave by itself; `resume --failed` takes failed ones up again."""


@dataclass
class TrialState:
    """Where one trial stands.

    Attributes:
        configuration: the index of its configuration.
        status: `waiting`, `running`, `completed`, `early_stopped`, `failed` or `interrupted`.
        stop_kind, stop_reason: why it ended: a word and one sentence.
        stop_rung: the rung at which the scheduler stopped it.
        epochs: epochs reported so far.
        sound_epochs: the same, without a report that failed: a trial that runs again is judged anew after these.
        last_evaluation_epoch: the epoch of its last evaluation.
        wall_seconds: time spent in it by its workers.
        objective: the last judged value of the sweep's objective (mean over replicates).
        attempt: the driver's attempt that touched it last.
        failures: how often it has failed in a way that counts against its retries.
        replicate_errors: replicates that failed while the others went on: replicate → sentence.
    """

    configuration: int
    status: str = WAITING
    stop_kind: str | None = None
    stop_reason: str | None = None
    stop_rung: int | None = None
    epochs: int = 0
    sound_epochs: int = 0
    last_evaluation_epoch: int | None = None
    wall_seconds: float = 0.0
    device: str | None = None
    packing: str | None = None
    error: str | None = None
    objective: float | None = None
    attempt: int = 0
    failures: int = 0
    replicate_errors: dict[int, str] = field(default_factory=dict)

    def reopen(self) -> None:
        """Let a failed trial run again: from its last sound report, with all its retries."""
        self.status, self.epochs, self.failures = WAITING, self.sound_epochs, 0


class SweepState:
    """All trials of a sweep, and how far the driver has come. `apply` folds one record in."""

    def __init__(self, configurations: int) -> None:
        """Start with `configurations` waiting trials."""
        self.trials = {index: TrialState(index) for index in range(configurations)}
        self.attempt = 0
        self.sequence = -1
        self.started_at: float | None = None
        self.updated_at: float | None = None
        self.outcome: str | None = None

    def apply(self, record: Record) -> None:
        """Fold one record in. Records must come in order."""
        self.sequence = record.sequence
        self.updated_at = record.time
        getattr(self, f"_apply_{record.kind}")(record)

    def unfinished(self, *, failed_too: bool = False) -> list[int]:
        """Return the configurations that still have to run, in order."""
        done = ENDED - {FAILED} if failed_too else ENDED
        return [index for index, trial in self.trials.items() if trial.status not in done]

    def count(self) -> dict[str, int]:
        """Return how many trials are in each status."""
        counts = dict.fromkeys((WAITING, RUNNING, COMPLETED, EARLY_STOPPED, FAILED, INTERRUPTED), 0)
        for trial in self.trials.values():
            counts[trial.status] += 1
        return counts

    def _apply_attempt(self, record: Record) -> None:
        self.attempt = record.body["attempt"]
        self.outcome = None
        self.started_at = self.started_at if self.started_at is not None else record.time
        self._interrupt_running()

    def _apply_started(self, record: Record) -> None:
        trial = self._trial(record.body)
        if trial.status == FAILED:
            trial.reopen()
        if trial.status in (WAITING, INTERRUPTED):
            trial.status = RUNNING
            trial.error = trial.stop_kind = trial.stop_reason = None

    def _apply_report(self, record: Record) -> None:
        body = record.body
        trial = self._trial(body)
        trial.status = body["status"]
        trial.epochs = body["epoch"]
        if trial.status != FAILED:
            trial.sound_epochs = trial.epochs
        trial.wall_seconds = body["wall_seconds"]
        trial.device = body["device"]
        trial.packing = body.get("packing")
        if body["objective"] is not None:
            trial.objective = body["objective"]
        if body["evaluations"]:
            trial.last_evaluation_epoch = body["epoch"]
        trial.replicate_errors.update({int(r): e for r, e in body.get("replicate_errors", {}).items()})
        decision = body["decision"]
        if decision is not None and trial.status in ENDED:
            trial.stop_kind, trial.stop_reason = body.get("failure_kind", decision["kind"]), decision["reason"]
            trial.stop_rung = decision["rung"] if trial.status == EARLY_STOPPED else None
            trial.error = decision["reason"] if trial.status == FAILED else None

    def _apply_failed(self, record: Record) -> None:
        body = record.body
        trial = self._trial(body)
        trial.failures += bool(body.get("counts", True))
        trial.status = FAILED if body.get("final", True) else WAITING
        trial.stop_kind, trial.stop_reason = body["kind"], body["reason"]
        trial.error = body["reason"]

    def _apply_ended(self, record: Record) -> None:
        self.outcome = record.body["outcome"]
        self._interrupt_running()

    def _trial(self, body: dict[str, Any]) -> TrialState:
        trial = self.trials[body["configuration"]]
        trial.attempt = body["attempt"]
        return trial

    def _interrupt_running(self) -> None:
        for trial in self.trials.values():
            if trial.status == RUNNING:
                trial.status = INTERRUPTED


def fold(records: Iterable[Record], configurations: int) -> SweepState:
    """Return the state that `records`, in order, add up to."""
    state = SweepState(configurations)
    for record in records:
        state.apply(record)
    return state
