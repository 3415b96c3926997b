"""Results folders whose files were damaged, and what must hold of everything that reads them."""

import shutil
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

from sweeper.core.errors import SweeperError
from sweeper.reporting.page import write_report
from sweeper.reporting.status import audit_sweep, status_of, statuses_table
from sweeper.reporting.summary import summary
from sweeper.results import load
from sweeper.results.listing import best_trials
from sweeper.results.queries import VIEWS
from tests.fuzzing.damage import Damage, damages

READ, REFUSED = "read", "refused"
REPORTED_ONE_IN = 64
"""Drawing a report takes fifty times as long as reading the tables: one damaged folder in so many."""

KINDS = {
    "sweep.yaml": "sweep.yaml",
    "manifest.json": "manifest.json",
    "journal": "journal/*.json",
    "tables": "tables/**/*.parquet",
}
"""What is damaged, by the pattern of its files."""

cases = st.tuples(
    st.sampled_from(sorted(KINDS)), st.integers(0, 2**16), st.one_of(st.none(), damages), st.integers(0, 2**16)
)
"""The kind of file, which of them, its damage (`None`: the file is gone), and a number that says what else to do."""


class Folder:
    """A sound results folder, damaged and mended again and again."""

    def __init__(self, sound: Path, work: Path) -> None:
        """Copy the sweep's folder `sound` below `work`."""
        self.copy = Path(shutil.copytree(sound, work / sound.name, symlinks=True))
        self.files = {kind: sorted(self.copy.glob(pattern)) for kind, pattern in KINDS.items()}
        assert all(self.files.values()), self.files
        self.reports = 0
        self.ways: dict[str, list[Callable[[], None]]] = {
            "sweep.yaml": [self._status, self._audit, self._summary],
            "manifest.json": [self._tables, self._summary],
            "journal": [self._status, self._audit],
            "tables": [self._tables, self._summary],
        }

    def check(self, kind: str, which: int, damage: Damage | None, other: int) -> str:
        """Damage one file, read the sweep in a way that needs it, and mend it; return whether it could be read.

        Any exception but `SweeperError` passes: it is a fault.
        """
        path = self.files[kind][which % len(self.files[kind])]
        sound = path.read_bytes()
        try:
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage(sound))
            ways = self.ways[kind]
            way = self._report if other % REPORTED_ONE_IN == 0 else ways[other % len(ways)]
            return READ if _reads(way) else REFUSED
        finally:
            path.write_bytes(sound)

    def _status(self) -> None:
        statuses_table(status_of(self.copy.parent, self.copy.name))

    def _audit(self) -> None:
        audit_sweep(self.copy.name, self.copy.parent)

    def _tables(self) -> None:
        results = load(self.copy)
        assert isinstance(results.manifest, dict) and isinstance(results.specification, dict)
        with results.snapshot() as snapshot:
            for view in VIEWS:
                snapshot.table(view)

    def _summary(self) -> None:
        results = load(self.copy)
        summary(results)
        best_trials(results)

    def _report(self) -> None:
        self.reports += 1
        write_report(self.copy)


def _reads(way: Callable[[], None]) -> bool:
    try:
        way()
    except SweeperError as error:
        assert str(error)
        return False
    return True
