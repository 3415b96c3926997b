"""What holds for every scheduler: its decisions follow from the journal, wherever it was interrupted."""

import dataclasses
import math

import numpy as np
import pytest

from sweeper.journal.records import Decision, Judged, Record, Reported
from sweeper.scheduling.base import Scheduler, audit, decide, decide_on
from tests.sweeper.records import trial_report
from tests.sweeper.scheduling.journals import HALVING, JOURNALS, played, recorded

KINDS = {"continue", "stop", "complete"}

CHANGES = {
    "kind": lambda v: "stop" if v == "continue" else "continue",
    "metric": lambda v: v + 1e-9,
    "cutoff": lambda v: 0.25 if v is None else np.nextafter(v, 9e9),
    "count": lambda v: v + 1,
    "place": lambda v: (v or 0) + 1,
    "rung": lambda v: v + 1,
    "rule": lambda v: v + "_",
    "kept_by": lambda v: "keep_at_least_too",
    "stratum": lambda v: "mlp, brier",
}


def _changed(record: Record, **values: object) -> Record:
    """Return a record whose decision has other values."""
    decision = dataclasses.replace(record.body.decision, **values)
    return dataclasses.replace(record, body=dataclasses.replace(record.body, decision=decision))


@pytest.mark.parametrize("kind", JOURNALS)
@pytest.mark.parametrize("seed", range(8))
def test_an_audit_recomputes_every_decision_and_finds_each_that_was_changed(kind: str, seed: int) -> None:
    scheduler, journal = JOURNALS[kind]
    records = journal(seed)
    decided = [place for place, record in enumerate(records) if isinstance(record.body, Reported | Judged)]
    assert audit(scheduler, records) == (len(decided), [])
    assert {records[place].body.decision.kind for place in decided} - {"pause"} == KINDS
    rng = np.random.default_rng(seed)
    for field, change in CHANGES.items():
        place = int(rng.choice(decided))
        tampered = _changed(records[place], **{field: change(getattr(records[place].body.decision, field))})
        _, differences = audit(scheduler, [*records[:place], tampered])
        assert [difference.record for difference in differences] == [place], field


@pytest.mark.parametrize("kind", JOURNALS)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_was_replayed_twice_or_in_part_decides_as_it_would_have(kind: str, seed: int) -> None:
    scheduler, journal = JOURNALS[kind]
    records = journal(seed)
    for cut in range(0, len(records), 1 + len(records) // 8):
        once, twice = scheduler.begin(), scheduler.begin()
        for record in records[:cut]:
            once.apply(record)
        for record in [*records[:cut], *records[:cut]]:
            twice.apply(record)
        assert once.promotion() == twice.promotion()
        for record in records[cut:]:
            if isinstance(record.body, Reported):
                assert decide_on(once, record.body.report) == record.body.decision
            once.apply(record)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("epoch", [1, 3, 9, 27])
def test_a_value_that_is_not_finite_fails_at_once(value: float, epoch: int) -> None:
    decision = decide(HALVING.begin(), 0, epoch, value)
    assert decision == Decision("fail", "non_finite", epoch if epoch in HALVING.rungs else None)


def test_between_rungs_nothing_is_decided_and_nothing_has_to_be_measured() -> None:
    assert decide(HALVING.begin(), 0, 4, 0.3) is decide(HALVING.begin(), 0, 4, None) is None
    assert decide(HALVING.begin(), 0, 9, None).kind == "fail"


@pytest.mark.parametrize("scheduler", [JOURNALS[kind][0] for kind in ("halving", "median")])
def test_decide_changes_nothing(scheduler: Scheduler) -> None:
    state = scheduler.begin()
    state.add(scheduler.rungs[0], 0, 0.2)
    first = decide(state, 1, scheduler.rungs[0], 0.5)
    assert decide(state, 1, scheduler.rungs[0], 0.5) == first
    assert state.competitors(scheduler.rungs[0]) == 1


def test_an_audit_finds_a_decision_that_was_not_made() -> None:
    records = recorded(played(HALVING, 1))
    skipped = dataclasses.replace(records[4], body=dataclasses.replace(records[4].body, decision=None))
    assert len(audit(HALVING, [*records[:4], skipped])[1]) == 1


def test_an_audit_takes_a_failures_rule_on_trust_but_not_its_kind() -> None:
    failed = decide(HALVING.begin(), 0, 2, math.nan)
    named = dataclasses.replace(failed, rule="timed_out")
    assert audit(HALVING, recorded([(0, 2, math.nan, named)])) == (1, [])
    went_on = Decision("fail", "non_finite", 3)
    assert len(audit(HALVING, recorded([(0, 3, 0.5, went_on)]))[1]) == 1


def test_a_decision_counts_the_replicates_that_its_mean_leaves_out() -> None:
    state = HALVING.begin()
    state.add(3, 1, 0.5)
    report = trial_report(
        configuration=0, epoch=3, objective=0.4, replicate_errors={"10": {"kind": "error"}, "2": {"kind": "error"}}
    )
    decision = decide_on(state, report)
    plain = decide(state, 0, 3, 0.4)
    assert decision == dataclasses.replace(plain, left_out=2)
    (first,) = recorded([(1, 3, 0.5, decide(HALVING.begin(), 1, 3, 0.5))])
    records = [first, Record(1, 0.0, Reported(report, 1, "running", decision))]
    assert audit(HALVING, records) == (2, [])
    unmarked = dataclasses.replace(records[1], body=Reported(report, 1, "running", plain))
    assert len(audit(HALVING, [records[0], unmarked])[1]) == 1, "a configuration never competes unmarked"
    sound = dataclasses.replace(report, replicate_errors={})
    assert decide_on(state, sound) == plain
    assert decide_on(state, dataclasses.replace(report, objective=math.nan)) == decide(state, 0, 3, math.nan)
