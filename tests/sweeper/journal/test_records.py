"""Every kind of record reads back as it was written.

Forged records, with valid checksums, are refused by record and field, whatever stands in a field.
"""

import copy
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from sweeper.core.errors import SweeperError
from sweeper.journal.journal import Journal, JournalTail, read_journal, read_kind
from sweeper.journal.records import Attempt, Body, Decision, Record, ReplicateReported, Reported, body_from_json
from tests.sweeper.records import made_body, made_record
from trainables.worker.trial_reports import Failure, TrialReport


def test_an_unknown_kind_and_a_missing_field_are_errors() -> None:
    with pytest.raises(ValueError, match="does not know the record kind 'moved'"):
        body_from_json("moved", {})
    with pytest.raises(ValueError, match="its field 'outcome' is missing"):
        body_from_json("ended", {"attempt": 1})


@given(st.integers(0, 10**10 - 1), st.sampled_from([kind.kind for kind in get_args(Body)]), st.floats(0, 4e9))
def test_records_read_back_as_they_were(sequence: int, kind: str, time: float) -> None:
    record = made_record(sequence, kind, time)
    assert Record.from_bytes(record.to_bytes()) == record


def test_not_a_number_reads_back() -> None:
    again = Record.from_bytes(made_record(0, "report", 0.0, {"objective": math.nan}).to_bytes())
    assert isinstance(again.body, Reported) and math.isnan(again.body.report.objective or 0.0)
    decision = Decision("fail", "non_finite", 3, math.nan)
    assert decision.metric is None and Decision.from_json(decision.to_json()) == decision


def test_half_of_a_surrogate_pair_in_a_message_reads_back() -> None:
    failure = {"kind": "error", "values": {"file": "caf\udce9"}, "message": "\ud83d", "counts": True}
    record = made_record(0, "failed", 0.0, {"failure": failure})
    assert Record.from_bytes(record.to_bytes()) == record


def test_a_report_of_a_process_comes_through_as_plain_values() -> None:
    diverged = Failure("non_finite", {"value": "nan", "epoch": 3})
    body = made_body("replicate", {"failure": diverged.to_dict()})
    assert isinstance(body, ReplicateReported) and body.report.failure == diverged
    report = dataclasses.replace(body.report, replicate_errors={1: diverged})
    plain = report.to_dict()
    assert plain["replicate_errors"] == {"1": diverged.to_dict()}
    assert TrialReport.from_dict(json.loads(json.dumps(plain))) == report


ROW = {"replicate": 0, "epoch": 1, "train_loss": 0.5, "val_nll": math.nan, "lr": 0}
EVALUATION = {"replicate": 0, "epoch": 1, "split": "val", "stage": "rung", "ece": 0.1, "hessian_unavailable": "why"}
DECISION = {"kind": "continue", "rule": "cutoff", "rung": 1, "metric": 0.5, "place": 1, "count": 3, "quota": 1,
            "cutoff": 0.1, "kept_by": "keep_at_least", "left_out": 1, "stratum": "mlp"}  # fmt: skip
FAILURE = {"kind": "crash", "values": {"signal": "SIGKILL", "tries": 2, "share": 0.5}, "message": "", "counts": True}
REPORT = {"configuration": 3, "epoch": 1, "objective": 0.5, "device": "cpu", "packing": "lanes", "wall_seconds": 1.5,
          "epochs": [ROW], "evaluations": [EVALUATION], "gpu": 0.5, "replicate_errors": {"1": FAILURE},
          "attempt": 1}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "attempt": {"attempt": 1, "host": "here", "pid": 1, "code": "c", "space": {"samples": 1},
                "configurations": 3},
    "suggested": {"configuration": 0, "values": {"loss": {"name": "focal"}}, "choices": {"a": 0.5}, "config_hash": "0",
                  "searcher": "tpe 4"},
    "drawn": {"first": 3, "values": [{"loss": {"name": "focal", "gamma": 2.0}}]},
    "added": {"round": 1, "seeds": [{"configuration": 10**6, "trial": 4, "replicate": 2, "seed": 7,
                                     "values": {"loss": {"name": "focal"}}, "question": "loss"}]},
    "started": {"configuration": 0, "attempt": 1, "replicate": 0},
    "replicate": {**REPORT, "replicate": 0, "pauses": True, "failure": FAILURE},
    "arrived": {**REPORT, "failure": FAILURE},
    "report": {**REPORT, "status": "running", "decision": DECISION, "config_hash": "0"},
    "judged": {"configuration": 0, "attempt": 1, "epoch": 3, "status": "waiting", "decision": DECISION},
    "failed": {"configuration": 0, "attempt": 1, "epoch": 3, "failure": FAILURE, "final": False,
               "replicate": 0, "given_up": False, "share": 0.5, "waits": True},
    "ended": {"attempt": 1, "outcome": "stopped", "reason": {"kind": "asked", "values": {}, "message": ""}},
}  # fmt: skip
"""A record of each kind with every field that one may have."""

