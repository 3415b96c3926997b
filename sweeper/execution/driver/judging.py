"""The scheduler's decision on a report, and the journal record that holds both. Pure.

Replicates that report from separate processes are put together first, as the one report that a process with all of them
would have sent at the same epoch: the same rows in the same order, the same mean, the same sentences on replicates that
are left out. So everything behind it (scheduler, tables, trackers, audit) needs to know of one kind of report only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sweeper.journal.records import Decision, Reported, Reused
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, ENDED, FAILED, RUNNING, WAITING, ReplicateState, TrialState
from sweeper.scheduling.base import RungState, decide_on
from trainables.worker.trial_reports import NON_FINITE, Row, TrialReport, mean_objective

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
        stratum = decision.stratum
        decision = Decision(decision.rung, "fail", report.failure, decision.metric, None, 0, stratum=stratum)
    # The sentence is in the decision from here on.
    kind = (report.failure_kind or NON_FINITE) if decision and decision.kind == "fail" else None
    report = replace(report, epochs=rows, failure=None, failure_kind=kind)
    status = STATUS_OF_DECISION[decision.kind] if decision else RUNNING
    return Reported(report, attempt, status, decision, reused, config_hash=config_hash)


def is_news(report: TrialReport, trial: TrialState) -> bool:
    """Return whether the journal lacks a report: a trial resumed from its checkpoint repeats its last."""
    return trial.status not in ENDED and report.epoch > trial.epochs


def skips_epochs(report: TrialReport, known: TrialState | ReplicateState) -> bool:
    """Return whether epochs are missing between the journal and a report, as where records were lost since."""
    first = min((row["epoch"] for row in report.epochs), default=0)
    return known.status not in ENDED and first > known.epochs + 1


def merged_report(trial: TrialState, count: int, metric: str, packing: str) -> TrialReport | None:
    """Return the report of a trial's replicates at the epoch that all of them have reached, or `None` at no new one.

    Replicates that have failed for good do not hold the others up. When all have, the report is of the last epoch that
    any of them reached and says why, as `failure` and `failure_kind`.

    Args:
        trial: with the state of every replicate that has begun.
        count: replicates of the configuration.
        metric: the objective, whose mean over the replicates that are sound at that epoch is judged.
        packing: written into the report.
    """
    epoch = common_epoch(trial.replicates, count)
    if epoch <= trial.epochs:
        return None
    replicates = trial.replicates
    over = all(replicate.status == FAILED for replicate in replicates.values())
    out = {n: r for n, r in replicates.items() if r.failed_in is not None and (over or r.failed_in <= epoch)}
    rows = _in_order((row for r in replicates.values() for row in r.epoch_rows), epoch, "epoch", "replicate")
    evaluations = _in_order((row for r in replicates.values() for row in r.evaluations), epoch, "replicate")
    failure = last_failure(replicates) if over else None
    sound = [row for row in rows if row["replicate"] not in out]
    kinds = {number: r.error_kind for number, r in sorted(out.items())}
    return TrialReport(
        configuration=trial.configuration,
        epoch=epoch,
        objective=math.nan if failure else mean_objective(metric, sound, evaluations),
        failure=failure.error if failure else None,
        failure_kind=failure.error_kind if failure else None,
        device=next(r.device for r in replicates.values() if r.device is not None),
        packing=packing,
        wall_seconds=sum(r.wall_seconds for r in replicates.values()),
        epochs=rows,
        evaluations=evaluations,
        replicate_errors={number: out[number].error or "" for number in sorted(out)},
        replicate_kinds={number: kind for number, kind in kinds.items() if kind is not None and kind != NON_FINITE},
    )


def common_epoch(replicates: Mapping[int, ReplicateState], count: int) -> int:
    """Return the epoch that all replicates still in it have reached; where none is left, the last that any reached."""
    live = [replicate.epochs for replicate in replicates.values() if replicate.status != FAILED]
    if live or len(replicates) < count:
        return min(live) if len(replicates) == count else 0
    return max(replicate.epochs for replicate in replicates.values())


def last_failure(replicates: Mapping[int, ReplicateState]) -> ReplicateState | None:
    """Return the replicate that failed in the latest epoch, of several the one with the lowest number."""
    failed = [r for _, r in sorted(replicates.items()) if r.failed_in is not None]
    return max(failed, key=lambda r: r.failed_in or 0, default=None)


def _in_order(rows: Iterable[Row], epoch: int, *keys: str) -> list[Row]:
    """Return the rows up to `epoch` sorted by `keys`; rows that are equal in these keep their order."""
    return sorted((row for row in rows if row["epoch"] <= epoch), key=lambda row: [row[key] for key in keys])
