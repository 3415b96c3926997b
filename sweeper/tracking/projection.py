"""One sweep's journal on one side, one MLflow store on the other.

The journal is folded and what each run lacks is written. What a store holds already is read from the runs' own tags,
once, so nothing is remembered anywhere else; after an error everything is read and folded again.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, trial_name
from sweeper.journal.journal import generation
from sweeper.journal.records import Ended
from sweeper.journal.segments import contents, last_sequence
from sweeper.journal.tail import JournalTail
from sweeper.space.configurations import configurations, named_components, varying_columns
from sweeper.space.spec import SweepSpec
from sweeper.storage.metadata import read_manifest, read_specification
from sweeper.tables.recalibrations import recalibration_parts, state_of_recalibrations
from sweeper.text.labels import in_order
from sweeper.text.redaction import redact
from sweeper.tracking.artifacts import artifacts
from sweeper.tracking.client_store import ClientStore
from sweeper.tracking.diagrams import DIAGRAM, Diagrams, reliability_diagram, said_of
from sweeper.tracking.points import epochs_between_points
from sweeper.tracking.questions import as_markdown, questions
from sweeper.tracking.recalibrations import recalibration_points
from sweeper.tracking.runs import (
    GIT_COMMIT,
    SOURCE_NAME,
    SOURCE_TYPE,
    SWEEP_RUN,
    USER,
    RunProjection,
    RunUpdate,
    SweepDescription,
)
from sweeper.tracking.shared_view import TAG, shared_view
from sweeper.tracking.sqlite_store import sqlite_store
from sweeper.tracking.system_metrics import SystemMetrics
from sweeper.tracking.watchdog import Watchdog
from trainables.files.locks import LockHeldError, file_lock

POINTS_A_PASS = 200_000
"""A pass over a long journal writes after so many points, which bounds its memory to some 50 MB."""

DIAGRAMS_A_CALL = 100
"""Diagrams are attached so many at a time, which bounds the number of temporary files."""

DIAGRAM_SECONDS = 30.0
"""While trials train, diagrams are drawn this often: together, since the tables' files are merged while the sweep runs,
and one large file is read many times as fast as what it was merged from."""

ARTIFACTS_TAG = "artifacts_sequence"
"""The parent's tag with the journal record at which its artifacts were made, and the state of recalibrations then."""

ARTIFACT_BYTES_A_SECOND = 1_000_000
"""A slower upload of an artifact at a sweep's end is left to `sweeper sync`."""

RECALIBRATIONS_TAG = "recalibrations"
"""The parent's tag with the state of the recalibrations that are logged."""

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # The client would repeat a creation that timed out without looking whether it happened.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


class Projection:
    """One sweep's journal on one side, one store on the other."""

    def __init__(self, root: Path, uri: str, watchdog: Watchdog | None = None) -> None:
        """Prepare; nothing is read or sent before `prepare` and `begin`. `watchdog` is informed of every call."""
        for key, value in ENVIRONMENT.items():
            os.environ.setdefault(key, value)
        self.paths = paths = SweepPaths(root.resolve())
        artifacts_at = None if uri.startswith("http") else (paths.root.parent / "mlartifacts" / paths.name).as_uri()
        kind = sqlite_store() if uri.startswith("sqlite:") else ClientStore
        self._store = kind(uri, paths.name, artifacts_at, *_experiment(paths))
        self._watchdog = watchdog
        if watchdog is not None:
            self._store.answered = watchdog.heard
        self.system: SystemMetrics | None = None
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
        spec = SweepSpec.model_validate(read_specification(self.paths.sweep_file, required=True))
        self._judging = spec.schedule
        description = _describe(self.paths, spec)
        with self._asking():
            known = self._store.connect(description.identity, description.generation)
        self._runs = RunProjection(description, known)
        self._tail = JournalTail(self.paths.journal)
        self._diagrams, self._drawn_at = Diagrams(self.paths), time.monotonic()
        return True

    def advance(self, *, abandoned: bool = False) -> None:
        """Write everything that is in the journal by now."""
        self._abandoned = abandoned
        for record in self._tail.read():
            self._runs.apply(record)
            if isinstance(record.body, Ended):
                self.ended_at = record.sequence
            if self._runs.pending_points >= POINTS_A_PASS:
                self._write(self._runs.take())
        if self.system is not None:
            self._runs.add(SWEEP_RUN, self.system.take())
        self._write(self._runs.take(abandoned=abandoned))
        if abandoned or time.monotonic() - self._drawn_at >= DIAGRAM_SECONDS:
            self._draw()

    def attach(self) -> None:
        """Attach tables, report and reliability diagram to the parent run, unless those of this moment are there.

        Recalibrations, which are not in the journal, are logged before, and the last trials' diagrams drawn.
        """
        self._draw()
        recalibrated = self._log_recalibrations()
        sequence = f"{self._runs.state.sequence} {recalibrated}".strip()
        if self._store.parent_tag(ARTIFACTS_TAG) == sequence or not self.paths.tables.exists():
            return
        with tempfile.TemporaryDirectory() as folder:
            for path, target in artifacts(self.paths, self._runs.state, self._judging, Path(folder)):
                with self._asking(path.stat().st_size / ARTIFACT_BYTES_A_SECOND):
                    self._store.log_artifact(path, target)
        with self._asking():
            self._store.set_parent_tag(ARTIFACTS_TAG, sequence)

    def _draw(self) -> None:
        """Attach the reliability diagrams of trials that have ended since."""
        self._drawn_at = time.monotonic()
        self._diagrams.gather(self._store.drawn)
        while drawn := list(islice(self._diagrams.due(self._runs.state), DIAGRAMS_A_CALL)):
            with tempfile.TemporaryDirectory() as folder:
                files = {}
                for index, epoch, bins in drawn:
                    path = Path(folder) / trial_name(index) / DIAGRAM
                    path.parent.mkdir()
                    title = self._runs.name_of(index)
                    path.write_text(reliability_diagram(bins, title, f"epoch {epoch}, {said_of(bins)}"), "utf-8")
                    files[index] = path, epoch
                with self._asking():
                    self._store.draw(files)

    def _log_recalibrations(self) -> str:
        """Log the points of all recalibrations where one is new; return what identifies this state of them."""
        parts = recalibration_parts(self.paths)
        state = state_of_recalibrations(parts)
        if state and self._store.parent_tag(RECALIBRATIONS_TAG) != state:
            for part in parts:
                for place, points in recalibration_points(part):
                    self._runs.add(place, points)
                if self._runs.pending_points >= POINTS_A_PASS:
                    self._write(self._runs.take(abandoned=self._abandoned))
            self._write(self._runs.take(abandoned=self._abandoned))
            with self._asking():
                self._store.set_parent_tag(RECALIBRATIONS_TAG, state)
        return state

    def _write(self, updates: Sequence[RunUpdate]) -> None:
        if updates:
            with self._asking():
                self._store.write(updates)
            self.runs += len(updates)
            self.points += sum(len(update.points) for update in updates)

    def _asking(self, more: float = 0.0) -> AbstractContextManager[None]:
        """Mark a call of the store that may take `more` seconds than others."""
        return self._watchdog.asking(self._store.answers_within + more) if self._watchdog else nullcontext()

    @contextmanager
    def alone(self, patience: float) -> Iterator[None]:
        """Hold the sweep's MLflow lock: two writers at once would create runs twice.

        Raises SweeperError when another process still has it after `patience` seconds.
        """
        with ExitStack() as guard:
            try:
                guard.enter_context(file_lock(self.paths.root / "mlflow.lock", patience=patience))
            except LockHeldError as error:
                raise SweeperError(
                    f"another process is writing to MLflow for the sweep {self.paths.name!r}",
                    "it logs everything; run `sweeper sync` after the sweep has ended",
                ) from error
            yield


