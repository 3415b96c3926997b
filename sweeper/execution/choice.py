"""The choice of an executor: forked processes on this machine, or Ray."""

from __future__ import annotations

import os
import sys

import torch

from sweeper.core.errors import SweeperError
from sweeper.execution.controllers.capacity import ClusterView, fit_resources
from sweeper.execution.local.executor import this_machine
from sweeper.execution.options import RunOptions
from sweeper.execution.ray.address import check_answers
from sweeper.space.parts import Resources


def runs_here(options: RunOptions, resources: Resources) -> bool:
    """Return whether trials run in forked processes of this machine, which saves Ray's start and its work on reports.

    By itself that is so where no cluster is named, none is joined already by this process, and trials take no GPUs:
    sharing cards is Ray's. Raises SweeperError when `local` is asked for and cannot be.
    """
    on_cards = torch.cuda.is_available() if resources.gpu == "auto" else resources.gpu > 0
    if options.executor == "local":
        if options.address is not None:
            raise SweeperError(
                f"the executor is local, but the cluster is {options.address}",
                "omit --executor local, or --address (and unset RAY_ADDRESS)",
            )
        if on_cards:
            raise SweeperError(
                f"resources.gpu = {resources.gpu}, and the local executor does not allocate GPUs",
                "omit --executor local, or train on the CPU: --set resources.gpu=0",
            )
    joined = options.executor == "auto" and _joined()  # which `auto` takes for the wish to use it
    return options.executor != "ray" and options.address is None and not on_cards and not joined


def check_can_start(options: RunOptions, resources: Resources, *, here: bool) -> None:
    """Raise SweeperError where it is plain beforehand that no trial can start: nobody answers, or none would fit.

    What only the cluster itself can tell is left to it.

    Args:
        options: of the run.
        resources: of a trial.
        here: whether trials run in forked processes of this machine.
    """
    if here:
        fit_resources(resources, this_machine(options.cpus))
    elif options.address is not None:
        check_answers(options.address)
    elif not _joined():
        cores, cards = options.cpus or os.cpu_count() or 1, torch.cuda.device_count()
        fit_resources(resources, ClusterView(({"CPU": float(cores), "GPU": float(cards)},)))


def _joined() -> bool:
    """Return whether the program around has joined a Ray cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
