"""The mirror of a running sweep in a store: uploads the driver's files, downloads the trials' files.

The journal is put at once (`sweeper.storage.store_journal`). Everything else follows in a separate thread, so that a
slow store never holds up a decision: tables and files go up, trials' small tables come down, predictions are published
where they are, many journal objects become one, and a request to stop in the store is passed on. What
a failing store leaves behind is put at the sweep's end. The lease has a thread of its own: none of this can silence it.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import Journal
from sweeper.journal.segments import last_sequence
from sweeper.storage.lease import LeaseLostError, StoreLease
from sweeper.storage.places import Place, fetch, objects
from sweeper.storage.store_journal import JOURNAL, StoredJournal
from sweeper.tables.large_tables import StoreArrivals
from trainables.files.stores.base import StoreError
from trainables.files.stores.object_store import Store, patiently
from trainables.worker.checkpoints import CHECKPOINTS, INCOMING

TURN_SECONDS = 1.0

#: Tables and files are put this often, or less often when it takes long.
PUSH_SECONDS = 10.0

SHARE_OF_TIME = 0.25

STOP = "stop"

_log = logging.getLogger("sweeper.storage")


class SharedFolder:
    """A sweep whose folder all its machines share: there is nothing to mirror."""

    store: Store | None = None
    arrivals: StoreArrivals | None = None

    def __init__(self, paths: SweepPaths) -> None:
        """Stand in for a mirror of the sweep in `paths`."""
        self._paths = paths
        self.address = paths.name

    def __enter__(self) -> SharedFolder:
        """Begin."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End."""

    #: Whether this driver has the sweep.
    held = True

    def journal(self, *, alone: bool = True) -> Journal:
        """Open the sweep's journal for appending; see there for `alone`."""
        return Journal(self._paths.journal, alone=alone)

    def remove_checkpoints(self, place: str, *, now: bool = False) -> None:
        """Remove the checkpoints of a trial (`c00007`) or of one of its replicates (`c00007/r1`)."""
        shutil.rmtree(self._paths.checkpoints / place, ignore_errors=True)

    def trials_with_checkpoints(self) -> set[str]:
        """Return the names of the trials that have checkpoints."""
        return {*os.listdir(self._paths.checkpoints)} if self._paths.checkpoints.is_dir() else set()

    def set_aside(self, names: Sequence[str]) -> None:
        """Do nothing: damaged records are quarantined in the folder itself."""

    def collect(self) -> None:
        """Do nothing: everything is here."""

    def require(self) -> None:
        """Return: the folder's lock falls with its driver alone."""

    def complete(self, *, ended: bool = False) -> None:
        """Everything is there."""


def mirror_of(paths: SweepPaths, place: Place) -> Mirror | SharedFolder:
    """Return the mirror of the sweep in `paths` to its place's store, or its stand-in where there is none."""
    return Mirror(paths, place.store.child(paths.name)) if place.store is not None else SharedFolder(paths)


