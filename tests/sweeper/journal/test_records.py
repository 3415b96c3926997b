"""Every kind of record is read and written as release 0.1 wrote it, byte for byte; what is older is upgraded.

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
from sweeper.journal.records import Attempt, Body, Decision, Failed, Record, ReplicateReported, Reported, body_from_json
from tests.sweeper.records import made_body, made_record
from trainables.worker.trial_reports import Failure, TrialReport

WRITTEN = {
    "0000000000-attempt.json": (
        '{"sequence":0,"kind":"attempt","time":1.5,"body":{"attempt":1,"host":"here","pid":7,"code":"3f0c"}}'
    ),
    "0000000002-suggested-c00004.json": (
        '{"sequence":2,"kind":"suggested","time":1.5,"body":{"configuration":4,"values":{"loss":{"name":"focal",'
        '"gamma":2.5}},"choices":{"loss":1},"config_hash":"9b2","searcher":"optuna 4.5.0"}}'
    ),
    "0000000013-drawn.json": (
        '{"sequence":13,"kind":"drawn","time":1.5,"body":{"first":4,"values":[{"loss":{"name":"focal","gamma":2.5}}]}}'
    ),
    "0000000014-added.json": (
        '{"sequence":14,"kind":"added","time":1.5,"body":{"round":1,"seeds":[{"configuration":1000000,"trial":4,'
        '"replicate":2,"seed":7,"values":{"loss":{"name":"focal","gamma":2.5}},"question":"loss"}]}}'
    ),
    "0000000003-started-c00004.json": (
        '{"sequence":3,"kind":"started","time":1.5,"body":{"configuration":4,"attempt":1}}'
    ),
    "0000000004-started-c00005.json": (
        '{"sequence":4,"kind":"started","time":1.5,"body":{"configuration":5,"replicate":0,"attempt":1}}'
    ),
    "0000000005-replicate-c00005-e00003.json": (
        '{"sequence":5,"kind":"replicate","time":1.5,"body":{"configuration":5,"replicate":1,"attempt":1,"epoch":3,'
        '"pauses":true,"device":"cpu","packing":"trials","wall_seconds":0.5,'
        '"epochs":[{"replicate":1,"epoch":3,"val_nll":0.7}],"evaluations":[]}}'
    ),
    "0000000006-replicate-c00005-e00004.json": (
        '{"sequence":6,"kind":"replicate","time":1.5,"body":{"configuration":5,"replicate":1,"attempt":1,"epoch":4,'
        '"pauses":false,"failure":{"kind":"non_finite","values":{"metric":"val_nll","epoch":4},"message":"",'
        '"counts":true},'
        '"device":"cpu","packing":"trials","wall_seconds":0.5,"epochs":[{"replicate":1,"epoch":4,"val_nll":NaN}],'
        '"evaluations":[]}}'
    ),
    "0000000007-report-c00004-e00002.json": (
        '{"sequence":7,"kind":"report","time":1.5,"body":{"configuration":4,"epoch":2,"objective":0.7,"device":"cpu",'
        '"packing":"lanes","wall_seconds":0.5,"epochs":[{"replicate":0,"epoch":2,"val_nll":0.7}],"evaluations":[],'
        '"attempt":1,"status":"running","decision":null}}'
    ),
    "0000000008-report-c00004-e00003.json": (
        '{"sequence":8,"kind":"report","time":1.5,"body":{"configuration":4,"epoch":3,"objective":0.7,"device":"cpu",'
        '"packing":"trials","wall_seconds":0.5,"epochs":[],"evaluations":[{"replicate":0,"epoch":3,"split":"val"}],'
        '"replicate_errors":{"2":{"kind":"crash","values":{},"message":"","counts":true},'
        '"1":{"kind":"non_finite","values":{"value":"nan"},"message":"","counts":true}},'
        '"attempt":1,"status":"early_stopped","decision":{"kind":"stop","rule":"cutoff","rung":3,'
        '"metric":0.7,"place":4,"count":5,"cutoff":0.5,"left_out":2}}}'
    ),
    "0000000009-report-c00005-e00004.json": (
        '{"sequence":9,"kind":"report","time":1.5,"body":{"configuration":5,"epoch":4,"objective":NaN,"device":"cuda",'
        '"packing":"lanes","wall_seconds":0.5,"epochs":[],"evaluations":[],'
        '"failure":{"kind":"timed_out","values":{"seconds":3.5},"message":"","counts":true},"attempt":1,'
        '"status":"failed","decision":{"kind":"fail","rule":"timed_out","rung":null,"metric":null}}}'
    ),
    "0000000010-failed-c00004-e00003.json": (
        '{"sequence":10,"kind":"failed","time":1.5,"body":{"configuration":4,"attempt":1,"epoch":3,'
        '"failure":{"kind":"gpu_out_of_memory","values":{"share":0.25},"message":"CUDA","counts":false},'
        '"final":false,"share":0.5}}'
    ),
    "0000000011-failed-c00005-e00003.json": (
        '{"sequence":11,"kind":"failed","time":1.5,"body":{"configuration":5,"replicate":0,"attempt":1,"epoch":3,'
        '"failure":{"kind":"crash","values":{"signal":"SIGKILL"},"message":"","counts":true},'
        '"given_up":true,"final":false}}'
    ),
    "0000000013-judged-c00006-e00003.json": (
        '{"sequence":13,"kind":"judged","time":1.5,"body":{"configuration":6,"attempt":1,"epoch":3,'
        '"status":"waiting","decision":{"kind":"continue","rule":"quota","rung":3,"metric":0.5,"place":1,'
        '"count":9,"quota":3,"kept_by":"keep_at_least","stratum":"mlp"}}}'
    ),
    "0000000012-ended.json": (
        '{"sequence":12,"kind":"ended","time":1.5,"body":{"attempt":1,"outcome":"stopped",'
        '"reason":{"kind":"asked","values":{},"message":""}}}'
    ),
}
"""What releases wrote (all but `judged` release 0.1), by file name, without the checksum: all kinds, with and
without optional keys."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_record_is_written_again_byte_for_byte(name: str) -> None:
    data = _checksummed(WRITTEN[name].encode())
    record = Record.from_bytes(data)
    assert record.to_bytes() == data
    assert record.file_name == name


