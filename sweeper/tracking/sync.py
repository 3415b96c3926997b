"""Fill a tracker from the journal: by a process that follows a running sweep, or by `sync` at any other time.

The journal is folded, and data that runs lack is written. The runs' own tags say which data the tracker has already, so
no other state is stored. After an error everything is read and folded again.

Nothing here can delay a sweep: the follower is a separate process at low priority, and the driver waits for it only for
a limited time. If a server is dead or slow, `sync` writes the missing data later.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.core.cells import float_or_none
from sweeper.core.display import redact
from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.ids import SweepPaths, configuration_index
from sweeper.core.labels import in_order
from sweeper.core.processes import collect_garbage_rarely
from sweeper.journal.journal import JournalTail
from sweeper.journal.records import Ended
from sweeper.journal.segments import last_sequence
from sweeper.reporting.first_screen import first_screen
from sweeper.reporting.sentences import sentences
from sweeper.reporting.standings import NO_FINALIST, standings
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.listing import headline, overview
from sweeper.space.configurations import configurations
from sweeper.space.spec import spec_of
from sweeper.storage.lease import holder
from sweeper.storage.lookup import refuse_odd_files
from sweeper.storage.metadata import read_manifest, read_specification
from sweeper.tables.generations import recalibration_parts, state_of_recalibrations
from sweeper.tracking.artifacts import Bins, artifacts, missing_diagrams, reliability_diagram, said_of
from sweeper.tracking.base import RunUpdate, TrackedSweep, kind_of
from sweeper.tracking.follower import ADDRESS_VARIABLE, COUNTS, COUNTS_VARIABLE
from sweeper.tracking.points import recalibration_points
from sweeper.tracking.runs import GENERATION_TAG, RunProjection, identity_of
from trainables.files.locks import LockHeldError, file_lock

#: Seconds between two passes of the follower over new records; more if a pass takes long.
PASS_SECONDS = 2.0

#: Largest share of the follower's time that passes may take.
SHARE_OF_TIME = 0.25

#: Longest pause of the follower in seconds; after errors it waits 1, 2, 4 … seconds.
LONGEST_PAUSE = 30.0

#: Number of attempts of `sync` to reach the tracker.
SYNC_TRIES = 4

#: After the sweep's end the follower gives up after this many failures in a row, including those before the end.
LAST_TRIES = 2

#: A pass over a long journal writes after this many points, which bounds its memory to some 50 MB.
POINTS_A_PASS = 200_000

#: Seconds between two drawings of diagrams while trials train: reading a thousand files of the table takes a second.
DIAGRAM_SECONDS = 30.0

#: The parent run's tag that says which journal record and which recalibrations its artifacts contain.
ARTIFACTS_TAG = "artifacts_sequence"

#: The parent run's tag with the trials whose runs have a verdict.
FINALISTS_TAG = "finalists"

#: The parent run's tag that says which recalibrations are logged.
RECALIBRATIONS_TAG = "recalibrations"

_log = logging.getLogger("sweeper.tracking")


class Projection:
    """Transfers one sweep's journal to one tracker."""

    def __init__(self, root: Path, address: str, counts: int | None = None) -> None:
        """Prepare to transfer; nothing is sent before `prepare` and `begin`. `counts` is a file for `COUNTS`."""
        self.paths = SweepPaths(root.resolve())
        self.kind = kind_of(address)
        self._store = self.kind(address, tracked(self.paths))
        self.runs = self.points = 0
        self.ended_at = -1
        self._abandoned, self._counts, self._behind = False, counts, 0

    def prepare(self) -> None:
        """Open the tracker, which takes seconds the first time and does not need the journal."""
        self._store.prepare()

    def begin(self) -> bool:
        """Start at the journal's beginning; return `False` while it has no record."""
        if last_sequence(self.paths.journal) < 0:
            return False
        sweep, identity = tracked(self.paths), identity_of(self.paths)
        self._mode = sweep.spec.objective.mode
        self._known = self._store.connect(identity["sweep_id"], identity.get(GENERATION_TAG, ""))
        self._runs = RunProjection(sweep, identity, self._known.records)
        self._tail = JournalTail(self.paths.journal)
        self._drawn_at = time.monotonic()
        return True

    def advance(self, *, last: bool = False, abandoned: bool = False) -> None:
        """Write everything that is in the journal now; `last` also draws diagrams, which are otherwise drawn rarely."""
        self._abandoned, self._behind = abandoned, 0
        draw = last or abandoned or time.monotonic() - self._drawn_at >= DIAGRAM_SECONDS
        for record in self._tail.read():
            self._runs.apply(record)
            if isinstance(record.body, Ended):
                self.ended_at = record.sequence
            if self._runs.pending_points >= POINTS_A_PASS:
                self._write(draw=draw)
        self._write(draw=draw)

    def watch_machine(self) -> None:
        """Log the use of this machine to the sweep's run, if the tracker supports it."""
        self._store.watch_machine()

    def attach(self) -> None:
        """Add the sweep's answer to the parent run, with tables, report and reliability diagram, unless they are there.

        Before that, log recalibrations, which are not in the journal, and draw the last trials' diagrams.
        """
        self._write(draw=True)
        recalibrated = self._log_recalibrations()
        sequence = f"{self._runs.state.sequence} {recalibrated}".strip()
        if self._known.tags.get(ARTIFACTS_TAG) == sequence or not self.paths.tables.exists():
            return
        said, metrics, tags = answer(self.paths.root)
        self._runs.recommend(metrics)
        self._tag_finalists(tags)
        self._write()
        with tempfile.TemporaryDirectory() as folder:
            files = artifacts(self.paths, self._runs.state, self._mode, Path(folder)) if self._store.takes_files else ()
            self._store.attach(said, files)
        self._tag_sweep(ARTIFACTS_TAG, sequence)

    def close(self) -> None:
        """Have the tracker write what it holds back; nothing is sent afterwards."""
        self._store.close()

    def _log_recalibrations(self) -> str:
        """Log the points of all recalibrations if any is new; return the digest of their state."""
        parts = recalibration_parts(self.paths)
        state = state_of_recalibrations(parts)
        if state and self._known.tags.get(RECALIBRATIONS_TAG) != state:
            for part in parts:
                for place, points in recalibration_points(part):
                    self._runs.add(place, points)
                if self._runs.pending_points >= POINTS_A_PASS:
                    self._write()
            self._write()
            self._tag_sweep(RECALIBRATIONS_TAG, state)
        return state

    def _tag_finalists(self, tags: Mapping[str, Mapping[str, str]]) -> None:
        """Tag the finalists' runs with their verdicts; earlier finalists, which are none any more, lose theirs."""
        before = self._known.tags.get(FINALISTS_TAG, "").split()
        former = {trial: NO_FINALIST for trial in before if trial not in tags}
        self._runs.judge({configuration_index(trial): said for trial, said in {**former, **tags}.items()})
        if before or tags:
            self._tag_sweep(FINALISTS_TAG, " ".join(tags))

    def _tag_sweep(self, key: str, value: str) -> None:
        """Record on the sweep's run that data which are not in the journal have been written."""
        self._known.tags[key] = value
        self._runs.tag_sweep(key, value)
        self._store.write(self._runs.take(abandoned=self._abandoned))

    def _write(self, *, draw: bool = False) -> None:
        """Write the data that runs lack; with `draw`, including diagrams of trials that have ended since."""
        due: dict[int, tuple[int, Bins]] = {}
        if draw and self._store.takes_files:
            self._drawn_at = time.monotonic()
            due = missing_diagrams(self.paths, self._runs.state, self._known.diagrams)
        drawn = {index: epoch for index, (epoch, _) in due.items()}
        updates = self._runs.take(abandoned=self._abandoned, diagrams=drawn)
        if updates:
            self._behind += len(updates)
            self._store.write(self._illustrated(updates, due))
            self._known.diagrams.update({index: str(epoch) for index, epoch in drawn.items()})
            self.runs += len(updates)
            self.points += sum(len(update.points) for update in updates)

    def _illustrated(self, updates: Sequence[RunUpdate], due: Mapping[int, tuple[int, Bins]]) -> Iterator[RunUpdate]:
        """Yield the updates; updates of places in `due` get a diagram."""
        # Draw a diagram when it is sent, so that memory holds one at a time.
        for left, update in zip(reversed(range(len(updates))), updates, strict=True):
            if update.place in due:
                epoch, bins = due[update.place]
                drawn = reliability_diagram(bins, self._runs.name_of(update.place), f"epoch {epoch}, {said_of(bins)}")
                update = replace(update, diagram=drawn)
            yield update
            if self._counts is not None:
                with suppress(OSError):  # a full disk for temporary files must not look like a fault of the tracker
                    os.pwrite(self._counts, COUNTS.pack(self._behind - left, self._behind), 0)

    @contextmanager
    def alone(self, patience: float) -> Iterator[None]:
        """Hold the sweep's tracker lock, since two writers at once would create runs twice.

        Raises SweeperError if another process still holds it after `patience` seconds, or the folder cannot be written.
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


#: Metrics of the recommended configuration that the parent run shows besides the objective.
SHOWN = ("accuracy", "ece", "posthoc_temperature_ece")


def answer(root: Path) -> tuple[str, dict[str, float], dict[str, dict[str, str]]]:
    """Return a sweep's first screen: its sentences, the metrics of its best configuration, and the finalists' tags."""
    try:
        with Results(root).snapshot() as results:
            board = leaderboard(results)
            screen = first_screen(results, board, overview(results))
            text = "\n\n".join([*sentences(screen), headline(board)])
    except SweeperError as error:  # damaged tables, which the sweep itself reports
        return str(error), {}, {}
    # Several settings of the data set have a leader each, which no single row can show.
    leaders = [answer.leader.trial for answer in screen.answers] if len(screen.answers) == 1 else []
    row = next((row for row in board.rows if row["trial"] in leaders), {})
    split = "test" if row.get("test_ece") is not None else "val"
    shown = {board.objective.metric: "judged", **{f"{split}_{name}": f"{split}_{name}" for name in SHOWN}}
    values = {metric: float_or_none(row, column) for metric, column in shown.items()}
    tags = {trial: standing.tags for trial, standing in standings(screen).items()}
    return text, {metric: value for metric, value in values.items() if value is not None}, tags


def sentence(error: Exception) -> str:
    """Return an error's first line, without secrets."""
    return redact((str(error).strip() or type(error).__name__).splitlines()[0])


