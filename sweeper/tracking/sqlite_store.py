"""Writing runs into a local SQLite store in bulk: all that a pass has to say, in one transaction.

The public client spends 32 ms of processor time on a trial of 130 points and 2.5 s on its own start, this 2 ms and
none, on cores that train. It writes the rows that the client would write; one test suite holds both to the same
results.

The tables are MLflow's own affair. So this way is taken with the releases it was tested with, for stores whose tables
are theirs; with any other release, `sqlite_store` gives the public client.
"""

from __future__ import annotations

import getpass
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sweeper.tracking.client_store import (
    DESCRIPTION_TAG,
    EXPERIMENT_TAGS,
    ClientStore,
    FoundRun,
)
from sweeper.tracking.diagrams import DIAGRAM_TAG
from sweeper.tracking.empty_store import provide
from sweeper.tracking.runs import SWEEP_RUN, RunUpdate
from sweeper.tracking.sqlite_rows import (
    Row,
    experiment_tags,
    insert,
    insert_datasets,
    latest_rows,
    metric_rows,
    param_rows,
    tag,
    tag_rows,
)
from trainables.files.atomic import replacing
from trainables.files.locks import file_lock

BULK_VERSIONS = {"3.17": "dc11669786a5"}
"""Releases of MLflow whose tables are written in bulk, and the revision that marks such tables. Add a release when the
tests of this folder pass with it."""

PATIENCE_SECONDS = 15.0
"""How long another writer may have the file before a call gives up; below `DATABASE_ANSWERS_WITHIN`."""


