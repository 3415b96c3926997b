"""Judge reports and failures: the scheduler's decision, a retry, or the end.

Reports of replicates from separate processes are merged first. The result is the report that one process with all
replicates would have sent at the same epoch: the same rows in the same order, the same mean, the same failures of
excluded replicates. So scheduler, tables, trackers and audit handle only one kind of report.

After a failure, a trial is retried, on a larger GPU share if GPU memory ran out, or given up. A full disk of the driver
ends the sweep; trials avoid another node whose disk is full.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Set as AbstractSet
from dataclasses import replace
from pathlib import Path

from sweeper.journal.records import Decision, Reported
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, ENDED, FAILED, RUNNING, WAITING, ReplicateState, TrialState
from sweeper.scheduling.base import RungState, decide_on
from trainables.files.atomic import temporary_file
from trainables.worker.trial_reports import (
    GPU_OUT_OF_MEMORY,
    NON_FINITE,
    OUT_OF_MEMORY,
    PREEMPTED,
    STORAGE,
    STORE,
    Failure,
    Reason,
    Row,
    TrialReport,
    mean_objective,
)

STATUS_OF_DECISION = {
    "continue": RUNNING,
    "stop": EARLY_STOPPED,
    "complete": COMPLETED,
    "fail": FAILED,
    "pause": WAITING,
}


def judged(report: TrialReport, trial: TrialState, rungs: RungState, attempt: int, digest: str | None) -> Reported:
    """Return the record of a new report.

    Args:
        report: The report.
        trial: State of its trial before the report.
        rungs: State of the rungs, which decides.
        attempt: Number of the driver's attempt.
        digest: Digest of the configuration's values, for its first report.
    """
    # A trial that restarted from an older checkpoint repeats epochs that are already reported.
    rows = [row for row in report.epochs if row["epoch"] > trial.epochs]
    decision = decide_on(rungs, report)
    failure = None
    if decision is not None and (report.failure or decision.kind == "fail"):
        measured: dict[str, str | int] = {
            "metric": rungs.scheduler.metric,
            "value": str(report.objective),
            "epoch": report.epoch,
        }
        failure = report.failure or Failure(NON_FINITE, measured)
        decision = Decision("fail", failure.kind, decision.rung, stratum=decision.stratum)
    report = replace(report, epochs=rows, failure=failure)
    status = STATUS_OF_DECISION[decision.kind] if decision else RUNNING
    return Reported(report, attempt, status, decision, config_hash=digest)


def ends_assignment(report: TrialReport, rungs: Collection[int]) -> bool:
    """Return whether a report leads to a decision: at a rung, or of a trial that cannot continue."""
    failed = report.failure is not None or (report.objective is not None and not math.isfinite(report.objective))
    return failed or report.epoch in rungs


def skips_epochs(report: TrialReport, known: TrialState | ReplicateState) -> bool:
    """Return whether epochs are missing between the journal and a report, for example because records were lost."""
    first = min((row["epoch"] for row in report.epochs), default=0)
    return known.status not in ENDED and first > known.epochs + 1


def merged_report(trial: TrialState, count: int, metric: str, packing: str) -> TrialReport | None:
    """Merge the reports of a trial's replicates at the epoch that all have reached; `None` if that epoch is not new.

    Replicates that have failed for good do not delay the others. If all have failed, the report contains the failure,
    and its epoch is the last that any of them reached.

    Args:
        trial: State of the trial and of every replicate that has started.
        count: Number of replicates of the configuration.
        metric: Objective, whose mean over the sound replicates is judged.
        packing: Value of the report's field.
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
    return TrialReport(
        configuration=trial.configuration,
        epoch=epoch,
        objective=math.nan if failure else mean_objective(metric, sound, evaluations),
        failure=failure.failure if failure else None,
        device=next(r.device for r in replicates.values() if r.device is not None),
        packing=packing,
        wall_seconds=sum(r.wall_seconds for r in replicates.values()),
        epochs=rows,
        evaluations=evaluations,
        replicate_errors={number: failed.failure for number, failed in sorted(out.items()) if failed.failure},
    )


def common_epoch(replicates: Mapping[int, ReplicateState], count: int) -> int:
    """Return the epoch that all live replicates have reached; if none is alive, the last epoch that any reached."""
    live = [replicate.epochs for replicate in replicates.values() if replicate.status != FAILED]
    if live or len(replicates) < count:
        return min(live) if len(replicates) == count else 0
    return max(replicate.epochs for replicate in replicates.values())


def last_failure(replicates: Mapping[int, ReplicateState]) -> ReplicateState | None:
    """Return the replicate that failed in the latest epoch; the lowest number in a tie."""
    failed = [r for _, r in sorted(replicates.items()) if r.failed_in is not None]
    return max(failed, key=lambda r: r.failed_in or 0, default=None)


