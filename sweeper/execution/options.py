"""Options of a run, its outcome, and quick detection of sweeps that have nothing left to do.

Detection reads no record, builds no table and starts no process. A driver that completes a sweep leaves a mark with the
sizes and times of all files that a resume would read: the space, the manifest, every journal record, every table file.
While these files are unchanged, a resume would find nothing to run, repair or log. Any change, such as damage, a copy
without times or another release, invalidates the mark, and the resume runs in full.
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
from trainables.files.atomic import read_text, write_text
from trainables.worker.trial_reports import NON_FINITE


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that are not part of the search space.

    Attributes:
        output: Folder of results folders, or the address of a store.
        address: Address of a Ray cluster; `None` starts one on this machine.
        cpus: Cores to use on this machine; `None` for all.
        executor: `local` for forked processes on this machine, `ray`, or `auto`; see `runner.chosen_executor`.
        tracker: Address of the tracker, see `sweeper.tracking.base`; `None` for none.
        failed_too: On resume, run failed trials again.
        rehearse: Scale the sweep down to minutes, see `sweeper.space.rehearsal`.
        discard_damaged: On resume, quarantine the first damaged journal record and all later ones.
        settings: On resume, overrides that do not affect measurements, see `sweeper.storage.sweeps.amended`.
        replicates: On resume, the total number of seeds per configuration; `None` adds none.
        trials: Indices of the trials that get these seeds; empty for all that reached the last epoch.
        wait_for_nodes: Seconds to wait for an autoscaler to start the first node that fits a trial.
        trust: On resume, run the code that came with the sweep's folder.
        progress: Class that displays the run.
        timings: Recorder of each phase's duration.
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
    """Return the number of failed trials that could succeed in a retry."""
    # A trial that diverged would diverge again: a retry uses the same random numbers.
    return sum(trial.stop_kind != NON_FINITE for trial in state.trials.values() if trial.status == FAILED)


#: Key of the mark with the tracker that is up to date.
TRACKED = "tracker"

#: File name of the mark, in the folder of the tables' generations.
MARK = "settled.json"


@dataclass(frozen=True)
class Settled:
    """A sweep whose trials have all ended and whose results are complete.

    Attributes:
        paths: Paths of the sweep.
        counts: Number of trials by status.
        seconds: Duration of the check.
        retriable: Number of failed trials that a retry could mend.
        outcome: `finished`, `stopped` or `interrupted`.
        notes: Remarks for the user, one sentence each.
        unfinished: Number of trials that a resume would continue.
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
    """Outcome of a run; `seconds` is its wall time, including Ray's start.

    Attributes:
        sweep: The sweep.
        state: State of all trials.
    """

    sweep: Sweep
    state: SweepState


def mark_settled(paths: SweepPaths, counts: Mapping[str, int], tracker: str | None, retriable: int = 0) -> None:
    """Write the mark; the caller holds the sweep's lease and has nothing left to do.

    Args:
        paths: Paths of the sweep.
        counts: Number of trials by status; none is unfinished.
        tracker: Address of the tracker, which is up to date; `None` if the sweep was not logged.
        retriable: Number of failed trials that a retry could mend.
    """
    mark = {"files": _digest_of_files(paths), "counts": dict(counts), "retriable": retriable, TRACKED: _digest(tracker)}
    with suppress(OSError):  # without the mark, the next resume runs in full
        write_text(paths.generations / MARK, json.dumps(mark))


def settled(name: str, output: str | Path, *, failed_too: bool, tracker: str | None) -> Settled | None:
    """Return a sweep if a resume would find nothing to do; `None` if only a full resume can tell.

    Args:
        name: Name or path of the sweep.
        output: Folder of the sweep on this machine.
        failed_too: Whether failed trials are run again.
        tracker: Address of a tracker that must be up to date; `None` for none.

    Raises SweeperError if there is no such sweep.
    """
    began = time.monotonic()
    paths = find_sweep(name, output)
    try:
        mark = json.loads(read_text(paths.generations / MARK))
        counts = {str(status): int(count) for status, count in mark["counts"].items()}
        retriable = int(mark.get("retriable", 0))
        sound = mark["files"] == _digest_of_files(paths) and paths.report.is_file()
        logged = tracker is None or (mark[TRACKED] == _digest(tracker) and kind_of(tracker).is_there(tracker))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no mark, or an invalid one: resume in full
        return None
    if not (sound and logged) or (failed_too and counts.get("failed", 0)):
        return None
    return Settled(paths, counts, time.monotonic() - began, retriable=retriable)


def _digest_of_files(paths: SweepPaths) -> str:
    """Return a digest of the names, sizes and times of all files that a resume reads, and of the tables' link."""
    first = f"{paths.root}\0{paths.tables.readlink()}\0"
    return hashlib.sha256("".join([first, *sorted(_lines(paths))]).encode()).hexdigest()


def _lines(paths: SweepPaths) -> Iterator[str]:
    tables = [entry.path for entry in os.scandir(paths.tables) if entry.name != RECALIBRATIONS]
    for folder in (str(paths.journal), *tables):
        for entry in os.scandir(folder):
            status = entry.stat()
            yield f"{folder}/{entry.name}\0{status.st_size}\0{status.st_mtime_ns}\0"
    for path in (paths.sweep_file, paths.manifest, paths.extensions):
        facts = (path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None
        yield f"{path.name}\0{facts}\0"


def _digest(tracker: str | None) -> str | None:
    """Return the hash of an address, which may contain a password; `None` for none."""
    return None if tracker is None else hashlib.sha256(tracker.encode()).hexdigest()
