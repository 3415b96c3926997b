"""Rows of MLflow's tables in a SQLite store: how what a pass has to say becomes what MLflow itself would write."""

from __future__ import annotations

import math
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sweeper.tracking.client_store import PARENT_TAG, SEQUENCE_TAG
from sweeper.tracking.dataset_input import CONTEXT, CONTEXT_TAG, UsedDataset
from sweeper.tracking.points import Point
from sweeper.tracking.runs import SWEEP_RUN, RunUpdate

LARGEST = 1.7976931348623157e308
"""What MLflow's SQL store writes for an infinite value."""

Row = dict[str, object]

KEYS = {
    "experiment_tags": "key, experiment_id",
    "tags": "key, run_uuid",
    "latest_metrics": "key, run_uuid",
}
"""Table → the columns by which a row is found that is there already."""


def insert(session: sqlite3.Connection, table: str, rows: Iterable[Row], replace: Sequence[str] = ()) -> None:
    """Insert rows; where the key exists, replace the columns `replace`, or leave the row when there are none."""
    values = list(rows)
    if not values:
        return
    names = list(values[0])
    conflict = "ON CONFLICT DO NOTHING"
    if replace:
        newer = f" WHERE excluded.step >= {table}.step" if "step" in replace else ""
        changes = ", ".join(f"{name} = excluded.{name}" for name in replace)
        conflict = f"ON CONFLICT ({KEYS[table]}) DO UPDATE SET {changes}{newer}"
    places = ", ".join(f":{name}" for name in names)
    session.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places}) {conflict}", values)


def experiment_tags(experiment_id: object, tags: Mapping[str, str]) -> Iterator[Row]:
    """Yield rows of `experiment_tags`."""
    for key, value in tags.items():
        yield {"experiment_id": experiment_id, "key": key, "value": value}


def insert_datasets(
    session: sqlite3.Connection, experiment_id: str, created: Sequence[RunUpdate], ids: Mapping[int, str]
) -> None:
    """Insert what new runs train on, and that they do."""
    known: dict[UsedDataset, str] = {}
    for used in {update.dataset for update in created if update.dataset is not None}:
        key = {"experiment_id": int(experiment_id), "name": used.name, "digest": used.digest}
        row: Row = {"dataset_source_type": used.source_type, "dataset_source": used.source}
        row |= {"dataset_profile": used.profile, "dataset_uuid": uuid.uuid4().hex}
        insert(session, "datasets", [{**key, **row}])
        where = "experiment_id = :experiment_id AND name = :name AND digest = :digest"
        known[used] = str(session.execute(f"SELECT dataset_uuid FROM datasets WHERE {where}", key).fetchone()[0])
    inputs: list[Row] = [
        {"input_uuid": uuid.uuid4().hex, "source_type": "DATASET", "source_id": known[update.dataset],
         "destination_type": "RUN", "destination_id": ids[update.place], "step": 0}
        for update in created
        if update.dataset is not None
    ]  # fmt: skip
    insert(session, "inputs", inputs)
    insert(
        session, "input_tags", ({"input_uuid": i["input_uuid"], "name": CONTEXT_TAG, "value": CONTEXT} for i in inputs)
    )


def tag(run_id: str, key: str, value: str) -> Row:
    """Return a row of `tags` or `params`."""
    return {"run_uuid": run_id, "key": key, "value": value}


def tag_rows(updates: Sequence[RunUpdate], ids: dict[int, str], made: dict[int, str]) -> Iterator[Row]:
    """Yield the tags of updates; a new run has also those that it is found by."""
    for update in updates:
        tags = {**update.tags, SEQUENCE_TAG: str(update.sequence)}
        if update.place in made:
            tags |= {**update.identity, "mlflow.runName": update.name}
            if update.place != SWEEP_RUN:
                tags[PARENT_TAG] = ids[SWEEP_RUN]
        for key, value in tags.items():
            yield tag(ids[update.place], key, value)


def param_rows(updates: Sequence[RunUpdate], ids: dict[int, str]) -> Iterator[Row]:
    """Yield the params of updates."""
    for update in updates:
        for key, value in update.params.items():
            yield tag(ids[update.place], key, value)


def metric_rows(updates: Sequence[RunUpdate], ids: dict[int, str]) -> Iterator[Row]:
    """Yield all points of updates."""
    for update in updates:
        for point in update.points:
            yield _metric_row(ids[update.place], point)


def latest_rows(updates: Sequence[RunUpdate], ids: dict[int, str]) -> Iterator[Row]:
    """Yield each metric's last point of updates."""
    for update in updates:
        latest: dict[str, Point] = {}
        for point in update.points:
            if point.key not in latest or point.step >= latest[point.key].step:
                latest[point.key] = point
        for point in latest.values():
            yield _metric_row(ids[update.place], point)


def _metric_row(run_id: str, point: Point) -> Row:
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