def _in_order(rows: Iterable[Row], epoch: int, *keys: str) -> list[Row]:
    """Return the rows up to `epoch`, stably sorted by `keys`."""
    return sorted((row for row in rows if row["epoch"] <= epoch), key=lambda row: [row[key] for key in keys])


#: Kinds of failure that a smaller cohort can avoid.
MEMORY = frozenset({OUT_OF_MEMORY, GPU_OUT_OF_MEMORY})

#: Kinds of failure that are no evidence against a trial that shared its process.
BLAMELESS = MEMORY | {PREEMPTED, STORAGE, STORE}

#: Fraction of the used memory below which a killed process is not to blame for the shortage.
LITTLE_MEMORY = 0.1

#: Seconds that such a trial waits before a retry: doubled with each retry, up to the longest pause.
SHORTEST_PAUSE, LONGEST_PAUSE = 10.0, 600.0

#: Number of failures in a row that do not count, without a trained epoch in between. The next failure counts: a node
#: that is preempted so often is unsuitable, or preemption is not the real cause.
FRUITLESS_TRIES = 10


def memory_failure(held: float, message: str = "", **values: float) -> Failure:
    """Return the failure of a process killed when memory ran out; `held` is its fraction of the used memory."""
    return Failure(OUT_OF_MEMORY, {"held": held, **values}, message, counts=held >= LITTLE_MEMORY)


def waits(failure: Failure) -> bool:
    """Return whether the retry has to wait because other programs use the machine's memory."""
    return failure.kind == OUT_OF_MEMORY and float(failure.values.get("held", 1.0)) < LITTLE_MEMORY


def pause_before(tries: int) -> float:
    """Return how many seconds a trial waits for free memory after this number of failed tries.

    Examples:
        >>> [pause_before(tries) for tries in (0, 1, 2, 9)]
        [10.0, 20.0, 40.0, 600.0]
    """
    # The exponent is capped so that many tries cannot overflow the float.
    return min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(tries, 20))


def next_try(
    failure: Failure, before: TrialState | ReplicateState, share: float | None, retries: int
) -> tuple[Failure, float | None, bool]:
    """Return a failure to be journaled, the GPU share for the retry, and whether the trial is given up.

    After running out of GPU memory, a trial is retried on twice its share. This does not count against the retries,
    except on a whole GPU. Failures that do not count start to count after `FRUITLESS_TRIES` without a trained epoch.

    Args:
        failure: The failure.
        before: State of the trial or replicate before it.
        share: GPU share it ran on; `None` if a larger one would not help.
        retries: Number of failures that count before it is given up.
    """
    larger = None
    if share is not None and share < 1 and failure.kind == GPU_OUT_OF_MEMORY:
        larger = min(1.0, 2 * share)
        failure = replace(failure.having(share=share, next_share=larger), counts=False)
    if not failure.counts and before.fruitless >= FRUITLESS_TRIES:
        failure = replace(failure.having(fruitless=before.fruitless + 1), counts=True)
    given_up = failure.counts and before.failures >= retries
    if given_up and before.failures:
        failure = failure.having(tries=before.failures + 1)
    return failure, larger, given_up


#: The driver's storage counts as full with fewer free bytes than this: a checkpoint may no longer fit.
LEAST_BYTES = 64 * 2**20

#: Size in bytes of a test file. The free space does not show quotas and reserved blocks, so a write is tried.
PROBE_BYTES = 2**20

#: Returns whether a living node, other than the given ones, can hold a trial.
OtherNodes = Callable[[AbstractSet[str]], bool]


class FullDisks:
    """Nodes whose disks are full, remembered until the sweep is resumed."""

    def __init__(self, folder: Path, other_nodes: OtherNodes) -> None:
        """Start without full disks; `folder` is on the driver's own storage."""
        self.nodes: set[str] = set()
        self._folder, self._other_nodes = folder, other_nodes

    def met(self, failure: Failure) -> Reason | None:
        """Record a failure caused by a full disk; return the reason to stop the sweep, if it has to stop.

        The sweep continues if the driver itself can write, the trial's node is known, and there are other nodes.
        """
        node = failure.values.get("node")
        if node is None or not _has_room(self._folder):
            return failure
        self.nodes.add(str(node))
        return None if self._other_nodes(self.nodes) else failure.having(others="no")


def _has_room(folder: Path) -> bool:
    """Return whether a file can be written to a folder and reaches its disk."""
    try:
        if shutil.disk_usage(folder).free < LEAST_BYTES:
            return False
        with temporary_file(folder) as probe, probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())  # network file systems report a full quota only here
    except OSError:
        return False
    return True
