"""The process that fills MLflow while a sweep runs, seen from the driver: started, waited for, left behind.

It is a separate process at low priority, which reads the journal: a slow or dead server can hold up nothing
but itself, and what it has not logged when the driver leaves, `sweeper sync` logs later.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from sweeper.core.ids import SweepPaths

LOWEST_PRIORITY = 19

SHARE_OF_TIME, SHORTEST_PATIENCE, LONGEST_PATIENCE = 0.05, 10.0, 30.0
"""The end of a sweep waits for a store that answers this share of the sweep's time, within these bounds in seconds.

For a store that does not answer it waits a few seconds at most: the process sees to that itself.
"""


def patience(seconds: float) -> float:
    """Return how long the end of a sweep that ran for `seconds` may wait for MLflow."""
    return min(max(SHARE_OF_TIME * seconds, SHORTEST_PATIENCE), LONGEST_PATIENCE)


def default_tracking_uri(output: Path) -> str:
    """Return the local store of the sweeps below `output`: one SQLite file."""
    return f"sqlite:///{(output / 'mlflow.db').resolve()}"


class MlflowFollower:
    """Starts the follower on entry; `wait` gives it time to finish; it never outlives the driver for long."""

    def __init__(self, paths: SweepPaths, tracking_uri: str | None) -> None:
        """Prepare to follow the sweep at `paths` into `tracking_uri`; `None` follows into nothing."""
        self._paths, self._uri = paths, tracking_uri
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MlflowFollower:
        """Start the process."""
        if self._uri is not None:
            # The address goes through the environment: it may hold a password, and arguments are public.
            environment = {**os.environ, "MLFLOW_TRACKING_URI": self._uri}
            command = [sys.executable, "-m", "sweeper.tracking.sync", str(self._paths.root), "--follow"]
            with self._paths.mlflow_log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*command, "--parent", str(os.getpid())],
                    env=environment,
                    stdin=subprocess.PIPE,  # held open for as long as there is more to come
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the driver; the follower ends when the journal does
                )
            os.setpriority(os.PRIO_PROCESS, self._process.pid, LOWEST_PRIORITY)
        return self

    def _tell_it_to_finish(self) -> None:
        """Close the pipe that the process reads: the end of the sweep, or of the driver, however that dies."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process if it is still there; after an error it has some seconds to say that trials ended."""
        self._tell_it_to_finish()
        if self._process is not None and self._process.poll() is None:
            try:
                self._process.wait(5 if kind is not None else 0)
                return
            except subprocess.TimeoutExpired:
                self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def wait(self, seconds: float) -> list[str]:
        """Give the process `seconds` to log what is left; return a sentence with the remedy if that was not enough."""
        if self._process is None:
            return []
        remedy = f"complete it with `sweeper sync {self._paths.in_commands}`"
        with contextlib.suppress(PermissionError):
            # Only root may take a low priority back; then it has the cores to itself by now anyway.
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 0)
        self._tell_it_to_finish()
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return [f"MLflow is incomplete after {seconds:.0f} s: {remedy}"]
        return [] if code == 0 else [f"MLflow is incomplete (see {self._paths.mlflow_log.name}): {remedy}"]