class SqliteStore(ClientStore):
    """The runs of one sweep in a SQLite file: found and written in bulk, the rest through the client."""

    def load(self) -> None:
        """Import nothing: MLflow is needed for what is rare only."""

    def prepare(self) -> None:
        """Open the store and the experiment; one process at a time, because creating the tables may take seconds."""
        self._path = Path(self._uri.removeprefix("sqlite:///").partition("?")[0])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(self._path.with_name(f".{self._path.name}.lock")):
            provide(self._path)
            if self._revision() not in BULK_VERSIONS.values():
                self._client.get_experiment_by_name(self._experiment)  # makes the tables, or says what is wrong
                if (found := self._revision()) not in BULK_VERSIONS.values():
                    raise sqlite3.DatabaseError(f"{self._path.name} has the tables of another MLflow: revision {found}")
            super().prepare()

    def write(self, updates: Iterable[RunUpdate]) -> None:
        """Write updates in one transaction: afterwards all of them are stored, or, on an error, none."""
        batch = list(updates)
        made = {update.place: self._run_id_of(update) for update in batch if update.place not in self._run_ids}
        ids = {**self._run_ids, **made}
        with self._session() as session:
            insert(session, "runs", (self._run_row(update, ids) for update in batch if update.place in made))
            ends = ((u.status, u.end_time, ids[u.place]) for u in batch if u.place not in made)
            session.executemany("UPDATE runs SET status = ?, end_time = ? WHERE run_uuid = ?", ends)
            insert_datasets(session, self._experiment_id, [update for update in batch if update.place in made], made)
            insert(session, "tags", tag_rows(batch, ids, made), replace=("value",))
            insert(session, "params", param_rows(batch, ids))
            insert(session, "metrics", metric_rows(batch, ids))
            insert(session, "latest_metrics", latest_rows(batch, ids), replace=("value", "timestamp", "step", "is_nan"))
        self._run_ids = ids
        self._statuses |= {update.place: update.status for update in batch}

    def set_parent_tag(self, key: str, value: str) -> None:
        """Set a tag of the parent run."""
        with self._session() as session:
            insert(session, "tags", [tag(self._run_ids[SWEEP_RUN], key, value)], replace=("value",))
        self._tags[key] = value

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Attach a file to the parent run, in `folder`."""
        if local_folder(self._artifacts) is None:
            super().log_artifact(path, folder)
        else:
            self._copy(path, SWEEP_RUN, folder)

    def draw(self, files: Mapping[int, tuple[Path, int]]) -> None:
        """Attach diagrams to trials' runs: copied next to each other, and all their tags in one transaction."""
        if local_folder(self._artifacts) is None:
            super().draw(files)
            return
        for place, (path, _) in files.items():
            self._copy(path, place)
        tags = [tag(self._run_ids[place], DIAGRAM_TAG, str(epoch)) for place, (_, epoch) in files.items()]
        with self._session() as session:
            insert(session, "tags", tags, replace=("value",))
        self.drawn |= {place: str(epoch) for place, (_, epoch) in files.items()}

    def _copy(self, path: Path, place: int, folder: str | None = None) -> None:
        """Copy a file to where the artifacts of a run are, on this machine."""
        root = local_folder(self._artifacts)
        assert root is not None
        target = root / self._run_ids[place] / "artifacts" / (folder or "") / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            shutil.copyfile(path, temporary)

    def _open_experiment(self) -> str:
        with self._session() as session:
            asked = (
                "SELECT experiment_id, artifact_location, lifecycle_stage FROM experiments "
                "WHERE name = ? AND workspace = 'default'"
            )
            found = session.execute(asked, (self._experiment,)).fetchone()
            if found is None and self._artifact_location is not None:
                now = int(time.time() * 1000)
                row: Row = {"name": self._experiment, "artifact_location": self._artifact_location}
                row |= {"lifecycle_stage": "active", "creation_time": now, "last_update_time": now}
                insert(session, "experiments", [row])
                found = session.execute(asked, (self._experiment,)).fetchone()
                tags = {DESCRIPTION_TAG: self._description, **EXPERIMENT_TAGS}
                insert(session, "experiment_tags", experiment_tags(found[0], tags))
            if found is not None:
                insert(session, "experiment_tags", experiment_tags(found[0], self._more_tags), replace=("value",))
        if found is None or found[2] != "active":
            identifier = super()._open_experiment()
            self._artifacts = str(self._client.get_experiment(identifier).artifact_location)
            return identifier
        self._artifacts = str(found[1])
        return str(found[0])

    def _find_runs(self) -> list[FoundRun]:
        # The client's search loads every metric of every run along with its tags.
        ours = "SELECT run_uuid FROM tags WHERE key = 'sweep_id' AND value = ?"
        tags: dict[str, dict[str, str]] = {}
        with self._session() as session:
            named = f"SELECT run_uuid, key, value FROM tags WHERE run_uuid IN ({ours})"
            for run_id, key, value in session.execute(named, (self._sweep_id,)):
                tags.setdefault(run_id, {})[key] = value
            columns = "SELECT run_uuid, status, lifecycle_stage, start_time FROM runs WHERE experiment_id = ?"
            found = session.execute(columns, (int(self._experiment_id),)).fetchall()
        return [
            FoundRun(run_id, status, stage == "active", start_time, tags[run_id])
            for run_id, status, stage, start_time in found
            if run_id in tags
        ]

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        """Give a connection whose statements are one transaction: stored on leaving, or, on an error, none of them."""
        with closing(sqlite3.connect(self._path, timeout=PATIENCE_SECONDS)) as connection, connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def _revision(self) -> str | None:
        """Return the mark of the store's tables; `None` where there are none."""
        if not self._path.is_file():
            return None
        with closing(sqlite3.connect(self._path, timeout=PATIENCE_SECONDS)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
                return None
            return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])

    def _run_id_of(self, update: RunUpdate) -> str:
        # A run gets the same identifier from every process, so the key itself prevents a second one.
        name = f"{self._sweep_id}/{update.place}" + (f"/{self._generation}" if self._generation else "")
        return uuid.uuid5(uuid.NAMESPACE_URL, name).hex

    def _run_row(self, update: RunUpdate, ids: dict[int, str]) -> Row:
        run_id = ids[update.place]
        return {
            "run_uuid": run_id,
            "name": update.name,
            "source_type": "UNKNOWN",
            "source_name": "",
            "entry_point_name": "",
            "source_version": "",
            "user_id": getpass.getuser(),
            "status": update.status,
            "start_time": update.start_time,
            "end_time": update.end_time,
            "lifecycle_stage": "active",
            "artifact_uri": f"{self._artifacts.rstrip('/')}/{run_id}/artifacts",
            "experiment_id": int(self._experiment_id),
        }


def sqlite_store() -> type[ClientStore]:
    """Return how SQLite files are written with the MLflow that is installed: in bulk, or through the public client."""
    release = ".".join(version("mlflow").split(".")[:2])
    return SqliteStore if release in BULK_VERSIONS else ClientStore


def local_folder(uri: str) -> Path | None:
    """Return the folder that an artifact location names, or `None` when it is no folder of this machine."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") else None
