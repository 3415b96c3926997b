"""What a report and a failure mean: the scheduler's decision, another try, or the end.

Replicates that report from separate processes are put together first, as the one report that a process with all of them
would have sent at the same epoch: the same rows in the same order, the same mean, the same sentences on replicates that
are left out. So everything behind it (scheduler, tables, trackers, audit) needs to know of one kind of report only.

Failures have a kind and a reason, by the exception's type and text. Another try follows, on a larger share of a GPU
where its memory ran out, or none; a full disk is the end of the sweep where it is the driver's own, else of a node that
trials keep away from.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.journal.records import Decision, Reported
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, ENDED, FAILED, RUNNING, WAITING, ReplicateState, TrialState
from sweeper.scheduling.base import RungState, decide_on
from trainables.files.atomic import temporary_file
from trainables.worker.trial_reports import NON_FINITE, Row, TrialReport, mean_objective

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
    failure = kind = None
    if decision is not None and (report.failure or decision.kind == "fail"):
        failure = report.failure or f"{rungs.scheduler.metric} is {report.objective} after epoch {report.epoch}"
        kind = report.failure_kind or NON_FINITE
        decision = Decision("fail", kind, decision.rung, stratum=decision.stratum)
    report = replace(report, epochs=rows, failure=failure, failure_kind=kind)
    status = STATUS_OF_DECISION[decision.kind] if decision else RUNNING
    return Reported(report, attempt, status, decision, config_hash=digest)


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


PREEMPTED, OUT_OF_MEMORY, GPU_OUT_OF_MEMORY, STORAGE = "preempted", "out_of_memory", "gpu_out_of_memory", "storage"
STORE, HUNG, CRASH, ERROR = "store", "hung", "crash", "error"

#: The kinds of failure that a smaller cohort may not meet.
MEMORY = frozenset({OUT_OF_MEMORY, GPU_OUT_OF_MEMORY})

#: The kinds of failure that say nothing against a trial that shared its process.
BLAMELESS = MEMORY | {PREEMPTED, STORAGE, STORE}

#: What Ray says when it kills a process for its node's memory, in the first line of a page of advice.
_MEMORY_KILLS = ("memory monitor", "low on memory")

#: What it says of the node's memory and of the process's, in GB (Ray 2.60).
_RAY_MEMORY, _RAY_HELD = re.compile(r"was ([\d.]+)GB used"), re.compile(r"actual memory used=([\d.]+)GB")

#: A process with a smaller share of the memory that is taken is not to blame that it ran out.
LITTLE_MEMORY = 0.1

#: Seconds that such a trial waits before its next try; they double with each, up to the longest.
SHORTEST_PAUSE, LONGEST_PAUSE = 10.0, 600.0

_STORAGE_ERRORS = ("no space left on device", "read-only file system", "disk quota exceeded")

#: What Ray raises when a process or its node is gone.
_DEATHS = frozenset({"ActorDiedError", "RayActorError", "ActorUnavailableError", "NodeDiedError", "WorkerCrashedError"})

#: Ray's words where a process died of its own exception, before its first step; the text is that exception's.
_RAISED = "error raised in its creation task"

#: What passes on Ray's text as it is.
_WRAPPERS = ("TuneError", "Error")

_NODE_DEATH = "its node has died"

_PREEMPTIONS = ("preempt", "node was terminated", "node has been drained")

#: A trial's word for its node's disk: the node, and the operating system's sentence.
_FULL_DISK = re.compile(r"NodeDiskFullError: (\w+): (.*)")

#: So many times in a row a trial's process may end through no fault of its own before it has trained an epoch. Nodes
#: that are taken away that often are no place for the trial, or are not what it died of.
FRUITLESS_TRIES = 10

#: What torch's allocator, CUDA itself, and cuBLAS or cuDNN say when a GPU's memory runs out.
_CARD_MEMORY = ("cuda out of memory", "outofmemoryerror: cuda", "cuda error: out of memory", "status_alloc_failed")


@dataclass(frozen=True)
class Failure:
    """Why a trial's process ended it.

    Attributes:
        kind: `preempted`, `out_of_memory`, `gpu_out_of_memory`, `storage`, `store`, `hung`, `crash` or `error`.
        reason: one sentence.
        counts: whether it counts against the trial's retries; a preempted node is nobody's fault.
        waits: whether the next try has to wait: others took the machine's memory.
        node: whose disk is full, where that is known.
    """

    kind: str
    reason: str
    counts: bool = True
    waits: bool = False
    node: str | None = None


def memory_failure(said: str, held: float) -> Failure:
    """Return the failure of a process that was ended because memory ran out.

    Args:
        said: by what or whom.
        held: the process's share of the memory that was taken.
    """
    blameless = held < LITTLE_MEMORY
    return Failure(OUT_OF_MEMORY, f"the node's memory ran out: {said}", counts=not blameless, waits=blameless)


def pause_before(tries: int) -> float:
    """Return the seconds that a trial waits for others to give memory back, after so many failed tries."""
    return min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(tries, 20))


def classify(type_name: str, message: str) -> Failure:
    """Return the failure that an exception of this type and text stands for.

    The type goes first: what a trial's own exception says, a path with `preemptible` in it for one, is no word of
    Ray's about a node.

    Args:
        type_name: the exception's class, e.g. `ActorDiedError`, `RayTaskError(ValueError)`.
        message: its text; of a task's error the last line names the cause.
    """
    text = message.strip()
    cause = text.splitlines()[-1].strip() if text else type_name
    lowered = text.lower()
    if "TrialHungError" in type_name:
        return Failure(HUNG, cause.partition("TrialHungError: ")[2] or cause)
    if "NodeLeavingError" in type_name:
        return Failure(PREEMPTED, cause.partition("NodeLeavingError: ")[2] or cause, counts=False)
    if "LoopError" in type_name and "out of memory" not in lowered:
        return Failure(ERROR, cause.partition("LoopError: ")[2] or cause)
    if "StoreError" in type_name:
        said = next((line.strip() for line in text.splitlines() if "the store" in line), cause)
        return Failure(STORE, said.rpartition("StoreError: ")[2] or said, counts=False)
    if full := _FULL_DISK.search(text):
        return Failure(STORAGE, f"a node's disk cannot be written to: {full[2]}", counts=False, node=full[1])
    died = type_name in _DEATHS and _RAISED not in lowered
    if died and any(words in lowered for words in _PREEMPTIONS):
        return Failure(PREEMPTED, f"its node was taken away: {_first_line(text)}", counts=False)
    if any(words in lowered for words in _CARD_MEMORY):
        return Failure(GPU_OUT_OF_MEMORY, f"the card's memory ran out: {cause}")
    if cause.startswith("MemoryError"):
        return Failure(OUT_OF_MEMORY, f"the node's memory ran out: {cause}")
    told_by_ray = died or type_name in _WRAPPERS
    if "OutOfMemory" in type_name or (told_by_ray and any(words in lowered for words in _MEMORY_KILLS)):
        told = (line.strip() for line in text.splitlines() if any(words in line.lower() for words in _MEMORY_KILLS))
        amounts = _RAY_MEMORY.search(text), _RAY_HELD.search(text)
        used, own = (float(match[1]) if match else None for match in amounts)
        return memory_failure(next(told, _first_line(text)), 1.0 if own is None else own / (used or own))
    if "RankLostError" in type_name:
        said = cause.partition("RankLostError: ")[2] or cause
        gone = any(words in lowered for words in (*_PREEMPTIONS, _NODE_DEATH))
        return Failure(PREEMPTED if gone else CRASH, said, counts=not gone)
    if any(error in lowered for error in _STORAGE_ERRORS):
        return Failure(STORAGE, f"the results folder cannot be written to: {cause}", counts=False)
    if died:
        if _NODE_DEATH in lowered:
            return Failure(PREEMPTED, "its node died", counts=False)
        return Failure(CRASH, f"its process died: {_first_line(text)}")
    return Failure(ERROR, cause)


def _first_line(text: str) -> str:
    return text.splitlines()[0].strip() if text else "no message"


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
        reason = f"{failure.reason} (on {share:g} of a card; it is tried again on {larger:g})"
        failure = replace(failure, reason=reason, counts=False)
    if not failure.counts and before.fruitless >= FRUITLESS_TRIES:
        why = f"try {before.fruitless + 1} in a row that ended before an epoch was reported: from now on they count"
        failure = replace(failure, reason=f"{failure.reason} ({why})", counts=True)
    given_up = failure.counts and before.failures >= retries
    if given_up and before.failures:
        failure = replace(failure, reason=f"{failure.reason} (after {before.failures + 1} tries)")
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

    def met(self, failure: Failure) -> str | None:
        """Take in a failure caused by a lack of storage; return why the sweep has to stop, if it has to.

        It has not where the driver itself can write, the trial's node is known, and there are others.
        """
        if failure.node is None or not _has_room(self._folder):
            return failure.reason
        self.nodes.add(failure.node)
        return None if self._other_nodes(self.nodes) else f"{failure.reason}; there is no other node"


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
