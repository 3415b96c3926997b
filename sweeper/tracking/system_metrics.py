"""How busy this machine is while a sweep runs, as MLflow's system metrics of the sweep's own run; on request.

MLflow's own switch turns them on (`MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=true`), its own variable says how often. They
are of the machine with the driver; Prometheus has those of a cluster's nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from sweeper.tracking.base import Point

SWITCH, INTERVAL = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"
DEFAULT_INTERVAL = 10.0
"""Seconds; MLflow's own default."""

MOST_SAMPLES = 500
"""After so many samples in a run the interval doubles, so that a week has a few thousand."""

MEGABYTE = 1e6


class SystemMetrics:
    """Samples of this machine, until somebody takes them."""

    def __init__(self, folder: Path, interval: float, clock: Callable[[], float] = time.time) -> None:
        """Begin; the first sample is due one interval later.

        Args:
            folder: whose disk is looked at.
            interval: seconds between samples.
            clock: seconds since 1970.
        """
        self._folder, self._interval, self._clock = folder, interval, clock
        self._due = clock() + interval
        self._count = 0
        self._points: list[Point] = []
        psutil.cpu_percent()  # the share is of the time since the last call

    def take(self) -> list[Point]:
        """Return the points since the last call, with a sample of now if one is due."""
        now = self._clock()
        if now >= self._due:
            self._points += [Point(f"system/{k}", v, round(now * 1000), self._count) for k, v in self._sample().items()]
            self._count += 1
            if self._count % MOST_SAMPLES == 0:
                self._interval *= 2
            self._due = now + self._interval
        points, self._points = self._points, []
        return points

    def _sample(self) -> dict[str, float]:
        memory = psutil.virtual_memory()
        return {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_percentage": psutil.disk_usage(str(self._folder)).percent,
            **_cards(),
        }


def _cards() -> dict[str, float]:
    """Return how busy each NVIDIA card is; nothing without a driver or without `nvidia-ml-py`."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        found: dict[str, float] = {}
        for number, handle in enumerate(handles):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            found[f"gpu_{number}_utilization_percentage"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
            found[f"gpu_{number}_memory_usage_percentage"] = 100 * memory.used / memory.total
        return found
    except Exception:
        # The library has an error for each way in which a driver can be missing.
        return {}


def requested(folder: Path) -> SystemMetrics | None:
    """Return the samples of this machine where the environment asks for them."""
    if os.environ.get(SWITCH, "").lower() not in ("true", "1"):
        return None
    return SystemMetrics(folder, float(os.environ.get(INTERVAL) or DEFAULT_INTERVAL))
