"""Options of a run, as opposed to the search space, and how it ended; sweeps in which nothing is left to do.

These are detected quickly: no record is read, no table built, no process started. A driver that has brought everything
to its end leaves a mark with the sizes and times of all files that a resume would look into: the space, the manifest,
every journal record, every table file. While they are as they were, a resume would find nothing to run, to repair or
to log. Whatever has changed, be it by damage, a copy without times or another release, makes the mark void, and the
resume goes its whole way.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.core.ids import RECALIBRATIONS, SweepPaths
from sweeper.execution.driver.capacity import PATIENCE_SECONDS
from sweeper.journal.state import FAILED, SweepState
from sweeper.reporting.live import Progress, Timings
from sweeper.storage.lookup import find_sweep
from sweeper.storage.sweeps import Sweep
from sweeper.tracking.base import kind_of
from trainables.files.atomic import write_text
from trainables.files.regular import read_text
from trainables.worker.trial_reports import NON_FINITE


@dataclass(frozen=True)
class RunOptions:
    """How to run, as opposed to what.

    Attributes:
        output: the folder of results folders, or the address of a store for them.
        address: of a Ray cluster; `None` starts one on this machine.
        cpus: cores to use on this machine; `None` for all.
        executor: `local` for forked processes of this machine, `ray`, or `auto`: see `runner.chosen_executor`.
        tracker: the address of what the sweep is shown by, see `sweeper.tracking.base`; `None` for nothing.
        failed_too: on resume, run failed trials again.
        rehearse: scale the sweep down to minutes, see `sweeper.space.rehearsal`.
        discard_damaged: on resume, set the first damaged journal record and all later ones aside.
        settings: on resume, changes of what does not concern the measurements, see `sweeper.execution.attempt`.
        replicates: on resume, seeds that configurations are to have in all; `None` for no more than they have.
        trials: those configurations' trials, by index; empty for all that reached the last epoch.
        wait_for_nodes: seconds that an autoscaler has to start a first node that holds a trial.
        trust: on resume, run the code that came with the sweep's folder.
        progress: what shows the run while it lasts.
        timings: takes how long each phase takes.
    """

    output: str | Path
    address: str | None = None
    cpus: int | None = None
    tracker: str | None = None
    rehearse: bool = False
    failed_too: bool = False
    discard_damaged: bool = False
    settings: Sequence[str] = ()
    replicates: int | None = None
    trials: Sequence[int] = ()
    wait_for_nodes: float = PATIENCE_SECONDS
    trust: bool = False
    progress: type[Progress] = Progress
    executor: str = "auto"
    timings: Timings = field(default_factory=Timings)


def retriable(state: SweepState) -> int:
    """Return how many failed trials may end otherwise if retried; one that diverged diverges again."""
    return sum(trial.stop_kind != NON_FINITE for trial in state.trials.values() if trial.status == FAILED)


#: The mark's key of the tracker that has everything.
TRACKED = "tracker"

#: The mark's name, next to the generations of tables, of which it speaks.
MARK = "settled.json"


@dataclass(frozen=True)
class Settled:
    """A sweep whose trials have all ended and whose results are complete.

    Attributes:
        paths: of the sweep.
        counts: trials by status.
        seconds: how long it took to find that out.
        retriable: how many failed trials may end otherwise if retried.
        outcome: `finished`, `stopped` or `interrupted`.
        notes: things the user should know, one sentence each.
        unfinished: how many trials a resume would continue with.
    """

    paths: SweepPaths
    counts: Mapping[str, int]
    seconds: float = 0.0
    retriable: int = 0
    outcome: str = "finished"
    notes: Sequence[str] = ()
    unfinished: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome(Settled):
    """How a run ended, whose wall time `seconds` is, Ray's start included.

    Attributes:
        sweep: the sweep.
        state: of all trials.
    """

    sweep: Sweep
    state: SweepState


def mark_settled(paths: SweepPaths, counts: Mapping[str, int], tracker: str | None, retriable: int = 0) -> None:
    """Leave the mark; the caller holds the sweep's lease and has nothing left to do.

    Args:
        paths: of the sweep.
        counts: trials by status; none is unfinished.
        tracker: its address, which has everything; `None` where the sweep was not logged.
        retriable: how many failed trials may end otherwise if retried.
    """
    mark = {"files": _digest_of_files(paths), "counts": dict(counts), "retriable": retriable, TRACKED: _digest(tracker)}
    with suppress(OSError):  # without it the next resume looks for itself
        write_text(paths.generations / MARK, json.dumps(mark))


def settled(name: str, output: str | Path, *, failed_too: bool, tracker: str | None) -> Settled | None:
    """Return a sweep if a resume of it would find nothing to do; `None` where it has to look.

    Args:
        name: of the sweep, or its path.
        output: where it is, on this machine.
        failed_too: whether failed trials are to run again.
        tracker: its address, which has to have everything; `None` for no demand.

    Raises SweeperError when there is no such sweep.
    """
    began = time.monotonic()
    paths = find_sweep(name, output)
    try:
        mark = json.loads(read_text(paths.generations / MARK))
        counts = {str(status): int(count) for status, count in mark["counts"].items()}
        retriable = int(mark.get("retriable", 0))
        sound = mark["files"] == _digest_of_files(paths) and paths.report.is_file()
        logged = tracker is None or (mark[TRACKED] == _digest(tracker) and kind_of(tracker).is_there(tracker))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not (sound and logged) or (failed_too and counts.get("failed", 0)):
        return None
    return Settled(paths, counts, time.monotonic() - began, retriable=retriable)


def _digest_of_files(paths: SweepPaths) -> str:
    """Return a digest of the names, sizes and times of all files that a resume looks into, and of the tables' link."""
    first = f"{paths.root}\0{paths.tables.readlink()}\0"
    return hashlib.sha256("".join([first, *sorted(_lines(paths))]).encode()).hexdigest()


def _lines(paths: SweepPaths) -> Iterator[str]:
    tables = [entry.path for entry in os.scandir(paths.tables) if entry.name != RECALIBRATIONS]
    for folder in (str(paths.journal), *tables):
        for entry in os.scandir(folder):
            found = entry.stat()
            yield f"{folder}/{entry.name}\0{found.st_size}\0{found.st_mtime_ns}\0"
    for path in (paths.sweep_file, paths.manifest, paths.extensions):
        facts = (path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None
        yield f"{path.name}\0{facts}\0"


def _digest(tracker: str | None) -> str | None:
    """Return what is kept of an address, which may hold a password."""
    return None if tracker is None else hashlib.sha256(tracker.encode()).hexdigest()
