"""Make Tune treat a process killed by Ray's memory monitor like any dead process.

Ray reads its environment when it is imported: call `sweeper.core.ray_environment.prepare` before this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.air.execution._internal import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune.execution import tune_controller


class OutOfMemoryActorError(RayActorError):
    """A trial's process was killed because its node ran out of memory."""


class _ActorManager(RayActorManager):
    """Tune's, for which a process that Ray's memory monitor killed is a dead one like others.

    Ray 2.60 gives its tasks an OutOfMemoryError, which is no RayActorError: Tune takes it for a fault of its own and
    ends the whole run.
    """

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            exception = OutOfMemoryActorError(error_msg=str(exception))
        super()._actor_task_failed(tracked_actor_task, exception)


@contextmanager
def memory_kills_end_trials() -> Iterator[None]:
    """Let Tune continue after Ray's memory monitor has killed a trial's process."""
    tune_controller.RayActorManager = _ActorManager
    try:
        yield
    finally:
        tune_controller.RayActorManager = RayActorManager
