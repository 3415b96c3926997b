"""Measuring how much of a GPU a configuration takes, in a process of Ray's that has one to itself.

Ray reads its environment when it is imported: call `sweeper.core.processes.prepare` before this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from trainables.worker.gpu_memory import CardProbe

PROBE_PATIENCE_SECONDS = 120.0
"""How long a GPU for measuring may take to come, and a measurement: some steps and one evaluation take seconds."""


@contextmanager
def card_probe(
    settings: Mapping[str, Any], cpus: float, measurer: type = CardProbe
) -> Iterator[Callable[[Sequence[Any]], dict[str, Any] | None]]:
    """Give what measures an assignment's memory in a process that has a GPU to itself; it ends with this.

    What is given returns `None` where no GPU could be had within `PROBE_PATIENCE_SECONDS`, or the measurement failed:
    whatever is the matter, trials will meet it themselves and tell.

    Args:
        settings: `trainables.worker.trial_settings.TrialSettings` as plain values.
        cpus: for the process.
        measurer: what runs in it.
    """
    processes: list[Any] = []
    in_vain = False

    def probe(assignment: Sequence[Any]) -> dict[str, Any] | None:
        nonlocal in_vain
        if in_vain:
            return None
        try:
            if not processes:
                processes.append(ray.remote(num_gpus=1, num_cpus=cpus)(measurer).remote(dict(settings)))
                ray.get(processes[0].__ray_ready__.remote(), timeout=PROBE_PATIENCE_SECONDS)
            return dict(ray.get(processes[0].measure.remote(list(assignment)), timeout=PROBE_PATIENCE_SECONDS))
        except RayError as error:
            in_vain = isinstance(error, GetTimeoutError)
            return None

    try:
        yield probe
    finally:
        for process in processes:
            ray.kill(process)