def test_every_kind_is_among_them() -> None:
    assert {json.loads(text)["kind"] for text in WRITTEN.values()} == {kind.kind for kind in get_args(Body)}


def test_what_older_journals_lack_is_filled_in() -> None:
    assert body_from_json("attempt", {"attempt": 1, "host": "here", "pid": 1}) == Attempt(1, "here", 1, None)
    failed = {"configuration": 0, "attempt": 1, "epoch": 3, "failure": {"kind": "crash"}}
    assert body_from_json("failed", failed) == Failed(0, 1, 3, Failure("crash"), final=True)
    report = json.loads(WRITTEN["0000000007-report-c00004-e00002.json"])["body"]
    del report["packing"]
    body = body_from_json("report", report)
    assert isinstance(body, Reported) and body.report.packing is None and body.report.replicate_errors == {}


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
    "attempt": {"attempt": 1, "host": "here", "pid": 1, "code": "c", "space": {"samples": 1}},
    "suggested": {"configuration": 0, "values": {"loss": {"name": "focal"}}, "choices": {"a": 0.5}, "config_hash": "0",
                  "searcher": "tpe 4"},
    "drawn": {"first": 3, "values": [{"loss": {"name": "focal", "gamma": 2.0}}]},
    "started": {"configuration": 0, "attempt": 1, "replicate": 0},
    "replicate": {**REPORT, "replicate": 0, "pauses": True, "failure": FAILURE},
    "report": {**REPORT, "status": "running", "decision": DECISION, "config_hash": "0"},
    "judged": {"configuration": 0, "attempt": 1, "epoch": 3, "status": "waiting", "decision": DECISION},
    "failed": {"configuration": 0, "attempt": 1, "epoch": 3, "failure": FAILURE, "final": False,
               "replicate": 0, "given_up": False, "share": 0.5},
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