def store_errors() -> tuple[type[Exception], ...]:
    """Return what a store raises when it is down, slow or broken (requests' exceptions are OSErrors)."""
    if "mlflow" not in sys.modules:  # a SQLite file is written without it
        return sqlite3.Error, OSError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, sqlite3.Error, OSError


def sentence(error: Exception) -> str:
    """Return an error's first line, without secrets."""
    return redact((str(error).strip() or type(error).__name__).splitlines()[0])


def _experiment(paths: SweepPaths) -> tuple[str, dict[str, str]]:
    """Return the experiment's description, what to ask MLflow of the sweep, and its tags: the view for its link."""
    spec = SweepSpec.model_validate(read_specification(paths.sweep_file, required=True))
    goal, trials = spec.objective, len(configurations(spec))
    asked = questions(named_components(spec.space.nodes["loss"]), goal.metric, spec.schedule.rungs[0])
    return as_markdown(asked), {TAG: shared_view(goal.metric, goal.mode, in_order(varying_columns(spec.space)), trials)}


def _describe(paths: SweepPaths, spec: SweepSpec) -> SweepDescription:
    manifest = read_manifest(paths.manifest, unknown_if_damaged=True)
    first = next(contents(paths.journal))
    facts: dict[str, object] = {
        "dataset": spec.dataset.get("name"),
        "objective": f"{spec.objective.mode} {spec.objective.metric}",
        "scheduler": spec.scheduler.name,
        "max_epochs": spec.scheduler.max_epochs,
        "replicates": spec.replicates.count,
        "seed": spec.seed,
        "version": _from_manifest(paths, "versions", "calibration-sweeper"),
        SOURCE_NAME: _source_name(manifest),
        SOURCE_TYPE: "LOCAL",
        GIT_COMMIT: (manifest.get("git") or {}).get("commit"),
        USER: str(manifest.get("submitter") or "").partition("@")[0],
        "own_code": _from_manifest(paths, "extensions", "digest"),
        "results": paths.root,
        "rehearsal": "true" if spec.is_rehearsal else "",
        "mlflow.note.content": "\n\n".join(text for text in (spec.header.question, spec.header.expected) if text),
    }
    return SweepDescription(
        name=paths.name,
        # The first record names host, process and time, so sweeps of one name on one server stay apart.
        identity=hashlib.sha256(first.data).hexdigest()[:16],
        generation=generation(paths.journal),
        configurations=configurations(spec),
        varying=varying_columns(spec.space),
        tags={key: str(value) for key, value in facts.items() if value not in (None, "")},
        every=epochs_between_points(spec.scheduler.max_epochs),
        dataset=spec.dataset,
        recorded=manifest.get("dataset") or {},
    )


def _source_name(manifest: Mapping[str, Any]) -> str:
    """Return the search space that the command named, e.g. `quickstart`; else the program's name."""
    words = [str(word) for word in manifest.get("command") or ()]
    named = [word for word in words[words.index("run") + 1 :] if not word.startswith("-")] if "run" in words else []
    return named[0] if named else "sweeper"


def _from_manifest(paths: SweepPaths, part: str, key: str) -> str:
    """Return a fact of the sweep's manifest; nothing where it does not say, or cannot be read."""
    manifest = read_manifest(paths.manifest, unknown_if_damaged=True)
    return str((manifest.get(part) or {}).get(key) or "")
