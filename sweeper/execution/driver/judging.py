"""The scheduler's decision on a report, and the journal record that holds both."""

from __future__ import annotations

from dataclasses import replace

from sweeper.journal.decision import Decision
from sweeper.journal.records import Reported, Reused
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, ENDED, FAILED, RUNNING, WAITING, TrialState
from sweeper.scheduling.audit import decide_on
from sweeper.scheduling.base import RungState
from trainables.worker.trial_reports import NON_FINITE, TrialReport

STATUS_OF_DECISION = {
    "continue": RUNNING,
    "stop": EARLY_STOPPED,
    "complete": COMPLETED,
    "fail": FAILED,
    "pause": WAITING,
}


def judged(
    report: TrialReport,
    trial: TrialState,
    rungs: RungState,
    *,
    attempt: int,
    reused: Reused | None,
    config_hash: str | None,
) -> Reported:
    """Return the record of a report that is news.

    Args:
        report: what was measured.
        trial: its trial, as it is before the report.
        rungs: decide.
        attempt: the driver's.
        reused: where the report was reused from, if anywhere.
        config_hash: of the configuration's values, for its first report.
    """
    # One that had to go back further measures epochs again that an earlier report brought.
    rows = [row for row in report.epochs if row["epoch"] > trial.epochs]
    decision = decide_on(rungs, report)
    if report.failure and decision is not None:
        decision = Decision(decision.rung, "fail", report.failure, decision.metric, None, 0)
    # The sentence is in the decision from here on.
    kind = (report.failure_kind or NON_FINITE) if decision and decision.kind == "fail" else None
    report = replace(report, epochs=rows, failure=None, failure_kind=kind)
    status = STATUS_OF_DECISION[decision.kind] if decision else RUNNING
    return Reported(report, attempt, status, decision, reused, config_hash=config_hash)


def is_news(report: TrialReport, trial: TrialState) -> bool:
    """Return whether the journal lacks a report: a trial resumed from its checkpoint repeats its last."""
    return trial.status not in ENDED and report.epoch > trial.epochs


def skips_epochs(report: TrialReport, trial: TrialState) -> bool:
    """Return whether epochs are missing between the journal and a report, as where records were lost since."""
    first = min((row["epoch"] for row in report.epochs), default=0)
    return trial.status not in ENDED and first > trial.epochs + 1
