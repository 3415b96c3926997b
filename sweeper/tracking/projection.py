"""One sweep's journal on one side, one tracker on the other.

The journal is folded and what each run lacks is written. What a store holds already is read from the runs' own tags,
once, so nothing is remembered anywhere else; after an error everything is read and folded again.

A request to a server that hangs takes its client's whole timeout, and one to a database may take for ever; nobody
should wait for either when all that is left to do is what `sweeper manage sync` does later. So a watchdog ends the
process once the sweep is over and the store has stopped answering.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sweeper.core.display import redact
from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.ids import SweepPaths
from sweeper.core.labels import in_order
from sweeper.journal.journal import JournalTail
from sweeper.journal.records import Ended
from sweeper.journal.segments import last_sequence
from sweeper.reporting.first_screen import first_screen
from sweeper.reporting.sentences import sentences
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.listing import headline, overview
from sweeper.space.configurations import configurations, varying_columns
from sweeper.space.spec import spec_of
from sweeper.storage.metadata import read_manifest, read_specification
from sweeper.tables.generations import recalibration_parts, state_of_recalibrations
from sweeper.tracking.artifacts import Bins, Diagrams, artifacts, reliability_diagram, said_of
from sweeper.tracking.base import RunUpdate, TrackedSweep, kind_of
from sweeper.tracking.points import recalibration_points
from sweeper.tracking.runs import GENERATION_TAG, RunProjection, identity_of
from trainables.files.locks import LockHeldError, file_lock

#: A pass over a long journal writes after so many points, which bounds its memory to some 50 MB.
POINTS_A_PASS = 200_000

#: While trials train, diagrams are drawn this often: together, since the tables' files are merged while the sweep runs,
#: and one large file is read many times as fast as what it was merged from.
DIAGRAM_SECONDS = 30.0

#: The parent's tag with the journal record at which its artifacts were made, and the state of recalibrations then.
ARTIFACTS_TAG = "artifacts_sequence"

#: A slower upload of an artifact at a sweep's end is left to `sweeper manage sync`.
ARTIFACT_BYTES_A_SECOND = 1_000_000

#: The parent's tag with the state of the recalibrations that are logged.
RECALIBRATIONS_TAG = "recalibrations"


class Projection:
    """One sweep's journal on one side, one store on the other."""

    def __init__(self, root: Path, address: str, watchdog: Watchdog | None = None) -> None:
        """Prepare; nothing is read or sent before `prepare` and `begin`. `watchdog` is informed of every call."""
        self.paths = SweepPaths(root.resolve())
        self.kind = kind_of(address)
        self._store = self.kind.open(address, tracked(self.paths))
        self._watchdog = watchdog
        if watchdog is not None:
            self._store.answered = watchdog.heard
        self.runs = self.points = 0
        self.ended_at = -1
        self._abandoned = False

    def prepare(self) -> None:
        """Open the store: what takes seconds the first time, and can be done before the journal begins."""
        self._store.load()
        with self._asking():
            self._store.prepare()

    def begin(self) -> bool:
        """Start at the journal's beginning; `False` while the journal has no record yet."""
        if last_sequence(self.paths.journal) < 0:
            return False
        sweep, identity = tracked(self.paths), identity_of(self.paths)
        self._judging = sweep.spec.schedule
        with self._asking():
            known = self._store.connect(identity["sweep_id"], identity.get(GENERATION_TAG, ""))
        self._runs = RunProjection(sweep, identity, known)
        self._tail = JournalTail(self.paths.journal)
        self._diagrams, self._drawn_at = Diagrams(self.paths), time.monotonic()
        return True

    def advance(self, *, last: bool = False, abandoned: bool = False) -> None:
        """Write everything that is in the journal by now; with `last`, diagrams too, which else are drawn rarely."""
        self._abandoned = abandoned
        draw = last or abandoned or time.monotonic() - self._drawn_at >= DIAGRAM_SECONDS
        for record in self._tail.read():
            self._runs.apply(record)
            if isinstance(record.body, Ended):
                self.ended_at = record.sequence
            if self._runs.pending_points >= POINTS_A_PASS:
                self._write(draw=draw)
        self._write(draw=draw)

    def watch_machine(self) -> None:
        """Have the sweep's run show how busy this machine is, if the store does so."""
        with self._asking():
            self._store.watch_machine()

    def attach(self) -> None:
        """Attach tables, report and reliability diagram to the parent run, unless those of this moment are there.

        Recalibrations, which are not in the journal, are logged before, and the last trials' diagrams drawn.
        """
        self._write(draw=True)
        recalibrated = self._log_recalibrations()
        if not self._store.takes_files:
            return
        sequence = f"{self._runs.state.sequence} {recalibrated}".strip()
        if self._store.parent_tag(ARTIFACTS_TAG) == sequence or not self.paths.tables.exists():
            return
        with self._asking():
            self._store.describe(answer(self.paths.root))
        with tempfile.TemporaryDirectory() as folder:
            for path, target in artifacts(self.paths, self._runs.state, self._judging, Path(folder)):
                with self._asking(path.stat().st_size / ARTIFACT_BYTES_A_SECOND):
                    self._store.log_artifact(path, target)
        with self._asking():
            self._store.set_parent_tag(ARTIFACTS_TAG, sequence)

    def _log_recalibrations(self) -> str:
        """Log the points of all recalibrations where one is new; return what identifies this state of them."""
        parts = recalibration_parts(self.paths)
        state = state_of_recalibrations(parts)
        if state and self._store.parent_tag(RECALIBRATIONS_TAG) != state:
            for part in parts:
                for place, points in recalibration_points(part):
                    self._runs.add(place, points)
                if self._runs.pending_points >= POINTS_A_PASS:
                    self._write()
            self._write()
            with self._asking():
                self._store.set_parent_tag(RECALIBRATIONS_TAG, state)
        return state

    def _write(self, *, draw: bool = False) -> None:
        """Write what every run lacks; with `draw`, the diagrams of trials that have ended since are among it."""
        due: dict[int, tuple[int, Bins]] = {}
        if draw and self._store.takes_files:
            self._drawn_at = time.monotonic()
            self._diagrams.gather(self._store.drawn)
            due = {index: (epoch, bins) for index, epoch, bins in self._diagrams.due(self._runs.state)}
        drawn = {index: epoch for index, (epoch, _) in due.items()}
        updates = self._runs.take(abandoned=self._abandoned, diagrams=drawn)
        if updates:
            with self._asking():
                self._store.write(self._illustrated(updates, due))
            self.runs += len(updates)
            self.points += sum(len(update.points) for update in updates)

    def _illustrated(self, updates: Iterable[RunUpdate], due: Mapping[int, tuple[int, Bins]]) -> Iterator[RunUpdate]:
        """Yield the updates, those in `due` with a diagram, drawn when it is sent: memory has one at a time."""
        for update in updates:
            if update.place in due:
                epoch, bins = due[update.place]
                drawn = reliability_diagram(bins, self._runs.name_of(update.place), f"epoch {epoch}, {said_of(bins)}")
                update = replace(update, diagram=drawn)
            yield update

    def _asking(self, more: float = 0.0) -> AbstractContextManager[None]:
        """Mark a call of the store that may take `more` seconds than others."""
        return self._watchdog.asking(self._store.answers_within + more) if self._watchdog else nullcontext()

    @contextmanager
    def alone(self, patience: float) -> Iterator[None]:
        """Hold the sweep's lock of trackers: two writers at once would create runs twice.

        Raises SweeperError when another process still has it after `patience` seconds, or the folder cannot be written.
        """
        with ExitStack() as guard:
            try:
                with writing_to(self.paths.root, "ask its owner to sync it, or sync a copy"):
                    guard.enter_context(file_lock(self.paths.root / "mlflow.lock", patience=patience))
            except LockHeldError as error:
                raise SweeperError(
                    f"another process is writing to {self.kind.name} for the sweep {self.paths.name!r}",
                    "it logs everything; run `sweeper manage sync` after the sweep has ended",
                ) from error
            yield


