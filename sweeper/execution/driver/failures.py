"""The kind and reason of a trial's failure, classified from the text of the exception."""

from __future__ import annotations

from dataclasses import dataclass

PREEMPTED, OUT_OF_MEMORY, GPU_OUT_OF_MEMORY, STORAGE, HUNG, CRASH, ERROR = (
    "preempted",
    "out_of_memory",
    "gpu_out_of_memory",
    "storage",
    "hung",
    "crash",
    "error",
)


_MEMORY_KILLS = ("memory monitor", "low on memory")
"""What Ray says when it kills a process for its node's memory, in the first line of a page of advice."""

_STORAGE_ERRORS = ("no space left on device", "read-only file system", "disk quota exceeded")

_CARD_MEMORY = ("cuda out of memory", "outofmemoryerror: cuda", "cuda error: out of memory", "status_alloc_failed")
"""What torch's allocator, CUDA itself, and cuBLAS or cuDNN say when a GPU's memory runs out."""


@dataclass(frozen=True)
class Failure:
    """Why a trial's process ended it.

    Attributes:
        kind: `preempted`, `out_of_memory`, `gpu_out_of_memory`, `storage`, `hung`, `crash` or `error`.
        reason: one sentence.
        counts: whether it counts against the trial's retries; a preempted node is nobody's fault.
    """

    kind: str
    reason: str
    counts: bool = True


def classify(type_name: str, message: str) -> Failure:
    """Return the failure that an exception of this type and text stands for.

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
    if "preempt" in lowered or "node was terminated" in lowered or "node has been drained" in lowered:
        return Failure(PREEMPTED, f"its node was taken away: {_first_line(text)}", counts=False)
    if any(words in lowered for words in _CARD_MEMORY):
        return Failure(GPU_OUT_OF_MEMORY, f"the card's memory ran out: {cause}")
    if cause.startswith("MemoryError"):
        return Failure(OUT_OF_MEMORY, f"the node's memory ran out: {cause}")
    if "OutOfMemory" in type_name or any(words in lowered for words in _MEMORY_KILLS):
        told = (line.strip() for line in text.splitlines() if any(words in line.lower() for words in _MEMORY_KILLS))
        return Failure(OUT_OF_MEMORY, f"the node's memory ran out: {next(told, _first_line(text))}")
    if any(error in lowered for error in _STORAGE_ERRORS):
        return Failure(STORAGE, f"the results folder cannot be written to: {cause}", counts=False)
    if type_name in {"ActorDiedError", "RayActorError", "ActorUnavailableError", "NodeDiedError", "WorkerCrashedError"}:
        if "node" in lowered and ("died" in lowered or "dead" in lowered) and "its node has died" in lowered:
            return Failure(PREEMPTED, "its node died", counts=False)
        return Failure(CRASH, f"its process died: {_first_line(text)}")
    return Failure(ERROR, cause)


def _first_line(text: str) -> str:
    return text.splitlines()[0].strip() if text else "no message"