LISTS: list[object] = [[], ["x"], [None]]
ODD: list[object] = [None, True, -1, 10**30, 0.5, math.inf, "x", "c1/../x", *LISTS, {}, {"x": []}, "\x1b[31m"]


def _checksummed(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def _sealed(sequence: int, kind: object, body: object, time: object = 1.7e9) -> bytes:
    return _checksummed(json.dumps({"sequence": sequence, "kind": kind, "time": time, "body": body}).encode())


def _places(values: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    for key in values if isinstance(values, dict) else range(len(values)) if isinstance(values, list) else ():
        yield from _places(values[key], (*path, key))  # type: ignore[index]  # either of the two


def _with(values: Mapping[str, Any], path: tuple[str | int, ...], new: object) -> dict[str, Any]:
    changed = copy.deepcopy(dict(values))
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return changed


@pytest.mark.parametrize("kind", BODIES)
def test_every_record_reads_back_and_no_odd_field_passes_for_another_type(kind: str) -> None:
    """Whatever is read has the types that it declares: it is written again as it was, or the record is refused."""
    sound = Record.from_bytes(_sealed(0, kind, BODIES[kind]))
    written = sound.body.to_json()
    assert repr(written) == repr({key: BODIES[kind][key] for key in written})
    assert {*BODIES} == {body.kind for body in get_args(Body)}
    refused = 0
    for path in _places(BODIES[kind]):
        for odd in ODD:
            try:
                read = Record.from_bytes(_sealed(0, kind, _with(BODIES[kind], path, odd)))
            except ValueError as error:
                refused += 1
                assert "its field '" in str(error) or "its epochs." in str(error) or "its evaluations." in str(error)
            else:
                assert type(read.body) is type(sound.body) and isinstance(read.file_name, str)
    assert refused > 5 * len(BODIES[kind])


@pytest.mark.parametrize(
    ("kind", "path", "odd"),
    [
        *(("failed", (name,), odd) for name in ("final", "given_up") for odd in (0, 1, 0.5, "x", [], {})),
        *(("replicate", ("pauses",), odd) for odd in (1, "true", [True])),
        *(("report", ("decision", "rule"), odd) for odd in (0, "two words")),
        *(("report", (name,), True) for name in ("configuration", "epoch", "objective", "wall_seconds", "gpu")),
        *(("report", place, True) for place in (("epochs", 0, "epoch"), ("decision", "rung"), ("decision", "metric"))),
        *(("ended", (name,), odd) for name in ("outcome", "reason") for odd in (5, True, ["x"])),
        *(("started", (name,), odd) for name in ("configuration", "attempt", "replicate") for odd in (True, 0.5, "0")),
    ],
)
def test_a_value_of_another_type_is_refused(kind: str, path: tuple[str | int, ...], odd: object) -> None:
    with pytest.raises(ValueError, match="its "):
        Record.from_bytes(_sealed(0, kind, _with(BODIES[kind], path, odd)))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (_sealed(0, "report", None), "not an object with a body"),
        (_sealed(0, "report", []), "not an object with a body"),
        (_sealed(0, ["report"], {}), "its field 'kind' is"),
        (_sealed(0, "attempt", BODIES["attempt"], 1e300), "its field 'time' is"),
        (_sealed(0, "attempt", BODIES["attempt"], "now"), "its field 'time' is"),
        (_sealed(10**40, "attempt", BODIES["attempt"]), "its field 'sequence' is"),
        (_sealed(0, "report", _with(BODIES["report"], ("evaluations", 0, "ece"), "0.1")), "its evaluations.ece is"),
        (_sealed(0, "report", _with(BODIES["report"], ("epochs", 0, "epoch"), 10**9)), "its field 'epoch' is 10000"),
    ],
)
def test_a_forged_record_is_one_sentence_with_record_and_field(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "0000000000-0000000000.records").write_bytes(data + b"\n")
    readers = (read_journal(tmp_path), read_kind(tmp_path, Reported), read_kind(tmp_path, Attempt))
    for reader in (*readers, JournalTail(tmp_path).read()):
        try:
            list(reader)
        except SweeperError as error:
            assert "0000000000" in error.message and said in error.message
    with pytest.raises(SweeperError, match="is damaged"):
        list(read_journal(tmp_path))


def test_a_record_nested_beyond_reading_is_refused(tmp_path: Path) -> None:
    content = b'{"sequence":0,"kind":"attempt","time":1,"body":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (tmp_path / "0000000000-attempt.json").write_bytes(_checksummed(content))
    with pytest.raises(SweeperError, match="is damaged"):
        list(read_journal(tmp_path))
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"x": deep}
    with pytest.raises(ValueError, match="nested more than 40 levels"):
        Record.from_bytes(_sealed(0, "attempt", {**BODIES["attempt"], "space": deep}))
    assert Journal(tmp_path).append(Attempt(1, "here", 1)).sequence == 1
