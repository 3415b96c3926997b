"""The kind and reason of a trial's failure, classified from the exception's type and text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

PREEMPTED, OUT_OF_MEMORY, GPU_OUT_OF_MEMORY, STORAGE, STORE, HUNG, CRASH, ERROR = (
    "preempted",
    "out_of_memory",
    "gpu_out_of_memory",
    "storage",
    "store",
    "hung",
    "crash",
    "error",
)


_MEMORY_KILLS = ("memory monitor", "low on memory")
"""What Ray says when it kills a process for its node's memory, in the first line of a page of advice."""

_STORAGE_ERRORS = ("no space left on device", "read-only file system", "disk quota exceeded")

_DEATHS = frozenset({"ActorDiedError", "RayActorError", "ActorUnavailableError", "NodeDiedError", "WorkerCrashedError"})
"""What Ray raises when a process or its node is gone."""

_RAISED = "error raised in its creation task"
"""Ray's words where a process died of its own exception, before its first step; the text is that exception's."""

_WRAPPERS = ("TuneError", "Error")
"""What passes on Ray's text as it is."""

_NODE_DEATH = "its node has died"

_PREEMPTIONS = ("preempt", "node was terminated", "node has been drained")

_FULL_DISK = re.compile(r"NodeDiskFullError: (\w+): (.*)")
"""A trial's word for its node's disk: the node, and the operating system's sentence."""

FRUITLESS_TRIES = 10
"""So many times in a row a trial's process may end through no fault of its own before it has trained an epoch. Nodes
that are taken away that often are no place for the trial, or are not what it died of."""

_CARD_MEMORY = ("cuda out of memory", "outofmemoryerror: cuda", "cuda error: out of memory", "status_alloc_failed")
"""What torch's allocator, CUDA itself, and cuBLAS or cuDNN say when a GPU's memory runs out."""


@dataclass(frozen=True)
class Failure:
    """Why a trial's process ended it.

    Attributes:
        kind: `preempted`, `out_of_memory`, `gpu_out_of_memory`, `storage`, `store`, `hung`, `crash` or `error`.
        reason: one sentence.
        counts: whether it counts against the trial's retries; a preempted node is nobody's fault.
        node: whose disk is full, where that is known.
    """

    kind: str
    reason: str
    counts: bool = True
    node: str | None = None


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
        return Failure(OUT_OF_MEMORY, f"the node's memory ran out: {next(told, _first_line(text))}")
    if "RankLostError" in type_name:
        said = cause.partition("RankLostError: ")[2] or cause
        if any(words in lowered for words in (*_PREEMPTIONS, _NODE_DEATH)):
            return Failure(PREEMPTED, said, counts=False)
        return Failure(CRASH, said)
    if any(error in lowered for error in _STORAGE_ERRORS):
        return Failure(STORAGE, f"the results folder cannot be written to: {cause}", counts=False)
    if died:
        if _NODE_DEATH in lowered:
            return Failure(PREEMPTED, "its node died", counts=False)
        return Failure(CRASH, f"its process died: {_first_line(text)}")
    return Failure(ERROR, cause)


def capped(failure: Failure, fruitless: int) -> Failure:
    """Return a failure as one that counts, where as many that did not count have come without an epoch in between.

    Args:
        failure: this time's.
        fruitless: how many uncounted failures came before it since the last report.
    """
    if failure.counts or fruitless < FRUITLESS_TRIES:
        return failure
    why = f"try {fruitless + 1} in a row that ended before an epoch was reported: from now on they count"
    return replace(failure, reason=f"{failure.reason} ({why})", counts=True)


def _first_line(text: str) -> str:
    return text.splitlines()[0].strip() if text else "no message"
