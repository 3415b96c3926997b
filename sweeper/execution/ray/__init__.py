"""Ray: sessions, the executor, and the view of the cluster."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager

import torch

from sweeper.core.processes import prepare
from sweeper.execution.driver.capacity import ClusterView, check_answers, fit_resources
from sweeper.execution.driver.executor import Executor, Job, Session
from sweeper.space.parts import Resources


def joined() -> bool:
    """Return whether the program around has joined a Ray cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class RayExecutor(Executor):
    """Ray: a cluster, or one that is started on this machine."""

    name = "ray"

    def check(self, resources: Resources) -> None:
        """Raise SweeperError where nobody answers at the cluster's address, or no trial fits on this machine."""
        if self.options.address is not None:
            check_answers(self.options.address)
        elif not joined():
            cores, cards = self.options.cpus or os.cpu_count() or 1, torch.cuda.device_count()
            fit_resources(resources, ClusterView(({"CPU": float(cores), "GPU": float(cards)},)))

    def session(self, job: Job) -> AbstractContextManager[Session]:
        """Start or join Ray, give what its nodes have, and leave Ray."""
        prepare(self.options.address)
        # Ray reads its environment when it is imported, and importing it takes a second that other commands save.
        from sweeper.execution.ray.session import session_on

        return session_on(self.options, job)


EXECUTOR = RayExecutor
