"""Time the scheduler's decisions alone: simulated trials through asynchronous halving, beside Ray Tune's own.

Run with `make bench-scheduler`. Both see the same stream of reports in the same run; nothing is trained. A second
run with ten times fewer trials tells how the time grows with the length of a rung: Ray's class sorts every value it
has seen at each report, this one keeps them in order, so its 100,000 trials take less than Ray's 10,000.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from sweeper.scheduling.asha import Halving
from tests.sweeper.simulated_halving import simulate

HALVING = Halving("val_nll", "min", 27, 3, 3)
REPEATS = 3


def ray_reports(trials: int, seed: int) -> None:
    """Give Ray's bracket one report of every trial at the first rung, in random order."""
    from ray.tune.schedulers.async_hyperband import _Bracket

    bracket = _Bracket(HALVING.grace_epochs, HALVING.max_epochs, HALVING.reduction_factor, 0)
    for index, value in enumerate(np.random.default_rng(seed).standard_normal(trials)):
        bracket.on_result(SimpleNamespace(trial_id=index), HALVING.grace_epochs, float(value))


def own_reports(trials: int, seed: int) -> None:
    """The same reports through this project's decisions."""
    from sweeper.scheduling.base import decide

    rungs = HALVING.begin()
    for index, value in enumerate(np.random.default_rng(seed).standard_normal(trials)):
        decide(rungs, index, HALVING.grace_epochs, -float(value))
        rungs.add(HALVING.grace_epochs, index, -float(value))


def timed(work: Callable[[int], object]) -> list[float]:
    """Return the seconds of `REPEATS` calls, each with a seed of its own."""
    seconds = []
    for seed in range(REPEATS):
        began = time.perf_counter()
        work(seed)
        seconds.append(time.perf_counter() - began)
    return seconds


def line(name: str, seconds: list[float]) -> str:
    """Return a measurement in words."""
    spread = f"{min(seconds):.2f}–{max(seconds):.2f}"
    return f"{name:62s} {statistics.median(seconds):8.2f} s  (n = {len(seconds)}, {spread} s)"


def main() -> None:
    """Print the times and ratios."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    tenth = max(1, trials // 10)
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}")
    for count in (tenth, trials):
        whole = timed(lambda seed, count=count: simulate(HALVING, count, workers=256, seed=seed))  # type: ignore[misc]
        print(line(f"{count} simulated trials on 256 workers, rungs 3/9/27", whole))
    own = timed(lambda seed: own_reports(tenth, seed))
    ray = timed(lambda seed: ray_reports(tenth, seed))
    print(line(f"{tenth} reports at one rung, this project", own))
    print(line(f"{tenth} reports at one rung, Ray's bracket", ray))
    print(f"ratio of the medians, Ray / this project: {statistics.median(ray) / statistics.median(own):.0f}")


if __name__ == "__main__":
    main()
