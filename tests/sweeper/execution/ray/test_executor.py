"""Every death of a process that Ray tells of has a kind, and only what is somebody's fault counts."""

import pytest

from sweeper.execution.ray.executor import process_death

CASES = [
    ("OutOfMemoryError", "Task was killed due to the node running low on memory.", "out_of_memory", True),
    (
        "TuneError",
        "Traceback\n1 worker(s) were killed due to the node running low on memory.\nRefer to",
        "out_of_memory",
        True,
    ),
    ("OutOfMemoryActorError", "1 worker(s) were killed: memory ran low.\nRefer to the docs", "out_of_memory", True),
    ("ActorDiedError", "The actor was killed by the memory monitor.", "out_of_memory", True),
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
    ("RayTaskError(FileNotFoundError)", "trace\nFileNotFoundError: '/mnt/preemptible/cifar10'", "error", True),
    ("RayTaskError(ValueError)", "trace\nValueError: low on memory of what was said", "error", True),
    ("ActorDiedError", "", "crash", True),
    ("KeyError", "", "error", True),
]


@pytest.mark.parametrize(("type_name", "message", "kind", "counts"), CASES)
def test_kinds(type_name: str, message: str, kind: str, counts: bool) -> None:
    failure = process_death(type_name, message)
    assert (failure.kind, failure.counts) == (kind, counts)
    assert "\n" not in failure.message


def test_a_page_of_advice_about_memory_becomes_its_first_line() -> None:
    message = "1 worker(s) were killed due to the node running low on memory (0.6)\nTop 10 users:\nRefer to the docs"
    assert process_death("OutOfMemoryActorError", message).message == message.splitlines()[0]


@pytest.mark.parametrize(("own", "held"), [("0.28", 0.01), ("14", 0.5), (None, 1.0)])
def test_ray_says_how_much_a_process_held(own: str | None, held: float) -> None:
    said = "" if own is None else f"pid=181, actual memory used={own}GB, worker ID=ab)\n"
    message = (
        "1 worker(s) were killed due to the node running low on memory.\n"
        f"Memory on the node (IP: 10.0.0.1, ID: ab) was 28.00GB used / 28.80GB limit (0.97)\n{said}Top 10 memory users"
    )
    failure = process_death("OutOfMemoryActorError", message)
    assert failure.kind == "out_of_memory" and failure.values["held"] == pytest.approx(held)
