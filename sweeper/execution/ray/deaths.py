"""The failure behind the death of a process, from what Ray says of it. What a trial itself raises comes as TrialEnded.

Ray 2.60 gives one type for deaths of a process and of its node, and the cause in its text alone.
"""

from __future__ import annotations

import re

from sweeper.execution.driver.judging import memory_failure
from trainables.worker.trial_reports import CRASH, ERROR, PREEMPTED, Failure

#: What Ray says when it kills a process for its node's memory, in the first line of a page of advice.
_MEMORY_KILLS = ("memory monitor", "low on memory")

#: What it says of the node's memory and of the process's, in GB.
_RAY_MEMORY, _RAY_HELD = re.compile(r"was ([\d.]+)GB used"), re.compile(r"actual memory used=([\d.]+)GB")

#: What Ray raises when a process or its node is gone.
_DEATHS = frozenset({"ActorDiedError", "RayActorError", "ActorUnavailableError", "NodeDiedError", "WorkerCrashedError"})

#: What passes on Ray's text as it is.
_WRAPPERS = ("TuneError", "Error")

_NODE_DEATH = "its node has died"

_PREEMPTIONS = ("preempt", "node was terminated", "node has been drained")


def process_death(type_name: str, text: str) -> Failure:
    """Return the failure that an exception of Ray's stands for.

    The type goes first: what another exception says, a path with `preemptible` in it for one, is not about a node.

    Args:
        type_name: the exception's class, e.g. `ActorDiedError`.
        text: its message.
    """
    lines, died = [line.strip() for line in text.strip().splitlines()] or [""], type_name in _DEATHS
    if died and any(words in text.lower() for words in _PREEMPTIONS):
        return Failure(PREEMPTED, message=lines[0], counts=False)
    memory = [line for line in lines if any(words in line.lower() for words in _MEMORY_KILLS)]
    if "OutOfMemory" in type_name or (memory and (died or type_name in _WRAPPERS)):
        amounts = _RAY_MEMORY.search(text), _RAY_HELD.search(text)
        used, own = (float(match[1]) if match else None for match in amounts)
        return memory_failure(1.0 if own is None else own / (used or own), memory[0] if memory else lines[0])
    if died and _NODE_DEATH in text.lower():
        return Failure(PREEMPTED, {"died": "node"}, counts=False)
    return Failure(CRASH, message=lines[0]) if died else Failure(ERROR, message=lines[-1] or type_name)
