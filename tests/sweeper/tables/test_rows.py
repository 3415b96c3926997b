"""Rows of the tables: what any decision of a scheduler becomes."""

from __future__ import annotations

import pytest

from sweeper.core.schemas import record_batch, table_schemas
from sweeper.journal.decision import Decision
from sweeper.journal.records import Judged, Record, Reported
from sweeper.tables.rows import JournalRows
from trainables.worker.trial_reports import TrialReport

TOLD = Decision(9, "complete", "reached it", 0.2, 0.3, 4, "resnet8", False, {"val_accuracy": 0.9})
SILENT = Decision(None, "continue", "no rung", None, None, 0)


@pytest.mark.parametrize("decision", [TOLD, SILENT], ids=["everything is said", "nothing but what must be"])
def test_every_decision_fits_its_table(decision: Decision) -> None:
    schema = table_schemas({}, 10, ())["decisions"]
    report = TrialReport(3, 9, 0.2, "cpu", None, 1.0)
    bodies = Reported(report, 1, "completed", decision), Judged(4, 1, 9, "waiting", decision)
    for body in bodies:
        rows = JournalRows().project(Record(1, 12.5, body))["decisions"]
        written = record_batch("decisions", schema, rows).to_pylist()
        kept = {name: value for name, value in decision.to_dict().items() if name in schema.names}
        assert [{name: row[name] for name in kept} for row in written] == [kept]
