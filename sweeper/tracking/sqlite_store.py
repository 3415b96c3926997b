"""Writing runs into a local SQLite store in bulk: all that a pass has to say, in one transaction.

The public client spends 32 ms of processor time on a trial of 130 points, this 2 ms, on cores that train. It writes the
rows that the client would write, through MLflow's own table definitions; one test suite holds both to the same results.

The tables and the session maker are private to MLflow. So this way is taken with the versions it was tested with; with
any other, `sqlite_store` gives the public client.
"""

from __future__ import annotations

import getpass
import math
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sweeper.tracking.client_store import PARENT_TAG, SEQUENCE_TAG, ClientStore, FoundRun
from sweeper.tracking.diagrams import DIAGRAM_TAG
from sweeper.tracking.points import Point
from sweeper.tracking.runs import SWEEP_RUN, RunUpdate
from trainables.files.atomic import replacing
from trainables.files.locks import file_lock

BULK_VERSIONS = ("3.17",)
"""Releases of MLflow whose tables are written in bulk. Add one when the tests of this folder pass with it."""

LARGEST = 1.7976931348623157e308
"""What MLflow's SQL store writes for an infinite value."""

_ROWS_A_STATEMENT = 5000


class SqliteStore(ClientStore):
    """The runs of one sweep in a SQLite file: found as by the client, written in bulk."""

    def prepare(self) -> None:
        """Open the store and the experiment; one process at a time, because creating the tables takes seconds."""
        path = Path(self._uri.removeprefix("sqlite:///").partition("?")[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path.with_name(f".{path.name}.lock")):
            super().prepare()
        from mlflow.store.tracking.dbmodels import models

        self._models = models
        self._sessions = self._client._tracking_client.store.ManagedSessionMaker
        self._artifacts = self._client.get_experiment(self._experiment_id).artifact_location

    def write(self, updates: Iterable[RunUpdate]) -> None:
        """Write updates in one transaction: afterwards all of them are stored, or, on an error, none."""
        batch = list(updates)
        made = {update.place: self._run_id_of(update) for update in batch if update.place not in self._run_ids}
        ids = {**self._run_ids, **made}
        with self._sessions(read_only=False) as session:
            self._insert(session, "SqlRun", (self._run_row(update, ids) for update in batch if update.place in made))
            self._set_statuses(session, [update for update in batch if update.place not in made])
            self._insert(session, "SqlTag", _tag_rows(batch, ids, made), replace=("value",))
            self._insert(session, "SqlParam", _param_rows(batch, ids))
            self._insert(session, "SqlMetric", _metric_rows(batch, ids))
            latest = _latest_rows(batch, ids)
            self._insert(session, "SqlLatestMetric", latest, replace=("value", "timestamp", "step", "is_nan"))
        self._run_ids = ids
        self._statuses |= {update.place: update.status for update in batch}

    def draw(self, files: Mapping[int, tuple[Path, int]]) -> None:
        """Attach diagrams to trials' runs: copied next to each other, and all their tags in one transaction."""
        folder = local_folder(self._artifacts)
        if folder is None:
            super().draw(files)
            return
        for place, (path, _) in files.items():
            target = folder / self._run_ids[place] / "artifacts" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as temporary:
                shutil.copyfile(path, temporary)
        tags = [
            {"run_uuid": self._run_ids[place], "key": DIAGRAM_TAG, "value": str(epoch)}
            for place, (_, epoch) in files.items()
        ]
        with self._sessions(read_only=False) as session:
            self._insert(session, "SqlTag", tags, replace=("value",))
        self.drawn |= {place: str(epoch) for place, (_, epoch) in files.items()}

    def _find_runs(self) -> list[FoundRun]:
        # The client's search loads every metric of every run along with its tags.
        from sqlalchemy import select

        run, tag = self._models.SqlRun.__table__.c, self._models.SqlTag.__table__.c
        ours = select(tag.run_uuid).where(tag.key == "sweep_id", tag.value == self._sweep_id)
        tags: dict[str, dict[str, str]] = {}
        with self._sessions() as session:
            named = select(tag.run_uuid, tag.key, tag.value).where(tag.run_uuid.in_(ours))
            for run_id, key, value in session.execute(named):
                tags.setdefault(run_id, {})[key] = value
            columns = select(run.run_uuid, run.status, run.lifecycle_stage, run.start_time)
            found = session.execute(columns.where(run.experiment_id == int(self._experiment_id))).all()
        return [
            FoundRun(run_id, status, stage == "active", start_time, tags[run_id])
            for run_id, status, stage, start_time in found
            if run_id in tags
        ]

    def _set_statuses(self, session: Any, updates: Sequence[RunUpdate]) -> None:
        from sqlalchemy import bindparam

        table = self._models.SqlRun.__table__
        statement = table.update().where(table.c.run_uuid == bindparam("run"))
        statement = statement.values(status=bindparam("to"), end_time=bindparam("at"))
        rows = [{"run": self._run_ids[u.place], "to": u.status, "at": u.end_time} for u in updates]
        if rows:
            session.connection().execute(statement, rows)

    def _insert(self, session: Any, model: str, rows: Iterable[dict[str, Any]], replace: Sequence[str] = ()) -> None:
        """Insert rows; where the key exists, replace the columns `replace`, or leave the row when there are none."""
        from sqlalchemy.dialects.sqlite import insert

        table = getattr(self._models, model).__table__
        statement = insert(table)
        if replace:
            keys = [column.name for column in table.primary_key]
            newer = statement.excluded.step >= table.c.step if "step" in replace else None
            changes = {name: statement.excluded[name] for name in replace}
            statement = statement.on_conflict_do_update(index_elements=keys, set_=changes, where=newer)
        else:
            statement = statement.on_conflict_do_nothing()
        values = list(rows)
        for first in range(0, len(values), _ROWS_A_STATEMENT):
            session.connection().execute(statement, values[first : first + _ROWS_A_STATEMENT])

    def _run_id_of(self, update: RunUpdate) -> str:
        # A run gets the same identifier from every process, so the key itself prevents a second one.
        name = f"{self._sweep_id}/{update.place}" + (f"/{self._generation}" if self._generation else "")
        return uuid.uuid5(uuid.NAMESPACE_URL, name).hex

    def _run_row(self, update: RunUpdate, ids: dict[int, str]) -> dict[str, Any]:
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


def _tag_rows(updates: Sequence[RunUpdate], ids: dict[int, str], made: dict[int, str]) -> Iterator[dict[str, Any]]:
    for update in updates:
        tags = {**update.tags, SEQUENCE_TAG: str(update.sequence)}
        if update.place in made:
            tags |= {**update.identity, "mlflow.runName": update.name}
            if update.place != SWEEP_RUN:
                tags[PARENT_TAG] = ids[SWEEP_RUN]
        for key, value in tags.items():
            yield {"run_uuid": ids[update.place], "key": key, "value": value}


def _param_rows(updates: Sequence[RunUpdate], ids: dict[int, str]) -> Iterator[dict[str, Any]]:
    for update in updates:
        for key, value in update.params.items():
            yield {"run_uuid": ids[update.place], "key": key, "value": value}


def _metric_rows(updates: Sequence[RunUpdate], ids: dict[int, str]) -> Iterator[dict[str, Any]]:
    for update in updates:
        for point in update.points:
            yield _metric_row(ids[update.place], point)


def _latest_rows(updates: Sequence[RunUpdate], ids: dict[int, str]) -> Iterator[dict[str, Any]]:
    for update in updates:
        latest: dict[str, Point] = {}
        for point in update.points:
            if point.key not in latest or point.step >= latest[point.key].step:
                latest[point.key] = point
        for point in latest.values():
            yield _metric_row(ids[update.place], point)


def _metric_row(run_id: str, point: Point) -> dict[str, Any]:
    """Return a point as MLflow stores it: not-a-number as 0 with a mark, infinity as the largest number."""
    value, is_nan = point.value, math.isnan(point.value)
    if is_nan:
        value = 0.0
    elif math.isinf(value):
        value = math.copysign(LARGEST, value)
    return {
        "run_uuid": run_id,
        "key": point.key,
        "value": value,
        "timestamp": point.timestamp,
        "step": point.step,
        "is_nan": is_nan,
    }