def answer(root: Path) -> str:
    """Return the sentences of a sweep's first screen, and its best configuration."""
    try:
        with Results(root).snapshot() as results:
            board = leaderboard(results)
            said = sentences(first_screen(results, board, overview(results)))
            return "\n\n".join([*said, headline(board)])
    except SweeperError as error:  # damaged tables, of which the sweep itself tells
        return str(error)


def sentence(error: Exception) -> str:
    """Return an error's first line, without secrets."""
    return redact((str(error).strip() or type(error).__name__).splitlines()[0])


def tracked(paths: SweepPaths) -> TrackedSweep:
    """Return what a tracker may know of a sweep. Raises SweeperError when its folder cannot be read."""
    spec = spec_of(read_specification(paths.sweep_file, required=True), str(paths.sweep_file))
    manifest = read_manifest(paths.manifest, unknown_if_damaged=True)
    return TrackedSweep(paths, spec, manifest, configurations(spec), in_order(varying_columns(spec.space)))


POLL_SECONDS = 0.1

_log = logging.getLogger("sweeper.tracking")


def seconds_waited(thread: int) -> float:
    """Return a clock that stands still while `thread` (its native id) computes or is ready to.

    Where the kernel does not tell (it is Linux that does), the clock is that of the wall.
    """
    try:
        computed, ready, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text("ascii").split()
    except (OSError, ValueError):
        return time.monotonic()
    return time.monotonic() - (int(computed) + int(ready)) * 1e-9


def _leave() -> None:
    # The main thread is in a call that does not return; what it holds (locks, connections) falls with the process.
    os._exit(1)


class _Call(NamedTuple):
    thread: int
    began: float
    seconds: float


class Watchdog:
    """Tracks how long a call of the store has waited for its answer, and gives up on it when the sweep has ended.

    Only the time is counted in which the calling thread waits for something else than a processor. At the lowest
    priority beside busy cores, two seconds of our own work, a new store's tables, take minutes: no fault of the store.
    """

    def __init__(self, over: Callable[[], bool], give_up: Callable[[], None] = _leave) -> None:
        """Watch from now on, in a thread that does not outlive the process.

        Args:
            over: tells whether the sweep is over; called every tenth of a second.
            give_up: what to do then with a store that does not answer.
        """
        self._over, self._give_up = over, give_up
        self._asked: _Call | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def asking(self, seconds: float) -> Iterator[None]:
        """Mark a call of the store that a healthy one answers within `seconds`."""
        thread = threading.get_native_id()
        self._asked = _Call(thread, seconds_waited(thread), seconds)
        try:
            yield
        finally:
            self._asked = None

    def heard(self) -> None:
        """Note that the store has answered in the middle of a call that asks it for several things."""
        asked = self._asked
        if asked is not None:
            self._asked = asked._replace(began=seconds_waited(asked.thread))

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            asked = self._asked
            if asked is None:
                continue
            waited = seconds_waited(asked.thread) - asked.began
            if waited > asked.seconds and self._over():
                _log.warning("the sweep is over and the store has not answered for %.0f s", waited)
                self._give_up()
                return
