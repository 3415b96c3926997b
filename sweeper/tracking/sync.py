"""Filling a tracker from the journal: a process that follows a running sweep, and `sync` for any other time.

Nothing here can hold up a sweep: the follower is a separate process at low priority, the driver waits for it no
longer than it chooses to, and what a dead or slow server kept it from writing is written by `sync`.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import stat
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.display import redact
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.journal.segments import last_sequence
from sweeper.storage.lease import holder
from sweeper.storage.lookup import refuse_odd_files
from sweeper.tracking.follower import ADDRESS_VARIABLE
from sweeper.tracking.projection import Projection, Watchdog, seconds_waited, sentence

#: The follower reads the journal this often, or less often when a pass takes long.
PASS_SECONDS = 2.0

#: A pass may take this share of the follower's time, in which waiting for a processor does not count: at low priority
#: beside busy cores a pass of two seconds takes half a minute, and a pause of three such would leave all to the end.
SHARE_OF_TIME = 0.25

#: After an error the follower waits 1, 2, 4 … seconds, at most this long.
LONGEST_PAUSE = 30.0

#: So often `sync` tries to reach the store.
SYNC_TRIES = 4

#: Once the sweep is over the follower leaves after so many failures in a row, those before the end included.
LAST_TRIES = 2

_log = logging.getLogger("sweeper.tracking")


@dataclass(frozen=True)
class SyncReport:
    """What a `sync` did: runs written to, points sent, seconds it took, and the tracker's address without secrets."""

    sweep: str
    tracker: str
    store: str
    runs: int
    points: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.sweep}: {self.points} points of {self.runs} runs written to {self.store} "
            f"in {self.seconds:.1f} s; {self.tracker} is complete"
        )


def sync(root: Path, uri: str) -> SyncReport:
    """Make a tracker equal to a sweep's journal and return what was done. Safe to repeat: points are never doubled.

    Raises SweeperError when it cannot be reached, the journal is damaged or empty, or a follower is at work.
    """
    began = time.monotonic()
    refuse_odd_files(SweepPaths(root))
    projection = Projection(root, uri)
    with projection.alone(patience=2.0):
        for tried in range(1, SYNC_TRIES + 1):
            try:
                projection.prepare()
                if not projection.begin():
                    raise SweeperError(f"the sweep {projection.paths.name!r} has no journal yet", "start it first")
                projection.advance(last=True, abandoned=holder(projection.paths.lease) is None)
                projection.attach()
                break
            except projection.kind.errors() as error:
                if tried == SYNC_TRIES:
                    raise SweeperError(
                        f"cannot write to {projection.kind.name} at {redact(uri)}: {sentence(error)}",
                        "start the server or correct --tracking-uri, then sync again; nothing is lost",
                    ) from error
                time.sleep(2.0 ** (tried - 1))
    seconds = time.monotonic() - began
    name, tracker = projection.paths.name, projection.kind.name
    return SyncReport(name, tracker, redact(uri), projection.runs, projection.points, seconds)


def follow(root: Path, uri: str, driver: Driver) -> bool:
    """Follow a sweep until its driver has left; return whether everything was written.

    Args:
        root: the sweep's folder.
        uri: of the tracking store.
        driver: tells whether it is still there.
    """
    projection = Projection(root, uri, Watchdog(over=lambda: not driver.wait(0.0)))
    newest_before = last_sequence(projection.paths.journal)
    with projection.alone(patience=60.0):
        failures, pause, ready, begun, troubled = 0, 0.0, False, False, False
        over: float | None = None
        while True:
            leaving = not driver.wait(pause)
            began = _at_work()
            if leaving and over is None:
                over = time.process_time()
            try:
                if not ready:
                    projection.prepare()
                    ready = True
                # A request that timed out may have been carried out since: at the end the store is asked once more.
                begun = (begun and not (leaving and troubled)) or projection.begin()
                if begun:
                    projection.advance(last=leaving)
                    projection.watch_machine()
                ended = begun and projection.ended_at > newest_before
                leaving = leaving or (ended and not driver.announces)
                if leaving:
                    if ended:
                        projection.attach()
                    elif begun:
                        projection.advance(abandoned=True)
                    spent = time.process_time()
                    _log.info(
                        "complete: %d points in %.1f s of processor time, %.1f s of them after the sweep",
                        projection.points, spent, spent - (over if over is not None else spent),
                    )  # fmt: skip
                    return True
                failures, pause = 0, max(PASS_SECONDS, (_at_work() - began) * (1 / SHARE_OF_TIME - 1))
            except projection.kind.errors() as error:
                failures, ready, begun, troubled = failures + 1, False, False, True
                pause = 1.0 if leaving else min(2.0 ** (failures - 1), LONGEST_PAUSE)
                _log.warning("%s at %s: %s (failure %d)", projection.kind.name, redact(uri), sentence(error), failures)
                if leaving and failures >= LAST_TRIES:
                    return False


def _at_work() -> float:
    """Return a clock that stands still while this thread could compute and gets no processor."""
    return seconds_waited(threading.get_native_id()) + time.thread_time()


class Driver:
    """Whether the driver is still there: its process lives, and it holds the pipe to our standard input open.

    A driver with such a pipe closes it when the tables and the report are complete (`announces`); without one, the
    follower leaves as soon as the sweep's end is in the journal.
    """

    def __init__(self, parent: int | None) -> None:
        """Watch process `parent`, our own parent; `None` watches the pipe alone."""
        self._parent = parent
        self.announces = stat.S_ISFIFO(os.fstat(0).st_mode)
        self._gone = False

    def wait(self, seconds: float) -> bool:
        """Let `seconds` pass, or less when the driver leaves; return whether it is still there."""
        if self._gone:
            time.sleep(seconds)
            return False
        if self.announces:
            readable, _, _ = select.select([0], [], [], seconds)
            self._gone = bool(readable) and not os.read(0, 1)
        else:
            time.sleep(seconds)
        self._gone = self._gone or (self._parent is not None and os.getppid() != self._parent)
        return not self._gone


def main(arguments: list[str] | None = None) -> int:
    """Run the follower: `python -m sweeper.tracking.sync FOLDER --follow [--uri URI] [--parent PID]`."""
    parser = argparse.ArgumentParser(prog="sweeper.tracking.sync", description="Write a sweep's journal to a tracker.")
    parser.add_argument("root", type=Path, help="the sweep's results folder")
    parser.add_argument("--uri", default=None, help=f"the tracker's address (default: {ADDRESS_VARIABLE})")
    parser.add_argument("--follow", action="store_true", help="run until the driver exits")
    parser.add_argument("--parent", type=int, default=None, help="the driver's process id")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    uri = options.uri or os.environ.get(ADDRESS_VARIABLE)
    try:
        if not uri:
            raise SweeperError("no tracker was named", f"give --uri or set {ADDRESS_VARIABLE}")
        if options.follow:
            return 0 if follow(options.root, uri, Driver(options.parent)) else 1
        _log.info("%s", sync(options.root, uri))
    except SweeperError as error:
        _log.error("%s", redact(str(error)))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
