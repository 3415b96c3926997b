"""Runs a sweep some of whose trials misbehave: `python -m tests.faults.misbehaving KIND SPACE CPUS EXECUTOR`.

The whole service runs as by `sweeper run`; only the trials' class is a child of its own, whose configuration 1 does in
its second epoch what KIND says.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.core.ids import SweepPaths
from tests.patience import patient

BAD = 1
"""The configuration that misbehaves."""

GREEDY_BYTES = 5 * 2**30


def wait_for_ever(configuration: int) -> None:
    """As a data loader's deadlock."""
    import threading

    threading.Event().wait()


def lock_up(configuration: int) -> None:
    """As a deadlock inside a library: nothing in Python can interrupt it."""
    import ctypes

    lock, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    for _ in range(2):
        library.pthread_mutex_lock(lock)


def devour(configuration: int) -> None:
    """Take memory, a little at a time, and keep it."""
    import time

    held = []
    for _ in range(GREEDY_BYTES // 2**25):
        held.append(bytearray(b"x") * 2**25)
        time.sleep(0.04)
    time.sleep(60)


MOST_LANES = 4


def crowd(configuration: int) -> None:
    """Memory suffices for `MOST_LANES` lanes: only cohorts meet that."""


KINDS = {"crowd": crowd, "wait_for_ever": wait_for_ever, "lock_up": lock_up, "devour": devour}


def misbehave_here(kind: str) -> None:
    """Let the trials of this process misbehave."""
    from trainables.training.lanes.cohort import Cohort
    from trainables.worker import hang_watchdog
    from trainables.worker.trial import Trial

    hang_watchdog.INTERRUPT_SECONDS = 1.0
    train, do = Trial._train_epoch, KINDS[kind]

    def train_or_misbehave(trial: Trial) -> Any:
        if trial.assignment.configuration == BAD and trial.epoch == 1:
            do(BAD)
        return train(trial)

    Trial._train_epoch = train_or_misbehave  # type: ignore[method-assign]
    if kind == "crowd":
        together = Cohort.train_epoch

        def train_few(cohort: Cohort) -> Any:
            if len(cohort.lanes) > MOST_LANES:
                raise MemoryError
            return together(cohort)

        Cohort.train_epoch = train_few  # type: ignore[method-assign]


def misbehaving(kind: str) -> type:
    """Return the trials' class on Ray; a class made in a function travels to the workers as it is."""
    from trainables.worker.trainable import SweepTrainable

    class Misbehaving(SweepTrainable):
        def setup(self, config: Mapping[str, Any], **given: Any) -> None:
            from tests.faults.misbehaving import misbehave_here

            misbehave_here(kind)
            super().setup(config, **given)

    return Misbehaving


def misbehave(
    kind: str,
    space: Path,
    folder: Path,
    *,
    cpus: int,
    executor: str = "local",
    environment: Mapping[str, str] | None = None,
) -> SweepPaths:
    """Run a sweep with one trial that misbehaves, in a process of its own, to its end; return its paths."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.misbehaving", kind, str(space), str(cpus), executor],
        cwd=folder,
        env={**os.environ, **(environment or {}), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=patient(280),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "finished", done.stdout
    return SweepPaths(folder / "results" / "s")


def main() -> None:
    """Run the sweep."""
    kind, space, cpus, executor = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    from sweeper.core.processes import prepare
    from sweeper.execution.options import RunOptions
    from sweeper.execution.runner import run_sweep

    if executor == "ray":
        prepare(None)
        from sweeper.execution.ray import session as on_ray

        on_ray.execute = functools.partial(on_ray.execute, trainable=misbehaving(kind))
        print(run_sweep(space, [], "s", RunOptions(Path("results"), cpus=cpus, executor="ray")).outcome)
        return
    # The server that forks trial processes starts Python anew, with this process's path: what lies there first is run.
    with tempfile.TemporaryDirectory() as folder:
        start = f"from tests.faults.misbehaving import misbehave_here\nmisbehave_here({kind!r})\n"
        Path(folder, "sitecustomize.py").write_text(start)
        sys.path.insert(0, folder)
        print(run_sweep(space, [], "s", RunOptions(Path("results"), cpus=cpus, executor="local")).outcome)


if __name__ == "__main__":
    main()
