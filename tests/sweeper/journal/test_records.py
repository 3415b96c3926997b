"""Every kind of record is read and written as release 0.1 wrote it, byte for byte; what is older is upgraded."""

import dataclasses
import hashlib
import json
import math
from typing import get_args

import pytest
from hypothesis import given, strategies as st

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
        '"packing":"fused","wall_seconds":0.5,"epochs":[{"replicate":0,"epoch":2,"val_nll":0.7}],"evaluations":[],'
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
        '"packing":"fused","wall_seconds":0.5,"epochs":[],"evaluations":[],'
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
    content = WRITTEN[name].encode()
    data = hashlib.sha256(content).hexdigest().encode() + b"\n" + content
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