def tracked(paths: SweepPaths) -> TrackedSweep:
    """Return the facts about a sweep for trackers. Raises SweeperError if its folder cannot be read."""
    spec = spec_of(read_specification(paths.sweep_file, required=True), str(paths.sweep_file))
    manifest = read_manifest(paths.manifest, unknown_if_damaged=True)
    return TrackedSweep(paths, spec, manifest, configurations(spec), in_order(spec.space.varying_columns))


@dataclass(frozen=True)
class SyncReport:
    """The result of a `sync`: runs written, points sent, seconds taken, and the tracker's address without secrets."""

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
    """Bring a tracker up to date with a sweep's journal. It is safe to repeat: no point is written twice.

    Raises SweeperError if it cannot be reached, the journal is damaged or empty, or a follower is working.
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
                projection.close()
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


def follow(root: Path, uri: str) -> bool:
    """Follow a sweep until its driver closes our standard input or dies; return whether everything was written.

    Args:
        root: the sweep's folder.
        uri: address of the tracker.
    """
    counts = os.environ.get(COUNTS_VARIABLE)
    projection = Projection(root, uri, None if counts is None else int(counts))
    newest_before = last_sequence(projection.paths.journal)
    with projection.alone(patience=60.0):
        failures, pause, ready, begun, troubled = 0, 0.0, False, False, False
        while True:
            woken = bool(select.select([sys.stdin], [], [], pause)[0])
            # End of file means that the driver ends; a byte means that trials have ended.
            leaving = woken and not os.read(sys.stdin.fileno(), 1)
            began = time.monotonic()
            try:
                if not ready:
                    projection.prepare()
                    ready = True
                # A request that timed out may have succeeded since, so at the end the runs are looked up once more.
                begun = (begun and not (leaving and troubled)) or projection.begin()
                if begun:
                    projection.advance(last=woken)
                    projection.watch_machine()
                if leaving:
                    if begun and projection.ended_at > newest_before:
                        projection.attach()
                    elif begun:
                        projection.advance(abandoned=True)
                    projection.close()
                    _log.info("complete: %d points", projection.points)
                    return True
                pause = (time.monotonic() - began) * (1 / SHARE_OF_TIME - 1)
                failures, pause = 0, min(max(PASS_SECONDS, pause), LONGEST_PAUSE)
            except projection.kind.errors() as error:
                failures, ready, begun, troubled = failures + 1, False, False, True
                pause = min(2.0 ** (failures - 1), LONGEST_PAUSE)
                _log.warning("%s at %s: %s (failure %d)", projection.kind.name, redact(uri), sentence(error), failures)
                if leaving and failures >= LAST_TRIES:
                    return False
                time.sleep(1.0 if leaving else 0.0)


def main() -> int:
    """Follow the sweep in the folder given as argument; the environment has the tracker's address."""
    collect_garbage_rarely()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        return 0 if follow(Path(sys.argv[1]), os.environ[ADDRESS_VARIABLE]) else 1
    except SweeperError as error:
        _log.error("%s", redact(str(error)))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
