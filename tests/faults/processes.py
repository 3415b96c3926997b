"""Finding and ending processes below one that a test started, by their ids; waiting for moments of a sweep."""

from __future__ import annotations

import glob
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sweeper.core.ids import SweepPaths
from sweeper.journal.segments import last_sequence
from tests.patience import patient

POLL_SECONDS = 0.001
FORKED = ("multiprocessing.forkserver", "tests.forked")
"""Forked processes keep the command line of the server that forked them."""


def below(ancestor: int, *names: str) -> list[int]:
    """Return the ids of the processes below `ancestor` whose command line holds one of `names`."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                lines[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # it ended while we looked
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])

    def descends(pid: int) -> bool:
        while pid in parents and pid != ancestor:
            pid = parents[pid]
        return pid == ancestor

    return [pid for pid, line in lines.items() if pid != ancestor and any(n in line for n in names) and descends(pid)]


def trial_processes(ancestor: int) -> list[int]:
    """Return the ids of the trial processes below `ancestor`, titled by Ray or forked without it."""
    servers = fork_servers(ancestor)
    forked = below(ancestor, *FORKED)
    return below(ancestor, "Trainable") + [pid for pid in forked if pid not in servers]


def fork_servers(ancestor: int) -> list[int]:
    """Return the ids of `ancestor`'s children that fork trial processes."""
    found = below(ancestor, *FORKED)
    return [pid for pid in found if _parent(pid) == ancestor]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def kill_ids(*pids: int) -> None:
    """SIGKILL processes by their ids; one that has ended already is no matter."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Moments:
    """Draws moments of a sweep by its progress, and waits for them: `draw` returns what was waited for, in words."""

    def __init__(self, paths: SweepPaths, seed: int, mlflow: Path | None = None, *, searched: bool = False) -> None:
        """Draw moments of the sweep in `paths`.

        Args:
            paths: of the sweep.
            seed: of the moments.
            mlflow: a file that changes whenever MLflow was written to.
            searched: whether a searcher suggests its configurations.
        """
        self._paths, self._random, self._mlflow = paths, random.Random(seed), mlflow
        self._searched = searched

    def draw(self, process: Running, timeout: float = 300) -> str | None:
        """Wait for a random moment; `None` when the process ends before it comes."""
        kinds = [("records", self._records), ("checkpoint written", self._checkpoint), ("table written", self._table)]
        if self._mlflow is not None:
            kinds += [("MLflow written", self._written)]
        if self._searched:
            kinds += [("configuration suggested", self._suggestion)] * 2
        kind, wait = self._random.choice(kinds)
        if kind == "records":
            count = self._random.randint(1, 6)
            reached = self._records(count)
            kind = f"{count} records further"
        else:
            reached = wait(1)
        if not until(reached, process, timeout):
            return None
        pause = self._random.choice([0.0, self._random.random() * 0.02, self._random.random() * 0.5])
        time.sleep(pause)
        return f"{kind} + {pause * 1000:.0f} ms"

    def _records(self, count: int) -> Callable[[], bool]:
        wanted = last_sequence(self._paths.journal) + count
        return lambda: last_sequence(self._paths.journal) >= wanted

    def _checkpoint(self, count: int) -> Callable[[], bool]:
        """Between the checkpoint and the record of its report: the report has not reached the driver yet."""
        return self._new_file(self._paths.checkpoints, "*/e*.pt", count)

    def _table(self, count: int) -> Callable[[], bool]:
        """Between an evaluation's predictions and its record."""
        return self._new_file(self._paths.generations, "incoming/predictions/c*.parquet", count)

    def _suggestion(self, count: int) -> Callable[[], bool]:
        """Between a suggestion's record and the start of its trial, or soon after."""
        return self._new_file(self._paths.journal, "*-suggested-*.json", count)

    def _written(self, count: int) -> Callable[[], bool]:
        """Between two writes to MLflow, or in the middle of one."""
        before = self._size()
        return lambda: self._size() != before

    def _size(self) -> tuple[int, int]:
        assert self._mlflow is not None
        found = self._mlflow.stat() if self._mlflow.exists() else None
        return (found.st_size, found.st_mtime_ns) if found else (0, 0)

    def _new_file(self, folder: Path, pattern: str, count: int) -> Callable[[], bool]:
        def found() -> set[str]:
            # `Path.glob` raises where a folder goes away meanwhile, as those of finished trials do.
            return set(glob.glob(pattern, root_dir=folder))  # noqa: PTH207

        before = found()
        return lambda: len(found() - before) >= count


def wait_until(reached: Callable[[], bool], timeout: float = 60) -> None:
    """Wait for something that comes soon; fails when it does not."""
    deadline = time.monotonic() + patient(timeout)
    while not reached():
        assert time.monotonic() < deadline, f"it did not come in {timeout} s"
        time.sleep(POLL_SECONDS)


class Running(Protocol):
    """A process that a test started."""

    def poll(self) -> int | None:
        """Return the exit code; `None` while it runs."""


def until(reached: Callable[[], bool], process: Running, timeout: float) -> bool:
    """Wait for something; return whether it came before the process ended. Fails when it does not come in time."""
    deadline = time.monotonic() + patient(timeout)
    while not reached():
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            raise AssertionError(f"nothing moved for {timeout} s")
        time.sleep(POLL_SECONDS)
    return True
