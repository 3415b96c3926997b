"""Every ending has a kind and one sentence, and only what is somebody's fault counts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sweeper.execution.driver.judging import (
    FRUITLESS_TRIES,
    LONGEST_PAUSE,
    PREEMPTED,
    Failure,
    classify,
    next_try,
    pause_before,
)
from sweeper.journal.state import TrialState

CASES = [
    ("RayTaskError(ValueError)", "ray::step()\n  File x\nValueError: bad value", "error", True),
    ("RayTaskError(MemoryError)", "trace\nMemoryError: 8 GiB", "out_of_memory", True),
    ("OutOfMemoryError", "Task was killed due to the node running low on memory.", "out_of_memory", True),
    (
        "TuneError",
        "Traceback\n1 worker(s) were killed due to the node running low on memory.\nRefer to",
        "out_of_memory",
        True,
    ),
    ("OutOfMemoryActorError", "1 worker(s) were killed: memory ran low.\nRefer to the docs", "out_of_memory", True),
    ("ActorDiedError", "The actor was killed by the memory monitor.", "out_of_memory", True),
    (
        "RayTaskError(OutOfMemoryError)",
        "trace\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "gpu_out_of_memory",
        True,
    ),
    ("RayTaskError(RuntimeError)", "trace\nRuntimeError: CUDA error: out of memory", "gpu_out_of_memory", True),
    (
        "RayTaskError(RuntimeError)",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "gpu_out_of_memory",
        True,
    ),
    ("ActorDiedError", "The actor died unexpectedly before finishing this task.\nmore", "crash", True),
    ("WorkerCrashedError", "The worker died unexpectedly while executing this task.", "crash", True),
    ("ActorDiedError", "The actor is dead because its node has died. Node Id: ab", "preempted", False),
    ("NodeDiedError", "node was preempted: spot instance", "preempted", False),
    ("ActorDiedError", "The node was terminated expectedly: preemption", "preempted", False),
    (
        "ActorDiedError",
        "The actor died unexpectedly before finishing this task.\n\tclass_name: A\nThe actor is dead because its "
        "worker process has died. Worker exit type: SYSTEM_ERROR … to prevent node deaths by resource contention",
        "crash",
        True,
    ),
    (
        "ActorDiedError",
        "The actor died unexpectedly before finishing this task.\n\tpid: 14798\nThe actor died because its node has "
        "died. Node Id: 056e\n\tthe actor's node was terminated unexpectedly: health check failed",
        "preempted",
        False,
    ),
    ("RayTaskError(OSError)", "trace\nOSError: [Errno 28] No space left on device: 'e00003.pt'", "storage", False),
    ("RayTaskError(FileNotFoundError)", "trace\nFileNotFoundError: '/mnt/preemptible/cifar10'", "error", True),
    ("FileNotFoundError", "FileNotFoundError: [Errno 2] No such file: '/mnt/preemptible/cifar10'", "error", True),
    ("RayTaskError(ValueError)", "trace\nValueError: the node was terminated", "error", True),
    (
        "ActorDiedError",
        "The actor died because of an error raised in its creation task, ray::X.__init__()\n  trace\n"
        "FileNotFoundError: '/mnt/preemptible/cifar10'",
        "error",
        True,
    ),
    ("RayTaskError(ValueError)", "trace\nValueError: low on memory of what was said", "error", True),
    ("RayTaskError(NodeDiskFullError)", "trace\nNodeDiskFullError: ab12: [Errno 28] No space left", "storage", False),
    (
        "ActorDiedError",
        "The actor died because of an error raised in its creation task, ray::X.__init__()\n  trace\n"
        "trainables.worker.trainable.NodeDiskFullError: ab12: [Errno 30] Read-only file system",
        "storage",
        False,
    ),
    ("ActorDiedError", "", "crash", True),
    ("KeyError", "", "error", True),
]


@pytest.mark.parametrize(("type_name", "message", "kind", "counts"), CASES)
def test_kinds(type_name, message, kind, counts):
    failure = classify(type_name, message)
    assert (failure.kind, failure.counts) == (kind, counts)
    assert failure.reason.strip() and "\n" not in failure.reason


def test_a_tasks_error_is_named_by_its_last_line():
    assert classify("RayTaskError(ValueError)", "first\nsecond\nValueError: γ = -1").reason == "ValueError: γ = -1"


def test_a_users_error_that_mentions_a_node_is_still_an_error():
    assert classify("ValueError", "ValueError: node 3 of the tree is dead").kind == "error"


def test_a_page_of_advice_about_memory_becomes_its_first_line():
    message = "1 worker(s) were killed due to the node running low on memory (0.6)\nTop 10 users:\nRefer to the docs"
    reason = classify("OutOfMemoryActorError", message).reason
    assert reason == f"the node's memory ran out: {message.splitlines()[0]}"


@pytest.mark.parametrize(("own", "blamed"), [("0.29", False), ("12.1", True), (None, True)])
def test_ray_says_how_much_a_process_held(own, blamed):
    said = "" if own is None else f"pid=181, actual memory used={own}GB, worker ID=ab)\n"
    message = (
        "1 worker(s) were killed due to the node running low on memory.\n"
        f"Memory on the node (IP: 10.0.0.1, ID: ab) was 27.99GB used / 28.80GB limit (0.97)\n{said}Top 10 memory users"
    )
    failure = classify("OutOfMemoryActorError", message)
    assert failure.kind == "out_of_memory" and failure.counts is blamed and failure.waits is not blamed


def test_pauses_double_and_are_bounded():
    pauses = [pause_before(tries) for tries in range(100)]
    assert all(later == min(2 * one, LONGEST_PAUSE) for one, later in pairwise(pauses)) and pauses[0] > 0


def test_a_full_disk_is_that_of_the_node_that_says_so():
    failure = classify("NodeDiskFullError", "NodeDiskFullError: ab12: [Errno 28] No space left on device: 'x.pt'")
    assert failure.node == "ab12" and failure.reason.endswith("[Errno 28] No space left on device: 'x.pt'")
    assert classify("OSError", "OSError: [Errno 28] No space left on device").node is None


def test_what_does_not_count_is_capped():
    preempted = Failure(PREEMPTED, "its node died", counts=False)
    assert next_try(preempted, TrialState(configuration=0, fruitless=FRUITLESS_TRIES - 1), None, 2)[0] is preempted
    counted = next_try(preempted, TrialState(configuration=0, fruitless=FRUITLESS_TRIES), None, 2)[0]
    assert counted.counts and counted.kind == PREEMPTED and f"try {FRUITLESS_TRIES + 1} in a row" in counted.reason
    crash = Failure("crash", "its process died")
    assert next_try(crash, TrialState(configuration=0, fruitless=1000), None, 2)[0] is crash
