"""Ray: sessions, the executor, and the view of the cluster."""

from __future__ import annotations

import os
import sys

import torch

from sweeper.core.processes import prepare
from sweeper.execution.controllers.capacity import ClusterView, check_answers, fit_resources
from sweeper.execution.driver.executor import Executor, ExecutorKind, RunsOn
from sweeper.space.parts import Resources


def joined() -> bool:
    """Return whether the program around has joined a Ray cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _create(options: RunsOn, server: object) -> Executor:
    prepare(options.address)
    # Ray reads its environment when it is imported, and importing it takes a second that other commands save.
    from sweeper.execution.ray.session import RayExecutor

    return RayExecutor(options.address, options.cpus, options.wait_for_nodes)


def _check(options: RunsOn, resources: Resources) -> None:
    if options.address is not None:
        check_answers(options.address)
    elif not joined():
        cores, cards = options.cpus or os.cpu_count() or 1, torch.cuda.device_count()
        fit_resources(resources, ClusterView(({"CPU": float(cores), "GPU": float(cards)},)))


EXECUTOR = ExecutorKind("ray", _create, check=_check)
