"""The choice of an executor: forked processes on this machine, or Ray."""

from __future__ import annotations

import sys

import torch

from sweeper.core.errors import SweeperError
from sweeper.execution.options import RunOptions
from sweeper.space.models import Resources


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
    return options.executor != "ray" and options.address is None and not on_cards and not _joined_already(options)


def _joined_already(options: RunOptions) -> bool:
    """Return whether the program around has joined a Ray cluster, which `auto` takes for its wish to use it."""
    ray = sys.modules.get("ray")
    return options.executor == "auto" and ray is not None and bool(ray.is_initialized())
