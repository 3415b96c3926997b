"""Where a trial's process leaves its files: in folders that the driver sees too, or, by way of scratch, in a store.

With a store, a file is written on the trial's own machine and then put as one object under its final name; the local
copy is removed. A trial that continues elsewhere fetches its checkpoints from there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from trainables.files.scratch import Scratch
from trainables.files.stores.object_store import Store, patiently
from trainables.worker.checkpoints import PARTIAL, checkpoint_epochs, checkpoint_file, remove_checkpoints_before

CHECKPOINTS, INCOMING = "checkpoints", "incoming"
"""Where the files are in a sweep's store; the driver looks there for them."""


@cache
def store_at(uri: str) -> Store:
    """Return the store at `uri`, the same one for all trials of this process."""
    return Store(uri)


class TrialFiles:
    """The files of one trial, or of one replicate that is trained in a separate process."""

    def __init__(self, place: Path, *, tables: Path | None, checkpoints: Path | None, store: str | None = None) -> None:
        """Prepare for a trial.

        Args:
            place: of its checkpoints, relative to those of all trials.
            tables: the folder that holds the tables, or `None` to write none.
            checkpoints: the folder of checkpoints, or `None` to keep none.
            store: the address of the sweep in a store; then the two folders above are the driver's own, and are
                neither read nor written.
        """
        self._place = f"{CHECKPOINTS}/{place.as_posix()}"
        self._store = store_at(store) if store is not None else None
        if self._store is not None:
            self._scratch = Scratch("sweeper-trial-")
            tables, checkpoints = self._scratch.path / INCOMING, self._scratch.path / CHECKPOINTS
        self.tables = tables
        self.checkpoints = checkpoints / place if checkpoints is not None else None
        self._stored: set[int] = set()

    def fetch_checkpoints(self) -> None:
        """Bring what the store has of this trial's checkpoints here; without a store they are here."""
        if self._store is None or self.checkpoints is None:
            return
        patiently(self._fetch)
        self._stored |= {*checkpoint_epochs(self.checkpoints)}

    def _fetch(self) -> None:
        assert self._store is not None and self.checkpoints is not None
        names = self._store.entries(self._place, recursive=False)
        self._store.download_all({name: self.checkpoints / Path(name).name for name in names})

    def checkpoint_written(self, path: Path, epoch: int) -> None:
        """Upload a checkpoint that has its final name."""
        if self._store is not None:
            self._put(f"{self._place}/{path.name}", path)
            self._stored.add(epoch)
            path.unlink()

    def partial_written(self, path: Path) -> None:
        """Upload the checkpoint in the middle of an epoch."""
        if self._store is not None:
            self._put(f"{self._place}/{PARTIAL}", path)
            path.unlink()

    def remove_partial(self) -> None:
        """Remove the checkpoint in the middle of an epoch: the epoch has its own."""
        if self.checkpoints is None:
            return
        (self.checkpoints / PARTIAL).unlink(missing_ok=True)
        if self._store is not None:
            self._store.delete([f"{self._place}/{PARTIAL}"])

    def table_written(self, path: Path) -> None:
        """Upload a table's part that has its final name."""
        if self._store is not None:
            self._put(f"{INCOMING}/{path.parent.name}/{path.name}", path)
            path.unlink()

    def _put(self, name: str, path: Path) -> None:
        """Put a file, as patiently as the driver puts its journal."""
        store = self._store
        assert store is not None
        patiently(lambda: store.put(name, path))

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest `count` of this trial's checkpoints."""
        if self.checkpoints is not None:
            epochs = sorted({*checkpoint_epochs(self.checkpoints), *self._stored}, reverse=True)
            if len(epochs) > count:
                self.remove_checkpoints_before(epochs[count - 1])

    def remove_checkpoints_before(self, epoch: int) -> None:
        """Remove this trial's checkpoints of epochs below `epoch`."""
        if self.checkpoints is None:
            return
        remove_checkpoints_before(self.checkpoints, epoch)
        if self._store is not None:
            older = {known for known in self._stored if known < epoch}
            self._store.delete(f"{self._place}/{checkpoint_file(self.checkpoints, known).name}" for known in older)
            self._stored -= older
