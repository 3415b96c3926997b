"""Journal records as table rows: the one place that says which row a record adds to which table.

Every projection of the journal (Parquet, MLflow) goes through `JournalRows`, so all of them show the same rows. A
trial that went back to an older checkpoint measures some epochs a second time; the first row that was journaled is
kept, because readers have seen it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from sweeper.core.ids import trial_name
from sweeper.journal.journal import Record

SCALAR_TABLES = ("epochs", "evaluations", "decisions")
"""The tables whose rows travel through the journal."""


class JournalRows:
    """Turns records, in order, into rows, each row once. Its memory grows with trials, not with records."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Any, ...], int] = {}
        self._decided: dict[int, tuple[int, set[str]]] = {}

    def project(self, record: Record) -> dict[str, list[dict[str, Any]]]:
        """Return the rows that `record` adds, by table; empty for a record that adds none."""
        if record.kind != "report":
            return {}
        rows = {
            "epochs": list(self._measured(record, "epochs")),
            "evaluations": list(self._measured(record, "evaluations")),
            "decisions": self._decision(record),
        }
        return {table: added for table, added in rows.items() if added}

    def _measured(self, record: Record, table: str) -> Iterator[dict[str, Any]]:
        configuration = record.body["configuration"]
        trial = trial_name(configuration)
        for row in record.body[table]:
            key = (table, configuration, row["replicate"], row.get("split"))
            if row["epoch"] > self._newest.get(key, 0):
                self._newest[key] = row["epoch"]
                yield {"trial": trial, **row}

    def _decision(self, record: Record) -> list[dict[str, Any]]:
        decision = record.body["decision"]
        if decision is None:
            return []
        configuration, epoch = record.body["configuration"], record.body["epoch"]
        newest, kinds = self._decided.get(configuration, (0, set()))
        if epoch < newest or (epoch == newest and decision["kind"] in kinds):
            return []
        self._decided[configuration] = (epoch, {decision["kind"]} | (kinds if epoch == newest else set()))
        decided_at = datetime.datetime.fromtimestamp(record.time, datetime.UTC).replace(tzinfo=None)
        return [{"trial": trial_name(configuration), "epoch": epoch, **decision, "decided_at": decided_at}]
