"""Journal records as table rows: the one place that says which row a record adds to which table.

Every projection of the journal (Parquet, trackers) goes through `JournalRows`, so all of them show the same rows. A
trial that went back to an older checkpoint measures some epochs a second time; the first row that was journaled is
kept, because readers have seen it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from sweeper.core.ids import trial_name
from sweeper.journal.decision import Decision
from sweeper.journal.records import Judged, Record, Reported
from trainables.worker.trial_reports import Row

SCALAR_TABLES = ("epochs", "evaluations", "decisions")
"""The tables whose rows travel through the journal."""


class JournalRows:
    """Turns records, in order, into rows, each row once. Its memory grows with trials, not with records."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int, int, str | None], int] = {}
        self._decided: dict[int, tuple[int, set[str]]] = {}

    def project(self, record: Record) -> dict[str, list[Row]]:
        """Return the rows that `record` adds, by table; empty for a record that adds none."""
        body = record.body
        if isinstance(body, Judged):
            return {"decisions": [_decision_row(body.configuration, body.epoch, body.decision, record.time)]}
        if not isinstance(body, Reported):
            return {}
        rows = {
            "epochs": list(self._measured("epochs", body.configuration, body.report.epochs)),
            "evaluations": list(self._measured("evaluations", body.configuration, body.report.evaluations)),
            "decisions": self._decision(body, record.time),
        }
        return {table: added for table, added in rows.items() if added}

    def _measured(self, table: str, configuration: int, rows: Iterable[Row]) -> Iterator[Row]:
        trial = trial_name(configuration)
        for row in rows:
            key = (table, configuration, row["replicate"], row.get("split"))
            if row["epoch"] > self._newest.get(key, 0):
                self._newest[key] = row["epoch"]
                yield {"trial": trial, **row}

    def _decision(self, body: Reported, time: float) -> list[Row]:
        configuration, epoch, decision = body.configuration, body.epoch, body.decision
        if decision is None:
            return []
        newest, kinds = self._decided.get(configuration, (0, set()))
        if epoch < newest or (epoch == newest and decision.kind in kinds):
            return []
        self._decided[configuration] = (epoch, {decision.kind} | (kinds if epoch == newest else set()))
        return [_decision_row(configuration, epoch, decision, time)]


def _decision_row(configuration: int, epoch: int, decision: Decision, time: float) -> Row:
    decided_at = datetime.datetime.fromtimestamp(time, datetime.UTC).replace(tzinfo=None)
    # Constraints are not columns here: the reason says whether they are kept, and `evaluations` has their metrics.
    said = {key: value for key, value in decision.to_dict().items() if key not in ("feasible", "constrained")}
    return {"trial": trial_name(configuration), "epoch": epoch, **said, "decided_at": decided_at}
