"""What a report and a failure mean: the scheduler's decision, another try, or the end.

Replicates that report from separate processes are put together first, as the one report that a process with all of them
would have sent at the same epoch: the same rows in the same order, the same mean, the same failures of replicates that
are left out. So everything behind it (scheduler, tables, trackers, audit) needs to know of one kind of report only.

After a failure another try follows, on a larger share of a GPU where its memory ran out, or none; a full disk is the
end of the sweep where it is the driver's own, else of a node that trials keep away from.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
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
    """Return the record of a report that is news.

    Args:
        report: what was measured.
        trial: its trial, as it is before the report.
        rungs: decide.
        attempt: the driver's.
        digest: of the configuration's values, for its first report.
    """
    # One that had to go back further measures epochs again that an earlier report brought.
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


def skips_epochs(report: TrialReport, known: TrialState | ReplicateState) -> bool:
    """Return whether epochs are missing between the journal and a report, as where records were lost since."""
    first = min((row["epoch"] for row in report.epochs), default=0)
    return known.status not in ENDED and first > known.epochs + 1


def merged_report(trial: TrialState, count: int, metric: str, packing: str) -> TrialReport | None:
    """Return the report of a trial's replicates at the epoch that all of them have reached, or `None` at no new one.

    Replicates that have failed for good do not hold the others up. When all have, the report is of the last epoch that
    any of them reached and says why.

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


#: The kinds of failure that a smaller cohort may not meet.
MEMORY = frozenset({OUT_OF_MEMORY, GPU_OUT_OF_MEMORY})

#: The kinds of failure that say nothing against a trial that shared its process.
BLAMELESS = MEMORY | {PREEMPTED, STORAGE, STORE}

#: A process with a smaller share of the memory that is taken is not to blame that it ran out.
LITTLE_MEMORY = 0.1

#: Seconds that such a trial waits before its next try; they double with each, up to the longest.
SHORTEST_PAUSE, LONGEST_PAUSE = 10.0, 600.0

#: So many times in a row a trial's process may end through no fault of its own before it has trained an epoch. Nodes
#: that are taken away that often are no place for the trial, or are not what it died of.
FRUITLESS_TRIES = 10


def memory_failure(held: float, message: str = "", **values: float) -> Failure:
    """Return the failure of a process that was ended because memory ran out, having `held` that share of it."""
    return Failure(OUT_OF_MEMORY, {"held": held, **values}, message, counts=held >= LITTLE_MEMORY)


def waits(failure: Failure) -> bool:
    """Return whether the next try has to wait: others took the machine's memory."""
    return failure.kind == OUT_OF_MEMORY and float(failure.values.get("held", 1.0)) < LITTLE_MEMORY


def pause_before(tries: int) -> float:
    """Return the seconds that a trial waits for others to give memory back, after so many failed tries."""
    return min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(tries, 20))


def next_try(
    failure: Failure, before: TrialState | ReplicateState, share: float | None, retries: int
) -> tuple[Failure, float | None, bool]:
    """Return a failure as it is to be journaled, the share for the next try, and whether there is none.

    What ran out of a GPU's memory is tried again on twice its share, which does not count against the retries; on a
    whole GPU it does. What does not count does so after as many tries without an epoch in between.

    Args:
        failure: this time's.
        before: what has come of the trial, or of the replicate, before it.
        share: of a GPU that it ran on; `None` where a larger one would not help.
        retries: how often it may fail in a way that counts.
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


#: With less than this left, the driver's own storage is taken for what was full: a checkpoint may not fit any more.
LEAST_BYTES = 64 * 2**20

PROBE_BYTES = 2**20

#: Returns whether a living node that holds a trial is not one of those named.
OtherNodes = Callable[[AbstractSet[str]], bool]


class FullDisks:
    """Knows the nodes whose disks are full, until the sweep is resumed."""

    def __init__(self, folder: Path, other_nodes: OtherNodes) -> None:
        """Begin with none; `folder` is on the driver's own storage."""
        self.nodes: set[str] = set()
        self._folder, self._other_nodes = folder, other_nodes

    def met(self, failure: Failure) -> Reason | None:
        """Take in a failure caused by a lack of storage; return why the sweep has to stop, if it has to.

        It has not where the driver itself can write, the trial's node is known, and there are others.
        """
        node = failure.values.get("node")
        if node is None or not _has_room(self._folder):
            return failure
        self.nodes.add(str(node))
        return None if self._other_nodes(self.nodes) else failure.having(others="no")


def _has_room(folder: Path) -> bool:
    """Return whether something can be written to a folder, and to its disk."""
    try:
        if shutil.disk_usage(folder).free < LEAST_BYTES:
            return False
        with temporary_file(folder) as probe, probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    return True
