"""Ray: sessions, the executor, and the view of the cluster."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager

import torch

from sweeper.core.processes import prepare
from sweeper.execution.driver.capacity import ClusterView, check_answers, fit_resources
from sweeper.execution.driver.executor import Executor, Job, Session
from sweeper.space.spec import Resources


def joined() -> bool:
    """Return whether this process has joined a Ray cluster."""
    # Do not import Ray, which takes a second: a process that has joined has imported it.
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class RayExecutor(Executor):
    """Runs trials on a Ray cluster, or on one that it starts on this machine."""

    name = "ray"

    def check(self, resources: Resources) -> None:
        """Raise SweeperError if nothing answers at the cluster's address, or no trial fits on this machine."""
        if self.options.address is not None:
            check_answers(self.options.address)
        elif not joined():
            cores, gpus = self.options.cpus or os.cpu_count() or 1, torch.cuda.device_count()
            fit_resources(resources, ClusterView(({"CPU": float(cores), "GPU": float(gpus)},)))

    def session(self, job: Job) -> AbstractContextManager[Session]:
        """Start or join Ray, yield a session with its nodes' resources, and leave Ray."""
        prepare(self.options.address)
        # Ray reads its environment when it is imported, and importing it takes a second that other commands save.
        from sweeper.execution.ray.session import session_on

        return session_on(self.options, job)


EXECUTOR = RayExecutor