class Mirror:
    """Keeps one sweep's store and its driver's folder equal while a driver runs."""

    def __init__(self, paths: SweepPaths, store: Store) -> None:
        """Prepare to mirror the sweep in the folder `paths` to `store`, the sweep's own."""
        self.store: Store = store
        self.address = store.uri
        self.arrivals = StoreArrivals(store, paths.generations / INCOMING)
        self._paths = paths
        self._lease = StoreLease(store, paths.name)
        self._journal: StoredJournal | None = None
        self._lock, self._pushing = threading.Lock(), threading.Lock()
        self._removed: list[str] = []
        self._put: dict[str, tuple[int, int]] = {}
        self._tags: dict[str, str] = {}
        self._pushed, self._pause = 0.0, 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._turns, name="mirror", daemon=True)

    def __enter__(self) -> Mirror:
        """Take the lease, make the folder equal to the store, and begin. Raises SweeperError, or StoreError."""
        self._lease.take()
        self._lease.start()
        try:
            patiently(self._open)
        except BaseException:
            self._lease.release()
            raise
        self._put = {name: _facts(path) for name, path in objects(self._paths).items()}
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the thread and release the lease."""
        self._ended.set()
        self._thread.join()
        try:
            self._push()
            self._lease.release()
        except (StoreError, LeaseLostError) as reason:
            _log.warning("%s", reason)

    def _open(self) -> None:
        """Make store and folder equal. Raises SweeperError, or StoreError."""
        if self._paths.sweep_file.exists() and not self.store.exists(self._paths.sweep_file.name):
            self.store.put_all(dict(objects(self._paths)))
        self.store.delete([STOP])
        found = fetch(self.store, self._paths.root)
        self._tags = {name: entry.tag for name, entry in found.items()}
        self.arrivals.begin(found)

    @property
    def held(self) -> bool:
        """Whether this driver took the sweep, and no other has taken it since."""
        return self._lease.held and not self._lease.lost

    def journal(self, *, alone: bool = True) -> Journal:
        """Open the sweep's journal for appending; its records are this driver's own by its term."""
        self._journal = StoredJournal(self._paths.journal, self.store, self._lease)
        return self._journal

    def require(self) -> None:
        """Raise LeaseLostError once another driver is known to have taken the sweep over; the store is not asked."""
        if self._lease.lost:
            self._lease.require()

    def remove_checkpoints(self, place: str, *, now: bool = False) -> None:
        """Remove the checkpoints of a trial or of one of its replicates from the store: at once, or soon."""
        with self._lock:
            self._removed.append(place)
        if now:
            self._remove_checkpoints()

    def trials_with_checkpoints(self) -> set[str]:
        """Return the names of the trials that have checkpoints in the store."""
        return {name.split("/")[1] for name in patiently(lambda: self.store.entries(CHECKPOINTS))}

    def set_aside(self, names: Sequence[str]) -> None:
        """Quarantine in the store the records that were quarantined in the folder: a new term leaves them out."""
        if names:
            kept = {f"{JOURNAL}/{name}.damaged": self._paths.journal / f"{name}.damaged" for name in names}
            patiently(lambda: self.store.put_all(dict(kept)))
            patiently(lambda: self._lease.begin_again(last_sequence(self._paths.journal) + 1))

    def collect(self) -> None:
        """Download or publish all requested tables now. Raises SweeperError when the store cannot be reached."""
        self._do_all(self.arrivals.fetch, self._publish_kept)

    def complete(self, *, ended: bool = False) -> None:
        """Make the store equal to the folder, now. Raises SweeperError when it cannot be reached.

        Once all trials have ended, what they left behind without its ever being journaled is removed.
        """
        self._do_all(self._remove_checkpoints, self._publish_kept, self._push, self._put_what_differs)
        if ended:
            self._do_all(lambda: self.store.delete(self.store.entries(INCOMING)))

    def _do_all(self, *works: Callable[[], None]) -> None:
        """Do one after the other, each patiently. Raises SweeperError when the store cannot be reached."""
        try:
            for work in works:
                patiently(work)
        except StoreError as error:
            remedy = f"{error.remedy}; then `sweeper resume {self.store.uri}` completes what is missing"
            raise SweeperError(error.message, remedy) from error

    def _turns(self) -> None:
        while not self._ended.wait(TURN_SECONDS):
            try:
                if self._lease.lost:
                    return
                if self.store.exists(STOP):
                    self._paths.stop_marker.touch()
                    self.store.delete([STOP])
                self.arrivals.fetch()
                self._publish_kept()
                self._remove_checkpoints()
                if time.monotonic() - self._pushed >= self._pause:
                    self._push()
                if self._journal is not None:
                    self._journal.seal()
            except LeaseLostError:
                return
            except OSError as error:
                _log.warning("retrying the store: %s", error)

    def _publish_kept(self) -> None:
        self._lease.require()
        self.arrivals.work()

    def _remove_checkpoints(self) -> None:
        with self._lock:
            places, self._removed = self._removed, []
        try:
            for place in places:
                self.store.delete(self.store.entries(f"{CHECKPOINTS}/{place}"))
        except StoreError:
            with self._lock:
                self._removed += places
            raise

    def _put_what_differs(self) -> None:
        """Put again what is not as this driver put or found it: an earlier one that was only paused put it late."""
        if self._lease.term.number > 1:
            with self._pushing:
                present, found = objects(self._paths), self.store.entries()
                other = [name for name in present if name not in found or found[name].tag != self._tags.get(name)]
                self._tags |= self.store.put_all({name: present[name] for name in other})

    def _push(self) -> None:
        """Put what has changed since the last time; then remove what trials had put of it."""
        with self._pushing:  # the mirror's thread, or the driver at its end
            began = time.monotonic()
            self._lease.require()
            taken_in = self.arrivals.taken_in()  # before the tables are listed, so that what is put has all of it
            present = objects(self._paths)
            facts = {name: _facts(path) for name, path in present.items()}
            changed = [name for name, found in facts.items() if self._put.get(name) != found]
            self._tags |= self.store.put_all({name: present[name] for name in changed})
            self._put.update({name: facts[name] for name in changed})
            gone = {name for name in self._put if name.startswith("tables/")} - present.keys()
            self.store.delete(gone)
            self.arrivals.remove(taken_in)
            for name in gone:
                del self._put[name]
            self._pushed = time.monotonic()
            self._pause = max(PUSH_SECONDS, (self._pushed - began) / SHARE_OF_TIME)


def _facts(path: Path) -> tuple[int, int]:
    """Return a file's size and time, by which a change shows."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns
