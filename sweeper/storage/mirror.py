"""The mirror of a running sweep in a store: uploads the driver's files, downloads the trials' files.

Journal records are uploaded at once (`sweeper.storage.store_journal`). A separate thread does everything else, so that
a slow store never delays a decision. It uploads tables and files, downloads the trials' small tables, publishes
predictions inside the store, merges journal objects, and passes on a request to stop. Uploads that failed are repeated
at the sweep's end. The lease has its own thread, so a slow upload cannot stop its heartbeat.
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
from sweeper.storage.places import STOP, Place, fetch, objects
from sweeper.storage.store_journal import JOURNAL, StoredJournal
from sweeper.tables.file_list import TRIALS_FILE
from sweeper.tables.large_tables import StoreArrivals
from trainables.files.atomic import read_bytes
from trainables.files.stores.base import StoreError
from trainables.files.stores.object_store import Store, patiently
from trainables.worker.checkpoints import CHECKPOINTS, INCOMING

#: Seconds between two rounds of the mirror's thread.
TURN_SECONDS = 1.0

#: Least seconds between two uploads of tables and files.
PUSH_SECONDS = 10.0

#: Largest fraction of time spent on these uploads: if an upload takes long, the pause grows.
SHARE_OF_TIME = 0.25

_TRIALS = f"tables/{TRIALS_FILE.as_posix()}"

_log = logging.getLogger("sweeper.storage")


class SharedFolder:
    """Mirror of a sweep whose folder all machines share: nothing has to be copied."""

    store: Store | None = None
    arrivals: StoreArrivals | None = None

    def __init__(self, paths: SweepPaths) -> None:
        """Create a mirror that copies nothing, for the sweep in `paths`."""
        self._paths = paths
        self.address = paths.name

    def __enter__(self) -> SharedFolder:
        """Begin."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End."""

    #: Whether this driver holds the sweep; the folder's lock guarantees it.
    held = True

    def journal(self, *, alone: bool = True) -> Journal:
        """Open the sweep's journal for appending; `alone` as for `Journal`."""
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
        """Do nothing: all tables are in the folder."""

    def require(self) -> None:
        """Do nothing: no other driver can take the folder's lock."""

    def complete(self, *, ended: bool = False) -> None:
        """Do nothing: all files are in the folder."""


def mirror_of(paths: SweepPaths, place: Place) -> Mirror | SharedFolder:
    """Return the mirror of a sweep in its place's store; for a folder, a mirror that copies nothing."""
    return Mirror(paths, place.store.child(paths.name)) if place.store is not None else SharedFolder(paths)


class Mirror:
    """Keeps a sweep's store and its driver's folder equal while the driver runs."""

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
        #: Object → size and time of its file at the last upload.
        self._put: dict[str, tuple[int, int]] = {}
        #: Object → the store's tag of the version that this driver uploaded or found.
        self._tags: dict[str, str] = {}
        self._pushed, self._pause = 0.0, 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._turns, name="mirror", daemon=True)

    def __enter__(self) -> Mirror:
        """Take the lease, make the folder equal to the store, and start. Raises SweeperError or StoreError."""
        self._lease.take()
        self._lease.start()
        try:
            patiently(self._open)
        except BaseException:  # Ctrl-C included: a lease left behind would make the next resume wait
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
        except (StoreError, LeaseLostError) as reason:  # must not hide the error that ended the driver
            _log.warning("%s", reason)

    def _open(self) -> None:
        """Make store and folder equal. Raises SweeperError or StoreError."""
        # A new sweep is created in the folder; every later driver starts from the store.
        if self._paths.sweep_file.exists() and not self.store.exists(self._paths.sweep_file.name):
            self.store.put_all(dict(objects(self._paths)))
        self.store.delete([STOP])  # a request to an earlier driver
        entries = fetch(self.store, self._paths.root)
        self._tags = {name: entry.tag for name, entry in entries.items()}
        self.arrivals.begin(entries)

    @property
    def held(self) -> bool:
        """Whether this driver took the sweep and no other driver has taken it since."""
        return self._lease.held and not self._lease.lost

    def journal(self, *, alone: bool = True) -> Journal:
        """Open the sweep's journal for appending under this driver's term."""
        self._journal = StoredJournal(self._paths.journal, self.store, self._lease)
        return self._journal

    def require(self) -> None:
        """Raise LeaseLostError if another driver is known to have taken the sweep over; do not ask the store."""
        if self._lease.lost:
            self._lease.require()

    def remove_checkpoints(self, place: str, *, now: bool = False) -> None:
        """Remove the checkpoints of a trial or replicate from the store: at once if `now`, else in the next round."""
        with self._lock:
            self._removed.append(place)
        if now:
            self._remove_checkpoints()

    def trials_with_checkpoints(self) -> set[str]:
        """Return the names of the trials that have checkpoints in the store."""
        return {name.split("/")[1] for name in patiently(lambda: self.store.entries(CHECKPOINTS))}

    def set_aside(self, names: Sequence[str]) -> None:
        """Quarantine in the store the records that the folder has quarantined, and begin a term without them."""
        if names:
            kept = {f"{JOURNAL}/{name}.damaged": self._paths.journal / f"{name}.damaged" for name in names}
            patiently(lambda: self.store.put_all(dict(kept)))
            patiently(lambda: self._lease.begin_again(last_sequence(self._paths.journal) + 1))

    def collect(self) -> None:
        """Download or publish all requested tables now. Raises SweeperError if the store cannot be reached."""
        self._do_all(self.arrivals.fetch, self._publish_kept)

    def complete(self, *, ended: bool = False) -> None:
        """Make the store equal to the folder now. Raises SweeperError if it cannot be reached.

        If all trials have `ended`, also remove tables that were uploaded but never journaled.
        """
        self._do_all(self._remove_checkpoints, self._publish_kept, self._push, self._put_what_differs)
        if ended:
            self._do_all(lambda: self.store.delete(self.store.entries(INCOMING)))

    def _do_all(self, *works: Callable[[], None]) -> None:
        """Run each function, retrying it for a while. Raises SweeperError if the store cannot be reached."""
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
                return  # the driver's own thread reports it
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
            with self._lock:  # removing again what is already gone does no harm
                self._removed += places
            raise

    def _put_what_differs(self) -> None:
        """Upload again every object that differs from the version that this driver uploaded or found."""
        # An earlier driver that was only paused may have overwritten objects late. The first term has no earlier
        # driver.
        if self._lease.term.number > 1:
            with self._pushing:
                present, entries = objects(self._paths), self.store.entries()
                other = [name for name in present if name not in entries or entries[name].tag != self._tags.get(name)]
                self._tags |= self.store.put_all({name: present[name] for name in other})

    def _push(self) -> None:
        """Upload files that have changed since the last time, then remove trials' uploads that these files contain."""
        with self._pushing:  # the mirror's thread and, at the end, the driver call this
            began = time.monotonic()
            self._lease.require()
            taken_in = self.arrivals.taken_in()  # before the tables are listed, so that the upload contains all of it
            # The driver may write all the while. `trials` lists the files of the other tables, so it is read before
            # them and uploaded after them: a reader who finds a name in it finds that file, too.
            trials = self._paths.tables.resolve() / TRIALS_FILE
            last = {_TRIALS: (_facts(trials), read_bytes(trials))} if trials.exists() else {}
            present = objects(self._paths)
            facts = {name: _facts(path) for name, path in present.items()}
            facts |= {name: stamp for name, (stamp, _) in last.items()}
            changed = [name for name, stamp in facts.items() if self._put.get(name) != stamp]
            self._tags |= self.store.put_all({name: present[name] for name in changed if name not in last})
            self._tags |= self.store.put_all({name: content for name, (_, content) in last.items() if name in changed})
            self._put.update({name: facts[name] for name in changed})
            gone = {name for name in self._put if name.startswith("tables/")} - present.keys()
            # Delete after the upload, so that a reader always finds each row in at least one object.
            self.store.delete(gone)
            self.arrivals.remove(taken_in)
            for name in gone:
                del self._put[name]
            self._pushed = time.monotonic()
            self._pause = max(PUSH_SECONDS, (self._pushed - began) / SHARE_OF_TIME)


def _facts(path: Path) -> tuple[int, int]:
    """Return a file's size and modification time, which reveal a change."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns
