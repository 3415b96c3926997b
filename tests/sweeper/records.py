"""Records made of the fields that matter to a test, and records as the plain values that lie on disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.journal import segments
from sweeper.journal.records import Body, Record, body_from_json
from trainables.worker.trial_reports import TrialReport

_REPORT = {"objective": None, "device": "cpu", "packing": "sequential", "wall_seconds": 0.0, "epochs": [],
           "evaluations": []}  # fmt: skip
_PLACE = {"configuration": 0, "epoch": 1, "attempt": 1}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "attempt": {"attempt": 1, "host": "here", "pid": 1},
    "suggested": {"configuration": 0, "values": {}, "choices": {}, "config_hash": "", "searcher": "x 1"},
    "drawn": {"first": 0, "values": []},
    "added": {"round": 1, "seeds": []},
    "started": {"configuration": 0, "attempt": 1},
    "replicate": {**_PLACE, "replicate": 0, "pauses": False, **_REPORT},
    "arrived": {**_PLACE, **_REPORT},
    "report": {**_PLACE, "status": "running", "decision": None, **_REPORT},
    "judged": {**_PLACE, "status": "waiting", "decision": {}},
    "failed": {**_PLACE, "failure": {"kind": "crash"}, "final": False},
    "ended": {"attempt": 1, "outcome": "finished"},
}
_DECISION = {"kind": "continue", "rule": "first", "rung": None}


def made_body(kind: str, values: Mapping[str, Any] | None = None) -> Body:
    """Return what a record says, from what a file would; what is left out is filled in."""
    written = {**_DEFAULTS.get(kind, {}), **(values or {})}
    if written.get("decision") is not None:
        written["decision"] = {**_DECISION, **written["decision"]}
    for table, least in (("epochs", {"replicate": 0}), ("evaluations", {"replicate": 0, "split": "val"})):
        if table in written:
            written[table] = [{**least, **row} for row in written[table]]
    return body_from_json(kind, written)


def made_record(sequence: int, kind: str, time: float, values: Mapping[str, Any] | None = None) -> Record:
    """Return a record with such a body."""
    return Record(sequence, time, made_body(kind, values))


def fields(record: Record) -> dict[str, Any]:
    """Return what a record says, as its file has it."""
    return record.body.to_json()


def trial_report(**values: Any) -> TrialReport:
    """Return what a process reports; what is left out is filled in."""
    return TrialReport.from_dict({"configuration": 0, "epoch": 1, **_REPORT, **values})


def record_names(folder: Path) -> list[str]:
    """Return the names of the files of one record each, in the order of their sequence; segments are not among them."""
    return [piece.name for piece in segments.pieces(folder) if not piece.sealed]
